// SPDX-License-Identifier: Apache-2.0
//! How ops wait, when only a few of them can run at once.
//!
//! All sources of one `tf.data` pipeline share a pool of as many threads as there are cores. While some of them wait
//! in vain, another, for which there is data, may not get its turn. So whoever waits gives way as soon as that is so,
//! and comes back later: what is called next, TensorFlow decides.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Up to this many waits are no burden: there are at least as many threads, or nobody else is there.
const FEW: usize = 2;
/// The shortest wait of many.
const SHORTEST: Duration = Duration::from_millis(1);
/// Who gave way is called again within this time, or not at all: the pipeline was cancelled.
const COMES_BACK_WITHIN: Duration = Duration::from_millis(500);

/// Something for which an op waits.
pub(crate) trait Awaited: Send + Sync {
    /// Whether a call would get on.
    fn has_news(&self) -> bool;
}

/// All waits of the process.
pub(crate) struct WaitingRoom {
    inside: Mutex<Inside>,
    /// How many are outside, for those who need no lock otherwise.
    num_outside: AtomicUsize,
    news: Condvar,
}

#[derive(Default)]
struct Inside {
    /// Ops that wait now.
    waiting: usize,
    /// Who came back empty-handed and will be called again, and since when.
    outside: Vec<(Arc<dyn Awaited>, Instant)>,
}

/// The room of this process.
pub(crate) fn waiting_room() -> &'static WaitingRoom {
    static ROOM: OnceLock<WaitingRoom> = OnceLock::new();
    ROOM.get_or_init(|| WaitingRoom {
        inside: Mutex::default(),
        num_outside: AtomicUsize::new(0),
        news: Condvar::new(),
    })
}

impl WaitingRoom {
    /// There may be news for somebody.
    pub(crate) fn announce(&self) {
        // The lock makes sure that nobody is between looking and waiting.
        drop(self.inside.lock());
        self.news.notify_all();
    }

    /// Calls `attempt` until it gives something, at most for about `limit`.
    pub(crate) fn wait<T>(
        &self,
        awaited: &Arc<dyn Awaited>,
        limit: Duration,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        // Most of the time nobody has to wait, nor to lock anything.
        if let Some(result) = attempt() {
            self.leave(awaited);
            return Some(result);
        }
        let began = Instant::now();
        let mut inside = self.inside.lock();
        self.forget(&mut inside, awaited);
        inside.waiting += 1;
        let many = inside.waiting + inside.outside.len();
        let limit = if many <= FEW { limit } else { (limit / many as u32).max(SHORTEST) };
        let result = loop {
            // With the lock held nothing can happen between looking and waiting; but others look too, so not for long.
            if awaited.has_news() {
                let result = parking_lot::MutexGuard::unlocked(&mut inside, &mut attempt);
                if result.is_some() {
                    break result;
                }
            }
            let now = Instant::now();
            inside.outside.retain(|(_, since)| now.duration_since(*since) < COMES_BACK_WITHIN);
            let somebody_gets_on = inside.outside.iter().any(|(other, _)| other.has_news());
            if somebody_gets_on || self.news.wait_until(&mut inside, began + limit).timed_out() {
                break None;
            }
        };
        inside.waiting -= 1;
        if result.is_none() {
            inside.outside.push((Arc::clone(awaited), Instant::now()));
        }
        self.num_outside.store(inside.outside.len(), Ordering::Release);
        result
    }

    /// Nobody will wait for it any more.
    pub(crate) fn leave(&self, awaited: &Arc<dyn Awaited>) {
        if self.num_outside.load(Ordering::Acquire) > 0 {
            self.forget(&mut self.inside.lock(), awaited);
        }
    }

    fn forget(&self, inside: &mut Inside, awaited: &Arc<dyn Awaited>) {
        inside.outside.retain(|(other, _)| !Arc::ptr_eq(other, awaited));
        self.num_outside.store(inside.outside.len(), Ordering::Release);
    }
}
