// SPDX-License-Identifier: Apache-2.0
//! Warnings that repeat: the first is told at once, the others are counted and told once a minute.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use tracing::Level;

use crate::line::{Line, Value};

/// How often the log says the same.
pub(crate) const INTERVAL: Duration = Duration::from_secs(60);

/// Number of warnings that are told apart. Names of peers can be part of a text, so there may be
/// any number of them; those beyond are only counted.
const MAX_KINDS: usize = 200;

/// The same warning: the same words of the same place about the same table. Who caused it, and
/// numbers in fields, do not matter.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Kind {
    message: String,
    place: String,
    table: String,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    /// How many came since, and the last of them.
    since: u64,
    last: Option<Line>,
}

/// Warnings of the last minute.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    told: HashMap<Kind, Told>,
    /// Those beyond [`MAX_KINDS`], since the first of them.
    others: Option<(Instant, u64)>,
    /// Whether a thread sleeps until lines are due.
    pub(crate) has_teller: bool,
}

impl Repeats {
    /// Returns the line if it is to be told now. Lines below a warning always are.
    pub(crate) fn take(&mut self, mut line: Line, now: Instant) -> Option<Line> {
        if line.level > Level::WARN {
            return Some(line);
        }
        let kind = Kind {
            message: line.message.clone(),
            place: line.place.to_string(),
            table: line.text("table").to_owned(),
        };
        if self.told.len() >= MAX_KINDS && !self.told.contains_key(&kind) {
            self.told.retain(|_, told| told.since > 0 || now < told.at + INTERVAL);
            if self.told.len() >= MAX_KINDS {
                self.others.get_or_insert((now, 0)).1 += 1;
                return None;
            }
        }
        let told = match self.told.entry(kind) {
            Entry::Occupied(told) => told.into_mut(),
            Entry::Vacant(place) => {
                place.insert(Told { at: now, since: 0, last: None });
                return Some(line);
            }
        };
        if now < told.at + INTERVAL {
            told.since += 1;
            told.last = Some(line);
            return None;
        }
        if told.since > 0 {
            set_repeats(&mut line, told.since + 1);
        }
        *told = Told { at: now, since: 0, last: None };
        Some(line)
    }

    /// When the next lines are due; `None` if nothing was held back.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let held = self.told.values().filter(|told| told.since > 0).map(|told| told.at);
        held.chain(self.others.map(|(at, _)| at)).min().map(|at| at + INTERVAL)
    }

    /// What was held back for a minute.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Line> {
        self.held(now, |at| now >= at + INTERVAL)
    }

    /// All that was held back. What was told before is forgotten.
    pub(crate) fn all(&mut self) -> Vec<Line> {
        let lines = self.held(Instant::now(), |_| true);
        self.told.clear();
        lines
    }

    fn held(&mut self, now: Instant, is_due: impl Fn(Instant) -> bool) -> Vec<Line> {
        let mut lines = Vec::new();
        self.told.retain(|_, told| {
            if !is_due(told.at) {
                return true;
            }
            let since = std::mem::take(&mut told.since);
            told.at = now;
            let Some(mut line) = told.last.take() else { return false };
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
        let (mut repeats, start) = (Repeats::default(), start());
        let first = repeats.take(warning("refused", "", 0), start).unwrap();
        assert_eq!((first.text("repeats"), repeats.next_due()), ("", None));
        for peer in 1..10 {
            assert!(repeats.take(warning("refused", "", peer), start + SECOND).is_none());
        }
        assert_eq!(repeats.next_due(), Some(start + INTERVAL));
        assert!(repeats.due(start + 59 * SECOND).is_empty());
        let due = repeats.due(start + INTERVAL);
        let told: Vec<_> = due.iter().map(|it| (it.text("repeats"), it.text("peer"))).collect();
        assert_eq!(told, [("9", "9")]);
        assert!(repeats.take(warning("refused", "", 10), start + 61 * SECOND).is_none());
        assert_eq!(repeats.due(start + 2 * INTERVAL)[0].text("repeats"), "1");
        assert!(repeats.due(start + 3 * INTERVAL).is_empty());
        assert!(repeats.told.is_empty(), "a quiet minute forgets it");
        assert!(repeats.take(warning("refused", "", 11), start + 3 * INTERVAL).is_some());
    }

    #[test]
    fn other_words_tables_and_levels_are_told() {
        let (mut repeats, start) = (Repeats::default(), start());
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
        let (mut repeats, start) = (Repeats::default(), start());
        repeats.take(warning("full", "a", 0), start);
        repeats.take(warning("full", "a", 0), start);
        let told = repeats.take(warning("full", "a", 0), start + INTERVAL).unwrap();
        assert_eq!((told.text("repeats"), repeats.next_due()), ("2", None));
    }

    #[test]
    fn what_is_held_back_can_be_told_at_once() {
        let (mut repeats, start) = (Repeats::default(), start());
        repeats.take(warning("full", "a", 0), start);
        repeats.take(warning("full", "a", 0), start);
        assert_eq!(repeats.all()[0].text("repeats"), "1");
        assert!(repeats.all().is_empty());
        assert!(repeats.take(warning("full", "a", 0), start).is_some());
    }

    #[test]
    fn any_number_of_different_warnings_takes_little() {
        let (mut repeats, start) = (Repeats::default(), start());
        let told = |repeats: &mut Repeats, from, at| {
            let lines = (from..from + 5_000).map(|i| warning(&format!("name {i}"), "", 0));
            lines.filter_map(|line| repeats.take(line, at)).count()
        };
        assert_eq!(told(&mut repeats, 0, start), MAX_KINDS);
        let due = repeats.due(start + INTERVAL);
        assert_eq!(due.len(), 1);
        assert!(due[0].message.starts_with("4800 more warnings were left out"), "{due:?}");
        assert_eq!(told(&mut repeats, 9_000, start + INTERVAL), MAX_KINDS);
    }
}
