// SPDX-License-Identifier: Apache-2.0
//! Retries with backoff and a time limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_base::Error;

use crate::absence::Absence;
use crate::session::Session;

/// First pause before a new attempt.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// A stream that lasts this long counts as a success even if nothing was received: the rate limiter
/// may have blocked all requests.
const STABLE_AFTER: Duration = Duration::from_secs(2);

/// Pauses between attempts to reach a server. They double from 1 ms to 1 s; after `give_up_after`
/// without an answer, there are no more attempts.
#[derive(Debug)]
pub(crate) struct Backoff {
    address: Arc<str>,
    absence: Arc<Absence>,
    give_up_after: Duration,
    pause: Duration,
    /// Start of the first failed attempt; `None` while the server answers.
    unreachable_since: Option<Instant>,
    /// Start of the attempt whose call or stream continues.
    began: Instant,
    /// Start of the attempt, or its last answer.
    attempt_began: Instant,
    /// Time when the stream was opened, if the attempt got that far.
    connected_at: Option<Instant>,
}

impl Backoff {
    /// A fresh series of attempts to reach the server of a session.
    pub(crate) fn new(session: &Session) -> Self {
        let now = Instant::now();
        Self {
            address: session.shared_address(),
            absence: Arc::clone(session.absence()),
            give_up_after: session.connect_timeout(),
            pause: MIN_PAUSE,
            unreachable_since: None,
            began: now,
            attempt_began: now,
            connected_at: None,
        }
    }

    /// Starts an attempt; the time before it does not count.
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
        self.attempt_began = self.began;
    }

    /// The stream is open. It counts as a success after `STABLE_AFTER`, or with the first answer.
    pub(crate) fn connected(&mut self) {
        self.connected_at = Some(Instant::now());
    }

    /// The server answered: resets the backoff.
    pub(crate) fn answered(&mut self) {
        self.unreachable_since = None;
        self.absence.answered(self.began);
        self.pause = MIN_PAUSE;
        self.attempt_began = Instant::now();
    }

    /// Waits before the next attempt after `error`.
    ///
    /// # Errors
    ///
    /// `error` itself if it is not transient; `Unavailable` that names the address if no server
    /// answered for too long, or if the server has stopped for good.
    pub(crate) async fn pause(&mut self, session: &Session, error: Error) -> Result<(), Error> {
        if !error.is_gone() {
            return Err(error);
        }
        if self.connected_at.take().is_some_and(|at| at.elapsed() >= STABLE_AFTER) {
            self.answered();
        }
        if self.absence.has_ended() || session.has_ended(&error) {
            self.absence.end();
            return Err(Error::stopped_for_good(format!(
                "The server at {} has stopped for good.",
                short(&self.address),
            )));
        }
        let now = Instant::now();
        let unreachable_for =
            now.duration_since(*self.unreachable_since.get_or_insert(self.attempt_began));
        if unreachable_for >= self.give_up_after {
            if self.absence.give_up() {
                tracing::warn!(
                    "no server answered at {} for {:.0} s (connect_timeout_s): the call gives up",
                    short(&self.address),
                    unreachable_for.as_secs_f64(),
                );
            }
            return Err(Error::unavailable(format!(
                "No server answered at {} for {} s. Check the address and that the server runs, or raise \
                 connect_timeout_s. Last error: {error}",
                self.address,
                self.give_up_after.as_secs_f64(),
            )));
        }
        // The last attempt starts at the deadline, not one pause later.
        tokio::time::sleep(self.pause.min(self.give_up_after.saturating_sub(unreachable_for)))
            .await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        self.begin();
        Ok(())
    }
}

/// Longest part of an address in a line about it, in characters.
const SHOWN_ADDRESS: usize = 80;

/// The beginning of an address, which may list many servers.
pub(crate) fn short(address: &str) -> String {
    match address.char_indices().nth(SHOWN_ADDRESS) {
        Some((end, _)) => format!("{}...", &address[..end]),
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::FakeServer;

    fn gone() -> Error {
        Error::unavailable("gone")
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_makes_pauses_short_again() {
        let client = FakeServer::new(true).client();
        let mut backoff = Backoff::new(client.session());
        for _ in 0..6 {
            backoff.pause(client.session(), gone()).await.unwrap();
        }
        backoff.answered();
        let start = tokio::time::Instant::now();
        backoff.pause(client.session(), gone()).await.unwrap();
        assert_eq!(start.elapsed(), MIN_PAUSE);
    }

    #[tokio::test]
    async fn the_time_of_the_first_attempt_counts() {
        let client = FakeServer::new(true).client();
        let mut backoff = Backoff::new(client.session());
        backoff.attempt_began = Instant::now().checked_sub(backoff.give_up_after).unwrap();
        let error = backoff.pause(client.session(), gone()).await.unwrap_err();
        assert!(error.message().starts_with("No server answered at fake:1 for 10 s."), "{error}");
    }
}
