// SPDX-License-Identifier: Apache-2.0
//! The send queue of a writer: items to send, and items in flight.
//!
//! `confirmation` has the calls that wait for it, `report` what is logged about it, and `send_task`
//! the task that empties it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use reverb_base::tasks::{SharedTask, run_inline};
use reverb_base::{Error, Result};
use reverb_data::{KeyGenerator, KeySlots};
use smallvec::SmallVec;
use tokio::sync::{Notify, watch};

use super::dropped::LastDropped;
use super::gathering::Gathering;
use super::in_flight::Sent;
use super::message::Message;
use super::send_task;
use super::state::{Lost, State, Task, WARN_PENDING_ITEMS};
use crate::session::Session;
use crate::writer::capture::block::{BlockRef, WeakBlockRef};
use crate::writer::capture::item::PendingItem;

/// A writer that is faster than its connection is slowed down when this many bytes are unconfirmed.
/// More memory, filled and drained only once, costs more than sending it.
pub(super) const MAX_WAITING_BYTES: usize = 32 * 1024 * 1024;

/// The queue of one writer, and the task that sends its items.
#[derive(Debug)]
pub struct SendQueue {
    pub(super) state: Mutex<State>,
    pub(super) session: Arc<Session>,
    gathering: Gathering,
    pub(super) task: Arc<SharedTask>,
    /// True while the stream leads to a server in this process.
    pub(super) is_local: AtomicBool,
    /// Wakes the task.
    pub(super) work: Notify,
    /// Ends the task, even while it waits.
    pub(super) closing: Notify,
    /// Notified when items are confirmed, when the stream is lost, and when the writer fails or is
    /// closed.
    pub(super) progress: watch::Sender<()>,
    /// Set while the caller has to wait: more bytes than `State::waits_above` or as many as
    /// `max_pending_bytes` are unconfirmed.
    pub(super) over_limit: AtomicBool,
    /// Limit of unconfirmed bytes that holds even without confirmations.
    pub(super) max_pending_bytes: AtomicUsize,
    /// Set if an episode has ended since the last message.
    pub(super) has_ended_episode: AtomicBool,
    /// Dropped writer whose items are sent before the first item.
    pub(super) after: Mutex<Option<Arc<LastDropped>>>,
    /// True if the caller awaits `throttle` itself instead of being blocked.
    is_throttled_by_caller: AtomicBool,
    /// True once the log has counted the items that the program left unconfirmed.
    pub(super) has_reported: AtomicBool,
}

impl SendQueue {
    /// Starts the task, for a writer of so many environments. It ends when the queue is closed.
    pub(crate) fn start(session: &Arc<Session>, batch_size: usize) -> Arc<Self> {
        let queue = Arc::new(Self {
            state: Mutex::new(State {
                warn_at: WARN_PENDING_ITEMS,
                waits_above: MAX_WAITING_BYTES,
                address: session.address().to_owned(),
                ..State::default()
            }),
            session: Arc::clone(session),
            gathering: Gathering::of_steps(batch_size),
            task: Arc::default(),
            is_local: AtomicBool::new(false),
            work: Notify::new(),
            closing: Notify::new(),
            progress: watch::Sender::new(()),
            over_limit: AtomicBool::new(false),
            max_pending_bytes: AtomicUsize::new(usize::MAX),
            has_ended_episode: AtomicBool::new(false),
            after: Mutex::new(None),
            is_throttled_by_caller: AtomicBool::new(false),
            has_reported: AtomicBool::new(false),
        });
        session.runtime().spawn(queue.task.start(send_task::run(Arc::clone(&queue))));
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
        if !self.keep_all(items)? {
            return Ok(());
        }
        if self.is_throttled_by_caller() || !self.state.lock().flushes.expects_flush() {
            self.wake();
        } else {
            let _runtime = self.session.runtime().enter();
            run_inline(|| self.wake());
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
        state.flushes.add_item();
        Ok(match state.task {
            Task::Busy => false,
            // One that is not ready is reported by `blocks_completed` or `freeze_blocks`.
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
    pub fn is_over_limit(&self) -> bool {
        self.over_limit.load(Ordering::Relaxed)
    }

    /// Makes `throttle` wait while this many bytes are unconfirmed, even if nothing is being
    /// confirmed.
    pub fn limit_pending(&self, max_pending_bytes: usize) {
        self.max_pending_bytes.store(max_pending_bytes, Ordering::Relaxed);
    }

    /// Declares that the caller awaits `throttle` itself, because it must not be blocked.
    pub fn leave_throttling_to_caller(&self) {
        self.is_throttled_by_caller.store(true, Ordering::Relaxed);
    }

    /// True if the caller awaits `throttle` itself.
    pub fn is_throttled_by_caller(&self) -> bool {
        self.is_throttled_by_caller.load(Ordering::Relaxed)
    }

    pub(super) fn is_at_max_pending(&self, state: &State) -> bool {
        state.waiting_bytes >= self.max_pending_bytes.load(Ordering::Relaxed)
    }

    /// Makes the first item wait for the items of the writer that was dropped last. Called before
    /// the first item is queued.
    pub(crate) fn begin_after(&self, last: Arc<LastDropped>) {
        *self.after.lock() = Some(last);
    }

    /// Handles the end of an episode: in a group, the next one may go to another shard.
    pub fn episode_ended(&self) {
        self.has_ended_episode.store(true, Ordering::Relaxed);
    }

    /// Wakes the task: waiting items may have become ready.
    pub fn blocks_completed(&self) {
        if !self.state.lock().queue.is_empty() {
            self.work.notify_one();
        }
    }

    /// Returns the error that ended the insert stream for good, or an error if the writer is
    /// closed.
    pub fn check(&self) -> Result<()> {
        self.state.lock().check()
    }

    /// Number of items that are not confirmed yet.
    pub fn num_pending(&self) -> usize {
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
    pub(super) fn freeze_blocks(&self, except: usize) {
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

    /// True if the stream is lost and not reopened.
    pub(crate) fn was_lost(&self) -> bool {
        self.state.lock().lost.is_some()
    }

    /// True if `close` was called.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Stops at once; unconfirmed items are abandoned.
    pub fn close(&self) {
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

    pub(super) fn fail(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
        self.progress.send_replace(());
    }

    pub(super) fn confirm(&self, keys: &[u64]) {
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
    pub(super) fn given(&self, message: &mut Message) {
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
    pub(super) fn lose_stream(&self, error: &Error) {
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
    pub(super) fn redraw_keys(&self, keys: &mut KeyGenerator, slots: &KeySlots) {
        for (item, _) in &mut self.state.lock().resend {
            item.key = keys.next_key_of(slots);
        }
    }

    /// True if the next item refers to blocks with sent chunks.
    pub(super) fn continues(&self, streamed: &HashMap<u64, WeakBlockRef>) -> bool {
        let state = self.state.lock();
        let Some((item, _)) = state.queue.front() else { return false };
        let is_sent = |block: &BlockRef| streamed.values().any(|sent| sent.is_of(block));
        item.blocks().iter().any(is_sent)
    }

    /// Waits until there is an item to send; `false` once the writer is closed.
    pub(super) async fn wait_for_work(&self) -> bool {
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
    pub(super) async fn gather(&self) {
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

#[cfg(test)]
mod tests;
