// SPDX-License-Identifier: Apache-2.0
//! When to try again, and when to give up.

use std::time::{Duration, Instant};

use reverb_data::Error;

/// First pause before a new attempt.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// An attempt that lasted this long counts as a success: the next pause is short again.
const STABLE_AFTER: Duration = Duration::from_secs(2);
/// A line in the log tells every so often that a call is still waiting for its server.
const REMIND_EVERY: Duration = Duration::from_secs(10);

/// Pauses between attempts to reach a server, doubling from 1 ms to 1 s, until nothing answered for too long.
#[derive(Debug)]
pub struct Backoff {
    address: String,
    give_up_after: Duration,
    pause: Duration,
    silent_since: Instant,
    attempt_began: Instant,
    reminded: Instant,
}

impl Backoff {
    /// A fresh series of attempts to reach `address`.
    pub fn new(address: &str, give_up_after: Duration) -> Self {
        let now = Instant::now();
        Self {
            address: address.to_owned(),
            give_up_after,
            pause: MIN_PAUSE,
            silent_since: now,
            attempt_began: now,
            reminded: now,
        }
    }

    /// The server answered: the clock that gives up starts anew.
    pub fn answered(&mut self) {
        self.silent_since = Instant::now();
    }

    /// Waits before the next attempt after `error`.
    ///
    /// # Errors
    ///
    /// `error` itself if another attempt is of no use; `Unavailable` that names the address if no server answered
    /// for too long.
    pub async fn pause(&mut self, error: Error) -> Result<(), Error> {
        if !error.is_transient() {
            return Err(error);
        }
        let now = Instant::now();
        if now.duration_since(self.silent_since) >= self.give_up_after {
            return Err(Error::unavailable(format!(
                "No server answered at {} for {} s. Check the address and that the server runs, or raise \
                 connect_timeout_s. Last error: {error}",
                self.address,
                self.give_up_after.as_secs_f64(),
            )));
        }
        if now.duration_since(self.reminded) >= REMIND_EVERY {
            self.reminded = now;
            log::warn!("Still waiting for a server at {}: {error}", self.address);
        }
        if now.duration_since(self.attempt_began) >= STABLE_AFTER {
            self.pause = MIN_PAUSE;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.attempt_began = Instant::now();
        Ok(())
    }
}
