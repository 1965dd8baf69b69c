// SPDX-License-Identifier: Apache-2.0
//! The one signal that ends a server.

use reverb_data::{Error, Result};
use tokio::sync::watch;

/// Gives the signal. It is given once and stays.
#[derive(Debug)]
pub struct StopSender(watch::Sender<bool>);

/// Sees the signal.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

/// A signal and what sees it.
pub fn stop_signal() -> (StopSender, Stop) {
    let (sender, receiver) = watch::channel(false);
    (StopSender(sender), Stop(receiver))
}

impl StopSender {
    /// Gives the signal.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Whether it was given.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the server stops.
    pub async fn stopped(&self) {
        // An error means that the sender is gone, which is a stop too.
        let _ = self.0.clone().wait_for(|&stopped| stopped).await;
    }

    /// What `work` gives, or `Unavailable` if the server stops first.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.stopped() => Err(stopping()),
            result = work => Ok(result),
        }
    }

    /// Replaces an error that is due to the stop.
    pub fn explain(&self, error: Error) -> Error {
        if self.is_stopped() && error.is_transient() { stopping() } else { error }
    }
}

/// The error of every call to a server that stops or has stopped.
pub fn stopping() -> Error {
    Error::unavailable("The server is stopping.")
}
