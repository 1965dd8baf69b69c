// SPDX-License-Identifier: Apache-2.0
//! Admissions of a connection: the proofs by which its calls were admitted.
//!
//! Anybody could open a connection without an admitted call. It may be closed to make room for
//! others, and where callers must authenticate, it is closed soon.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::by_age::Entry;

/// Time limit for the first admitted call, where callers must authenticate.
const MAX_SILENCE: Duration = Duration::from_secs(20);

/// Number of such connections that are never displaced, so that new ones can make a call.
pub(super) const KEPT_NEWCOMERS: usize = 16;

#[derive(Debug)]
pub(super) struct Admissions<A> {
    /// Entry among the connections without an admitted call.
    newcomer: Option<Entry>,
    /// Deadline for the first admitted call.
    silent_until: Option<Instant>,
    /// True after GOAWAY was sent.
    was_told: bool,
    distinct: Vec<A>,
}

/// Action for a connection without an admitted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// Close it at once to make room.
    Now,
    /// Send GOAWAY: no call was admitted in time.
    Soon,
    /// Close it: GOAWAY was sent before.
    Over,
}

impl<A: PartialEq> Admissions<A> {
    /// Admissions of a connection whose handshakes are done. `is_guarded` is true if callers must
    /// authenticate.
    pub(super) fn new(newcomer: Entry, is_guarded: bool) -> Self {
        let silent_until = is_guarded.then(|| Instant::now() + MAX_SILENCE);
        Self { newcomer: Some(newcomer), silent_until, was_told: false, distinct: Vec::new() }
    }

    /// Returns true if a call was admitted.
    pub(super) fn is_known(&self) -> bool {
        self.newcomer.is_none()
    }

    /// Records an admitted call. Returns true if it is the first one.
    pub(super) fn admit(&mut self, admission: A) -> bool {
        // Equal ones may have been read from files of different times. The newest is compared first
        // and fastest.
        match self.distinct.iter_mut().find(|known| **known == admission) {
            Some(known) => *known = admission,
            None => self.distinct.push(admission),
        }
        self.silent_until = None;
        self.newcomer.take().is_some()
    }

    pub(super) fn holds(&self, holds: impl FnMut(&A) -> bool) -> bool {
        self.distinct.iter().all(holds)
    }

    /// Resolves when the connection must be closed: once for GOAWAY, and `grace` later for closing
    /// it. A call that is admitted in between keeps it open.
    pub(super) async fn must_go(&mut self, grace: Duration) -> Departure {
        let Some(entry) = &self.newcomer else { return std::future::pending().await };
        let silent = async {
            match self.silent_until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        if entry.or_displaced(silent).await.is_none() {
            return Departure::Now;
        }
        if self.was_told {
            return Departure::Over;
        }
        self.was_told = true;
        self.silent_until = Some(Instant::now() + grace);
        Departure::Soon
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::by_age::ByAge;
    use super::*;

    const GRACE: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(1_000_000);

    fn admissions(all: &Arc<ByAge>, is_guarded: bool) -> Admissions<&'static str> {
        Admissions::new(all.open(), is_guarded)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_told_and_then_closed() {
        let all = Arc::default();
        let began = Instant::now();
        let mut silent = admissions(&all, true);
        assert_eq!(silent.must_go(GRACE).await, Departure::Soon);
        assert_eq!(began.elapsed().as_secs(), 20);
        assert_eq!(silent.must_go(GRACE).await, Departure::Over);
        assert_eq!(began.elapsed().as_secs(), 21);
        let mut late = admissions(&all, true);
        assert_eq!(late.must_go(GRACE).await, Departure::Soon);
        assert!(late.admit("a"));
        assert!(tokio::time::timeout(LONG, late.must_go(GRACE)).await.is_err(), "its call goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_lets_it_stay_and_so_does_a_server_that_asks_for_nothing() {
        let all = Arc::default();
        let mut known = admissions(&all, true);
        assert!(!known.is_known());
        assert!(known.admit("a") && !known.admit("a") && !known.admit("b"));
        assert!(known.is_known());
        assert_eq!(known.distinct, ["a", "b"]);
        assert!(known.holds(|_| true) && !known.holds(|it| *it == "a"));
        assert!(!all.end_oldest(0), "it makes room for nobody");
        let mut newcomer = admissions(&all, false);
        for connection in [&mut known, &mut newcomer] {
            assert!(tokio::time::timeout(LONG, connection.must_go(GRACE)).await.is_err());
        }
        assert!(all.end_oldest(0));
        assert_eq!(newcomer.must_go(GRACE).await, Departure::Now);
    }
}
