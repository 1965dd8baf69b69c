// SPDX-License-Identifier: Apache-2.0
//! Whether a server is there: what is silent is sent no change, and a change is waited for while
//! its server answers.
//!
//! A frozen process takes what is sent to it, and does it when it goes on. So each change has a
//! deadline by the clock of its server, which the server has told.

use std::pin::pin;
use std::time::{Duration, Instant};

use reverb_data::{Error, Result};

/// How long after it has told its clock a server may begin with a change. Longer work is waited for
/// while the server answers other questions.
const BEGIN: Duration = Duration::from_millis(700);

/// The clock of a server, and when it told it.
#[derive(Clone, Copy, Debug)]
pub struct ServerClock {
    now_ns: i64,
    told_at: Instant,
}

impl ServerClock {
    /// It has just told this time, in nanoseconds since 1970.
    pub fn told(now_ns: i64) -> Self {
        Self { now_ns, told_at: Instant::now() }
    }

    /// Until when it may begin with a change that is sent now, by its own clock.
    pub fn not_after_ns(self) -> i64 {
        let left = self.told_at.elapsed() + BEGIN;
        self.now_ns.saturating_add(i64::try_from(left.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// The error of a server that took a call and was silent for so long.
pub fn silent(limit: Duration) -> Error {
    Error::unavailable(format!("no answer within {} s", limit.as_secs_f64()))
}

/// Waits for a change, which may take long, as long as the server answers `question` meanwhile.
///
/// # Errors
///
/// `Unavailable` if the server fell silent; with its deadline it will refuse the change then.
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
