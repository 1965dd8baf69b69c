// SPDX-License-Identifier: Apache-2.0
//! The shutdown signal of a server.

use reverb_data::{Error, Result};
use tokio::sync::watch;

/// Sends the signal. It is sent once and stays set.
#[derive(Debug)]
pub struct StopSender(watch::Sender<bool>);

/// Receives the signal.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

/// Makes a signal: its sender and its receiver.
pub fn stop_signal() -> (StopSender, Stop) {
    let (sender, receiver) = watch::channel(false);
    (StopSender(sender), Stop(receiver))
}

impl StopSender {
    /// Sends the signal.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns true if the signal was sent.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the server shuts down.
    pub async fn stopped(&self) {
        // An error means that the sender is gone, which counts as the signal.
        let _ = self.0.clone().wait_for(|&stopped| stopped).await;
    }

    /// Result of `work`, or `Unavailable` if the server shuts down first.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.stopped() => Err(stopping()),
            result = work => Ok(result),
        }
    }

    /// Replaces an error that the shutdown caused.
    pub fn explain(&self, error: Error) -> Error {
        if self.is_stopped() && error.is_transient() { stopping() } else { error }
    }
}

/// Error of every call to a server that is shutting down or has shut down.
pub fn stopping() -> Error {
    Error::unavailable("The server is stopping.")
}
