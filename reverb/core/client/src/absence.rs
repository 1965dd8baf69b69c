// SPDX-License-Identifier: Apache-2.0
//! The absence of a server: what a session knows and has logged of it until the server answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// Absence of the server of a session.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    /// True if `known` is not the default. Every answer looks at it.
    is_known: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Time at which it was learned that the server has stopped for good.
    ended: Option<Instant>,
    /// The log has a line about the wait.
    is_logged: bool,
    /// The log has a line about its end.
    is_given_up: bool,
}

impl Absence {
    /// Forgets everything: a server has answered a call or a stream that began then. One that began
    /// before the server stopped for good is no sign that it is back.
    pub(crate) fn answered(&self, began: Instant) {
        if self.is_known.load(Ordering::Relaxed) {
            let mut known = self.known.lock();
            if known.ended.is_some_and(|ended| began <= ended) {
                return;
            }
            *known = Known::default();
            self.is_known.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that the server does not come back.
    pub(crate) fn end(&self) {
        self.change(|known| known.ended = Some(Instant::now()));
    }

    /// True if the server does not come back.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_known.load(Ordering::Relaxed) && self.known.lock().ended.is_some()
    }

    /// Returns true for the first line about the wait.
    pub(crate) fn begin_wait(&self) -> bool {
        self.change(|known| !std::mem::replace(&mut known.is_logged, true))
    }

    /// Returns true the first time; a logged wait then logs its end.
    pub(crate) fn give_up(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
            && self
                .change(|known| known.is_logged && !std::mem::replace(&mut known.is_given_up, true))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock();
        self.is_known.store(true, Ordering::Relaxed);
        change(&mut known)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wait_is_logged_once_and_its_end_once() {
        let absence = Absence::default();
        assert!(!absence.give_up(), "nothing was logged");
        assert!(absence.begin_wait());
        assert!(!absence.begin_wait());
        assert!(absence.give_up());
        assert!(!absence.give_up());
        absence.answered(Instant::now());
        assert!(absence.begin_wait(), "another absence");
    }

    #[test]
    fn an_answer_to_a_later_call_ends_the_end() {
        let absence = Absence::default();
        let before = Instant::now();
        assert!(!absence.has_ended());
        absence.end();
        absence.answered(before);
        assert!(absence.has_ended());
        absence.answered(Instant::now() + Duration::from_nanos(1));
        assert!(!absence.has_ended());
    }
}
