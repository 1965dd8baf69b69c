// SPDX-License-Identifier: Apache-2.0
//! Times of a table's activities.

use std::time::{Duration, Instant};

use reverb_data::WorkerTime;

/// Activity of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// Updates, deletes and resets.
    Running,
    Sampling,
    Inserting,
    /// Idle: there are no requests.
    Sleeping,
    /// Inserts wait for samples, because of the rate limiter.
    WaitingForSampling,
    /// Samples wait for inserts, because of the rate limiter.
    WaitingForInserts,
}

/// Adds up the time from one change of activity to the next.
#[derive(Debug)]
pub(super) struct Clock {
    activity: Activity,
    since: Instant,
    spent: [Duration; 6],
    pub(super) inserts: Blocked,
    pub(super) samples: Blocked,
}

/// Adds up the time in which requests are blocked.
#[derive(Debug, Default)]
pub(super) struct Blocked {
    since: Option<Instant>,
    spent: Duration,
}

impl Blocked {
    /// Starts or ends a blocked time.
    pub(super) fn change(&mut self, is_waiting: bool, now: Instant) {
        match (self.since, is_waiting) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => {
                self.spent += now.saturating_duration_since(since);
                self.since = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// The time until `now`.
    pub(super) fn read(&self, now: Instant) -> Duration {
        let current = self.since.map(|since| now.saturating_duration_since(since));
        self.spent + current.unwrap_or_default()
    }
}

impl Clock {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            activity: Activity::Sleeping,
            since: now,
            spent: [Duration::ZERO; 6],
            inserts: Blocked::default(),
            samples: Blocked::default(),
        }
    }

    /// Ends the current activity at `now`, and begins `activity`.
    pub(super) fn change(&mut self, activity: Activity, now: Instant) {
        self.spent[self.activity as usize] += now.saturating_duration_since(self.since);
        self.activity = activity;
        self.since = now;
    }

    /// The time spent until `now`.
    pub(super) fn read(&self, now: Instant) -> WorkerTime {
        let ms = |activity: Activity| {
            let mut spent = self.spent[activity as usize];
            if activity == self.activity {
                spent += now.saturating_duration_since(self.since);
            }
            i64::try_from(spent.as_millis()).unwrap_or(i64::MAX)
        };
        WorkerTime {
            running_ms: ms(Activity::Running),
            sampling_ms: ms(Activity::Sampling),
            inserting_ms: ms(Activity::Inserting),
            sleeping_ms: ms(Activity::Sleeping),
            waiting_for_sampling_ms: ms(Activity::WaitingForSampling),
            waiting_for_inserts_ms: ms(Activity::WaitingForInserts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_time_is_that_in_which_somebody_waits() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut blocked = Blocked::default();
        for (is_waiting, ms) in [(false, 1), (true, 3), (true, 4), (false, 8), (true, 20)] {
            blocked.change(is_waiting, at(ms));
        }
        assert_eq!(blocked.read(at(22)), Duration::from_millis(5 + 2));
    }

    #[test]
    fn time_is_added_to_the_current_activity() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = Clock::new(start);
        clock.change(Activity::Inserting, at(10));
        clock.change(Activity::WaitingForSampling, at(13));
        clock.change(Activity::Sampling, at(20));
        clock.change(Activity::WaitingForInserts, at(21));
        clock.change(Activity::Running, at(26));
        clock.change(Activity::Sleeping, at(28));
        let expected = WorkerTime {
            running_ms: 2,
            sampling_ms: 1,
            inserting_ms: 3,
            sleeping_ms: 10 + 4,
            waiting_for_sampling_ms: 7,
            waiting_for_inserts_ms: 5,
        };
        assert_eq!(clock.read(at(32)), expected);
    }
}
