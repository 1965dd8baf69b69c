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

/// Runs a call until it ends or its client is closed, which drops it. `closed` is asked if the call
/// is not ready at once.
///
/// # Errors
///
/// `FailedPrecondition` if the client is closed before the call has ended.
pub(crate) async fn or_closed<T>(
    call: impl Future<Output = Result<T>>,
    closed: impl FnOnce() -> Result<Closed>,
) -> Result<T> {
    let end = async {
        match closed() {
            Ok(mut closed) => {
                let _ = closed.0.changed().await;
                is_closed()
            }
            Err(error) => error,
        }
    };
    let (call, end) = (pin!(call), pin!(end));
    tokio::select! {
        // A call that is ready costs nothing more.
        biased;
        result = call => result,
        error = end => Err(error),
    }
}

/// The error of calls of a closed client.
pub(crate) fn is_closed() -> Error {
    Error::failed_precondition("This reverb.Client is closed; make a new one")
}
