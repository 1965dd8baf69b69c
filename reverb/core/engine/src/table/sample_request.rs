// SPDX-License-Identifier: Apache-2.0
//! Sample requests of a table: the first attempt, and the wait of those that are queued.

use std::sync::Arc;
use std::time::Duration;

use reverb_base::{Error, Result};
use reverb_data::{SampleOptions, Sampled};
use tokio::sync::oneshot;

use super::clock::Activity;
use super::presence::Presence;
use super::state::MAX_SAMPLE_ITEMS;
use super::wait_queues::{Answer, RequestId};
use super::{Shared, Table};

impl Table {
    /// Samples at least one item and at most `num`. Returns the items that the rate limiter allows
    /// when the request is served, and stops once their chunks reach `MAX_SAMPLE_BYTES`.
    ///
    /// Waits at most `timeout` for the first item. Zero makes exactly one attempt, and `None` waits
    /// without a limit. A dropped call leaves the queue. Items that it already got stay counted.
    ///
    /// # Errors
    ///
    /// `RateLimiterTimeout` with the reason of the wait. `Cancelled` if the table is closed, even
    /// while waiting. `InvalidArgument` if `num` is 0.
    pub async fn sample(&self, num: usize, timeout: Option<Duration>) -> Result<Vec<Sampled>> {
        self.sample_with(num, timeout, SampleOptions::default()).await
    }

    /// Like [`Table::sample`], with options. If the table has a `max_times_sampled`, a batch whose
    /// items cannot be stacked is not sampled: the call returns the items before that batch, or the
    /// error if there are none. With `all_or_nothing` it waits until the rate limiter allows all
    /// items under one lock; `num` is then at most [`MAX_SAMPLE_ITEMS`]. The same holds for
    /// `distinct`, which returns no item twice; the probability of an item is that of one draw.
    ///
    /// With `window`, each sample has a window that is drawn from those of its item, and its
    /// trajectory is still that of the whole item. A call waits while no item has such a window.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `distinct` requests more items than there are, although the rate
    /// limiter allows the request; if no item has the window and no insert will bring one; or if
    /// the next item of a sampler with an order has none. Errors of [`Table::sample`] and of
    /// [`reverb_data::ItemSpec::check`]; nothing was sampled then.
    pub async fn sample_with(
        &self,
        num: usize,
        timeout: Option<Duration>,
        options: SampleOptions,
    ) -> Result<Vec<Sampled>> {
        self.sample_until(num, timeout, options, std::future::pending(), None).await
    }

    /// Like [`Table::sample_with`]. When `interrupted` completes, a blocked call leaves the queue
    /// and fails with its error; nothing was sampled for it then. While it is in doubt whether the
    /// caller is there, a blocked call gets nothing.
    ///
    /// # Errors
    ///
    /// Errors of [`Table::sample_with`], and that of `interrupted`.
    pub async fn sample_until(
        &self,
        num: usize,
        timeout: Option<Duration>,
        options: SampleOptions,
        interrupted: impl Future<Output = Error>,
        presence: Option<Arc<Presence>>,
    ) -> Result<Vec<Sampled>> {
        if num == 0 {
            return Err(Error::invalid_argument("num_samples must be at least 1, got 0."));
        }
        let options = options.whole();
        if options.all_or_nothing && num > MAX_SAMPLE_ITEMS {
            return Err(Error::invalid_argument(format!(
                "A batch of all items or none may have {MAX_SAMPLE_ITEMS} items, got {num}. Ask for \
                 smaller batches, or let them be partial."
            )));
        }
        if let Some(window) = options.window {
            window.validate()?;
            self.know_steps().await;
        }
        let wait = |shared: &mut Shared, id| {
            // The attempt is not over before all of its work in pieces is done.
            if timeout != Some(Duration::ZERO) || shared.state.has_pieces() {
                return Ok(Waiting {
                    table: self,
                    id,
                    answer: shared.queues.wait(id, presence),
                    is_over: false,
                });
            }
            let why = shared.timeout(id);
            shared.queues.cancel(id);
            Err(why)
        };
        let mut waiting = match self.attempt(num, options, wait)? {
            Attempt::Answered(answer) => return answer,
            Attempt::Queued(waiting) => waiting?,
        };
        let timed_out = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let mut interrupted = std::pin::pin!(interrupted);
        let mut timed_out = std::pin::pin!(timed_out);
        let error = loop {
            let more = self.pieces.notified();
            let mut more = std::pin::pin!(more);
            // From here on no notification is missed.
            more.as_mut().enable();
            self.do_pieces().await;
            tokio::select! {
                biased;
                answer = waiting.answer() => return answer,
                error = &mut interrupted => break Some(error),
                () = &mut timed_out => break None,
                () = more => {}
            }
        };
        let why = |shared: &Shared, id| error.unwrap_or_else(|| shared.timeout(id));
        if let Some(why) = waiting.leave(why) {
            return Err(why);
        }
        // The request was answered just before.
        waiting.answer().await
    }

    /// Serves requests again, after a caller that was in doubt has turned out to be there.
    pub fn serve_again(&self) {
        // A closed table has no requests.
        let _ = self.operate(Activity::Running, |_, _| ());
    }

    /// Counts the steps of all items at the first request for a window, some under each lock, so
    /// that other requests continue.
    async fn know_steps(&self) {
        loop {
            {
                let state = &mut self.shared.lock().state;
                if !state.knows_steps() {
                    state.count_steps();
                }
                if state.knows_steps() {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Does the work that the first request needs, a piece under each lock. Each piece is followed
    /// by an attempt to serve the requests, so that the request is served with the last one.
    async fn do_pieces(&self) {
        while self.do_piece() {
            tokio::task::yield_now().await;
        }
    }

    /// Returns true if there may be more to do.
    fn do_piece(&self) -> bool {
        if !self.shared.lock().state.has_pieces() {
            return false;
        }
        // A closed table has no requests.
        self.operate(Activity::Sampling, |shared, _| shared.state.do_piece()).is_ok()
    }

    /// Like [`Table::sample`], but never waits. `None` if the rate limiter allows no sample now, if
    /// other requests are queued, or if the table is closed.
    pub fn try_sample(&self, num: usize) -> Option<Vec<Sampled>> {
        self.try_sample_with(num, SampleOptions::default())
    }

    /// Like [`Table::sample_with`], but never waits. `None` also if it would fail.
    pub fn try_sample_with(&self, num: usize, options: SampleOptions) -> Option<Vec<Sampled>> {
        let options = options.whole();
        if num == 0 || (options.all_or_nothing && num > MAX_SAMPLE_ITEMS) {
            return None;
        }
        if let Some(window) = options.window
            && (window.validate().is_err() || !self.shared.lock().state.knows_steps())
        {
            return None;
        }
        loop {
            let cancel = |shared: &mut Shared, id| {
                shared.queues.cancel(id);
                shared.state.has_pieces()
            };
            match self.attempt(num, options, cancel) {
                Ok(Attempt::Answered(answer)) => return answer.ok(),
                Ok(Attempt::Queued(true)) => while self.do_piece() {},
                _ => return None,
            }
        }
    }

    /// Tries a sample request once. If it is blocked, it is queued and `otherwise` makes the
    /// result.
    fn attempt<R>(
        &self,
        num: usize,
        options: SampleOptions,
        otherwise: impl FnOnce(&mut Shared, RequestId) -> R,
    ) -> Result<Attempt<R>> {
        self.operate_and(
            Activity::Sampling,
            |shared, now| shared.queues.queue_sample(num, options, now),
            |shared, done, id| match done.take_own() {
                Some(answer) => Attempt::Answered(answer),
                None => Attempt::Queued(otherwise(shared, id)),
            },
        )
    }
}

/// Result of the first attempt of a sample request.
enum Attempt<R> {
    Answered(Answer),
    Queued(R),
}

/// A queued sample request. Dropping it removes it from the queue.
struct Waiting<'a> {
    table: &'a Table,
    id: RequestId,
    answer: oneshot::Receiver<Answer>,
    is_over: bool,
}

impl Waiting<'_> {
    async fn answer(&mut self) -> Answer {
        let answer = (&mut self.answer).await;
        self.is_over = true;
        answer.unwrap_or_else(|_| Err(Error::internal("A sample request was lost.")))
    }

    /// Removes the request from the queue, after a last look at the table; `None` if it was
    /// answered already. Later requests may then be served.
    fn leave<R>(&mut self, look: impl FnOnce(&Shared, RequestId) -> R) -> Option<R> {
        self.is_over = true;
        let seen = self.table.operate(Activity::Running, |shared, _| {
            let seen = shared.queues.position(self.id).map(|_| look(shared, self.id));
            shared.queues.cancel(self.id);
            seen
        });
        // A closed table has no queue.
        seen.ok().flatten()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.leave(|_, _| ());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use reverb_data::{RateLimiterConfig, SelectorConfig, StepWindow, TableConfig};
    use tokio::time::timeout;

    use super::super::testing::{IgnoreConfirm, config, item_of_length};
    use super::super::{Confirm, Table};
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// Items of one step, except for one of nine.
    fn table(min_size_to_sample: i64) -> Arc<Table> {
        let rate_limiter = RateLimiterConfig { min_size_to_sample, ..config(1).rate_limiter };
        let sampler = SelectorConfig::Uniform;
        let table = Table::new(TableConfig { sampler, rate_limiter, ..config(10_000) }).unwrap();
        for key in 0..3_000 {
            insert(&table, key, if key == 1_234 { 9 } else { 1 });
        }
        table
    }

    fn insert(table: &Table, key: u64, steps: usize) {
        let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
        table.insert(vec![item_of_length(key, steps, 1.0)], &confirm).unwrap();
    }

    fn of(length: u32) -> SampleOptions {
        let window = StepWindow { length, before: 0, pads_left: false, pads_right: false };
        SampleOptions { window: Some(window), ..SampleOptions::default() }
    }

    async fn keys(table: &Table, length: u32) -> Vec<u64> {
        let sampled = timeout(SOON, table.sample_with(2, None, of(length))).await;
        sampled.expect("soon").unwrap().iter().map(|item| item.key).collect()
    }

    /// A request of a caller that has come to the queue as number `place`.
    async fn queued(
        table: &Arc<Table>,
        presence: &Arc<Presence>,
        place: usize,
    ) -> tokio::task::JoinHandle<Vec<u64>> {
        let (waits, presence) = (Arc::clone(table), Some(Arc::clone(presence)));
        let request = tokio::spawn(async move {
            let (options, forever) = (SampleOptions::default(), std::future::pending());
            let sampled = waits.sample_until(2, None, options, forever, presence).await;
            sampled.unwrap().iter().map(|item| item.key).collect()
        });
        while table.shared.lock().queues.queued_samples() < place {
            tokio::task::yield_now().await;
        }
        request
    }

    /// An empty queue.
    fn queue() -> Arc<Table> {
        Table::new(TableConfig { max_times_sampled: 1, ..config(100) }).unwrap()
    }

    #[tokio::test]
    async fn a_caller_that_may_have_left_gets_nothing() {
        let table = queue();
        let (first, second) = (Arc::default(), Arc::default());
        let leaves = queued(&table, &first, 1).await;
        let stays = queued(&table, &second, 2).await;
        first.note_event();
        insert(&table, 1, 1);
        assert_eq!(timeout(SOON, stays).await.unwrap().unwrap(), [1]);
        insert(&table, 2, 1);
        leaves.abort();
        assert!(leaves.await.unwrap_err().is_cancelled());
        assert_eq!(table.try_sample(1).unwrap()[0].key, 2);
    }

    #[tokio::test]
    async fn a_caller_that_is_there_after_all_gets_what_came_meanwhile() {
        let table = queue();
        let presence = Arc::default();
        let request = queued(&table, &presence, 1).await;
        presence.note_event();
        presence.note_event();
        insert(&table, 1, 1);
        // Another event has come since it looked.
        assert!(presence.explain(1));
        table.serve_again();
        assert_eq!((table.len(), request.is_finished()), (1, false));
        assert!(presence.explain(presence.num_events()));
        assert!(!presence.explain(presence.num_events()));
        table.serve_again();
        assert_eq!(timeout(SOON, request).await.unwrap().unwrap(), [1]);
    }

    #[tokio::test]
    async fn a_request_that_the_limiter_held_makes_its_sums_then() {
        let table = table(3_001);
        let then = async {
            while table.status().sampling.oldest_wait.is_none() {
                tokio::task::yield_now().await;
            }
            insert(&table, 5_000, 1);
        };
        assert_eq!(tokio::join!(keys(&table, 7), then).0, [1_234, 1_234]);
    }

    #[tokio::test]
    async fn requests_for_more_windows_than_are_kept_are_all_served() {
        let table = table(1);
        let all = tokio::join!(
            keys(&table, 3),
            keys(&table, 4),
            keys(&table, 5),
            keys(&table, 6),
            keys(&table, 7),
            keys(&table, 8),
            keys(&table, 9),
        );
        let all = [all.0, all.1, all.2, all.3, all.4, all.5, all.6];
        assert!(all.iter().all(|keys| *keys == [1_234, 1_234]), "{all:?}");
    }

    #[tokio::test]
    async fn one_attempt_makes_the_sums_that_it_needs() {
        let table = table(1);
        let sampled = table.sample_with(2, Some(Duration::ZERO), of(7)).await.unwrap();
        assert_eq!(sampled.len(), 2);
        assert_eq!(table.try_sample_with(2, of(8)).unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_request_that_leaves_while_sums_are_made_stops_nobody() {
        let table = table(1);
        for _ in 0..3 {
            let gone = async {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                () = gone => {}
                _ = table.sample_with(2, None, of(7)) => panic!("it is far from the last piece"),
            }
            assert_eq!(keys(&table, 8).await, [1_234, 1_234]);
            assert_eq!(table.try_sample(1).unwrap().len(), 1);
            // Sums that were begun are gone on with, so each round has others.
            table.reset();
            (0..3_000).for_each(|key| insert(&table, key, if key == 1_234 { 9 } else { 1 }));
        }
    }
}
