// SPDX-License-Identifier: Apache-2.0
//! What the calls of a connection have shown so far.
//!
//! A connection without an admitted call is one that anybody could open. It may have to make room
//! for others, and where callers must show who they are, it ends soon.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::by_age::Place;

/// How long such a connection may stay where callers must show who they are.
const MAX_SILENCE: Duration = Duration::from_secs(20);

/// So many of them need not make room, so that those that have just connected can make a call.
pub(super) const KEPT_NEWCOMERS: usize = 16;

/// What a connection has shown, by the admissions of its calls.
#[derive(Debug)]
pub(super) struct Standing<A> {
    /// Its place among those without an admitted call.
    newcomer: Option<Place>,
    /// Until when it waits for one.
    silent_until: Option<Instant>,
    /// Whether it was told that it has to go.
    was_told: bool,
    /// Different ones.
    admissions: Vec<A>,
}

/// What a connection without an admitted call has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// It makes room at once.
    Now,
    /// It has shown nothing for too long, and is told to go.
    Soon,
    /// It was told, and is closed.
    Over,
}

impl<A: PartialEq> Standing<A> {
    /// Of a connection whose handshakes are done. `is_guarded` says whether callers must show who
    /// they are.
    pub(super) fn new(newcomer: Place, is_guarded: bool) -> Self {
        let silent_until = is_guarded.then(|| Instant::now() + MAX_SILENCE);
        Self { newcomer: Some(newcomer), silent_until, was_told: false, admissions: Vec::new() }
    }

    /// Whether a call was admitted.
    pub(super) fn is_known(&self) -> bool {
        self.newcomer.is_none()
    }

    /// A call was admitted. Returns whether it is the first one.
    pub(super) fn admit(&mut self, admission: A) -> bool {
        // Equal ones may have been read from files of different times. The newest is compared first
        // and fastest.
        match self.admissions.iter_mut().find(|known| **known == admission) {
            Some(known) => *known = admission,
            None => self.admissions.push(admission),
        }
        self.silent_until = None;
        self.newcomer.take().is_some()
    }

    /// Whether all admissions still hold.
    pub(super) fn holds(&self, holds: impl FnMut(&A) -> bool) -> bool {
        self.admissions.iter().all(holds)
    }

    /// Resolves when the connection has to go: once to tell it, and once to close it `grace` later.
    /// A call that is admitted in between lets it stay.
    pub(super) async fn must_go(&mut self, grace: Duration) -> Departure {
        let Some(place) = &self.newcomer else { return std::future::pending().await };
        let silent = async {
            match self.silent_until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        if place.or_displaced(silent).await.is_none() {
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

    fn standing(all: &Arc<ByAge>, is_guarded: bool) -> Standing<&'static str> {
        Standing::new(all.open(), is_guarded)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_told_and_then_closed() {
        let (all, began) = (Arc::default(), Instant::now());
        let mut silent = standing(&all, true);
        assert_eq!(silent.must_go(GRACE).await, Departure::Soon);
        assert_eq!(began.elapsed().as_secs(), 20);
        assert_eq!(silent.must_go(GRACE).await, Departure::Over);
        assert_eq!(began.elapsed().as_secs(), 21);
        let mut late = standing(&all, true);
        assert_eq!(late.must_go(GRACE).await, Departure::Soon);
        assert!(late.admit("a"));
        assert!(tokio::time::timeout(LONG, late.must_go(GRACE)).await.is_err(), "its call goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_lets_it_stay_and_so_does_a_server_that_asks_for_nothing() {
        let all = Arc::default();
        let mut known = standing(&all, true);
        assert!(!known.is_known());
        assert!(known.admit("a") && !known.admit("a") && !known.admit("b"));
        assert!(known.is_known());
        assert_eq!(known.admissions, ["a", "b"]);
        assert!(known.holds(|_| true) && !known.holds(|it| *it == "a"));
        assert!(!all.end_oldest(0), "it makes room for nobody");
        let mut newcomer = standing(&all, false);
        for connection in [&mut known, &mut newcomer] {
            assert!(tokio::time::timeout(LONG, connection.must_go(GRACE)).await.is_err());
        }
        assert!(all.end_oldest(0));
        assert_eq!(newcomer.must_go(GRACE).await, Departure::Now);
    }
}
