// SPDX-License-Identifier: Apache-2.0
//! Author of a lasting change of a table.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Client that has paused a table or turned its rate limiter off, and the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedBy {
    /// Name that the client gave itself.
    pub client: Arc<str>,
    /// Time of the call.
    pub at: SystemTime,
}

impl ChangedBy {
    /// This client at the current time.
    pub fn now(client: &str) -> Self {
        Self { client: client.into(), at: SystemTime::now() }
    }
}

impl fmt::Display for ChangedBy {
    /// Writes `learner-0 since 14:03:12 UTC`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
        let hour = seconds / 3600;
        let minute = seconds / 60 % 60;
        let second = seconds % 60;
        write!(f, "{} since {hour:02}:{minute:02}:{second:02} UTC", self.client)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_of_day_is_told() {
        let at = UNIX_EPOCH + Duration::from_secs(1_764_000_000 + 7);
        let by = ChangedBy { client: "learner-0".into(), at };
        assert_eq!(by.to_string(), "learner-0 since 16:00:07 UTC");
    }
}
