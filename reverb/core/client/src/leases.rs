// SPDX-License-Identifier: Apache-2.0
//! Leases of a client on items with rollouts: the stream that keeps them, and taking items.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::KeyGenerator;
use reverb_wire::calls::Call;
use reverb_wire::generated::Lease;
use reverb_wire::generated::reverb::{HoldLeasesRequest, SettleRequest, TakeRequest};
use reverb_wire::transport::{Hold, HoldRequest};
use tokio::sync::{Mutex, Notify, watch};

use crate::client::Client;
use crate::session::Session;
use crate::waits::{WaitFor, reported};

/// Pauses between the tries to release a lease that was given up.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// The leases of one client.
#[derive(Debug)]
pub(crate) struct Leases {
    holder: u64,
    next: AtomicU64,
    /// True while the stream is open; `None` before the first lease, and after a failure.
    stream: Mutex<Option<watch::Receiver<bool>>>,
    closing: Arc<Notify>,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            holder: KeyGenerator::new().next_key(),
            next: AtomicU64::new(1),
            stream: Mutex::default(),
            closing: Arc::default(),
        }
    }
}

impl Drop for Leases {
    /// The client says goodbye, and its leases end.
    fn drop(&mut self) {
        self.closing.notify_one();
    }
}

impl Leases {
    /// Number of this client.
    pub(crate) fn holder(&self) -> u64 {
        self.holder
    }

    /// Waits until the stream is open.
    async fn open(&self, session: &Arc<Session>) -> Result<()> {
        let mut stream = self.stream.lock().await;
        if let Some(is_open) = &mut *stream
            && is_open.wait_for(|is_open| *is_open).await.is_ok()
        {
            return Ok(());
        }
        let hold = open(session, self.holder).await?;
        let (state, is_open) = watch::channel(true);
        let closing = Arc::clone(&self.closing);
        let kept = keep(hold, state, Arc::downgrade(session), self.holder, closing);
        session.runtime().spawn(kept);
        *stream = Some(is_open);
        Ok(())
    }

    /// Opens another stream for the next lease.
    async fn reopen(&self, session: &Arc<Session>) -> Result<()> {
        *self.stream.lock().await = None;
        self.open(session).await
    }
}

async fn open(session: &Session, holder: u64) -> Result<Box<dyn Hold>> {
    let request = HoldRequest::Leases(HoldLeasesRequest { holder });
    let open = session.retrying(|transport| {
        let request = request.clone();
        async move { transport.hold(request).await }
    });
    open.await
}

/// Keeps the stream open; a lost one is opened again, while the session lives.
async fn keep(
    mut hold: Box<dyn Hold>,
    state: watch::Sender<bool>,
    session: Weak<Session>,
    holder: u64,
    closing: Arc<Notify>,
) {
    let mut closing = pin!(closing.notified());
    loop {
        tokio::select! {
            () = &mut closing => {
                // If the server is gone, nothing is held.
                drop(hold.release().await);
                return;
            }
            () = hold.lost() => {}
        }
        state.send_replace(false);
        let Some(session) = session.upgrade() else { return };
        // After a failure the next take tries again.
        let Ok(opened) = open(&session, holder).await else { return };
        hold = opened;
        state.send_replace(true);
    }
}

impl Client {
    /// Draws the number of a lease for a take.
    pub fn new_lease(&self) -> u64 {
        self.leases().next.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes items with rollouts, for a lease with this number: waits until the server has them for
    /// this client. Returns the encoded answer.
    ///
    /// A call that is dropped gives back what it has taken, or would have. If its answer is lost
    /// after that, [`Self::give_up_lease`] does.
    ///
    /// # Errors
    ///
    /// `RateLimiterTimeout` after the timeout of the request; `FailedPrecondition` if the table has
    /// no rollouts; `InvalidArgument`, `TableNotFound`, `Unimplemented`, `Unavailable`.
    pub async fn take(&self, mut request: TakeRequest, number: u64) -> Result<Bytes> {
        let session = self.session();
        let leases = self.leases();
        let lease = Lease { holder: leases.holder, number };
        request.lease = Some(lease);
        let gives_up = GivesUp { client: self, table: &request.table, lease, is_done: false };
        let taken = pin!(take(session, leases, &request));
        let answer = reported(session, || WaitFor::Samples(request.table.as_str().into()), taken);
        let answer = answer.await;
        // After a lost connection, the server may have taken them.
        if !answer.as_ref().is_err_and(is_unknown) {
            gives_up.end();
        }
        answer
    }

    /// Releases a lease of this client, without waiting for it: as soon as its server answers,
    /// while this client lives. A server that stood still may have executed the take by then.
    pub fn give_up_lease(&self, table: String, number: u64) {
        let lease = Some(Lease { holder: self.leases().holder, number });
        let settle = SettleRequest { table, lease, all: true, ..SettleRequest::default() };
        let released = release(
            Arc::downgrade(self.session()),
            Arc::downgrade(self.leases()),
            settle.encode_to_vec().into(),
        );
        self.session().runtime().spawn(released);
    }

    /// Number of this client for leases that other calls name.
    pub fn holder(&self) -> u64 {
        self.leases().holder()
    }
}

async fn take(session: &Arc<Session>, leases: &Leases, request: &TakeRequest) -> Result<Bytes> {
    leases.open(session).await?;
    let encoded: Bytes = request.encode_to_vec().into();
    let answer = session.small_call(TakeRequest::CALL, encoded.clone()).await;
    match answer {
        // The server may be another one than that of the stream.
        Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
            leases.reopen(session).await?;
            session.small_call(TakeRequest::CALL, encoded).await
        }
        answer => answer,
    }
}

/// Releases the lease of a take that its caller has given up.
struct GivesUp<'a> {
    client: &'a Client,
    table: &'a str,
    lease: Lease,
    is_done: bool,
}

impl GivesUp<'_> {
    fn end(mut self) {
        self.is_done = true;
    }
}

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.client.give_up_lease(self.table.to_owned(), self.lease.number);
    }
}

/// Makes the call until the server has answered, or until the client is gone: its leases end then.
async fn release(session: Weak<Session>, leases: Weak<Leases>, settle: Bytes) {
    let mut pause = FIRST_PAUSE;
    while leases.strong_count() > 0
        && let Some(session) = session.upgrade()
    {
        let answer = session.small_call(SettleRequest::CALL, settle.clone()).await;
        drop(session);
        match answer {
            Err(error) if is_unknown(&error) => {
                tracing::debug!(%error, "a lease that was given up is released later");
            }
            // A server that knows no such table or lease holds nothing for it.
            _ => return,
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LAST_PAUSE);
    }
}

/// True if the server may have done what it was asked to, or may do it yet.
fn is_unknown(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
}

#[cfg(test)]
mod tests;
