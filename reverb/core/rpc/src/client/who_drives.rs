// SPDX-License-Identifier: Apache-2.0
//! Who drives a connection: the runtime, a caller, or nobody for a moment. Rules only, no socket.
//!
//! Design: `docs/design/rpc.md`.
//!
//! ```text
//!             a caller waits, alone for SOLO_CALLS          its answer is there
//!   Runtime ───────────────────────────────────▶ Caller ◀────────────────────▶ Nobody
//!      ▲                                            │    the next caller waits    │
//!      │                                            │                             │
//!      └── somebody else waits, the socket is full ─┴─ or nobody waits for 50 ms ─┘
//! ```

/// Number of waits in a row, without another one at the same time, before a caller drives.
pub(super) const SOLO_CALLS: u32 = 8;

/// Number of solo calls that one wait of others outweighs: moving the socket there and back costs
/// more than it saves.
const OTHERS_COUNT: u32 = 4;

/// Who polls the connection when there is something to read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrivenBy {
    #[default]
    Runtime,
    /// A caller that waits for an answer, in its own thread. All waits are its own.
    Caller,
    /// There was a caller a moment ago, and nobody waits.
    Nobody,
}

/// What a caller does while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// For the socket.
    Drives,
    /// To be woken.
    Parked,
}

/// The waits for answers of a connection, and who drives it.
#[derive(Debug, Default)]
pub(super) struct WhoDrives {
    by: DrivenBy,
    /// Number of answers that are waited for.
    num_waits: usize,
    /// Number of waits of callers in a row, each alone.
    num_solo: u32,
    /// True if the runtime is to drive as soon as the caller stops.
    runtime_is_wanted: bool,
    /// True if a caller has begun to drive since the last look.
    was_used: bool,
}

impl WhoDrives {
    pub(super) fn by(&self) -> DrivenBy {
        self.by
    }

    /// Counts a wait. One of a caller, who can drive, is followed by `wait_in_turn`.
    pub(super) fn begin_wait(&mut self, is_callers: bool) {
        self.num_waits += 1;
        if !is_callers {
            self.num_solo = self.num_solo.saturating_sub(OTHERS_COUNT);
            self.serve_waits();
        }
    }

    pub(super) fn end_wait(&mut self, is_callers: bool) {
        self.num_waits -= 1;
        let is_solo = is_callers && self.num_waits == 0;
        if is_solo {
            self.num_solo = (self.num_solo + 1).min(2 * SOLO_CALLS);
        } else if is_callers {
            self.num_solo = 0;
        }
    }

    /// Decides how a caller waits that has so many waits, and that has driven since its last
    /// decision or not. Called before each time that it blocks.
    pub(super) fn wait(&mut self, own_waits: usize, drives: bool) -> Waits {
        let is_alone = own_waits > 0 && self.num_waits <= own_waits && !self.runtime_is_wanted;
        let may_drive = match self.by {
            DrivenBy::Runtime => self.num_solo >= SOLO_CALLS,
            DrivenBy::Caller => drives,
            DrivenBy::Nobody => true,
        };
        if is_alone && may_drive {
            self.was_used |= !drives;
            self.by = DrivenBy::Caller;
            return Waits::Drives;
        }
        if drives {
            self.stop();
        } else {
            self.serve_waits();
        }
        Waits::Parked
    }

    /// The caller that drives does not wait any more.
    pub(super) fn stop(&mut self) {
        self.by = DrivenBy::Nobody;
        if std::mem::take(&mut self.runtime_is_wanted) {
            self.num_solo = 0;
            self.by = DrivenBy::Runtime;
        }
        self.serve_waits();
    }

    /// Waits are left that no caller reads.
    pub(super) fn serve_waits(&mut self) {
        if self.by == DrivenBy::Nobody && self.num_waits > 0 {
            self.by = DrivenBy::Runtime;
        }
    }

    /// The socket is full, and only the runtime waits for its room. A caller that drives is to be
    /// woken, because it has to stop first.
    pub(super) fn want_runtime(&mut self) {
        match self.by {
            DrivenBy::Runtime => {}
            DrivenBy::Caller => self.runtime_is_wanted = true,
            DrivenBy::Nobody => self.by = DrivenBy::Runtime,
        }
    }

    /// Looks, at intervals, whether there are still callers. Without them the runtime drives; and
    /// if a caller has begun a wait, but does not wait.
    pub(super) fn look(&mut self) {
        let was_used = std::mem::take(&mut self.was_used);
        if self.by == DrivenBy::Nobody && (!was_used || self.num_waits > 0) {
            self.by = DrivenBy::Runtime;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A thread that calls, one call after another.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Thread {
        Idle,
        /// Has begun a wait and runs.
        Runs,
        Drives,
        Parked,
    }

    /// Threads of callers, and tasks of the runtime, which cannot drive.
    struct Model {
        who: WhoDrives,
        callers: Vec<Thread>,
        tasks: Vec<Thread>,
    }

    impl Model {
        fn step(&mut self, at: usize, answered: bool) {
            let num_callers = self.callers.len();
            let is_caller = at < num_callers;
            let thread =
                if is_caller { &mut self.callers[at] } else { &mut self.tasks[at - num_callers] };
            *thread = match *thread {
                Thread::Idle => {
                    self.who.begin_wait(is_caller);
                    if is_caller { Thread::Runs } else { Thread::Parked }
                }
                waits if answered => {
                    self.who.end_wait(is_caller);
                    if waits == Thread::Drives {
                        self.who.stop();
                    }
                    Thread::Idle
                }
                Thread::Parked => Thread::Parked,
                waits => match self.who.wait(1, waits == Thread::Drives) {
                    Waits::Drives => Thread::Drives,
                    Waits::Parked => Thread::Parked,
                },
            };
        }

        fn threads(&self) -> impl Iterator<Item = Thread> {
            self.callers.iter().chain(&self.tasks).copied()
        }
    }

    proptest! {
        /// Whoever is parked is served: by the runtime, or by the one caller that drives.
        #[test]
        fn no_wait_is_left_alone(
            steps in prop::collection::vec((0_usize..7, any::<bool>()), 1..400),
            solo in 0..2 * SOLO_CALLS,
        ) {
            let mut model = Model {
                who: WhoDrives::default(),
                callers: vec![Thread::Idle; 3],
                tasks: vec![Thread::Idle; 2],
            };
            for _ in 0..solo {
                model.step(0, false);
                model.step(0, true);
            }
            for (at, answered) in steps {
                match at {
                    5 => model.who.look(),
                    6 => model.who.want_runtime(),
                    at => model.step(at, answered),
                }
                let drives = model.threads().filter(|thread| *thread == Thread::Drives).count();
                prop_assert_eq!(drives, usize::from(model.who.by() == DrivenBy::Caller));
                let is_parked = model.threads().any(|thread| thread == Thread::Parked);
                prop_assert!(!is_parked || model.who.by() != DrivenBy::Nobody);
            }
            for at in 0..5 {
                if model.threads().nth(at) != Some(Thread::Idle) {
                    model.step(at, true);
                }
            }
            model.who.look();
            model.who.look();
            prop_assert_eq!(model.who.by(), DrivenBy::Runtime);
            prop_assert_eq!(model.who.num_waits, 0);
        }
    }

    /// Makes a call, alone; returns how its thread waited.
    fn call(who: &mut WhoDrives) -> Waits {
        who.begin_wait(true);
        let waits = who.wait(1, false);
        who.end_wait(true);
        if waits == Waits::Drives {
            who.stop();
        }
        waits
    }

    #[test]
    fn a_caller_drives_when_it_was_alone_for_a_while() {
        let mut who = WhoDrives::default();
        for _ in 0..SOLO_CALLS {
            assert_eq!(call(&mut who), Waits::Parked);
        }
        assert_eq!(call(&mut who), Waits::Drives);
        assert_eq!(who.by(), DrivenBy::Nobody);
        who.look();
        assert_eq!(who.by(), DrivenBy::Nobody, "there was a caller since the last look");
        who.look();
        assert_eq!(who.by(), DrivenBy::Runtime);
        assert_eq!(call(&mut who), Waits::Drives);
    }

    #[test]
    fn a_second_wait_ends_the_drive() {
        for is_callers in [false, true] {
            let mut who = WhoDrives { num_solo: SOLO_CALLS, ..WhoDrives::default() };
            who.begin_wait(true);
            assert_eq!(who.wait(1, false), Waits::Drives);
            who.begin_wait(is_callers);
            assert_eq!(who.by(), DrivenBy::Caller, "it reads both answers until it looks");
            if is_callers {
                assert_eq!(who.wait(1, false), Waits::Parked);
            }
            assert_eq!(who.wait(1, true), Waits::Parked);
            assert_eq!(who.by(), DrivenBy::Runtime);
        }
    }

    #[test]
    fn a_full_socket_goes_back_to_the_runtime() {
        let mut who = WhoDrives { num_solo: SOLO_CALLS, ..WhoDrives::default() };
        who.begin_wait(true);
        assert_eq!(who.wait(1, false), Waits::Drives);
        who.want_runtime();
        assert_eq!(who.by(), DrivenBy::Caller, "it waits for the socket now");
        assert_eq!(who.wait(1, true), Waits::Parked);
        assert_eq!(who.by(), DrivenBy::Runtime);
        who.end_wait(true);
        assert_eq!(call(&mut who), Waits::Parked, "calls with full sockets are not solo");
    }
}
