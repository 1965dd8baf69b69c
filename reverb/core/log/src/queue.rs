// SPDX-License-Identifier: Apache-2.0
//! Queue of lines for a thread that may be slow.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};
use tracing::Level;

use crate::line::Line;

/// A bounded queue of lines. Logging never waits for it: if it is full, the line is dropped and
/// counted.
#[derive(Debug)]
pub struct Queue {
    capacity: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Line>,
    dropped: u64,
    is_closed: bool,
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn push(&self, line: Line) {
        let mut state = self.state.lock();
        if state.lines.len() < self.capacity {
            state.lines.push_back(line);
            drop(state);
            self.changed.notify_one();
        } else {
            state.dropped += 1;
        }
    }

    /// Closes the queue: no more lines will come.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Next line. Blocks until there is one; `None` when the queue is closed and empty. Dropped
    /// lines are replaced by one with their number.
    pub fn next(&self) -> Option<Line> {
        let mut state = self.state.lock();
        loop {
            if let Some(line) = state.lines.pop_front() {
                return Some(line);
            }
            if state.dropped > 0 {
                let dropped = std::mem::take(&mut state.dropped);
                let text = format!(
                    "{dropped} lines of the log were dropped: Python's logging took them too slowly"
                );
                return Some(Line::new(Level::WARN, "log", text));
            }
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn line(text: &str) -> Line {
        Line::new(Level::WARN, "reverb_server", text.to_owned())
    }

    fn messages(queue: &Queue) -> Vec<String> {
        std::iter::from_fn(|| queue.next()).map(|line| line.message).collect()
    }

    #[test]
    fn lines_come_in_order_until_it_is_closed() {
        let queue = Arc::new(Queue::new(10));
        let reader = Arc::clone(&queue);
        let read = std::thread::spawn(move || messages(&reader));
        for text in ["a", "b", "c"] {
            queue.push(line(text));
        }
        queue.close();
        assert_eq!(read.join().unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn lines_that_find_it_full_are_dropped_and_counted() {
        let queue = Queue::new(2);
        for text in ["a", "b", "c", "d"] {
            queue.push(line(text));
        }
        queue.close();
        let read = messages(&queue);
        assert_eq!(read[..2], ["a", "b"]);
        assert!(read[2].starts_with("2 lines of the log were dropped"), "{read:?}");
        assert_eq!(read.len(), 3);
    }
}
