// SPDX-License-Identifier: Apache-2.0
//! Formats of a line: text, or a JSON object.

use std::str::FromStr;

use crate::escape::{escaped, push_json, push_value};
use crate::line::{Line, Value};
use crate::time::rfc3339;

/// Format of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `2026-11-22T14:03:12.123Z WARN server table=replay: what happened`
    #[default]
    Text,
    /// `{"time":"2026-11-22T14:03:12.123Z","level":"WARN","place":"server",...}`
    Json,
}

/// Keys of the JSON object that are not fields of the line.
const OWN_NAMES: [&str; 4] = ["time", "level", "place", "message"];

impl FromStr for Format {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.to_ascii_lowercase().as_str() {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(()),
        }
    }
}

impl Format {
    /// The line without its end. It has no control characters, even if peers sent some.
    pub(crate) fn render(self, line: &Line) -> String {
        match self {
            Self::Text => text(line),
            Self::Json => json(line),
        }
    }
}

fn text(line: &Line) -> String {
    let Line { time, level, place, fields, .. } = line;
    let mut out = format!("{} {level} {}", rfc3339(*time), escaped(place));
    for (name, value) in fields {
        out.push(' ');
        out.push_str(name);
        out.push('=');
        push_value(&mut out, value.as_str());
    }
    out.push_str(": ");
    out.push_str(&line.safe_message());
    out
}

fn json(line: &Line) -> String {
    let Line { time, level, place, fields, message } = line;
    let mut out = format!("{{\"time\":\"{}\",\"level\":\"{level}\",\"place\":", rfc3339(*time));
    push_json(&mut out, place);
    for (name, value) in fields {
        let is_taken = OWN_NAMES.contains(&name.as_ref());
        let name = if is_taken { format!("{name}_") } else { name.to_string() };
        out.push(',');
        push_json(&mut out, &name);
        out.push(':');
        match value {
            Value::Text(text) => push_json(&mut out, text),
            Value::Plain(text) => out.push_str(text),
        }
    }
    out.push_str(",\"message\":");
    push_json(&mut out, message);
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use tracing::Level;

    use super::*;

    fn line(table: &str, message: &str) -> Line {
        let mut line = Line::new(Level::WARN, "reverb_server::memory", message.to_owned());
        line.time = UNIX_EPOCH + Duration::from_millis(1_795_356_192_123);
        line.set("table", Value::Text(table.to_owned()));
        line.set("items", Value::Plain("12".to_owned()));
        line
    }

    #[test]
    fn text_has_time_level_place_fields_and_message() {
        assert_eq!(
            Format::Text.render(&line("replay", "it is full: wait")),
            "2026-11-22T14:03:12.123Z WARN server table=replay items=12: it is full: wait"
        );
    }

    #[test]
    fn json_has_the_same() {
        assert_eq!(
            Format::Json.render(&line("replay", "it is full: wait")),
            "{\"time\":\"2026-11-22T14:03:12.123Z\",\"level\":\"WARN\",\"place\":\"server\",\
             \"table\":\"replay\",\"items\":12,\"message\":\"it is full: wait\"}"
        );
    }

    #[test]
    fn names_of_peers_stay_in_their_line_and_in_their_field() {
        let name = "x\n2026-11-22T14:03:12.123Z ERROR server: \u{1b}[2J\u{85}\u{202e}\"\\ a=b";
        let line = line(name, name);
        let text = Format::Text.render(&line);
        assert!(!text.chars().any(crate::escape::is_unsafe), "{text}");
        assert!(text.contains("table=\"x\\n2026-11-22T14:03:12.123Z ERROR server: \\u{1b}[2J"));
        let json = Format::Json.render(&line);
        assert!(!json.chars().any(crate::escape::is_unsafe), "{json}");
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&parsed["table"], &parsed["message"]), (&name.into(), &name.into()));
        assert_eq!(parsed["items"], 12);
    }

    #[test]
    fn a_field_of_a_foreign_crate_does_not_hide_ours() {
        let mut line = line("t", "ours");
        line.set("message", Value::Text("theirs".to_owned()));
        let parsed: serde_json::Value = serde_json::from_str(&Format::Json.render(&line)).unwrap();
        assert_eq!((&parsed["message"], &parsed["message_"]), (&"ours".into(), &"theirs".into()));
    }
}
