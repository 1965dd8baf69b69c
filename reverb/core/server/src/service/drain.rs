// SPDX-License-Identifier: Apache-2.0
//! Drain of a server: it ends all streams of items and accepts no new ones, so that it can be
//! stopped without losing anything.
//!
//! Confirmed items are in the tables, and samples that were taken are sent. All other items are
//! still held by the clients, which retry until this server or another one answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reverb_base::{Error, Result};
use reverb_engine::ChangedBy;
use reverb_rpc::server::stopped_for_good;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::service::Service;

/// Polling interval for the end of the streams.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// State of the drain: its author, once it has begun.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    by: watch::Sender<Option<ChangedBy>>,
    /// Set before `by` if the server does not come back.
    is_final: AtomicBool,
}

impl Drain {
    /// Author of the drain, if the server drains.
    pub(crate) fn by(&self) -> Option<ChangedBy> {
        self.by.borrow().clone()
    }

    /// Refuses a new stream while the server drains.
    ///
    /// # Errors
    ///
    /// `Unavailable` with the author of the drain.
    pub(crate) fn check(&self) -> Result<()> {
        self.by().map_or(Ok(()), |by| Err(self.error(&by)))
    }

    /// Waits until the server starts to drain.
    pub(crate) async fn begun(&self) -> Error {
        let mut by = self.by.subscribe();
        // The sender lives as long as `self`.
        let by = by.wait_for(Option::is_some).await.ok().and_then(|by| by.clone());
        self.error(&by.unwrap_or_else(|| ChangedBy::now("the server")))
    }

    fn error(&self, by: &ChangedBy) -> Error {
        if self.is_final.load(Ordering::Relaxed) { stopped_for_good() } else { draining(by) }
    }
}

impl Service {
    /// Waits until the server stops or starts to drain, which ends blocked requests.
    pub(crate) async fn interrupted(&self) -> Error {
        tokio::select! {
            biased;
            () = self.stop.stopped() => self.stop.error(),
            error = self.drain.begun() => error,
        }
    }

    /// Ends all streams. Returns the number of network streams that are still open after `timeout`;
    /// streams of clients in this process end on their next use. With `is_final` the server does
    /// not come back afterwards.
    pub(crate) async fn drain(&self, timeout: Duration, by: ChangedBy, is_final: bool) -> usize {
        if is_final {
            self.drain.is_final.store(true, Ordering::Relaxed);
        }
        let deadline = Instant::now().checked_add(timeout);
        if self.drain.by.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(by);
            is_first
        }) {
            self.memory.streams.end_all();
        }
        loop {
            let open = self.streams.num_remote();
            if open == 0
                || self.stop.is_stopped()
                || deadline.is_some_and(|deadline| Instant::now() >= deadline)
            {
                return open;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

fn draining(by: &ChangedBy) -> Error {
    Error::unavailable(format!("The server is draining, before it stops, for {by}."))
}
