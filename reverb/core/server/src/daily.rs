// SPDX-License-Identifier: Apache-2.0
//! What an operator has to be reminded of: told when it changes, and once a day while it lasts.

use std::time::{Duration, SystemTime};

/// How often the log tells what lasts.
const INTERVAL: Duration = Duration::from_secs(86_400);

/// Remembers what was told last, and when.
#[derive(Debug)]
pub(crate) struct Daily<News> {
    told: Option<(News, SystemTime)>,
}

impl<News> Default for Daily<News> {
    fn default() -> Self {
        Self { told: None }
    }
}

impl<News: PartialEq> Daily<News> {
    /// Whether to tell it now; it counts as told then. `None` is no news.
    pub(crate) fn is_due(&mut self, news: Option<News>, now: SystemTime) -> bool {
        let Some(news) = news else {
            self.told = None;
            return false;
        };
        let was_told = self.told.as_ref().is_some_and(|(told, at)| {
            // A clock that was put back is no reason to wait.
            *told == news && now.duration_since(*at).is_ok_and(|since| since < INTERVAL)
        });
        if !was_told {
            self.told = Some((news, now));
        }
        !was_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_lasts_is_told_once_a_day() {
        let (mut daily, start) = (Daily::default(), SystemTime::now());
        let told: Vec<_> =
            (0..=50).filter(|hour| daily.is_due(Some("a"), start + HOUR * *hour)).collect();
        assert_eq!(told, [0, 24, 48]);
    }

    #[test]
    fn what_changes_is_told_at_once() {
        let (mut daily, now) = (Daily::default(), SystemTime::now());
        assert!(!daily.is_due(None, now));
        assert!(daily.is_due(Some("a"), now));
        assert!(daily.is_due(Some("b"), now));
        assert!(!daily.is_due(Some("b"), now));
        assert!(!daily.is_due(None, now));
        assert!(daily.is_due(Some("b"), now), "it was over meanwhile");
        assert!(daily.is_due(Some("b"), now - HOUR), "the clock was put back");
    }
}
