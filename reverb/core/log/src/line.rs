// SPDX-License-Identifier: Apache-2.0
//! A line of the log, before it becomes text.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::SystemTime;

use tracing::Level;
use tracing::field::{Field, Visit};

use crate::escape::escaped;

/// A line of the log.
#[derive(Debug, Clone)]
pub struct Line {
    /// Time of the event.
    pub time: SystemTime,
    /// Severity.
    pub level: Level,
    /// Part of the core that logs it: `server`.
    pub place: Cow<'static, str>,
    /// Fields, such as `table`; their names are distinct.
    pub fields: Vec<(Cow<'static, str>, Value)>,
    /// Message, not escaped: it may contain text of peers.
    pub message: String,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Not escaped.
    Text(String),
    /// A number or a boolean, in JSON.
    Plain(String),
}

impl Line {
    /// A line of the present moment without fields.
    pub fn new(level: Level, target: &str, message: String) -> Self {
        Self {
            time: SystemTime::now(),
            level,
            place: Cow::Owned(place(target).to_owned()),
            fields: Vec::new(),
            message,
        }
    }

    /// The message without characters that could break a line or control a terminal.
    pub fn safe_message(&self) -> String {
        escaped(&self.message)
    }

    /// Text of a field; empty if it is missing.
    pub fn text(&self, name: &str) -> &str {
        let field = self.fields.iter().find(|(known, _)| known == name);
        field.map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(known, _)| known == name)
    }

    /// Sets a field, and replaces its old value.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: Value) {
        let name = name.into();
        match self.fields.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.fields.push((name, value)),
        }
    }
}

impl Value {
    /// The value as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Plain(text) => text,
        }
    }
}

/// Part of the core that a target belongs to: `server` for `reverb_server::memory`.
pub(crate) fn place(target: &str) -> &str {
    let root = target.split("::").next().unwrap_or(target);
    match root {
        "_native" => "python",
        _ => root.strip_prefix("reverb_").unwrap_or(root),
    }
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Fields {
    pub(crate) message: String,
    pub(crate) values: Vec<(&'static str, Value)>,
}

impl Fields {
    fn plain(&mut self, field: &Field, value: impl fmt::Display) {
        self.values.push((field.name(), Value::Plain(value.to_string())));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.values.push((field.name(), Value::Text(text)));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.values.push((field.name(), Value::Text(value.to_owned())));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.plain(field, value);
        } else {
            self.values.push((field.name(), Value::Text(value.to_string())));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.values.push((field.name(), Value::Text(value.to_string())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_crates() {
        for (target, expected) in [
            ("reverb_server::memory", "server"),
            ("reverb_server", "server"),
            ("_native::exit", "python"),
            ("h2::codec", "h2"),
        ] {
            assert_eq!(place(target), expected);
        }
    }
}
