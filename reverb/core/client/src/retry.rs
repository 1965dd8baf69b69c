// SPDX-License-Identifier: Apache-2.0
//! When to try again, and when to give up.

use std::time::{Duration, Instant};

use reverb_data::Error;

/// First pause before a new attempt.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// A stream that lasted this long counts as a success, even if nothing came on it: a limiter may
/// have let nobody in.
const STABLE_AFTER: Duration = Duration::from_secs(2);
/// A line in the log tells every so often that a call is still waiting for its server.
const REMIND_EVERY: Duration = Duration::from_secs(10);

/// Pauses between attempts to reach a server, doubling from 1 ms to 1 s, until nothing answered for
/// too long.
#[derive(Debug)]
pub(crate) struct Backoff {
    address: String,
    give_up_after: Duration,
    pause: Duration,
    /// When the first of the attempts began that failed; `None` while the server answers.
    silent_since: Option<Instant>,
    attempt_began: Instant,
    /// When the stream was opened, if the attempt came that far.
    connected_at: Option<Instant>,
    reminded: Instant,
}

impl Backoff {
    /// A fresh series of attempts to reach `address`.
    pub(crate) fn new(address: &str, give_up_after: Duration) -> Self {
        let now = Instant::now();
        Self {
            address: address.to_owned(),
            give_up_after,
            pause: MIN_PAUSE,
            silent_since: None,
            attempt_began: now,
            connected_at: None,
            reminded: now,
        }
    }

    /// An attempt begins; the time before it was nobody's fault.
    pub(crate) fn begin(&mut self) {
        self.attempt_began = Instant::now();
    }

    /// A stream was opened. Whether it is of any use, its life will tell.
    pub(crate) fn connected(&mut self) {
        self.connected_at = Some(Instant::now());
    }

    /// The server did something for us: the clock that gives up stands still.
    pub(crate) fn answered(&mut self) {
        self.silent_since = None;
        self.pause = MIN_PAUSE;
        self.begin();
    }

    /// Waits before the next attempt after `error`.
    ///
    /// # Errors
    ///
    /// `error` itself if another attempt is of no use; `Unavailable` that names the address if no
    /// server answered for too long.
    pub(crate) async fn pause(&mut self, error: Error) -> Result<(), Error> {
        if !error.is_transient() {
            return Err(error);
        }
        if self.connected_at.take().is_some_and(|at| at.elapsed() >= STABLE_AFTER) {
            self.answered();
        }
        let now = Instant::now();
        let silence = now.duration_since(*self.silent_since.get_or_insert(self.attempt_began));
        if silence >= self.give_up_after {
            return Err(Error::unavailable(format!(
                "No server answered at {} for {} s. Check the address and that the server runs, or raise \
                 connect_timeout_s. Last error: {error}",
                self.address,
                self.give_up_after.as_secs_f64(),
            )));
        }
        if silence >= REMIND_EVERY && now.duration_since(self.reminded) >= REMIND_EVERY {
            self.reminded = now;
            log::warn!("Still waiting for a server at {}: {error}", self.address);
        }
        // The last attempt is made when the time is up, not a pause later.
        tokio::time::sleep(self.pause.min(self.give_up_after.saturating_sub(silence))).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.begin();
        Ok(())
    }
}
