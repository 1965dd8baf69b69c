// SPDX-License-Identifier: Apache-2.0
//! The log, for Python. The core's threads never take the GIL, so a Python thread fetches their
//! lines.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use reverb_base::{Error, Result};
use reverb_client::ReportWaits;
use reverb_log::{Format, Line, Queue, Value};
use tracing::Level;

use crate::error::OrRaise;
use crate::exit::Waiting;
use crate::process::Local;

/// The target of lines that the Python package writes into the log of `reverb_server`.
const TARGET: &str = "reverb_server::command";

/// Queue of lines for Python's logging.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct LogLines(Local<Arc<Queue>>);

/// A line for Python's logging: level, time in seconds since 1970, source, text and fields.
type PythonLine<'py> = (u8, f64, String, String, Bound<'py, PyDict>);

#[pymethods]
impl LogLines {
    /// Next line; `None` when there will be no more. Blocks until then.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<PythonLine<'py>>> {
        self.0.origin().check("log").or_raise()?;
        // Not `wait`, which wakes many times a second: most processes log nothing for hours.
        let waiting = Waiting::begin();
        let line = py.detach(|| {
            let line = self.0.next();
            waiting.park_if_finalizing();
            line
        });
        line.map(|line| to_python(py, line)).transpose()
    }
}

fn to_python(py: Python<'_>, line: Line) -> PyResult<PythonLine<'_>> {
    let time = line.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let fields = PyDict::new(py);
    for (name, value) in &line.fields {
        match value {
            Value::Text(text) => fields.set_item(name, text)?,
            Value::Plain(text) => fields.set_item(name, plain(py, text)?)?,
        }
    }
    Ok((
        python_level(line.level),
        time,
        line.place.clone().into_owned(),
        line.safe_message(),
        fields,
    ))
}

/// A number or a boolean, from its JSON text.
fn plain<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text,))
}

/// Level of Python's logging; `trace`, which it lacks, becomes 5.
fn python_level(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// Sends the core's lines into a queue of at most `capacity` lines, and closes an earlier one.
#[pyfunction]
#[pyo3(signature = (capacity))]
pub(crate) fn logs_to_queue(py: Python<'_>, capacity: usize) -> LogLines {
    LogLines(Local::new(py.detach(|| reverb_log::to_queue(capacity))))
}

/// Writes the core's lines to standard error again. Counts of suppressed lines come first.
#[pyfunction]
pub(crate) fn logs_to_stderr(py: Python<'_>) {
    py.detach(|| {
        reverb_log::flush();
        reverb_log::to_stderr();
    });
}

/// Sets the default level and format. The variables `REVERB_LOG` and `REVERB_LOG_FORMAT` override
/// them, except for a `format` that is given. Logs the parts of these variables that cannot be
/// parsed.
#[pyfunction]
#[pyo3(signature = (level, format))]
pub(crate) fn configure_logs(py: Python<'_>, level: &str, format: Option<&str>) -> PyResult<()> {
    let level = parse_level(level).or_raise()?;
    let format = format.map(parse_format).transpose().or_raise()?;
    py.detach(|| {
        reverb_log::configure(level, format);
        reverb_log::log_config_problems();
    });
    Ok(())
}

/// Logs a line to standard error, wherever the core's lines go. Never blocks.
#[pyfunction]
#[pyo3(signature = (level, message, fields))]
pub(crate) fn print_log_line(
    level: &str,
    message: String,
    fields: Vec<(String, FieldValue)>,
) -> PyResult<()> {
    let level = parse_level(level).or_raise()?;
    let fields = fields.into_iter().map(|(name, value)| (name, value.into_core())).collect();
    reverb_log::print(level, TARGET, message, fields);
    Ok(())
}

/// Waits until the lines for standard error are written, for at most a second.
#[pyfunction]
pub(crate) fn wait_for_log(py: Python<'_>) {
    py.detach(reverb_log::wait_until_written);
}

/// The value of a field of the command's lines.
#[derive(FromPyObject)]
pub(crate) enum FieldValue {
    Number(i64),
    Text(String),
}

impl FieldValue {
    fn into_core(self) -> Value {
        match self {
            Self::Number(number) => Value::Plain(number.to_string()),
            Self::Text(text) => Value::Text(text),
        }
    }
}

fn parse_level(text: &str) -> Result<Level> {
    text.parse().map_err(|_| {
        let levels = "error, warn, info, debug or trace";
        Error::invalid_argument(format!("level must be {levels}, got {text:?}"))
    })
}

fn parse_format(text: &str) -> Result<Format> {
    text.parse().map_err(|()| {
        Error::invalid_argument(format!("format must be \"text\" or \"json\", got {text:?}"))
    })
}

/// Sets when calls that wait are reported; see `reverb.logging.report_waits`, which checks the
/// arguments.
#[pyfunction]
pub(crate) fn report_waits(after_s: Option<f64>, repeat_s: f64) {
    let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    reverb_client::report_waits(ReportWaits {
        after: after_s.map(duration),
        repeat: duration(repeat_s),
    });
}
