// SPDX-License-Identifier: Apache-2.0
//! Writes log lines to standard error. The core's threads never take the GIL, so they cannot use
//! Python's logging.

use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// The lowest level that is shown: error, warn (default), info or debug.
const LEVEL_VARIABLE: &str = "REVERB_LOG";

/// Prefixes of the targets that are shown: the crates of the core, and this crate, which is named
/// after its module.
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
            // Standard error may be closed, which is no reason to fail.
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
