// SPDX-License-Identifier: Apache-2.0
//! Waits for samples that continue: a reader that has timed out and asks again has waited since its
//! first request, whoever repeats it: this crate, a loop of Python, or the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_base::{Error, ErrorKind};

use crate::waits::GAP;

/// Waits of a session's requests that timed out just now and were not repeated yet.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    left: Mutex<Vec<Left>>,
    /// Cached length of the list, so that readers that need not wait take no lock.
    num_left: AtomicUsize,
}

#[derive(Debug)]
struct Left {
    table: Arc<str>,
    since: Instant,
    at: Instant,
}

impl Unanswered {
    /// Takes over the wait of a request for this table, if one has timed out just now.
    pub(crate) fn take(&self, table: &str) -> Option<Instant> {
        if self.num_left.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.change(|left| {
            let at = left.iter().position(|wait| *wait.table == *table)?;
            Some(left.remove(at).since)
        })
    }

    /// Keeps the wait of a request that has failed, if it timed out. It had waited since `since`
    /// when it was sent.
    pub(crate) fn leave(
        &self,
        table: &Arc<str>,
        since: Option<Instant>,
        timeout: Option<Duration>,
        error: &Error,
    ) {
        if error.kind() != ErrorKind::RateLimiterTimeout {
            return;
        }
        let at = Instant::now();
        let since = since.or_else(|| at.checked_sub(timeout?)).unwrap_or(at);
        self.change(|left| left.push(Left { table: Arc::clone(table), since, at }));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Left>) -> T) -> T {
        let mut left = self.left.lock();
        let now = Instant::now();
        left.retain(|wait| now - wait.at <= GAP);
        let changed = change(&mut left);
        self.num_left.store(left.len(), Ordering::Relaxed);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(2));

    #[test]
    fn a_wait_goes_on_with_the_next_request_for_its_table() {
        let waits = Unanswered::default();
        let table = Arc::from("t");
        let late = Error::rate_limiter_timeout("it waits");
        assert_eq!(waits.take("t"), None);
        waits.leave(&table, None, TIMEOUT, &late);
        assert_eq!(waits.take("u"), None);
        let since = waits.take("t").unwrap();
        assert!(since.elapsed() >= Duration::from_secs(2));
        assert_eq!(waits.take("t"), None, "it was taken over");
        waits.leave(&table, Some(since), TIMEOUT, &late);
        waits.leave(&table, None, TIMEOUT, &late);
        assert_eq!(waits.take("t"), Some(since));
        assert!(waits.take("t") > Some(since), "each reader has its own");
        waits.leave(&table, None, TIMEOUT, &Error::cancelled("closed"));
        assert_eq!(waits.take("t"), None);
    }

    #[test]
    fn a_reader_that_does_not_come_back_leaves_nothing() {
        let waits = Unanswered::default();
        waits.leave(&Arc::from("t"), None, TIMEOUT, &Error::rate_limiter_timeout("it waits"));
        waits.left.lock()[0].at -= 2 * GAP;
        assert_eq!(waits.take("t"), None);
        assert_eq!(waits.num_left.load(Ordering::Relaxed), 0);
    }
}
