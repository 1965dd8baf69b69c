// SPDX-License-Identifier: Apache-2.0
//! Destination of lines: standard error, or a queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_base::PerProcess;
use tracing::Level;

use crate::line::{Line, Value};
use crate::queue::Queue;
use crate::repeats::Repeats;
use crate::settings;
use crate::standard_error::StandardError;

static LOGS: PerProcess<Logs> = PerProcess::new();

/// Time for lines that wait for standard error when the process ends.
const MAX_WAIT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Logs {
    /// Queue for Python's logging, if lines go there.
    queue: Mutex<Option<Arc<Queue>>>,
    standard_error: StandardError,
    repeats: Mutex<Option<Repeats>>,
}

fn logs() -> &'static Logs {
    LOGS.get()
}

/// Sends all lines from now on into a queue of at most `capacity` lines. A queue from an earlier
/// call is closed.
pub fn to_queue(capacity: usize) -> Arc<Queue> {
    let queue = Arc::new(Queue::new(capacity, "Python's logging"));
    replace_queue(Some(Arc::clone(&queue)));
    queue
}

/// Writes all lines from now on to standard error.
pub fn to_stderr() {
    replace_queue(None);
}

fn replace_queue(queue: Option<Arc<Queue>>) {
    let before = std::mem::replace(&mut *logs().queue.lock(), queue);
    if let Some(before) = before {
        before.close();
    }
}

/// Logs the lines that were held back as repetitions.
pub fn flush() {
    let held = logs().repeats.lock().as_mut().map(Repeats::all);
    for line in held.into_iter().flatten() {
        tell(logs(), line);
    }
}

/// Waits until the lines for standard error are written, for at most a second.
pub fn wait_until_written() {
    logs().standard_error.wait_until_written(MAX_WAIT);
}

/// Logs a line to standard error, wherever other lines go. It counts as a line of `target`.
pub fn print(level: Level, target: &str, message: String, fields: Vec<(String, Value)>) {
    if !settings::shows(target, level) {
        return;
    }
    let mut line = Line::new(level, target, message);
    for (name, value) in fields {
        line.set(name, value);
    }
    logs().standard_error.push(line);
}

pub(crate) fn take(line: Line) {
    let logs = logs();
    let due = {
        let mut repeats = logs.repeats.lock();
        let repeats = repeats.get_or_insert_default();
        let due = repeats.take(line, Instant::now());
        if due.is_none() && !repeats.has_teller {
            repeats.has_teller = start_teller(logs);
        }
        due
    };
    if let Some(line) = due {
        tell(logs, line);
    }
}

/// Starts a thread that logs repetitions when they are due, and ends when there are none.
fn start_teller(logs: &'static Logs) -> bool {
    let thread = std::thread::Builder::new().name("reverb-log".to_owned());
    let report = move || {
        loop {
            let (lines, next) = {
                let mut repeats = logs.repeats.lock();
                let Some(repeats) = repeats.as_mut() else { return };
                let lines = repeats.due(Instant::now());
                let next = repeats.next_due();
                repeats.has_teller = next.is_some();
                (lines, next)
            };
            for line in lines {
                tell(logs, line);
            }
            let Some(next) = next else { return };
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    };
    thread.spawn(report).is_ok()
}

fn tell(logs: &Logs, line: Line) {
    let queue = logs.queue.lock().clone();
    match queue {
        Some(queue) => queue.push(line),
        None => logs.standard_error.push(line),
    }
}
