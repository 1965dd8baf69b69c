// SPDX-License-Identifier: Apache-2.0
//! The call `HoldLeases`: leases of a client on items with rollouts last as long as its stream is
//! open. If the stream is lost, they last some seconds more, in which the client may come back.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_rpc::Message;
use reverb_rpc::framing::MessageReader;
use reverb_rpc::server::{Responder, read_first, several_messages};
use reverb_wire::generated::reverb::{HoldLeasesRequest, HoldLeasesResponse};
use tokio::runtime::Handle;

use crate::service::Service;

/// Interval of the search for items that one client has held for too long.
const LATE_HOLDS: Duration = Duration::from_secs(1);

/// Clients with leases.
#[derive(Debug)]
pub(crate) struct Holders {
    /// How long leases last after a lost stream.
    grace: Duration,
    open: Mutex<HashMap<u64, Holder>>,
}

/// A client with leases.
#[derive(Debug)]
struct Holder {
    /// Name of the client, for people.
    client: Arc<str>,
    num_streams: usize,
    /// Number of streams that have been opened.
    num_opened: u64,
}

impl Holders {
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, open: Mutex::default() }
    }

    /// # Errors
    ///
    /// `FailedPrecondition` if the client has no open stream: its leases would end at once.
    pub(crate) fn check(&self, holder: u64) -> Result<()> {
        if self.open.lock().get(&holder).is_some_and(|it| it.num_streams > 0) {
            return Ok(());
        }
        Err(Error::failed_precondition(
            "This client holds no stream for its leases (HoldLeases); open it, then take again.",
        ))
    }
}

/// An open hold. Dropping it without [`Self::release`] counts as a lost client.
pub(crate) struct LeaseHold {
    service: Weak<Service>,
    holder: u64,
    is_released: bool,
}

impl LeaseHold {
    /// The client says goodbye: its leases end now.
    pub(crate) fn release(mut self) {
        self.is_released = true;
    }
}

impl Drop for LeaseHold {
    fn drop(&mut self) {
        let Some(service) = self.service.upgrade() else { return };
        let mut open = service.holders.open.lock();
        let Some(holder) = open.get_mut(&self.holder) else { return };
        holder.num_streams -= 1;
        if holder.num_streams > 0 {
            return;
        }
        if self.is_released {
            open.remove(&self.holder);
            drop(open);
            return service.end_holder(self.holder, false);
        }
        let num_opened = holder.num_opened;
        drop(open);
        // Without a runtime the process is about to end.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(end_later(Weak::clone(&self.service), self.holder, num_opened));
    }
}

async fn end_later(service: Weak<Service>, holder: u64, num_opened: u64) {
    let Some(grace) = service.upgrade().map(|service| service.holders.grace) else { return };
    tokio::time::sleep(grace).await;
    let Some(service) = service.upgrade() else { return };
    let ended = {
        let mut open = service.holders.open.lock();
        let is_it = |it: &Holder| it.num_streams == 0 && it.num_opened == num_opened;
        open.get(&holder).is_some_and(is_it).then(|| open.remove(&holder)).flatten()
    };
    if let Some(Holder { client, .. }) = ended {
        tracing::info!(%client, "a client is lost: what it held can be taken by others");
        service.end_holder(holder, true);
    }
}

impl Service {
    /// Keeps the leases of a client until the result is dropped.
    ///
    /// # Errors
    ///
    /// `Unavailable` while the server drains.
    pub(crate) fn hold_leases(
        self: &Arc<Self>,
        HoldLeasesRequest { holder }: HoldLeasesRequest,
        client: Arc<str>,
    ) -> Result<LeaseHold> {
        self.drain.check()?;
        for table in self.tables.all() {
            table.name_holder(holder, &client);
        }
        let mut open = self.holders.open.lock();
        if open.values().all(|it| it.num_streams == 0) {
            tokio::spawn(end_late_holds(Arc::downgrade(self)));
        }
        let new = Holder { client, num_streams: 0, num_opened: 0 };
        let known = open.entry(holder).or_insert(new);
        known.num_streams += 1;
        known.num_opened += 1;
        Ok(LeaseHold { service: Arc::downgrade(self), holder, is_released: false })
    }

    fn end_holder(&self, holder: u64, is_lost: bool) {
        for table in self.tables.all() {
            table.end_holder(holder, is_lost);
        }
    }
}

/// Takes items back that one client has held for too long, while clients have leases.
async fn end_late_holds(service: Weak<Service>) {
    loop {
        tokio::time::sleep(LATE_HOLDS).await;
        let Some(service) = service.upgrade() else { return };
        for table in service.tables.all() {
            table.end_late_holds();
        }
        if service.holders.open.lock().values().all(|it| it.num_streams == 0) {
            return;
        }
    }
}

/// Serves the stream until the client closes its half or disconnects.
pub(crate) async fn run(
    service: &Arc<Service>,
    mut reader: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let request: HoldLeasesRequest = read_first(&service.stop, &mut reader).await?;
    let hold = service.hold_leases(request, responder.client().into())?;
    responder.send_now(Message::encode(&HoldLeasesResponse {}))?;
    tokio::select! {
        biased;
        error = service.interrupted() => Err(error),
        message = reader.next() => match message {
            Ok(None) => {
                hold.release();
                Ok(())
            }
            Ok(Some(_)) => Err(several_messages()),
            Err(error) => Err(error),
        },
        is_lost = responder.cancelled_or_lost() => {
            if !is_lost {
                hold.release();
            }
            Err(Error::cancelled("The caller cancelled the stream."))
        }
    }
}

#[cfg(test)]
mod tests;
