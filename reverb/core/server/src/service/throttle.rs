// SPDX-License-Identifier: Apache-2.0
//! Throttle for repeated log lines: a line is due when it changes, and once per interval while it
//! lasts, with the number of events. No timer: an event reports the earlier ones.

use std::time::{Duration, SystemTime};

/// Interval in seconds for lines of a healthy server.
pub(crate) const HOURLY: u64 = 3600;
/// Interval in seconds for reminders to an operator.
pub(crate) const DAILY: u64 = 86_400;

/// Counts events, and makes the same line due once in `SECONDS`.
#[derive(Debug)]
pub(crate) struct Throttle<News, const SECONDS: u64> {
    logged: Option<(News, SystemTime)>,
    count: u64,
}

impl<News, const SECONDS: u64> Default for Throttle<News, SECONDS> {
    fn default() -> Self {
        Self { logged: None, count: 0 }
    }
}

impl<News: PartialEq, const SECONDS: u64> Throttle<News, SECONDS> {
    /// Counts `events` at `now`. If a line is due, returns the number of events since the last one.
    pub(crate) fn count(&mut self, news: News, events: u64, now: SystemTime) -> Option<u64> {
        let interval = Duration::from_secs(SECONDS);
        self.count += events;
        let was_logged = self.logged.as_ref().is_some_and(|(logged, at)| {
            // A clock that was set back makes the line due.
            *logged == news && now.duration_since(*at).is_ok_and(|since| since < interval)
        });
        (!was_logged && self.count > 0).then(|| {
            self.logged = Some((news, now));
            std::mem::take(&mut self.count)
        })
    }

    /// Ends the condition: the same line is due again on the next event.
    pub(crate) fn end(&mut self) {
        (self.logged, self.count) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_once_an_interval_with_its_number() {
        let mut throttle = Throttle::<_, HOURLY>::default();
        let start = SystemTime::now();
        let minute = Duration::from_secs(60);
        let mut logged = |at: u32, events| throttle.count((), events, start + minute * at);
        let counts: Vec<_> = (0..=120).filter_map(|at| Some((at, logged(at, 1)?))).collect();
        assert_eq!(counts, [(0, 1), (60, 60), (120, 60)]);
        assert_eq!(logged(200, 0), None, "nothing is no news");
        assert_eq!(logged(260, 1), Some(1), "rare news is logged each time");
    }

    #[test]
    fn what_changes_is_told_at_once() {
        let mut throttle = Throttle::<_, DAILY>::default();
        let now = SystemTime::now();
        assert!(throttle.count("a", 1, now).is_some());
        assert!(throttle.count("b", 1, now).is_some());
        assert!(throttle.count("b", 1, now).is_none());
        throttle.end();
        assert!(throttle.count("b", 1, now).is_some(), "it was over meanwhile");
        let before = now - Duration::from_secs(3600);
        assert!(throttle.count("b", 1, before).is_some(), "the clock was put back");
    }
}
