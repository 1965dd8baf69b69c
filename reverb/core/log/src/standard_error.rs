// SPDX-License-Identifier: Apache-2.0
//! Standard error, which a thread of its own writes: it may be a pipe that nobody reads, and no
//! caller may stand still for that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::line::Line;
use crate::queue::Queue;
use crate::settings;

/// Number of lines that may wait: enough for a burst at the level `trace`.
const CAPACITY: usize = 10_000;

/// Time until a pipe that another process has made non-blocking is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// False if the process began without standard error. Its descriptor may be any file then.
static IS_OPEN: AtomicBool = AtomicBool::new(true);

pub(crate) fn never_write() {
    IS_OPEN.store(false, Ordering::Relaxed);
}

/// Lines that wait for the thread, which starts with the first of them.
#[derive(Debug, Default)]
pub(crate) struct StandardError(Mutex<Option<Arc<Queue>>>);

impl StandardError {
    /// Hands a line to the thread. Never waits, unless the system can start no thread.
    pub(crate) fn push(&self, line: Line) {
        let queue = {
            let mut queue = self.0.lock();
            if queue.is_none() {
                *queue = start();
            }
            queue.clone()
        };
        match queue {
            Some(queue) => queue.push(line),
            None => write(&line),
        }
    }

    /// Waits until all lines are written, for a limited time.
    pub(crate) fn wait_until_written(&self, timeout: Duration) {
        let queue = self.0.lock().clone();
        if let Some(queue) = queue {
            queue.wait_until_handled(timeout);
        }
    }
}

fn start() -> Option<Arc<Queue>> {
    let queue = Arc::new(Queue::new(CAPACITY, "standard error"));
    let lines = Arc::clone(&queue);
    let thread = std::thread::Builder::new().name("reverb-stderr".to_owned());
    let write_all = move || {
        while let Some(line) = lines.next() {
            write(&line);
        }
    };
    thread.spawn(write_all).is_ok().then_some(queue)
}

/// Writes a whole line at once. Standard error may be closed, which is no reason to fail.
fn write(line: &Line) {
    if !IS_OPEN.load(Ordering::Relaxed) {
        return;
    }
    let text = format!("{}\n", settings::format().render(line));
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match write_some(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(RETRY),
            Err(_) => return,
        }
    }
}

/// Not by Rust's own handle: its lock may stay locked for ever in a forked child.
#[cfg(unix)]
fn write_some(bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::write(io::stderr(), bytes)?)
}

#[cfg(not(unix))]
fn write_some(bytes: &[u8]) -> io::Result<usize> {
    io::Write::write(&mut io::stderr(), bytes)
}
