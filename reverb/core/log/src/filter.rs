// SPDX-License-Identifier: Apache-2.0
//! Filter of events.

use std::fmt;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Prefixes of the targets of the core's crates. The native module's target has the name of the
/// module.
const OURS: [&str; 2] = ["reverb", "_native"];

/// Names of the parts of the core, which stand for their targets.
const PLACES: [&str; 8] =
    ["checkpoint", "client", "data", "engine", "http", "rpc", "server", "wire"];

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Filter of events: those of our crates from a level on, and errors of other crates, unless a
/// target has a level of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    ours: Option<LevelFilter>,
    targets: Vec<(String, LevelFilter)>,
}

/// A part of a filter that cannot be parsed.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no level (off, error, warn, info, debug or trace) and no target=level such as \
             server=debug",
            self.0
        )
    }
}

impl Filter {
    /// Parses `info` or `info,server=debug,h2=trace`.
    ///
    /// # Errors
    ///
    /// The part that cannot be parsed.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        let mut filter = Self { ours: None, targets: Vec::new() };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let unreadable = || Unreadable(part.to_owned());
            match part.split_once('=') {
                None => filter.ours = Some(level(part).ok_or_else(unreadable)?),
                Some((target, text)) => {
                    let target = target.trim();
                    if target.is_empty() {
                        return Err(unreadable());
                    }
                    let level = level(text.trim()).ok_or_else(unreadable)?;
                    filter.targets.push((full_target(target), level));
                }
            }
        }
        Ok(filter)
    }

    /// Filter for `tracing`; our crates are shown from `default` on unless the filter has a level
    /// for them.
    pub(crate) fn targets(&self, default: Level) -> Targets {
        let ours = self.ours.unwrap_or(default.into());
        let others = ours.min(LevelFilter::ERROR);
        Targets::new()
            .with_default(others)
            .with_targets(OURS.map(|target| (target, ours)))
            .with_targets(self.targets.clone())
    }
}

/// Returns true if the target is in a crate of the core.
pub(crate) fn is_ours(target: &str) -> bool {
    OURS.iter().any(|prefix| target.starts_with(prefix))
}

fn level(text: &str) -> Option<LevelFilter> {
    let text = text.to_ascii_lowercase();
    LEVELS.iter().find(|(name, _)| *name == text).map(|(_, level)| *level)
}

fn full_target(target: &str) -> String {
    let root = target.split("::").next().unwrap_or(target);
    match root {
        "python" => target.replacen("python", "_native", 1),
        _ if PLACES.contains(&root) => format!("reverb_{target}"),
        _ => target.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(filter: &str, target: &str, level: Level) -> bool {
        Filter::parse(filter).unwrap().targets(Level::WARN).would_enable(target, &level)
    }

    #[test]
    fn our_crates_warn_and_others_tell_errors() {
        for target in ["reverb_server::memory", "reverb_rpc", "_native::exit"] {
            assert!(shows("", target, Level::WARN));
            assert!(!shows("", target, Level::INFO));
            assert!(shows("debug", target, Level::DEBUG));
            assert!(!shows("error", target, Level::WARN));
            assert!(!shows("off", target, Level::ERROR));
        }
        assert!(shows("trace", "h2", Level::ERROR));
        assert!(!shows("trace", "h2", Level::WARN));
        assert!(!shows("off", "h2", Level::ERROR));
    }

    #[test]
    fn a_target_has_a_level_of_its_own() {
        let filter = " INFO, server=debug ,rpc::server=trace,python=off,h2=debug ";
        assert!(shows(filter, "reverb_server::service", Level::DEBUG));
        assert!(!shows(filter, "reverb_client", Level::DEBUG));
        assert!(shows(filter, "reverb_client", Level::INFO));
        assert!(shows(filter, "reverb_rpc::server::listener", Level::TRACE));
        assert!(!shows(filter, "reverb_rpc::client", Level::DEBUG));
        assert!(!shows(filter, "_native::exit", Level::ERROR));
        assert!(shows(filter, "h2::proto", Level::DEBUG));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, part) in [
            ("loud", "loud"),
            ("info,server=", "server="),
            ("=info", "=info"),
            ("server=info=debug", "server=info=debug"),
        ] {
            let error = Filter::parse(text).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{part:?} is no level")), "{error}");
        }
    }
}
