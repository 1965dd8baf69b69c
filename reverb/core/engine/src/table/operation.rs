// SPDX-License-Identifier: Apache-2.0
//! Operations on a table: under its lock, and what follows after it.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use reverb_base::Result;

use super::wait_queues::{self, Completions, Now};
use super::{Activity, Shared, Table};

impl Table {
    pub(super) fn operate<R>(
        &self,
        activity: Activity,
        work: impl FnOnce(&mut Shared, Instant) -> R,
    ) -> Result<R> {
        self.operate_and(activity, work, |_, _, result| result)
    }

    /// Runs `work` under the lock, serves all requests that can be served then, and runs `finish`.
    /// Then unlocks and delivers the results. Continues while that left items to evict.
    pub(super) fn operate_and<W, R>(
        &self,
        activity: Activity,
        work: impl FnOnce(&mut Shared, Instant) -> W,
        finish: impl FnOnce(&mut Shared, &mut Completions, W) -> R,
    ) -> Result<R> {
        let (result, mut has_surplus) = self.operate_once(activity, work, finish)?;
        while has_surplus {
            std::thread::yield_now();
            let evict = |shared: &mut Shared, _| {
                shared.state.evict_surplus();
                shared.state.check_staleness();
            };
            let evicted = self.operate_once(Activity::Running, evict, |_, _, ()| ());
            // A closed table stays as it is.
            has_surplus = evicted.is_ok_and(|((), has_surplus)| has_surplus);
        }
        Ok(result)
    }

    /// Does all of that under one lock. Returns the result, and true if items are left to evict.
    fn operate_once<W, R>(
        &self,
        activity: Activity,
        work: impl FnOnce(&mut Shared, Instant) -> W,
        finish: impl FnOnce(&mut Shared, &mut Completions, W) -> R,
    ) -> Result<(R, bool)> {
        let mut done = Completions::default();
        let (result, gained_room, has_pieces, has_surplus, news);
        {
            let mut guard = self.shared.lock();
            let shared = &mut *guard;
            if shared.closed {
                return Err(wait_queues::closed(self.name()));
            }
            let instant = Instant::now();
            shared.clock.change(activity, instant);
            let had_room = shared.has_insert_room(instant);
            let worked = work(shared, instant);
            let wall_ns = if shared.queues.are_empty() { 0 } else { wall_clock_ns() };
            shared.queues.serve(&mut shared.state, Now { instant, wall_ns }, &mut done);
            result = finish(shared, &mut done, worked);
            has_surplus = shared.state.has_surplus() || shared.state.has_unchecked();
            has_pieces = shared.queues.queued_samples() > 0 && shared.state.has_pieces();
            gained_room = !had_room && shared.has_insert_room(instant);
            shared.state.fold_changes(instant);
            done.garbage = shared.state.take_garbage();
            shared.state.account_mut().book();
            if shared.forecasts.is_due(shared.state.len()) {
                self.has_forecast.store(true, Ordering::Relaxed);
            }
            shared.now_waits(Instant::now());
            news = shared.news(&self.versions);
        }
        done.deliver(self.name());
        if gained_room {
            self.room.notify_waiters();
        }
        if has_pieces {
            self.pieces.notify_waiters();
        }
        if let Some(news) = news {
            news.notify();
        }
        Ok((result, has_surplus))
    }
}

/// Nanoseconds since 1970.
pub(super) fn wall_clock_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
