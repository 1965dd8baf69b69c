// SPDX-License-Identifier: Apache-2.0
//! Log lines go to standard error: the core's threads never take the GIL, so Python's logging is
//! out of reach.

use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Names the lowest level that is shown: error, warn (default), info, debug.
const LEVEL_VARIABLE: &str = "REVERB_LOG";

/// Where lines come from that are shown: the crates of the core, and this one, which is named after
/// its module.
const OUR_TARGETS: [&str; 2] = ["reverb", "_native"];

struct StandardError;

impl Log for StandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = OUR_TARGETS.iter().any(|target| metadata.target().starts_with(target));
        is_ours || metadata.level() <= Level::Error
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_lowercase();
            // Nobody may be listening any more, which is no reason to fail.
            let _ = writeln!(std::io::stderr(), "reverb {level}: {}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Installs the logger once.
pub(crate) fn install() {
    let level = std::env::var(LEVEL_VARIABLE).ok().and_then(|level| level.parse().ok());
    if log::set_logger(&StandardError).is_ok() {
        log::set_max_level(level.unwrap_or(LevelFilter::Warn));
    }
}
