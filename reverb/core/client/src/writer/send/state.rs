// SPDX-License-Identifier: Apache-2.0
//! State of a send queue, behind its lock: the items, where they are, and the stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use reverb_base::{Error, Result};
use reverb_data::NewItem;

use super::gathering::{Flushes, Pace};
use super::in_flight::InFlight;
use crate::writer::capture::item::PendingItem;

/// Number of unconfirmed items at which a warning is logged; it doubles with each warning.
pub(super) const WARN_PENDING_ITEMS: usize = 100_000;

/// Items, tasks and errors of a writer.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Items to send, each with the bytes that it added.
    pub(super) queue: VecDeque<(PendingItem, usize)>,
    /// Encoded items that are not confirmed.
    pub(super) in_flight: InFlight,
    /// Number of items that the task is encoding. They are in no list, but they count as pending.
    pub(super) num_encoding: usize,
    /// Tables of the items that are being encoded.
    pub(super) encoding: Vec<Arc<str>>,
    /// Items to send again after a reconnect, before the queue.
    pub(super) resend: VecDeque<(NewItem, usize)>,
    /// Bytes of all unconfirmed items.
    pub(super) waiting_bytes: usize,
    /// Number of unconfirmed bytes above which the caller waits: `MAX_WAITING_BYTES`, or twice the
    /// number at the last wait without confirmations.
    pub(super) waits_above: usize,
    pub(super) pace: Pace,
    pub(super) task: Task,
    /// Number of callers that wait for confirmations. While there are any, no items are gathered.
    pub(super) flushing: usize,
    pub(super) flushes: Flushes,
    pub(super) error: Option<Error>,
    /// Set while the stream is lost and not reopened.
    pub(super) lost: Option<Lost>,
    pub(super) closed: bool,
    pub(super) warn_at: usize,
    pub(super) address: String,
    /// Server of the stream, if there are several.
    pub(super) server: Option<String>,
}

/// State between two streams.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) since: Instant,
    /// The error of the last attempt to reconnect.
    pub(super) error: Error,
}

/// Activity of the task, so that it is woken only when necessary.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
pub(super) enum Task {
    #[default]
    Busy,
    /// Waits for an item that is ready to be sent.
    Idle,
    /// Gathers items for one message.
    Gathering,
}

impl State {
    /// Counts an item as being encoded.
    #[inline]
    pub(super) fn begin_encoding(&mut self, table: &Arc<str>) {
        self.num_encoding += 1;
        if self.encoding.last().is_none_or(|last| !Arc::ptr_eq(last, table)) {
            self.encoding.push(Arc::clone(table));
        }
    }

    /// Counts all items as encoded.
    pub(super) fn end_encoding(&mut self) {
        self.num_encoding = 0;
        self.encoding.clear();
    }

    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.closed {
            return Err(Error::failed_precondition(
                "The writer is closed. Create a new one to write on.",
            ));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn warn_if_many(&mut self) {
        if self.num_pending() < self.warn_at {
            return;
        }
        tracing::warn!(
            "{} items wait to be confirmed by {}: its tables do not take them as fast as they are created. They take \
             up memory here; call flush(block_until_num_items=...) to wait.",
            self.num_pending(),
            self.address,
        );
        while self.num_pending() >= self.warn_at {
            self.warn_at *= 2;
        }
    }

    /// The table of each item that is not confirmed yet, in the order of sending.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Arc<str>> {
        let in_flight = self.in_flight.iter().map(|sent| &sent.item.table);
        let resend = self.resend.iter().map(|(item, _)| &item.table);
        let queued = self.queue.iter().map(|(item, _)| item.table());
        in_flight.chain(resend).chain(&self.encoding).chain(queued)
    }

    /// Receiver of the items, for messages.
    pub(super) fn peer(&self) -> String {
        match &self.server {
            Some(server) => format!("{server} of {}", self.address),
            None => self.address.clone(),
        }
    }

    #[inline]
    pub(super) fn head_is_ready(&self) -> bool {
        self.queue.front().is_some_and(|(item, _)| item.is_ready())
    }

    pub(super) fn num_ready(&self) -> usize {
        self.queue.iter().take_while(|(item, _)| item.is_ready()).count()
    }

    /// Number of items that are sent, or about to be, and not confirmed.
    #[inline]
    pub(super) fn num_sent(&self) -> usize {
        self.in_flight.len() + self.resend.len() + self.num_encoding
    }

    #[inline]
    pub(super) fn num_pending(&self) -> usize {
        self.queue.len() + self.num_sent()
    }
}
