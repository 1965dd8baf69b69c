// SPDX-License-Identifier: Apache-2.0
//! The one signal that ends a server.

use reverb_data::{Error, Result};
use tokio::sync::watch;

/// Gives the signal. It is given once and stays.
#[derive(Debug)]
pub(crate) struct StopSender(watch::Sender<bool>);

/// Sees the signal.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

pub(crate) fn channel() -> (StopSender, Stop) {
    let (sender, receiver) = watch::channel(false);
    (StopSender(sender), Stop(receiver))
}

impl StopSender {
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the server stops.
    pub(crate) async fn stopped(&self) {
        // An error means that the sender is gone, which is a stop too.
        let _ = self.0.clone().wait_for(|&stopped| stopped).await;
    }

    /// What `work` gives, or `Unavailable` if the server stops first.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.stopped() => Err(stopping()),
            result = work => Ok(result),
        }
    }

    /// An error that came up because the server stops is told as that.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if self.is_stopped() && error.is_transient() { stopping() } else { error }
    }
}

/// What everybody is told who is served while the server stops, or comes later.
pub(crate) fn stopping() -> Error {
    Error::unavailable("The server is stopping.")
}
