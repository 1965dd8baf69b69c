// SPDX-License-Identifier: Apache-2.0
//! Wait queues: pending insert and sample requests, and the order in which they are served.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_base::{Error, Result};
use reverb_data::rollouts::Refusal;
use reverb_data::{NewItem, SampleOptions, Sampled, ServerAccount, Trajectory, free_all};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::Confirm;
use super::changed_by::ChangedBy;
use super::clock::Activity;
use super::presence::Presence;
use super::rollouts::Takes;
use super::state::{Batch, TableState};
use super::takes::{TakeAnswer, TakeQueue};

/// Number of items of a request for which memory is fetched at a time.
const FETCHED_TOGETHER: usize = 32;

/// The answer to a sample request.
pub(super) type Answer = Result<Vec<Sampled>>;

/// Identifies a sample request. Later requests have larger ids.
pub(super) type RequestId = u64;

/// A callback, the keys to confirm, and the refused ones.
type Confirmation = (Arc<dyn Confirm>, Vec<u64>, Vec<(u64, Refusal)>);

/// The time of an operation, on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) instant: Instant,
    /// Nanoseconds since 1970.
    pub(super) wall_ns: i64,
}

impl Now {
    /// Microseconds since an earlier time.
    fn micros_since(self, then: Instant) -> u64 {
        let waited = self.instant.saturating_duration_since(then);
        u64::try_from(waited.as_micros()).unwrap_or(u64::MAX)
    }
}

/// An insert call whose items are not all applied yet.
struct InsertRequest {
    items: std::vec::IntoIter<NewItem>,
    arrived: Instant,
    /// True if `queued_bytes` includes its items. Items that never wait are not counted.
    is_counted: bool,
    /// Keys applied since the last confirmation.
    applied: Vec<u64>,
    /// Those of them that were refused: items with rollouts.
    refused: Vec<(u64, Refusal)>,
    /// Number of next items for which memory was fetched.
    num_fetched: usize,
    confirm: Arc<dyn Confirm>,
}

/// A sample request. Its batch is empty while it waits: it is answered with its first items.
struct SampleRequest {
    id: RequestId,
    /// Begin of its wait: before its arrival if it continues that of an earlier request.
    since: Instant,
    batch: Batch,
    /// Absent until the caller has to wait.
    answer: Option<oneshot::Sender<Answer>>,
    /// Of a caller that waits, if it may leave.
    presence: Option<Arc<Presence>>,
}

impl SampleRequest {
    /// True unless it is in doubt whether the caller is still there.
    fn is_certain(&self) -> bool {
        self.presence.as_deref().is_none_or(Presence::is_certain)
    }
}

/// The two wait queues of a table. Each is served in order, and neither blocks the other.
#[derive(Default)]
pub(super) struct WaitQueues {
    inserts: VecDeque<InsertRequest>,
    queued_inserts: usize,
    /// Number of items that did not wait and are not in the statistics yet.
    num_at_once: u64,
    /// Bytes of the queued items. A shared chunk counts for each item.
    queued_bytes: u64,
    samples: VecDeque<SampleRequest>,
    next_id: RequestId,
    /// Requests for items with rollouts.
    pub(super) takes: TakeQueue,
    pub(super) paused: Paused,
}

/// Authors of the pauses of each queue. A paused queue only grows.
#[derive(Debug, Default)]
pub(super) struct Paused {
    pub(super) inserts: Option<ChangedBy>,
    pub(super) samples: Option<ChangedBy>,
}

/// Work to do after the table is unlocked.
#[derive(Default)]
#[must_use]
pub(super) struct Completions {
    confirmed: SmallVec<[Confirmation; 1]>,
    failed: Vec<Arc<dyn Confirm>>,
    answers: Vec<(oneshot::Sender<Answer>, Answer)>,
    pub(super) takes: Vec<(oneshot::Sender<TakeAnswer>, TakeAnswer)>,
    /// The answer to the current caller, which does not have to wait.
    own: Option<Answer>,
    pub(super) garbage: Vec<Trajectory>,
}

impl Completions {
    /// Delivers confirmations, failures and answers, then frees deleted items. No lock may be held.
    pub(super) fn deliver(self, table: &str) {
        for (confirm, keys, refused) in self.confirmed {
            if !refused.is_empty() {
                confirm.refused(refused);
            }
            confirm.confirmed(&keys);
        }
        for confirm in self.failed {
            confirm.failed(closed(table));
        }
        for (sender, answer) in self.answers {
            // The caller may be gone already. Its samples stay counted.
            drop(sender.send(answer));
        }
        for (sender, answer) in self.takes {
            drop(sender.send(answer));
        }
        free_all(self.garbage);
    }

    pub(super) fn take_own(&mut self) -> Option<Answer> {
        self.own.take()
    }
}

/// The error of every call to a closed table.
pub(super) fn closed(table: &str) -> Error {
    Error::cancelled(format!("RateLimiter has been cancelled: table {table} is closed."))
}

impl WaitQueues {
    pub(super) fn queued_inserts(&self) -> usize {
        self.queued_inserts
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Trajectories of queued items, up to the capacity of `found`. Returns true if these were all.
    pub(super) fn queued_trajectories(&self, found: &mut Vec<Trajectory>) -> bool {
        let room = found.capacity() - found.len();
        found.extend(self.queued_items().take(room).map(|item| item.trajectory.clone()));
        self.queued_inserts <= room
    }

    /// All queued items.
    pub(super) fn queued_items(&self) -> impl Iterator<Item = &NewItem> {
        self.inserts.iter().flat_map(|request| request.items.as_slice())
    }

    /// The items of the last insert request that still wait.
    pub(super) fn last_request(&self) -> &[NewItem] {
        self.inserts.back().map_or(&[], |request| request.items.as_slice())
    }

    /// The item that is inserted next.
    pub(super) fn next_insert(&self) -> Option<&NewItem> {
        self.inserts.front()?.items.as_slice().first()
    }

    pub(super) fn queued_samples(&self) -> usize {
        self.samples.len()
    }

    /// Number of requests for samples, and for ready items.
    pub(super) fn waiting_samples(&self) -> usize {
        self.samples.len() + self.takes.num_waiting(Takes::Ready)
    }

    pub(super) fn are_empty(&self) -> bool {
        self.inserts.is_empty() && self.samples.is_empty() && self.takes.is_empty()
    }

    /// The sample request at a position in the queue.
    pub(super) fn sample_request(&self, at: usize) -> Option<&Batch> {
        self.samples.get(at).map(|request| &request.batch)
    }

    /// Wait of the first insert.
    pub(super) fn oldest_insert(&self, now: Instant) -> Option<Duration> {
        self.inserts.front().map(|request| now.saturating_duration_since(request.arrived))
    }

    /// Longest wait of a sample request. The first one need not wait for the longest time: those
    /// that time out and come again are behind it.
    pub(super) fn oldest_sample(&self, now: Instant) -> Option<Duration> {
        let since = self.samples.iter().map(|request| request.since).min();
        since.map(|since| now.saturating_duration_since(since)).max(self.takes.oldest(now))
    }

    /// Activity of the table while no request can be served.
    pub(super) fn waits_for(&self) -> Activity {
        if self.waiting_samples() > 0 {
            Activity::WaitingForInserts
        } else if self.queued_inserts > 0 {
            Activity::WaitingForSampling
        } else {
            Activity::Sleeping
        }
    }

    pub(super) fn queue_inserts(
        &mut self,
        items: Vec<NewItem>,
        confirm: Arc<dyn Confirm>,
        arrived: Instant,
    ) {
        self.queued_inserts += items.len();
        let applied = Vec::with_capacity(items.len());
        let items = items.into_iter();
        self.inserts.push_back(InsertRequest {
            items,
            arrived,
            is_counted: false,
            applied,
            refused: Vec::new(),
            num_fetched: 0,
            confirm,
        });
    }

    /// Removes and returns the queued items of `confirm`. Applied items stay in the table.
    pub(super) fn cancel_inserts(&mut self, confirm: &Arc<dyn Confirm>) -> Vec<NewItem> {
        let mut cancelled = Vec::new();
        let mut cancelled_bytes = 0;
        self.inserts.retain_mut(|request| {
            let is_match = std::ptr::addr_eq(Arc::as_ptr(&request.confirm), Arc::as_ptr(confirm));
            if is_match {
                if request.is_counted {
                    cancelled_bytes += request.items.as_slice().iter().map(bytes_of).sum::<u64>();
                }
                cancelled.extend(request.items.by_ref());
            }
            !is_match
        });
        self.queued_bytes -= cancelled_bytes;
        self.queued_inserts -= cancelled.len();
        cancelled
    }

    pub(super) fn queue_sample(
        &mut self,
        wanted: usize,
        options: SampleOptions,
        arrived: Instant,
    ) -> RequestId {
        let id = self.next_id;
        self.next_id += 1;
        self.samples.push_back(SampleRequest {
            id,
            since: options.waits_since.unwrap_or(arrived),
            batch: Batch::new(wanted, options),
            answer: None,
            presence: None,
        });
        id
    }

    /// Makes the caller of a request wait for its answer.
    pub(super) fn wait(
        &mut self,
        id: RequestId,
        presence: Option<Arc<Presence>>,
    ) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        if let Some(at) = self.position(id) {
            let request = &mut self.samples[at];
            request.batch.has_waited = true;
            request.answer = Some(sender);
            request.presence = presence;
        }
        receiver
    }

    /// Removes a sample request; false if it was answered already.
    pub(super) fn cancel(&mut self, id: RequestId) -> bool {
        self.position(id).is_some_and(|at| self.samples.remove(at).is_some())
    }

    /// Serves all requests that can be served: alternately one insert and one whole sample request,
    /// until neither makes progress, or as many inserts as there are while no samples are
    /// requested. A sample request that has some items by then is answered with them.
    pub(super) fn serve(&mut self, state: &mut TableState, now: Now, done: &mut Completions) {
        // Position of a sample request that has some of its items.
        let mut begun = None;
        loop {
            let inserted = self.insert_some(state, now, done);
            let sampled = self.sample_one(&mut begun, state, now, done);
            let taken = self.takes.serve(state, now.instant, self.paused.samples.is_some(), done);
            if !inserted && !sampled && !taken {
                break;
            }
        }
        let num_at_once = std::mem::take(&mut self.num_at_once);
        state.statistics_mut().insert_waits.add_many(0, num_at_once);
        if let Some(request) = self.inserts.front_mut()
            && !request.applied.is_empty()
        {
            let keys = std::mem::take(&mut request.applied);
            let refused = std::mem::take(&mut request.refused);
            done.confirmed.push((Arc::clone(&request.confirm), keys, refused));
        }
        self.count_bytes(state.account().server());
        if let Some(at) = begun {
            self.answer(at, state, now, done);
        }
    }

    /// Counts the bytes of requests that have just begun to wait. Their chunks are not counted by
    /// any table yet, and the server knows nothing of those from writers in this process.
    fn count_bytes(&mut self, server: &ServerAccount) {
        for request in self.inserts.iter_mut().rev().take_while(|request| !request.is_counted) {
            for item in request.items.as_slice() {
                self.queued_bytes += bytes_of(item);
                item.trajectory.chunks().iter().for_each(|chunk| server.charge(chunk));
            }
            request.is_counted = true;
        }
    }

    /// Fails all waiting requests.
    pub(super) fn close(&mut self, table: &str, done: &mut Completions) {
        self.queued_inserts = 0;
        self.queued_bytes = 0;
        done.failed.extend(self.inserts.drain(..).map(|request| request.confirm));
        let senders = self.samples.drain(..).filter_map(|request| request.answer);
        done.answers.extend(senders.map(|sender| (sender, Err(closed(table)))));
        let takes = self.takes.drain();
        done.takes.extend(takes.map(|sender| (sender, Err(closed(table)))));
    }

    /// Inserts items of the first request that the table allows: one, or all while no samples are
    /// requested, which could be answered in between. Returns false if there was none.
    fn insert_some(&mut self, state: &mut TableState, now: Now, done: &mut Completions) -> bool {
        let Some(request) = self.inserts.front_mut() else { return false };
        if self.paused.inserts.is_some() || state.lag_above_limit(now.instant).is_some() {
            return false;
        }
        let most = if self.samples.is_empty() { usize::MAX } else { 1 };
        let before = request.items.len();
        while before - request.items.len() < most
            && let Some(item) = request.items.as_slice().first()
            && state.limiter().can_insert(1)
            && !state.has_surplus()
            && state.has_room_for(item)
            && state.has_place_for(item)
        {
            if request.num_fetched == 0 && request.items.len() > 1 {
                let (next, rest) =
                    request.items.as_slice().split_at(request.items.len().min(FETCHED_TOGETHER));
                state.fetch_for(next, rest.len().min(FETCHED_TOGETHER));
                request.num_fetched = next.len();
            }
            let Some(item) = request.items.next() else { break };
            request.num_fetched = request.num_fetched.saturating_sub(1);
            if request.is_counted {
                self.queued_bytes -= bytes_of(&item);
            }
            let key = item.key;
            request.applied.push(key);
            if let Some(refusal) = state.insert(item, now.wall_ns) {
                request.refused.push((key, refusal));
            }
        }
        let inserted = before - request.items.len();
        if inserted == 0 {
            return false;
        }
        self.queued_inserts -= inserted;
        if request.arrived == now.instant {
            self.num_at_once += inserted as u64;
        } else {
            let waited = now.micros_since(request.arrived);
            state.statistics_mut().insert_waits.add_many(waited, inserted as u64);
        }
        if request.items.len() == 0
            && let Some(request) = self.inserts.pop_front()
        {
            done.confirmed.push((request.confirm, request.applied, request.refused));
        }
        true
    }

    fn sample_one(
        &mut self,
        begun: &mut Option<usize>,
        state: &mut TableState,
        now: Now,
        done: &mut Completions,
    ) -> bool {
        let next = || self.samples.iter().position(SampleRequest::is_certain);
        let Some(at) = begun.take().or_else(next) else { return false };
        if self.paused.samples.is_some() {
            return false;
        }
        let request = &mut self.samples[at];
        let before = request.batch.len();
        state.sample(&mut request.batch);
        let progress = request.batch.len() > before;
        let sampled = request.batch.since(before);
        state.statistics_mut().count_samples(sampled, now.wall_ns);
        if state.rollouts().is_some() {
            // Of those that have left it is counted when they leave.
            for item in sampled {
                state.count_staleness(item.key);
            }
        }
        if request.batch.is_over() {
            self.answer(at, state, now, done);
            return true;
        }
        *begun = (request.batch.len() > 0).then_some(at);
        progress
    }

    /// Answers the request at a position in the queue.
    fn answer(&mut self, at: usize, state: &mut TableState, now: Now, done: &mut Completions) {
        let Some(request) = self.samples.remove(at) else { return };
        if request.batch.len() > 0 {
            state.statistics_mut().sample_waits.add(now.micros_since(request.since));
        }
        let answer = request.batch.into_answer();
        match request.answer {
            Some(sender) => done.answers.push((sender, answer)),
            None => done.own = Some(answer),
        }
    }

    /// Position in the queue; `None` if it was answered already.
    pub(super) fn position(&self, id: RequestId) -> Option<usize> {
        self.samples.binary_search_by_key(&id, |request| request.id).ok()
    }
}

fn bytes_of(item: &NewItem) -> u64 {
    item.trajectory.bytes_with_chunks()
}
