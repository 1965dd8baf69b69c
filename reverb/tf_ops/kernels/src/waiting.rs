// SPDX-License-Identifier: Apache-2.0
//! How ops wait: for a limited time, and until somebody rings.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Wakes those who wait for news of one thing.
#[derive(Default)]
pub(crate) struct Bell {
    /// How often it rang.
    rings: Mutex<u64>,
    rang: Condvar,
}

impl Bell {
    /// There may be news.
    pub(crate) fn ring(&self) {
        *self.rings.lock() += 1;
        self.rang.notify_all();
    }

    /// Calls `attempt`, and again whenever the bell rings, until it gives something, at most for
    /// about `limit`.
    pub(crate) fn wait<T>(
        &self,
        limit: Duration,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let mut heard = None;
        let mut deadline = None;
        loop {
            if let Some(result) = attempt() {
                return Some(result);
            }
            // What rang during the attempt may not have been seen by it.
            let mut rings = self.rings.lock();
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
            while heard == Some(*rings) {
                if self.rang.wait_until(&mut rings, deadline).timed_out() {
                    return None;
                }
            }
            heard = Some(*rings);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn who_waits_in_vain_comes_back_in_time() {
        let began = Instant::now();
        let mut attempts = 0;
        let result: Option<()> = Bell::default().wait(Duration::from_millis(20), || {
            attempts += 1;
            None
        });
        assert!(result.is_none());
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert_eq!(attempts, 2, "one at once, one to see what came meanwhile");
    }

    #[test]
    fn who_waits_is_woken() {
        let (bell, done) = (Arc::new(Bell::default()), Arc::new(AtomicBool::new(false)));
        let waiting = {
            let (bell, done) = (Arc::clone(&bell), Arc::clone(&done));
            std::thread::spawn(move || {
                bell.wait(Duration::from_secs(60), || done.load(Ordering::Acquire).then_some(7))
            })
        };
        done.store(true, Ordering::Release);
        bell.ring();
        assert_eq!(waiting.join().unwrap(), Some(7));
    }
}
