// SPDX-License-Identifier: Apache-2.0
//! The send queue of a writer: items to send, items in flight, and callers that wait for
//! confirmations.
//!
//! The background task that sends the items is in `send_task`.

mod description;
mod gathering;
mod in_flight;
mod message;
mod send_task;
mod state;
mod stay;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_base::tasks::{SharedTask, Turn};
use reverb_base::{Error, Result};
use reverb_data::{KeyGenerator, KeySlots};
use smallvec::SmallVec;
use tokio::sync::{Notify, watch};

pub(crate) use self::gathering::Gathering;
use self::in_flight::Sent;
use self::message::Message;
use self::state::{Lost, State, Task, WARN_PENDING_ITEMS};
use super::block::{BlockRef, WeakBlockRef};
use super::dropped::LastDropped;
use super::item::PendingItem;
use super::{MESSAGE_BYTES, MESSAGE_ITEMS};
use crate::session::Session;

/// A writer that is faster than its connection is slowed down when this many bytes are unconfirmed.
/// More memory, filled and drained only once, costs more than sending it.
const MAX_WAITING_BYTES: usize = 32 * 1024 * 1024;
/// Time without a confirmation after which the writer continues: the rate limiter may be closed,
/// and then the program decides when to wait.
const MIN_PATIENCE: Duration = Duration::from_millis(20);
/// Additional wait, each time that twice as many bytes are unconfirmed. This slows a writer down to
/// a slow server; a program that writes a gigabyte behind a closed limiter waits 10 s in total.
const PATIENCE_PER_MIB: Duration = Duration::from_millis(5);
/// The queue of one writer, and the task that sends its items.
#[derive(Debug)]
pub(crate) struct SendQueue {
    state: Mutex<State>,
    gathering: Gathering,
    task: Arc<SharedTask>,
    /// True while the stream leads to a server in this process.
    is_local: AtomicBool,
    /// Wakes the task.
    work: Notify,
    /// Ends the task, even while it waits.
    closing: Notify,
    /// Notified when items are confirmed, when the stream is lost, and when the writer fails or is
    /// closed.
    progress: watch::Sender<()>,
    /// Set while the caller has to wait: more bytes than `State::waits_above` or as many as
    /// `max_pending_bytes` are unconfirmed.
    over_limit: AtomicBool,
    /// Limit of unconfirmed bytes that holds even without confirmations.
    max_pending_bytes: AtomicUsize,
    /// Set if an episode has ended since the last message.
    has_ended_episode: AtomicBool,
    /// Dropped writer whose items are sent before the first item.
    after: Mutex<Option<Arc<LastDropped>>>,
}

impl SendQueue {
    /// Starts the task. It ends when the queue is closed.
    pub(crate) fn start(session: Arc<Session>, gathering: Gathering) -> Arc<Self> {
        let queue = Arc::new(Self {
            state: Mutex::new(State {
                warn_at: WARN_PENDING_ITEMS,
                waits_above: MAX_WAITING_BYTES,
                address: session.address().to_owned(),
                ..State::default()
            }),
            gathering,
            task: Arc::default(),
            is_local: AtomicBool::new(false),
            work: Notify::new(),
            closing: Notify::new(),
            progress: watch::Sender::new(()),
            over_limit: AtomicBool::new(false),
            max_pending_bytes: AtomicUsize::new(usize::MAX),
            has_ended_episode: AtomicBool::new(false),
            after: Mutex::new(None),
        });
        let runtime = session.runtime().clone();
        runtime.spawn(queue.task.start(send_task::run(Arc::clone(&queue), session)));
        queue
    }

    /// Queues an item. Never waits; see `is_over_limit`.
    pub(crate) fn push(&self, item: PendingItem) -> Result<()> {
        self.push_all([item])
    }

    /// Queues all items or none. Never waits; see `is_over_limit`.
    pub(crate) fn push_all(
        &self,
        items: impl IntoIterator<Item = PendingItem> + AsRef<[PendingItem]>,
    ) -> Result<()> {
        if self.keep_all(items)? {
            self.wake();
        }
        Ok(())
    }

    /// Like `push_all`, without waking the task: the items are sent with later ones, or by a flush.
    /// Returns true if the task is to be woken to send them now.
    pub(crate) fn keep_all(
        &self,
        items: impl IntoIterator<Item = PendingItem> + AsRef<[PendingItem]>,
    ) -> Result<bool> {
        let items_before = std::iter::once(None).chain(items.as_ref().iter().map(Some));
        for (item, before) in items.as_ref().iter().zip(items_before) {
            if !before.is_some_and(|before| item.refers_to_columns_of(before)) {
                item.mark_referenced();
            }
        }
        let bytes: SmallVec<[usize; 64]> =
            items.as_ref().iter().map(PendingItem::new_bytes).collect();
        let mut state = self.state.lock();
        state.check()?;
        let before = state.queue.len();
        state.waiting_bytes += bytes.iter().sum::<usize>();
        state.queue.extend(items.into_iter().zip(bytes));
        if state.waiting_bytes > state.waits_above || self.is_at_max_pending(&state) {
            self.over_limit.store(true, Ordering::Relaxed);
        }
        state.warn_if_many();
        Ok(match state.task {
            Task::Busy => false,
            // One that is not ready is told by `blocks_completed` or `freeze_blocks`.
            Task::Idle => state.queue.len() > before && state.head_is_ready(),
            Task::Gathering => {
                let enough = self.gathering.items;
                before < enough && state.queue.len() >= enough
            }
        })
    }

    /// Wakes the task.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }

    /// True if so many bytes are unconfirmed that the caller should call `throttle`.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.over_limit.load(Ordering::Relaxed)
    }

    /// Makes callers wait while this many bytes are unconfirmed.
    pub(crate) fn limit_pending(&self, max_pending_bytes: usize) {
        self.max_pending_bytes.store(max_pending_bytes, Ordering::Relaxed);
    }

    fn is_at_max_pending(&self, state: &State) -> bool {
        state.waiting_bytes >= self.max_pending_bytes.load(Ordering::Relaxed)
    }

    /// Waits while many bytes are unconfirmed and confirmations arrive. Returns after a while if
    /// the table accepts no items, unless `max_pending_bytes` are unconfirmed.
    pub(crate) async fn throttle(&self) -> Result<()> {
        let mut progress = self.progress.subscribe();
        let mut in_vain = false;
        loop {
            progress.borrow_and_update();
            let (is_at_max_pending, patience) = {
                let mut state = self.state.lock();
                state.check()?;
                let is_at_max_pending = self.is_at_max_pending(&state);
                // Only the caller completes a block that is open.
                let none_is_sent = state.num_sent() == 0 && !state.head_is_ready();
                if none_is_sent {
                    state.waits_above = state.waiting_bytes + MAX_WAITING_BYTES;
                }
                if in_vain {
                    state.waits_above = state.waiting_bytes.max(MAX_WAITING_BYTES) * 2;
                }
                let is_little = state.waiting_bytes <= MAX_WAITING_BYTES / 2;
                if !is_at_max_pending && (in_vain || none_is_sent || is_little) {
                    self.over_limit.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                (is_at_max_pending, patience(state.waiting_bytes))
            };
            if is_at_max_pending {
                // Items whose blocks are open would never be sent.
                self.freeze_blocks(0);
                let _flushing = Flushing::begin(self);
                if progress.changed().await.is_err() {
                    return Err(Error::internal("the writer's progress channel closed"));
                }
            } else {
                in_vain = tokio::time::timeout(patience, progress.changed()).await.is_err();
            }
        }
    }

    /// Makes the first item wait for the items of the writer that was dropped last. Called before
    /// the first item is queued.
    pub(crate) fn begin_after(&self, last: Arc<LastDropped>) {
        *self.after.lock() = Some(last);
    }

    /// Handles the end of an episode: in a group, the next one may go to another shard.
    pub(crate) fn episode_ended(&self) {
        self.has_ended_episode.store(true, Ordering::Relaxed);
    }

    /// Wakes the task: waiting items may have become ready.
    pub(crate) fn blocks_completed(&self) {
        if !self.state.lock().queue.is_empty() {
            self.work.notify_one();
        }
    }

    /// Returns the error that ended the stream for good, or an error if the writer is closed.
    pub(crate) fn check(&self) -> Result<()> {
        self.state.lock().check()
    }

    /// Number of items that are not confirmed yet.
    pub(crate) fn num_pending(&self) -> usize {
        self.state.lock().num_pending()
    }

    /// Number of items that are ready or sent, and not confirmed yet.
    pub(crate) fn num_sendable(&self) -> usize {
        let state = self.state.lock();
        let ready = state.num_ready();
        state.num_sent() + ready
    }

    /// True if any item waits for its blocks to be completed.
    pub(crate) fn has_unready(&self) -> bool {
        self.state.lock().queue.iter().any(|(item, _)| !item.is_ready())
    }

    /// Freezes the blocks of all queued items except the last `except`.
    fn freeze_blocks(&self, except: usize) {
        let state = self.state.lock();
        let count = state.queue.len().saturating_sub(except);
        state.queue.iter().take(count).for_each(|(item, _)| item.freeze());
        // A caller with nothing to wait for does not end the gathering.
        let wake = count > 0 || (state.task == Task::Idle && state.head_is_ready());
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// A turn at the task for a caller that would only wait for it; `None` if the runtime sends. In
    /// a turn, no thread is woken. The server must be in this process.
    fn take_turn(&self) -> Option<Turn<'_>> {
        self.is_local.load(Ordering::Relaxed).then(|| self.task.take_turn())?
    }

    /// True if all items fit one message, so that a caller that sends them is not away for long.
    fn fits_turn(&self) -> bool {
        let state = self.state.lock();
        state.waiting_bytes <= MESSAGE_BYTES && state.num_pending() <= MESSAGE_ITEMS
    }

    /// Waits until at most `max_pending` items are unconfirmed. Completes the chunks of all items
    /// except the last `max_pending`.
    pub(crate) async fn flush(&self, max_pending: usize) -> Result<()> {
        let turn = self.take_turn();
        self.freeze_blocks(max_pending);
        self.wait_until(turn, |state| state.num_pending() <= max_pending).await
    }

    /// Waits until all items are confirmed.
    pub(crate) async fn wait_until_confirmed(&self) -> Result<()> {
        self.wait_until(None, |state| state.num_pending() == 0).await
    }

    /// Waits until fewer than `limit` items are ready or sent, and unconfirmed.
    pub(crate) async fn wait_for_room(&self, limit: usize) -> Result<()> {
        self.wait_until(self.take_turn(), |state| {
            let ready = state.num_ready();
            state.num_sent() + ready < limit
        })
        .await
    }

    async fn wait_until(
        &self,
        turn: Option<Turn<'_>>,
        done: impl Fn(&State) -> bool + Send,
    ) -> Result<()> {
        let is_done = || {
            let state = self.state.lock();
            state.check()?;
            Ok(done(&state))
        };
        // The same rule as in `freeze_blocks`.
        if is_done()? {
            return Ok(());
        }
        let mut progress = self.progress.subscribe();
        let _flushing = Flushing::begin(self);
        if let Some(turn) = turn
            && self.fits_turn()
        {
            turn.run();
        }
        loop {
            progress.borrow_and_update();
            if is_done()? {
                return Ok(());
            }
            if progress.changed().await.is_err() {
                return Err(Error::internal("the writer's progress channel closed"));
            }
        }
    }

    /// Waits until the stream is lost or an attempt to reconnect fails; returns the error.
    pub(crate) async fn stream_lost(&self) -> Error {
        let mut progress = self.progress.subscribe();
        loop {
            progress.borrow_and_update();
            if let Some(lost) = &self.state.lock().lost {
                return lost.error.clone();
            }
            if progress.changed().await.is_err() {
                return Error::internal("the writer's progress channel closed");
            }
        }
    }

    /// True if the stream is lost and not reopened.
    pub(crate) fn was_lost(&self) -> bool {
        self.state.lock().lost.is_some()
    }

    /// True if `close` was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Stops at once; unconfirmed items are abandoned.
    pub(crate) fn close(&self) {
        let (queue, in_flight);
        {
            let mut state = self.state.lock();
            state.closed = true;
            queue = std::mem::take(&mut state.queue);
            in_flight = std::mem::take(&mut state.in_flight);
            state.resend.clear();
        }
        drop((queue, in_flight));
        self.closing.notify_one();
        self.work.notify_one();
        self.progress.send_replace(());
    }

    fn fail(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
        self.progress.send_replace(());
    }

    fn confirm(&self, keys: &[u64]) {
        // Dropped after the lock is released: this may free large chunks.
        let mut confirmed = Vec::new();
        let ends_gathering = {
            let mut state = self.state.lock();
            // A server in this process has taken them: see `given`.
            if state.in_flight.is_empty() {
                return;
            }
            confirmed.reserve_exact(keys.len());
            confirmed.extend(keys.iter().filter_map(|&key| state.in_flight.confirm(key)));
            state.waiting_bytes -= confirmed.iter().map(|sent| sent.bytes).sum::<usize>();
            state.waits_above = MAX_WAITING_BYTES;
            state.task == Task::Gathering
        };
        drop(confirmed);
        self.progress.send_replace(());
        if ends_gathering {
            self.work.notify_one();
        }
    }

    /// Counts what a server in this process has taken out of the message as confirmed, and the rest
    /// as in flight.
    fn given(&self, message: &mut Message) {
        let mut state = self.state.lock();
        state.end_encoding();
        let (taken, bytes) = message.settle(|item, bytes| state.in_flight.push(item, bytes));
        if taken > 0 {
            state.waiting_bytes -= bytes;
            state.waits_above = MAX_WAITING_BYTES;
            state.pace.count(taken, self.gathering, tokio::time::Instant::now());
            drop(state);
            self.progress.send_replace(());
        }
    }

    /// Records that the stream is lost. All items in flight return to the front of the queue, in
    /// order.
    fn lose_stream(&self, error: &Error) {
        self.is_local.store(false, Ordering::Relaxed);
        let mut state = self.state.lock();
        let since = state.lost.as_ref().map_or_else(Instant::now, |lost| lost.since);
        state.lost = Some(Lost { since, error: error.clone() });
        for Sent { item, bytes } in state.in_flight.take_all().rev() {
            state.resend.push_front((item, bytes));
        }
        drop(state);
        self.progress.send_replace(());
    }

    /// Gives items that are sent again new keys from the slots of the new server.
    fn redraw_keys(&self, keys: &mut KeyGenerator, slots: &KeySlots) {
        for (item, _) in &mut self.state.lock().resend {
            item.key = keys.next_key_of(slots);
        }
    }

    /// True if the next item refers to blocks with sent chunks.
    fn continues(&self, streamed: &HashMap<u64, WeakBlockRef>) -> bool {
        let state = self.state.lock();
        let Some((item, _)) = state.queue.front() else { return false };
        let is_sent = |block: &BlockRef| streamed.values().any(|sent| sent.is_of(block));
        item.blocks().iter().any(is_sent)
    }

    /// Waits until there is an item to send; `false` once the writer is closed.
    async fn wait_for_work(&self) -> bool {
        loop {
            {
                let mut state = self.state.lock();
                if state.closed {
                    return false;
                }
                if !state.resend.is_empty() || state.head_is_ready() {
                    state.task = Task::Busy;
                    return true;
                }
                state.task = Task::Idle;
            }
            self.work.notified().await;
        }
    }

    /// Gathers items while no caller waits for confirmations.
    async fn gather(&self) {
        let Gathering { items, time, always } = self.gathering;
        let began = tokio::time::Instant::now();
        loop {
            {
                let mut state = self.state.lock();
                let enough = state.queue.len() >= items || !state.resend.is_empty();
                let is_first = state.in_flight.is_empty() && !state.pace.is_fast(began) && !always;
                if is_first || state.flushing > 0 || enough || state.closed {
                    state.task = Task::Busy;
                    return;
                }
                state.task = Task::Gathering;
            }
            if tokio::time::timeout_at(began + time, self.work.notified()).await.is_err() {
                self.state.lock().task = Task::Busy;
                return;
            }
        }
    }
}

/// Time that a caller waits for a confirmation.
fn patience(waiting_bytes: usize) -> Duration {
    let excess = waiting_bytes.saturating_sub(MAX_WAITING_BYTES) >> 20;
    MIN_PATIENCE + PATIENCE_PER_MIB * u32::try_from(excess).unwrap_or(u32::MAX).min(1024)
}

/// Counts a waiting caller in `State::flushing` until dropped.
struct Flushing<'a>(&'a SendQueue);

impl<'a> Flushing<'a> {
    fn begin(queue: &'a SendQueue) -> Self {
        queue.state.lock().flushing += 1;
        queue.work.notify_one();
        Self(queue)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().flushing -= 1;
    }
}

#[cfg(test)]
mod tests;
