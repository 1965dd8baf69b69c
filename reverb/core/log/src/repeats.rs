// SPDX-License-Identifier: Apache-2.0
//! Repeated warnings: the first is logged at once, the others are counted, and logged once a
//! minute.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use tracing::Level;

use crate::line::{Line, Value};

/// Time between two lines of the same warning.
pub(crate) const INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of distinct warnings. Texts may contain names of peers, so there is no other
/// bound; further warnings are only counted.
const MAX_WARNINGS: usize = 200;

/// Identity of a warning: its text, its part of the core and its table. Its peer, and numbers in
/// fields, do not matter.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WarningKey {
    message: String,
    place: String,
    table: String,
}

#[derive(Debug)]
struct Logged {
    at: Instant,
    /// Number of repetitions since, and the last of them.
    since: u64,
    last: Option<Line>,
}

/// Warnings of the last minute.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    logged: HashMap<WarningKey, Logged>,
    /// Warnings beyond [`MAX_WARNINGS`]: the time of the first, and their number.
    others: Option<(Instant, u64)>,
    /// True if a thread sleeps until lines are due.
    pub(crate) has_teller: bool,
}

impl Repeats {
    /// Returns the line if it is to be logged now. Lines below a warning always are.
    pub(crate) fn take(&mut self, mut line: Line, now: Instant) -> Option<Line> {
        if line.level > Level::WARN {
            return Some(line);
        }
        let key = WarningKey {
            message: line.message.clone(),
            place: line.place.to_string(),
            table: line.text("table").to_owned(),
        };
        if self.logged.len() >= MAX_WARNINGS && !self.logged.contains_key(&key) {
            self.logged.retain(|_, logged| logged.since > 0 || now < logged.at + INTERVAL);
            if self.logged.len() >= MAX_WARNINGS {
                self.others.get_or_insert((now, 0)).1 += 1;
                return None;
            }
        }
        let logged = match self.logged.entry(key) {
            Entry::Occupied(logged) => logged.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(Logged { at: now, since: 0, last: None });
                return Some(line);
            }
        };
        if now < logged.at + INTERVAL {
            logged.since += 1;
            logged.last = Some(line);
            return None;
        }
        if logged.since > 0 {
            set_repeats(&mut line, logged.since + 1);
        }
        *logged = Logged { at: now, since: 0, last: None };
        Some(line)
    }

    /// Time at which the next lines are due; `None` if nothing was held back.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let held = self.logged.values().filter(|logged| logged.since > 0).map(|logged| logged.at);
        held.chain(self.others.map(|(at, _)| at)).min().map(|at| at + INTERVAL)
    }

    /// Lines that were held back for a minute.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Line> {
        self.held(now, |at| now >= at + INTERVAL)
    }

    /// All lines that were held back. Forgets earlier warnings.
    pub(crate) fn all(&mut self) -> Vec<Line> {
        let lines = self.held(Instant::now(), |_| true);
        self.logged.clear();
        lines
    }

    fn held(&mut self, now: Instant, is_due: impl Fn(Instant) -> bool) -> Vec<Line> {
        let mut lines = Vec::new();
        self.logged.retain(|_, logged| {
            if !is_due(logged.at) {
                return true;
            }
            let since = std::mem::take(&mut logged.since);
            logged.at = now;
            let Some(mut line) = logged.last.take() else { return false };
            set_repeats(&mut line, since);
            lines.push(line);
            true
        });
        lines.sort_by_key(|line| line.time);
        if let Some((_, count)) = self.others.take_if(|(at, _)| is_due(*at)) {
            let text = format!("{count} more warnings were left out: there were too many kinds");
            lines.push(Line::new(Level::WARN, "log", text));
        }
        lines
    }
}

fn set_repeats(line: &mut Line, count: u64) {
    line.set("repeats", Value::Plain(count.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn warning(message: &str, table: &str, peer: u32) -> Line {
        let mut line = Line::new(Level::WARN, "reverb_rpc", message.to_owned());
        line.set("table", Value::Text(table.to_owned()));
        line.set("peer", Value::Plain(peer.to_string()));
        line
    }

    fn start() -> Instant {
        Instant::now() + 2 * INTERVAL
    }

    #[test]
    fn one_warning_a_minute_is_told_with_the_number_of_the_others() {
        let mut repeats = Repeats::default();
        let start = start();
        let first = repeats.take(warning("refused", "", 0), start).unwrap();
        assert_eq!((first.text("repeats"), repeats.next_due()), ("", None));
        for peer in 1..10 {
            assert!(repeats.take(warning("refused", "", peer), start + SECOND).is_none());
        }
        assert_eq!(repeats.next_due(), Some(start + INTERVAL));
        assert!(repeats.due(start + 59 * SECOND).is_empty());
        let due = repeats.due(start + INTERVAL);
        let logged: Vec<_> =
            due.iter().map(|line| (line.text("repeats"), line.text("peer"))).collect();
        assert_eq!(logged, [("9", "9")]);
        assert!(repeats.take(warning("refused", "", 10), start + 61 * SECOND).is_none());
        assert_eq!(repeats.due(start + 2 * INTERVAL)[0].text("repeats"), "1");
        assert!(repeats.due(start + 3 * INTERVAL).is_empty());
        assert!(repeats.logged.is_empty(), "a quiet minute forgets it");
        assert!(repeats.take(warning("refused", "", 11), start + 3 * INTERVAL).is_some());
    }

    #[test]
    fn other_words_tables_and_levels_are_told() {
        let mut repeats = Repeats::default();
        let start = start();
        assert!(repeats.take(warning("full", "a", 0), start).is_some());
        assert!(repeats.take(warning("full", "b", 0), start).is_some());
        assert!(repeats.take(warning("empty", "a", 0), start).is_some());
        for _ in 0..2 {
            let line = Line::new(Level::INFO, "reverb_server", "saved".to_owned());
            assert!(repeats.take(line, start).is_some());
        }
    }

    #[test]
    fn a_warning_that_comes_before_the_count_is_told_brings_it() {
        let mut repeats = Repeats::default();
        let start = start();
        repeats.take(warning("full", "a", 0), start);
        repeats.take(warning("full", "a", 0), start);
        let logged = repeats.take(warning("full", "a", 0), start + INTERVAL).unwrap();
        assert_eq!((logged.text("repeats"), repeats.next_due()), ("2", None));
    }

    #[test]
    fn what_is_held_back_can_be_told_at_once() {
        let mut repeats = Repeats::default();
        let start = start();
        repeats.take(warning("full", "a", 0), start);
        repeats.take(warning("full", "a", 0), start);
        assert_eq!(repeats.all()[0].text("repeats"), "1");
        assert!(repeats.all().is_empty());
        assert!(repeats.take(warning("full", "a", 0), start).is_some());
    }

    #[test]
    fn any_number_of_different_warnings_takes_little() {
        let mut repeats = Repeats::default();
        let start = start();
        let logged = |repeats: &mut Repeats, from, at| {
            let lines = (from..from + 5_000).map(|i| warning(&format!("name {i}"), "", 0));
            lines.filter_map(|line| repeats.take(line, at)).count()
        };
        assert_eq!(logged(&mut repeats, 0, start), MAX_WARNINGS);
        let due = repeats.due(start + INTERVAL);
        assert_eq!(due.len(), 1);
        assert!(due[0].message.starts_with("4800 more warnings were left out"), "{due:?}");
        assert_eq!(logged(&mut repeats, 9_000, start + INTERVAL), MAX_WARNINGS);
    }
}
