// SPDX-License-Identifier: Apache-2.0
//! The end of a client, which ends its calls.

use std::pin::pin;

use reverb_data::{Error, Result};
use tokio::sync::watch;

/// Held by an open client. Dropping it ends all calls that wait.
#[derive(Debug)]
pub(crate) struct Open(watch::Sender<()>);

/// Tells the calls of a client when it is closed.
#[derive(Debug, Clone)]
pub(crate) struct Closed(watch::Receiver<()>);

impl Open {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    pub(crate) fn closed(&self) -> Closed {
        Closed(self.0.subscribe())
    }
}

impl Closed {
    /// Runs a call until it ends or the client is closed, which drops it.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the client is closed before the call has ended.
    pub(crate) async fn or_ended<T>(mut self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let call = pin!(call);
        tokio::select! {
            // A call that is ready costs nothing more.
            biased;
            result = call => result,
            _ = self.0.changed() => Err(is_closed()),
        }
    }
}

/// The error of calls of a closed client.
pub(crate) fn is_closed() -> Error {
    Error::failed_precondition("This reverb.Client is closed; make a new one")
}
