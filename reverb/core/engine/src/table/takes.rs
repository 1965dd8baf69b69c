// SPDX-License-Identifier: Apache-2.0
//! Calls of a table whose items have rollouts, and the requests that wait for such items.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_base::{Error, Result};
use reverb_data::TableConfig;
use reverb_data::rollouts::{Late, LeaseId, Piece, Rollout, check_rollouts};
use tokio::sync::oneshot;

use super::checks::no_rollouts;
use super::clock::Activity;
use super::operation::wall_clock_ns;
use super::rollouts::{Kept, Takes};
use super::state::{MAX_SAMPLE_ITEMS, TableState, Taken};
use super::wait_queues::Completions;
use super::wait_reason::{WaitReason, paused_samples};
use super::{Shared, Table};

/// The answer to a request for items.
pub(super) type TakeAnswer = Result<Vec<Taken>>;

/// A request for items with rollouts.
#[derive(Debug, Clone, Copy)]
pub struct TakeRequest {
    /// Which items.
    pub takes: Takes,
    /// How many: all of them, or it waits.
    pub num: usize,
    /// The client's number of this lease.
    pub lease: LeaseId,
}

struct Waiting {
    id: u64,
    request: TakeRequest,
    since: Instant,
    answer: oneshot::Sender<TakeAnswer>,
}

/// Requests that wait, by what they wait for. Each kind is served in order, and blocks no other.
#[derive(Default)]
pub(super) struct TakeQueue {
    waiting: BTreeMap<Takes, VecDeque<Waiting>>,
    next_id: u64,
}

impl TakeQueue {
    /// The first request of this kind, unless it has this lease.
    pub(super) fn first_before(&self, takes: Takes, lease: LeaseId) -> Option<TakeRequest> {
        let first = self.waiting.get(&takes)?.front()?.request;
        (first.lease != lease).then_some(first)
    }

    /// True if the first learner waits for items that are not ready, although enough others are.
    pub(super) fn is_held_up(&self, state: &TableState) -> bool {
        let first = self.waiting.get(&Takes::Ready).and_then(VecDeque::front);
        let num = first.map_or(0, |waiting| waiting.request.num);
        state.num_takable(Takes::Ready) < num && num <= state.num_there(Takes::Ready)
    }

    /// Number of requests of this kind.
    pub(super) fn num_waiting(&self, takes: Takes) -> usize {
        self.waiting.get(&takes).map_or(0, VecDeque::len)
    }

    /// Number of requests for settled items.
    pub(super) fn num_of_stages(&self) -> usize {
        let stages = self.waiting.iter().filter(|(it, _)| matches!(it, Takes::Lacking(_)));
        stages.map(|(_, queue)| queue.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Answers all requests whose items are there. Returns true if there were some.
    pub(super) fn serve(
        &mut self,
        state: &mut TableState,
        now: Instant,
        is_paused: bool,
        done: &mut Completions,
    ) -> bool {
        if self.waiting.is_empty() || is_paused {
            return false;
        }
        let mut has_served = false;
        for (&takes, queue) in &mut self.waiting {
            while let Some(first) = queue.front()
                && state.num_takable(takes) >= first.request.num
                && let Some(Waiting { request, answer, since, .. }) = queue.pop_front()
            {
                let TakeRequest { num, lease, .. } = request;
                if takes == Takes::Ready {
                    let waited = now.saturating_duration_since(since).as_micros();
                    let waited = u64::try_from(waited).unwrap_or(u64::MAX);
                    state.statistics_mut().sample_waits.add(waited);
                }
                done.takes.push((answer, state.take_growing(takes, num, lease, now)));
                has_served = true;
            }
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        has_served
    }

    /// One request waits for each lease: a later one replaces an earlier one.
    fn push(
        &mut self,
        request: TakeRequest,
        since: Instant,
    ) -> (u64, oneshot::Receiver<TakeAnswer>) {
        self.retain(|waiting| waiting.request.lease != request.lease);
        let (answer, receiver) = oneshot::channel();
        let id = self.next_id;
        self.next_id += 1;
        let waiting = Waiting { id, request, since, answer };
        self.waiting.entry(request.takes).or_default().push_back(waiting);
        (id, receiver)
    }

    /// Answers requests for which there is an error now.
    pub(super) fn refuse(
        &mut self,
        why: impl Fn(&TakeRequest) -> Result<()>,
        done: &mut Completions,
    ) {
        for queue in self.waiting.values_mut() {
            for waiting in std::mem::take(queue) {
                match why(&waiting.request) {
                    Ok(()) => queue.push_back(waiting),
                    Err(error) => done.takes.push((waiting.answer, Err(error))),
                }
            }
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
    }

    /// Removes requests, which are dropped without an answer.
    fn retain(&mut self, stays: impl Fn(&Waiting) -> bool) {
        self.waiting.values_mut().for_each(|queue| queue.retain(&stays));
        self.waiting.retain(|_, queue| !queue.is_empty());
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = oneshot::Sender<TakeAnswer>> {
        std::mem::take(&mut self.waiting).into_values().flatten().map(|waiting| waiting.answer)
    }

    /// The first request for ready items; without one, the request that has waited longest.
    pub(super) fn oldest_request(&self) -> Option<TakeRequest> {
        let of_learner = self.waiting.get(&Takes::Ready).and_then(VecDeque::front);
        let any = || self.waiting.values().flatten().min_by_key(|it| it.since);
        of_learner.or_else(any).map(|it| it.request)
    }

    /// Longest wait for ready items. That a generator or a stage waits is normal.
    pub(super) fn oldest(&self, now: Instant) -> Option<Duration> {
        let since = self.waiting.get(&Takes::Ready)?.iter().map(|waiting| waiting.since).min()?;
        Some(now.saturating_duration_since(since))
    }
}

impl Table {
    /// Takes items for a client, which holds them until [`Self::settle`] or the end of its hold.
    /// Waits until all of them are there, without the lock. A call that is dropped takes nothing
    /// from then on; what it took just before is the lease's.
    ///
    /// The same lease again gets what it has. A partial take has `at_least` items after the
    /// timeout.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the table has no rollouts, or if the lease has ended or is taken by
    /// a later request. `InvalidArgument` for more items than the backlog ever has.
    /// `RateLimiterTimeout` after `timeout`. `Cancelled` if the table is closed.
    pub async fn take(
        &self,
        request: TakeRequest,
        timeout: Option<Duration>,
        is_partial: bool,
    ) -> Result<Vec<Taken>> {
        let TakeRequest { takes, num, lease } = request;
        if num == 0 || num > MAX_SAMPLE_ITEMS {
            return Err(Error::invalid_argument(format!(
                "num_items must be at least 1 and at most {MAX_SAMPLE_ITEMS}, got {num}."
            )));
        }
        let queue = |shared: &mut Shared, now: Instant| {
            check_take(&shared.config, num)?;
            let rollouts = shared.state.rollouts().ok_or_else(|| no_rollouts(self.name()))?;
            rollouts.check_lease(lease)?;
            if rollouts.held_by(lease).is_some() {
                return shared.state.take_growing(takes, num, lease, now).map(Ok);
            }
            Ok(Err(shared.queues.takes.push(request, now)))
        };
        let (id, mut answer) = match self.operate(Activity::Sampling, queue)?? {
            Ok(taken) => return Ok(taken),
            Err(waiting) => waiting,
        };
        let _leaves = Leaves { table: self, id };
        let timed_out = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = &mut answer => return answer.unwrap_or_else(|_| Err(replaced())),
            () = timed_out => {}
        }
        self.operate(Activity::Sampling, |shared, now| {
            // It may have been answered just before.
            if let Ok(answer) = answer.try_recv() {
                return answer;
            }
            let there = shared.state.num_takable(takes).min(num);
            if is_partial && there > 0 && shared.queues.paused.samples.is_none() {
                return shared.state.take_growing(takes, there, lease, now);
            }
            Err(match shared.why_take_waits(request) {
                WaitReason::Paused(by) => paused_samples(self.name(), &by),
                why => Error::rate_limiter_timeout(&format!("Table {}: {why}", self.name())),
            })
        })?
    }

    /// Adds rollouts or late columns to an item; false if it is not there any more, does not lack
    /// them, or another client has it. Never waits. `by` is the lease of the caller. Late columns
    /// that are there already stay, unless the change overwrites them; those that were made for
    /// rollouts of an earlier attempt are refused.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the table has no rollouts. `InvalidArgument` for a rollout or
    /// columns that no item has; those of [`check_rollouts`]. `Cancelled` if the table is closed.
    pub fn grow(
        &self,
        key: u64,
        by: Option<LeaseId>,
        rollouts: Vec<Rollout>,
        piece: Option<Piece>,
        late: Late,
    ) -> Result<bool> {
        self.operate(Activity::Inserting, |shared, now| {
            let Some(settings) = &shared.config.rollouts else {
                return Err(no_rollouts(self.name()));
            };
            check_rollouts(&rollouts, piece.as_ref(), settings)
                .map_err(|error| error.context(&format!("Item {key} of table {}", self.name())))?;
            shared.state.grow(key, by, rollouts, (piece, late), now)
        })?
    }

    /// Ends the hold of a client on items. With `ack` they count as sampled, else they go back to
    /// where they were. Without keys: all of the lease, which takes nothing from then on. Returns
    /// keys that other clients hold.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the table has no rollouts; `Cancelled` if it is closed.
    pub fn settle(&self, lease: LeaseId, keys: Option<&[u64]>, ack: bool) -> Result<Vec<u64>> {
        self.operate(Activity::Running, |shared, _| {
            if shared.state.rollouts().is_none() {
                return Err(no_rollouts(self.name()));
            }
            if keys.is_none() {
                shared.queues.takes.retain(|waiting| waiting.request.lease != lease);
            }
            Ok(shared.state.settle_lease(lease, keys, ack, wall_clock_ns()))
        })?
    }

    /// Ends all leases of a client. If it `is_lost`, its items count one more attempt.
    pub fn end_holder(&self, holder: u64, is_lost: bool) {
        // A closed table has no leases that matter.
        let _ = self.operate(Activity::Running, |shared, _| {
            // A call of a dead client may still wait: what it gets, nobody would give back.
            shared.queues.takes.retain(|waiting| waiting.request.lease.holder != holder);
            shared.state.end_holder(holder, is_lost);
        });
    }

    /// Notes the name of a client that may take items, for people.
    pub fn name_holder(&self, holder: u64, name: &Arc<str>) {
        let mut shared = self.shared.lock();
        if let Some(rollouts) = shared.state.rollouts_mut() {
            rollouts.name_holder(holder, Arc::clone(name));
        }
    }

    /// Gives open items back that one client has held for too long.
    pub fn end_late_holds(&self) {
        let timeout = self.config().rollouts.as_ref().and_then(|it| it.open_timeout);
        let Some(time) = timeout.and_then(|timeout| Instant::now().checked_sub(timeout)) else {
            return;
        };
        let _ = self.operate(Activity::Running, |shared, _| shared.state.end_open_since(time));
    }

    /// Sets the version of the policy, from which staleness counts. One that is not larger is
    /// ignored without `rewind`. Items that are too stale then become bare prompts again, some
    /// hundred under one lock. Returns the version now.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the table has no rollouts; `Cancelled` if it is closed.
    pub fn set_version(&self, version: i64, rewind: bool) -> Result<i64> {
        self.operate(Activity::Running, |shared, _| {
            if shared.state.rollouts().is_none() {
                return Err(no_rollouts(self.name()));
            }
            Ok(shared.state.set_version(version, rewind))
        })?
    }

    /// All that a checkpoint stores of the rollouts; `None` if the table has none.
    pub fn rollouts(&self) -> Option<Arc<Kept>> {
        Some(Arc::clone(self.shared.lock().state.rollouts()?.kept()))
    }
}

/// # Errors
///
/// `FailedPrecondition` if the table has no rollouts, `InvalidArgument` for more items than it, or
/// its backlog, ever has.
pub(super) fn check_take(config: &TableConfig, num: usize) -> Result<()> {
    let Some(settings) = &config.rollouts else { return Err(no_rollouts(&config.name)) };
    if num as i64 > config.max_size {
        return Err(Error::invalid_argument(format!(
            "Table {}: it never has {num} items at once: it has at most {} (max_size).",
            config.name, config.max_size
        )));
    }
    match settings.backlog() {
        Some(most) if num as u64 > most => Err(Error::invalid_argument(format!(
            "Table {}: it never has {num} items at once: its backlog is {most} (ahead {}, {} items \
             a version).",
            config.name,
            settings.ahead.or(settings.max_staleness).unwrap_or_default(),
            settings.items_per_version.unwrap_or_default(),
        ))),
        _ => Ok(()),
    }
}

/// Removes a request from the queue when its caller has its answer, or wants none.
struct Leaves<'a> {
    table: &'a Table,
    id: u64,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.table.shared.lock().queues.takes.retain(|waiting| waiting.id != self.id);
    }
}

fn replaced() -> Error {
    Error::failed_precondition("The lease was given up, or taken by a later request.")
}
