// SPDX-License-Identifier: Apache-2.0
//! Queue of lines for a thread that may be slow.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing::Level;

use crate::line::Line;

/// A bounded queue of lines. Logging never waits for it: if it is full, a line is dropped and
/// counted; warnings and errors are dropped last.
#[derive(Debug)]
pub struct Queue {
    capacity: usize,
    /// Name of what takes the lines, for the line about those that were dropped.
    reader: &'static str,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Line>,
    dropped: u64,
    /// Number of lines that are older than the first one that was dropped.
    before_dropped: usize,
    /// True while the reader handles a line.
    is_handling: bool,
    /// True if the reader has not moved since somebody waited for it in vain.
    is_stuck: bool,
    is_closed: bool,
}

impl Queue {
    pub(crate) fn new(capacity: usize, reader: &'static str) -> Self {
        Self { capacity, reader, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn push(&self, line: Line) {
        let mut state = self.state.lock();
        if state.lines.len() < self.capacity {
            state.lines.push_back(line);
            drop(state);
            self.changed.notify_all();
        } else {
            state.drop_for(line);
        }
    }

    /// Closes the queue: no more lines will come.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Next line; the one before it has been handled. Blocks until there is one; `None` when the
    /// queue is closed and empty. Dropped lines are replaced by one with their number.
    pub fn next(&self) -> Option<Line> {
        let mut state = self.state.lock();
        (state.is_handling, state.is_stuck) = (false, false);
        loop {
            if let Some(line) = state.next(self.reader) {
                state.is_handling = true;
                return Some(line);
            }
            self.changed.notify_all();
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits until all lines have been handled, for a limited time. Does not wait again for a
    /// reader that has not moved since.
    pub(crate) fn wait_until_handled(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while !state.is_stuck && !state.is_idle() {
            state.is_stuck = self.changed.wait_until(&mut state, deadline).timed_out();
        }
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0 && !self.is_handling
    }

    fn next(&mut self, reader: &str) -> Option<Line> {
        if self.dropped > 0 && self.before_dropped == 0 {
            let dropped = std::mem::take(&mut self.dropped);
            let text =
                format!("{dropped} lines of the log were dropped: {reader} took them too slowly");
            return Some(Line::new(Level::WARN, "log", text));
        }
        self.before_dropped = self.before_dropped.saturating_sub(1);
        self.lines.pop_front()
    }

    /// Drops this line. Instead of a warning or an error, the latest of the least severe lines is
    /// dropped.
    fn drop_for(&mut self, line: Line) {
        if self.dropped == 0 {
            self.before_dropped = self.lines.len();
        }
        self.dropped += 1;
        // The more severe a level is, the less it is.
        if line.level > Level::WARN {
            return;
        }
        let least = self.lines.iter().enumerate().max_by_key(|(_, it)| it.level);
        let Some((index, _)) = least.filter(|(_, it)| it.level > line.level) else { return };
        self.lines.remove(index);
        self.before_dropped -= usize::from(index < self.before_dropped);
        self.lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn line(level: Level, text: &str) -> Line {
        Line::new(level, "reverb_server", text.to_owned())
    }

    fn queue(capacity: usize, lines: &[(Level, &str)]) -> Queue {
        let queue = Queue::new(capacity, "a test");
        for (level, text) in lines {
            queue.push(line(*level, text));
        }
        queue
    }

    fn messages(queue: &Queue) -> Vec<String> {
        std::iter::from_fn(|| queue.next()).map(|line| line.message).collect()
    }

    fn dropped(count: u64) -> String {
        format!("{count} lines of the log were dropped: a test took them too slowly")
    }

    #[test]
    fn lines_come_in_order_until_it_is_closed() {
        let queue = Arc::new(queue(10, &[]));
        let reader = Arc::clone(&queue);
        let read = std::thread::spawn(move || messages(&reader));
        for text in ["a", "b", "c"] {
            queue.push(line(Level::WARN, text));
        }
        queue.close();
        assert_eq!(read.join().unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn lines_that_find_it_full_are_dropped_and_counted() {
        let queue = queue(2, &["a", "b", "c", "d"].map(|text| (Level::WARN, text)));
        queue.close();
        assert_eq!(messages(&queue), ["a".to_owned(), "b".to_owned(), dropped(2)]);
    }

    #[test]
    fn warnings_and_errors_are_dropped_last() {
        use Level as L;
        let lines = [
            (L::INFO, "info 1"),
            (L::DEBUG, "debug"),
            (L::INFO, "info 2"),
            (L::WARN, "warning 1"), // Instead of the debug line,
            (L::ERROR, "error"),    // of the second info,
            (L::WARN, "warning 2"), // and of the first one.
            (L::INFO, "info 3"),
            (L::WARN, "warning 3"),
        ];
        let queue = queue(3, &lines);
        queue.close();
        assert_eq!(messages(&queue), [&dropped(5), "warning 1", "error", "warning 2"]);
    }

    #[test]
    fn the_number_of_dropped_lines_stands_where_they_would() {
        let queue = queue(2, &["a", "b", "c"].map(|text| (Level::WARN, text)));
        assert_eq!(queue.next().unwrap().message, "a");
        queue.push(line(Level::WARN, "d"));
        queue.close();
        assert_eq!(messages(&queue), ["b", &dropped(1), "d"]);
    }

    #[test]
    fn waiting_ends_when_the_last_line_is_handled() {
        let queue = queue(2, &[(Level::WARN, "a")]);
        assert!(queue.next().is_some());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.wait_until_handled(Duration::from_secs(1_000)));
            assert!(!waiting.is_finished(), "it has not been handled yet");
            scope.spawn(|| queue.next());
            waiting.join().unwrap();
            queue.close();
        });
    }

    #[test]
    fn a_reader_that_does_not_move_is_waited_for_once() {
        let queue = queue(2, &[(Level::WARN, "a"), (Level::WARN, "b")]);
        assert!(queue.next().is_some());
        queue.wait_until_handled(Duration::from_millis(1));
        queue.wait_until_handled(Duration::from_secs(1_000));
        assert!(queue.next().is_some());
        queue.wait_until_handled(Duration::from_millis(1));
        assert!(queue.state.lock().is_stuck, "it moved between, so it was waited for again");
    }
}
