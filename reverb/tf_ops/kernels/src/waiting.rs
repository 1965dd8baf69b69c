// SPDX-License-Identifier: Apache-2.0
//! Waits of ops: until a notification, for a limited time.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Wakes the threads that wait for a change.
#[derive(Default)]
pub(crate) struct Notifier {
    /// Number of notifications so far.
    count: Mutex<u64>,
    changed: Condvar,
}

impl Notifier {
    /// Wakes all waiting threads: there may be a change.
    pub(crate) fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Calls `attempt`, repeating it after every notification, until it returns a result, for at
    /// most about `limit`.
    pub(crate) fn wait<T>(
        &self,
        limit: Duration,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let mut seen = None;
        let mut deadline = None;
        loop {
            if let Some(result) = attempt() {
                return Some(result);
            }
            // Notifications may have come while `attempt` ran.
            let mut count = self.count.lock();
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
            while seen == Some(*count) {
                if self.changed.wait_until(&mut count, deadline).timed_out() {
                    return None;
                }
            }
            seen = Some(*count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_wait_without_notifications_times_out() {
        let began = Instant::now();
        let mut attempts = 0;
        let result: Option<()> = Notifier::default().wait(Duration::from_millis(20), || {
            attempts += 1;
            None
        });
        assert!(result.is_none());
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert_eq!(attempts, 2, "one at once, one for missed notifications");
    }

    #[test]
    fn a_notification_wakes_a_waiting_thread() {
        let notifier = Arc::new(Notifier::default());
        let done = Arc::new(AtomicBool::new(false));
        let waiting = {
            let notifier = Arc::clone(&notifier);
            let done = Arc::clone(&done);
            std::thread::spawn(move || {
                notifier.wait(Duration::from_secs(60), || done.load(Ordering::Acquire).then_some(7))
            })
        };
        done.store(true, Ordering::Release);
        notifier.notify();
        assert_eq!(waiting.join().unwrap(), Some(7));
    }
}
