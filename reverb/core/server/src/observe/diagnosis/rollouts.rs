// SPDX-License-Identifier: Apache-2.0
//! What holds back the learner, the feeder or the generators of a table with rollouts.
//!
//! Other tables are stuck if inserts and samples wait. Here both wait in good order: the feeder for
//! the backlog, and the learner for generators.

use std::time::Duration;

use reverb_base::diagnosis as sentences;
use reverb_base::figures::{plural, seconds};
use reverb_data::rollouts::RolloutsInfo;
use reverb_engine::{RolloutsStatus, WaitReason};

use super::{Case, LONG, State};

type Decided<'a> = (State, String, Option<&'a WaitReason>);

impl<'a> Case<'a> {
    /// The state of a table with rollouts; `None` where it is that of any other table.
    pub(super) fn decide_rollouts(&self) -> Option<Decided<'a>> {
        let rollouts = self.table.rollouts.as_ref()?;
        let decided = |state, sentence| Some((state, sentence, None));
        match (self.sample_wait, self.insert_wait) {
            (Some(wait), _) => {
                if let Some(why) = self.why_stuck_with(rollouts, wait) {
                    return decided(State::Stuck, why);
                }
                if let Some(why) = self.what_is_not_started(rollouts) {
                    return decided(State::Starved, why);
                }
                let RolloutsInfo { open, settled, .. } = rollouts.info;
                if open + settled == 0 {
                    let full = self.insert_wait.and(self.around.why_full(self.table));
                    return full
                        .map(|why| (State::Full, why, None))
                        .or_else(|| Some(self.why_samples_wait(wait)));
                }
                let waiting = self.table.info.waiting_samples as i64;
                let now = sentences::samples_wait(waiting, wait);
                let sentence = format!("Learners wait for generators: {now}.");
                Some((State::Ahead, sentence, self.samples_wait_for))
            }
            (None, Some(_)) if self.around.why_full(self.table).is_none() => {
                let why = self.what_is_not_started(rollouts)?;
                decided(State::Starved, why)
            }
            (None, None) if rollouts.waiting_open > 0 && !self.is_moving() => {
                let last = match self.since(self.table.statistics.last_insert_ns) {
                    Some(ago) => format!("the last insert was {} ago", seconds(ago)),
                    None => "nothing was ever inserted".to_owned(),
                };
                let requests = plural(
                    rollouts.waiting_open as i64,
                    "request of a generator waits",
                    "requests of generators wait",
                );
                decided(State::Starved, format!("{requests} for an open item, and {last}."))
            }
            _ => None,
        }
    }

    /// Why a learner will wait for ever, as things are.
    fn why_stuck_with(&self, rollouts: &RolloutsStatus, wait: Duration) -> Option<String> {
        let RolloutsInfo { version, backlog, taken, open, settled, ready, ready_held, .. } =
            rollouts.info;
        let is_nothing_made = open + settled == 0;
        if let Some(most) = rollouts.max_backlog.filter(|most| backlog >= *most && is_nothing_made)
        {
            let free = ready - ready_held;
            return Some(format!(
                "{taken} of the {most} items of the backlog are taken at version {version}, and \
                 {free} are ready: call set_version, take fewer items, or raise items_per_version."
            ));
        }
        let is_full = self.table.info.current_size >= self.table.info.config.max_size;
        if let Some(lease) = rollouts.oldest_lease.as_ref().filter(|_| is_full && is_nothing_made) {
            return Some(format!(
                "Learners hold {ready_held} of the {} items that fit into the table (max_size): \
                 {lease}. They leave by ack.",
                self.table.info.config.max_size
            ));
        }
        let events = &self.table.statistics.rollouts;
        (events.stale_in_a_row > 0 && wait >= LONG).then(|| {
            format!(
                "{} too stale when done: the last one is of version {}, and the table has {version}. \
                 Call set_version when generators have the weights.",
                plural(
                    events.stale_in_a_row as i64,
                    "item or rollout in a row was",
                    "items or rollouts in a row were"
                ),
                events.stale_version
            )
        })
    }

    /// Which process is missing: items wait for it, and nothing moves.
    fn what_is_not_started(&self, rollouts: &RolloutsStatus) -> Option<String> {
        if self.is_moving() {
            return None;
        }
        let RolloutsInfo { open, settled, .. } = rollouts.info;
        let items = |number: u64| plural(number as i64, "item is", "items are");
        if open > 0 && rollouts.open_held == 0 && rollouts.waiting_open == 0 {
            return Some(format!(
                "{} open, and no client holds one: start generators.",
                items(open)
            ));
        }
        let column = rollouts.unserved.filter(|_| open == 0 && rollouts.settled_held == 0)?;
        let signature = self.table.info.config.signature.as_ref();
        let name = signature.map_or_else(|| column.to_string(), |it| it.flat.name_of(column));
        Some(format!(
            "{} settled, and no stage asks for those that lack column {name}: start it \
             (take(lacks=\"{name}\"), extend).",
            items(settled)
        ))
    }
}

#[cfg(test)]
mod tests {
    use reverb_data::TableConfig;
    use reverb_engine::{OldestLease, Table, TableStatus};

    use super::super::{Surroundings, diagnose};
    use super::*;

    const NOW_NS: i64 = 1_000_000_000_000;

    /// An empty table for 4 items, all of them for one version. The last insert was 20 s ago.
    fn table() -> TableStatus {
        let mut status = Table::new(TableConfig::fifo("t", 4)).unwrap().status();
        status.rollouts = Some(RolloutsStatus { max_backlog: Some(4), ..Default::default() });
        status.statistics.last_insert_ns = NOW_NS - 20_000_000_000;
        (status.inserting.reason, status.sampling.reason) = (None, None);
        status
    }

    fn learner_waits(status: &mut TableStatus, seconds: u64) {
        status.info.waiting_samples = 1;
        status.sampling.oldest_wait = Some(Duration::from_secs(seconds));
    }

    fn feeder_waits(status: &mut TableStatus) {
        status.info.waiting_inserts = 1;
        status.inserting.oldest_wait = Some(Duration::from_secs(30));
    }

    /// State and sentence, after a change of the numbers of items.
    fn decided(mut status: TableStatus, change: impl Fn(&mut RolloutsStatus)) -> (State, String) {
        change(status.rollouts.as_mut().unwrap());
        let around = Surroundings { now_ns: NOW_NS, ..Surroundings::default() };
        let found = diagnose(&status, &around);
        (found.state, found.sentence())
    }

    #[test]
    fn a_learner_without_a_new_version_is_stuck() {
        let mut status = table();
        learner_waits(&mut status, 3);
        let all_taken = |it: &mut RolloutsStatus| {
            (it.info.version, it.info.taken, it.info.backlog) = (7, 4, 4);
        };
        let (state, why) = decided(status.clone(), all_taken);
        assert_eq!(state, State::Stuck);
        assert_eq!(
            why,
            "4 of the 4 items of the backlog are taken at version 7, and 0 are ready: call \
             set_version, take fewer items, or raise items_per_version."
        );
        // While one is open, it may become ready.
        let one_open = |it: &mut RolloutsStatus| {
            all_taken(it);
            (it.info.taken, it.info.open, it.open_held) = (3, 1, 1);
        };
        assert_eq!(decided(status, one_open).0, State::Ahead);
    }

    #[test]
    fn a_table_full_of_held_items_names_the_holder() {
        let mut status = table();
        learner_waits(&mut status, 3);
        status.info.current_size = 4;
        let (state, why) = decided(status, |it| {
            (it.info.ready, it.info.ready_held) = (4, 4);
            let age = Duration::from_secs(912);
            it.oldest_lease = Some(OldestLease { holder: "learner-0".into(), num_items: 4, age });
        });
        assert_eq!(state, State::Stuck);
        assert_eq!(
            why,
            "Learners hold 4 of the 4 items that fit into the table (max_size): 4 items for 15 min \
             by learner-0. They leave by ack."
        );
    }

    #[test]
    fn items_that_are_always_stale_name_both_versions() {
        let mut status = table();
        status.statistics.rollouts.stale_in_a_row = 3;
        status.statistics.rollouts.stale_version = 12;
        let moves = |it: &mut RolloutsStatus| {
            (it.info.version, it.info.open, it.open_held) = (13, 2, 1);
            it.last_rollout = Some(Duration::from_secs(1));
        };
        learner_waits(&mut status, 12);
        let (state, why) = decided(status.clone(), moves);
        assert_eq!(state, State::Stuck);
        assert_eq!(
            why,
            "3 items or rollouts in a row were too stale when done: the last one is of version 12, \
             and the table has 13. Call set_version when generators have the weights."
        );
        // A short wait has other causes.
        learner_waits(&mut status, 2);
        assert_eq!(decided(status, moves).0, State::Ahead);
    }

    #[test]
    fn what_nobody_works_on_starves() {
        let mut status = table();
        learner_waits(&mut status, 3);
        feeder_waits(&mut status);
        let open = |it: &mut RolloutsStatus| it.info.open = 2;
        let (state, why) = decided(status.clone(), open);
        assert_eq!(state, State::Starved);
        assert_eq!(why, "2 items are open, and no client holds one: start generators.");
        let settled = |it: &mut RolloutsStatus| {
            it.info.settled = 1;
            it.unserved = Some(3);
        };
        let (state, why) = decided(status.clone(), settled);
        assert_eq!(state, State::Starved);
        assert_eq!(
            why,
            "1 item is settled, and no stage asks for those that lack column 3: start it \
             (take(lacks=\"3\"), extend)."
        );
        let held = |it: &mut RolloutsStatus| {
            settled(it);
            it.settled_held = 1;
        };
        assert_eq!(decided(status.clone(), held).0, State::Ahead);
        // The same without a learner, and not while rollouts come.
        (status.info.waiting_samples, status.sampling.oldest_wait) = (0, None);
        assert_eq!(decided(status.clone(), open).0, State::Starved);
        let moves = |it: &mut RolloutsStatus| {
            open(it);
            it.last_rollout = Some(Duration::from_secs(2));
        };
        assert_eq!(decided(status, moves).0, State::Behind);
    }

    #[test]
    fn generators_that_wait_for_a_feeder_starve() {
        let (state, why) = decided(table(), |it| it.waiting_open = 3);
        assert_eq!(state, State::Starved);
        assert_eq!(
            why,
            "3 requests of generators wait for an open item, and the last insert was 20 s ago."
        );
    }

    #[test]
    fn both_sides_wait_in_good_order() {
        let mut status = table();
        learner_waits(&mut status, 30);
        feeder_waits(&mut status);
        let works = |it: &mut RolloutsStatus| {
            (it.info.open, it.open_held, it.info.backlog) = (4, 4, 4);
        };
        let (state, why) = decided(status, works);
        assert_eq!(state, State::Ahead);
        assert!(why.starts_with("Learners wait for generators: 1 request for samples"), "{why}");
    }
}
