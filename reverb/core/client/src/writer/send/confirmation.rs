// SPDX-License-Identifier: Apache-2.0
//! Confirmation: how callers wait for it, with limits of time and of unconfirmed bytes.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reverb_base::{Error, Result};
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::{StatusRequest, TableStatus};

use super::report::STATUS_TIMEOUT;
use super::send_queue::{MAX_WAITING_BYTES, SendQueue};
use super::state::State;
use super::{MESSAGE_BYTES, MESSAGE_ITEMS};
use crate::waits::{WaitFor, reported};

/// Time without a confirmation after which the writer continues: the rate limiter may be closed,
/// and then the program decides when to wait.
const MIN_PATIENCE: Duration = Duration::from_millis(20);
/// Additional wait, each time that twice as many bytes are unconfirmed. This slows a writer down to
/// a slow server; a program that writes a gigabyte behind a closed limiter waits 10 s in total.
const PATIENCE_PER_MIB: Duration = Duration::from_millis(5);
/// Polling interval of a flush that ends when tables are blocked.
const BLOCKED_INTERVAL: Duration = Duration::from_millis(50);
/// Age of a blocked insert, in seconds, from which its table counts as blocked.
const MIN_BLOCKED_S: f64 = 0.02;

impl SendQueue {
    /// Waits while many bytes are unconfirmed and confirmations arrive. Returns after a while if
    /// the table accepts no items, unless there is a limit of unconfirmed bytes. Logs a long wait
    /// for that limit.
    pub async fn throttle(&self) -> Result<()> {
        self.reported(self.wait_while_over_limit()).await
    }

    async fn wait_while_over_limit(&self) -> Result<()> {
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

    /// Waits until at most `max_pending` items are unconfirmed. Completes the chunks of all items
    /// except the last `max_pending`.
    pub async fn flush(&self, max_pending: usize, timeout: Option<Duration>) -> Result<()> {
        self.flush_for("flush", max_pending, timeout).await
    }

    /// Like `flush`, with the name of the call for error texts.
    pub(crate) async fn flush_for(
        &self,
        operation: &str,
        max_pending: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.check()?;
        let done = self.reported(self.flush_all_but(max_pending));
        let Some(timeout) = timeout else { return done.await };
        match tokio::time::timeout(timeout, done).await {
            Ok(result) => result,
            Err(_) => {
                Err(Error::deadline_exceeded(operation, timeout, &self.describe_wait().await))
            }
        }
    }

    /// Waits until all items are confirmed, or until a server reports that their tables block
    /// inserts.
    pub(crate) async fn flush_unless_blocked(&self) -> Result<()> {
        let mut done = pin!(self.flush(0, None));
        loop {
            if let Ok(result) = tokio::time::timeout(BLOCKED_INTERVAL, done.as_mut()).await {
                return result;
            }
            let tables = self.waiting_tables();
            let request = StatusRequest::default();
            let status = async { self.session.transport()?.call(request).await };
            let status = tokio::time::timeout(STATUS_TIMEOUT, status).await;
            let is_blocked = |table: &TableStatus| {
                let inserting = table.inserting.as_ref();
                let wait = inserting.and_then(|inserting| inserting.oldest_wait_s);
                tables.contains(&table.name) && wait.is_some_and(|wait| wait > MIN_BLOCKED_S)
            };
            if matches!(status, Ok(Ok(status)) if status.tables.iter().any(is_blocked)) {
                return Ok(());
            }
        }
    }

    /// Like `flush`, but returns false after the timeout, and asks no server for the reason.
    pub async fn is_confirmed_within(&self, max_pending: usize, timeout: Duration) -> Result<bool> {
        self.check()?;
        let done = self.reported(self.flush_all_but(max_pending));
        match tokio::time::timeout(timeout, done).await {
            Ok(result) => result.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Waits until fewer than `limit` items are ready or sent, and unconfirmed.
    pub(crate) async fn wait_for_room(&self, limit: usize) -> Result<()> {
        let has_room = |state: &State| state.num_sent() + state.num_ready() < limit;
        self.reported(self.send_until(has_room)).await
    }

    async fn reported<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let what = || WaitFor::Inserts(self.oldest_table().unwrap_or_default());
        reported(&self.session, what, pin!(call)).await
    }

    /// Waits until at most `max_pending` items are unconfirmed. Completes the chunks of all items
    /// except the last `max_pending`.
    pub(crate) async fn flush_all_but(&self, max_pending: usize) -> Result<()> {
        self.freeze_blocks(max_pending);
        self.send_until(|state| state.num_pending() <= max_pending).await
    }

    /// Waits until all items are confirmed.
    pub(crate) async fn wait_until_confirmed(&self) -> Result<()> {
        self.wait_until(|state| state.num_pending() == 0).await
    }

    /// Like `wait_until`. Items that fit one message are sent in the thread of the caller, which is
    /// not away for long then. Not for the task itself.
    async fn send_until(&self, done: impl Fn(&State) -> bool + Send) -> Result<()> {
        let fits_message = {
            let state = self.state.lock();
            state.waiting_bytes <= MESSAGE_BYTES && state.num_pending() <= MESSAGE_ITEMS
        };
        let done = self.wait_until(done);
        if fits_message { self.task.run_until(done).await } else { done.await }
    }

    pub(super) async fn wait_until(&self, done: impl Fn(&State) -> bool + Send) -> Result<()> {
        let is_done = || {
            let state = self.state.lock();
            state.check()?;
            Ok::<bool, Error>(done(&state))
        };
        // The same rule as in `freeze_blocks`.
        if is_done()? {
            return Ok(());
        }
        let mut progress = self.progress.subscribe();
        let _flushing = Flushing::begin(self);
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
        {
            let mut state = queue.state.lock();
            state.flushing += 1;
            state.flushes.flush();
        }
        queue.work.notify_one();
        Self(queue)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().flushing -= 1;
    }
}
