// SPDX-License-Identifier: Apache-2.0
//! News of a healthy server: told once an hour at most, with how often it happened.

use std::time::{Duration, Instant};

/// How often the log tells the same news.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Counts events, and lets one of them an hour be told. Nothing wakes for it: an event tells those
/// before it.
#[derive(Debug, Default)]
pub(crate) struct Hourly {
    told_at: Option<Instant>,
    count: u64,
}

impl Hourly {
    /// Counts `events` of now. Returns the number of those that were not told yet if it is time.
    pub(crate) fn count(&mut self, events: u64, now: Instant) -> Option<u64> {
        self.count += events;
        let is_due = self.told_at.is_none_or(|at| now.duration_since(at) >= INTERVAL);
        (is_due && self.count > 0).then(|| {
            self.told_at = Some(now);
            std::mem::take(&mut self.count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_news_is_told_once_an_hour_with_its_number() {
        let (mut hourly, start) = (Hourly::default(), Instant::now());
        let minute = Duration::from_secs(60);
        let told: Vec<_> =
            (0..=120).filter_map(|at| Some((at, hourly.count(1, start + minute * at)?))).collect();
        assert_eq!(told, [(0, 1), (60, 60), (120, 60)]);
        assert_eq!(hourly.count(0, start + minute * 200), None, "nothing is no news");
    }

    #[test]
    fn rare_news_is_told_each_time() {
        let (mut hourly, start) = (Hourly::default(), Instant::now());
        for hour in 0..3 {
            assert_eq!(hourly.count(1, start + INTERVAL * hour), Some(1));
        }
    }
}
