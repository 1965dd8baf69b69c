// SPDX-License-Identifier: Apache-2.0
//! The shutdown signal of a server.

use reverb_base::{Error, Result};
use tokio::sync::watch;

/// Sends the signal. It stays set.
#[derive(Debug)]
pub struct StopSender(watch::Sender<Phase>);

/// Receives the signal.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<Phase>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serves,
    Stopped,
    StoppedForGood,
}

/// Makes a signal: its sender and its receiver.
pub fn stop_signal() -> (StopSender, Stop) {
    let (sender, receiver) = watch::channel(Phase::Serves);
    (StopSender(sender), Stop(receiver))
}

impl StopSender {
    /// Sends the signal. With `is_final` clients learn that the server does not come back.
    pub fn stop(&self, is_final: bool) {
        let phase = if is_final { Phase::StoppedForGood } else { Phase::Stopped };
        self.0.send_modify(|known| *known = phase.max(*known));
    }
}

impl Stop {
    /// Returns true if the signal was sent.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() != Phase::Serves
    }

    /// Resolves when the server shuts down.
    pub async fn stopped(&self) {
        // An error means that the sender is gone, which counts as the signal.
        let _ = self.0.clone().wait_for(|&phase| phase != Phase::Serves).await;
    }

    /// Result of `work`, or `Unavailable` if the server shuts down first.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        if self.is_stopped() {
            return Err(self.error());
        }
        // Most work is done at once, and needs no wait for the signal.
        tokio::select! {
            biased;
            result = work => Ok(result),
            () = self.stopped() => Err(self.error()),
        }
    }

    /// Replaces an error that the shutdown caused.
    pub fn explain(&self, error: Error) -> Error {
        if self.is_stopped() && error.is_transient() { self.error() } else { error }
    }

    /// Error of every call to a server that is shutting down or has shut down.
    pub fn error(&self) -> Error {
        match *self.0.borrow() {
            Phase::StoppedForGood => stopped_for_good(),
            Phase::Serves | Phase::Stopped => stopping(),
        }
    }
}

/// Error of calls to a server that stops, and may come back.
pub fn stopping() -> Error {
    Error::unavailable("The server is stopping.")
}

/// Error of calls to a server that does not come back.
pub fn stopped_for_good() -> Error {
    Error::stopped_for_good("The server has stopped for good.")
}
