// SPDX-License-Identifier: Apache-2.0
//! What the log says of peers that are refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often the log says that peers are refused.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts refusals, and has one of them logged at most once a minute: those who are refused try
/// again, and must not fill the log.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    count: AtomicU64,
    logged_at: Mutex<Option<Instant>>,
}

impl RefusalLog {
    /// Counts a refusal. Returns the number of all so far if this one should be logged.
    pub(super) fn count(&self) -> Option<u64> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut logged_at = self.logged_at.lock();
        let is_due = logged_at.is_none_or(|at| at.elapsed() >= INTERVAL);
        is_due.then(|| {
            *logged_at = Some(Instant::now());
            count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_refusal_a_minute_is_logged_with_the_number_of_all() {
        let log = RefusalLog::default();
        let logged = |refusals| (0..refusals).filter_map(|_| log.count()).collect::<Vec<_>>();
        assert_eq!(logged(10), [1]);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(logged(1), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(logged(10), [12]);
    }
}
