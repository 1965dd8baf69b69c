// SPDX-License-Identifier: Apache-2.0
//! Settings of the log from the environment and the program.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tracing::{Level, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::{Registry, registry};

use crate::filter::Filter;
use crate::format::Format;
use crate::layer::LineLayer;
use crate::{logs, standard_error};

/// Variable with the lowest shown level, and levels of targets: `info,server=debug`.
const LEVEL_VARIABLE: &str = "REVERB_LOG";

/// Variable with the format of lines: `text` or `json`.
const FORMAT_VARIABLE: &str = "REVERB_LOG_FORMAT";

struct Settings {
    filter: Filter,
    targets: Mutex<Targets>,
    handle: Handle<Targets, Registry>,
    /// Problems of the environment's settings.
    problems: Mutex<Vec<String>>,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Reads the environment, and takes the events of all crates from now on. A second call does
/// nothing. `has_stderr` is false if the process began without standard error.
pub fn install(has_stderr: bool) {
    if SETTINGS.get().is_some() {
        return;
    }
    if !has_stderr {
        standard_error::never_write();
    }
    let mut problems = Vec::new();
    let filter = read(LEVEL_VARIABLE, Filter::parse, &mut problems);
    let filter = filter.unwrap_or_else(|| Filter::parse("").expect("it is empty"));
    let read_format = |text: &str| {
        text.parse().map_err(|()| format!("{text:?} is no format, which is text or json"))
    };
    let format = read(FORMAT_VARIABLE, read_format, &mut problems);
    set_format(format.unwrap_or_default());
    let targets = filter.targets(Level::WARN);
    let (layer, handle) = reload::Layer::new(targets.clone());
    let subscriber = registry().with(layer).with(LineLayer(logs::take));
    let problems = Mutex::new(problems);
    let settings = Settings { filter, targets: Mutex::new(targets), handle, problems };
    if SETTINGS.set(settings).is_ok() {
        // Fails if another library has installed its own, which then gets our events.
        let _ = tracing::subscriber::set_global_default(subscriber);
    }
}

fn read<T, E: ToString>(
    variable: &str,
    parse: impl Fn(&str) -> Result<T, E>,
    problems: &mut Vec<String>,
) -> Option<T> {
    let text = std::env::var_os(variable)?;
    let text = text.to_string_lossy();
    if text.is_empty() {
        return None;
    }
    let logged =
        |error: E| problems.push(format!("{variable}: {}; the default is used", error.to_string()));
    parse(&text).map_err(logged).ok()
}

/// Changes the defaults: the level of our crates, and the format. The environment overrides them,
/// except for a format that is given.
pub fn configure(default: Level, format: Option<Format>) {
    if let Some(format) = format {
        set_format(format);
    }
    let Some(settings) = SETTINGS.get() else { return };
    let targets = settings.filter.targets(default);
    *settings.targets.lock() = targets.clone();
    // Fails if another library has installed its own.
    let _ = settings.handle.reload(targets);
}

/// Warns once of invalid settings in the environment. It is not called on import, because the
/// program may set the format after that.
pub fn log_config_problems() {
    let Some(settings) = SETTINGS.get() else { return };
    for problem in std::mem::take(&mut *settings.problems.lock()) {
        warn!("{problem}");
    }
}

fn set_format(format: Format) {
    IS_JSON.store(format == Format::Json, Ordering::Relaxed);
}

pub(crate) fn format() -> Format {
    if IS_JSON.load(Ordering::Relaxed) { Format::Json } else { Format::Text }
}

pub(crate) fn shows(target: &str, level: Level) -> bool {
    SETTINGS.get().is_none_or(|settings| settings.targets.lock().would_enable(target, &level))
}
