// SPDX-License-Identifier: Apache-2.0
//! Presence of a server: changes are sent only to a server that answers, and are waited for as long
//! as it answers.
//!
//! A frozen process accepts requests, and carries them out when it continues. So each change has a
//! deadline by the clock of its server, which the server has reported.

use std::pin::pin;
use std::time::{Duration, Instant};

use reverb_base::{Error, Result};

/// Time in which a server may begin with a change after it reported its clock. Longer work is
/// waited for while the server answers other questions.
const BEGIN: Duration = Duration::from_millis(700);

/// Clock of a server, and the time at which it was reported.
#[derive(Clone, Copy, Debug)]
pub struct ServerClock {
    now_ns: i64,
    reported_at: Instant,
}

impl ServerClock {
    /// Records the server's time, in nanoseconds since 1970.
    pub fn reported(now_ns: i64) -> Self {
        Self { now_ns, reported_at: Instant::now() }
    }

    /// Deadline for beginning with a change that is sent now, by the server's clock.
    pub fn not_after_ns(self) -> i64 {
        let left = self.reported_at.elapsed() + BEGIN;
        self.now_ns.saturating_add(i64::try_from(left.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// Error of a server that took a call and was silent for this long.
pub fn silent(limit: Duration) -> Error {
    Error::unavailable(format!("no answer within {} s", limit.as_secs_f64()))
}

/// Waits for a change, which may take long, as long as the server answers `question` meanwhile.
///
/// # Errors
///
/// `Unavailable` if the server fell silent; because of its deadline it will refuse the change then.
pub async fn while_it_answers<T, Q>(
    change: impl Future<Output = Result<T>>,
    question: impl Fn() -> Q,
) -> Result<T>
where
    Q: Future<Output = Result<()>>,
{
    let mut change = pin!(change);
    loop {
        if let Ok(done) = tokio::time::timeout(BEGIN, &mut change).await {
            return done;
        }
        tokio::select! {
            done = &mut change => return done,
            there = tokio::time::timeout(BEGIN, question()) => {
                there.map_err(|_| silent(BEGIN * 2).lasting())??;
            }
        }
    }
}
