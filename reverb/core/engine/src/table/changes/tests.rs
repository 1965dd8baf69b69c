// SPDX-License-Identifier: Apache-2.0
//! Random operations: the changes of a commit, applied to the items of the commit before, are the
//! items of the table.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use reverb_data::{Chunk, NewItem, SampleOptions, Stacking, TableChange, TableConfig};

use super::*;
use crate::table::items::AllItems;
use crate::table::model_tests::{Operation, limiters, operations};
use crate::table::state::{Batch, TableState};
use crate::table::statistics::Removal;
use crate::table::testing::{config, item_of_length, removers, selectors};

#[derive(Debug, Clone)]
enum Step {
    Do(Operation),
    /// A batch of all samples or none, which may be undone.
    SampleWhole(usize),
    /// Batches that may be undone because their items cannot be stacked.
    SampleStacked(usize, usize),
    /// Transfer of an item that is older than others.
    Transfer(u64, i64),
    EndOperation,
    Commit,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => operations().prop_map(Step::Do),
        1 => (1..6usize).prop_map(Step::SampleWhole),
        2 => (1..9usize, 1..5usize).prop_map(|(num, size)| Step::SampleStacked(num, size)),
        1 => (0..30u64, 0..9i64).prop_map(|(key, time)| Step::Transfer(key, time)),
        6 => Just(Step::EndOperation),
        2 => Just(Step::Commit),
    ];
    prop::collection::vec(step, 1..150)
}

/// What a commit restores of an item.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    priority: f64,
    removal_priority: Option<f64>,
    /// 0 where nothing depends on it.
    times_sampled: i32,
    inserted_at_ns: i64,
    /// Of its chunk. All are alive, and each belongs to one item.
    identity: usize,
}

/// A state, and its items at the last commit.
struct Case {
    config: TableConfig,
    state: TableState,
    committed: BTreeMap<u64, Known>,
    /// The chunks of all items so far.
    chunks: Vec<Chunk>,
}

impl Case {
    fn new(config: TableConfig) -> Self {
        let mut state = TableState::new(&config);
        state.record_changes(ChangeRecorder::new(Duration::from_secs(2)));
        Self { state, config, committed: BTreeMap::new(), chunks: Vec::new() }
    }

    fn new_item(&mut self, key: u64, length: usize, priority: f64) -> NewItem {
        // The key of a chunk is its own, also if an item comes twice.
        let item = item_of_length(self.chunks.len() as u64, length, priority);
        self.chunks.extend(item.trajectory.chunks().iter().cloned());
        NewItem { key, ..item }
    }

    fn apply(&mut self, step: Step) {
        let sample = |state: &mut TableState, num, options| {
            state.sample(&mut Batch::new(num, options));
        };
        let state = &mut self.state;
        match step {
            Step::Do(Operation::Insert {
                key,
                priority,
                removal_priority,
                chunks,
                times_sampled,
                replaces,
            }) => {
                if state.limiter().can_insert(1) && !state.has_surplus() {
                    let item = self.new_item(key, chunks.len(), priority);
                    let item = NewItem { removal_priority, times_sampled, replaces, ..item };
                    self.state.insert(item, 7);
                }
            }
            Step::Do(Operation::Sample(num)) => sample(state, num, SampleOptions::default()),
            Step::Do(Operation::Update(updates)) => state.update(&updates, &mut Vec::new()),
            Step::Do(Operation::Delete(key)) => drop(state.delete(key)),
            Step::Do(Operation::Lose(key)) => drop(state.remove(key, Removal::Lost)),
            Step::Do(Operation::Reset) => drop(state.reset(&self.config)),
            Step::Do(Operation::Configure(change)) => {
                // Times are stored or not, and weights are made beside the table.
                let TableChange { max_size, rate_limiter, .. } = change;
                let change = TableChange { max_size, rate_limiter, ..TableChange::default() };
                let Ok(config) = change.apply(&self.config) else { return };
                state.configure(&config);
                while !state.shrink(&config, 3) {}
                self.config = config;
            }
            Step::SampleWhole(num) => {
                let options = SampleOptions { all_or_nothing: true, ..SampleOptions::default() };
                sample(state, num, options);
            }
            Step::SampleStacked(num, batch_size) => {
                sample(state, num, SampleOptions::stacked(Stacking::new(batch_size)));
            }
            Step::Transfer(key, inserted_at_ns) if state.items().find(key).is_none() => {
                let NewItem { trajectory, .. } = self.new_item(key, 1, 1.0);
                self.state.transfer(StoredItem {
                    key,
                    priority: 2.0,
                    removal_priority: Some(3.0),
                    times_sampled: 0,
                    inserted_at_ns,
                    trajectory,
                });
            }
            Step::Transfer(..) => {}
            Step::EndOperation => self.end_operation(),
            Step::Commit => self.commit(),
        }
    }

    fn end_operation(&mut self) {
        self.state.evict_surplus();
        self.state.fold_changes(Instant::now());
        drop(self.state.take_garbage());
        let present: BTreeSet<usize> = self.items().values().map(|item| item.identity).collect();
        for chunk in self.chunks.iter().filter(|chunk| !present.contains(&chunk.identity())) {
            assert_eq!(chunk.reference_count(), 1, "chunk {} lives on", chunk.key());
        }
        let changes = self.state.changes().unwrap();
        assert!(changes.since.is_some() || !changes.has_changes());
        let most = self.committed.len() * 56 + present.len() * 96;
        assert!(changes.bytes() <= most, "{} bytes for {} items", changes.bytes(), present.len());
    }

    fn commit(&mut self) {
        self.end_operation();
        let changes = self.state.changes_mut().unwrap().take();
        let (mut known, items) = (std::mem::take(&mut self.committed), self.items());
        if changes.is_reset {
            known.clear();
        }
        check_net(&changes, &known, &items);
        for key in &changes.deleted {
            known.remove(key).unwrap();
        }
        for item in &changes.added {
            assert!(known.insert(item.key, self.known(item)).is_none(), "{} is there", item.key);
        }
        for item in &changes.changed {
            let ChangedItem { key, priority, removal_priority, times_sampled } = *item;
            assert_eq!(times_sampled.is_some(), self.has_times());
            let known = known.get_mut(&key).unwrap();
            known.priority = priority;
            known.removal_priority = removal_priority;
            known.times_sampled = times_sampled.unwrap_or_default();
        }
        assert_eq!(known, items);
        self.committed = items;
        assert!(self.state.changes_mut().unwrap().take().is_empty());
    }

    fn has_times(&self) -> bool {
        self.config.max_times_sampled > 1
    }

    fn known(&self, item: &StoredItem) -> Known {
        let StoredItem { priority, removal_priority, inserted_at_ns, .. } = *item;
        let times_sampled = if self.has_times() { item.times_sampled } else { 0 };
        let identity = item.trajectory.chunks()[0].identity();
        Known { priority, removal_priority, times_sampled, inserted_at_ns, identity }
    }

    fn items(&self) -> BTreeMap<u64, Known> {
        let items = self.state.items().all(AllItems::Test);
        let stored =
            items.map(|(handle, item)| item.to_stored(self.state.removal_priority(handle)));
        stored.map(|item| (item.key, self.known(&item))).collect()
    }
}

/// Checks that a commit has nothing that is not needed.
fn check_net(changes: &Changes, before: &BTreeMap<u64, Known>, now: &BTreeMap<u64, Known>) {
    let stays = |key: &u64| {
        let identities = before.get(key).zip(now.get(key));
        identities.is_some_and(|(before, now)| before.identity == now.identity)
    };
    let sorted = |keys: &mut dyn Iterator<Item = u64>| {
        let mut keys: Vec<u64> = keys.collect();
        keys.sort_unstable();
        keys
    };
    let without = |of: &BTreeMap<u64, Known>| {
        of.keys().filter(|key| !stays(key)).copied().collect::<Vec<u64>>()
    };
    assert_eq!(sorted(&mut changes.added.iter().map(|item| item.key)), without(now));
    assert_eq!(sorted(&mut changes.deleted.iter().copied()), without(before));
    let mut changed = sorted(&mut changes.changed.iter().map(|item| item.key));
    assert!(changed.iter().all(stays));
    changed.dedup();
    assert_eq!(changed.len(), changes.changed.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn changes_make_the_items_of_the_commit_before_those_of_now(
        sampler in selectors(),
        remover in removers(),
        rate_limiter in limiters(),
        max_size in 1i64..12,
        max_times_sampled in -1i32..4,
        seed in any::<u64>(),
        steps in steps(),
    ) {
        let config = TableConfig {
            sampler,
            remover,
            rate_limiter,
            max_times_sampled,
            seed: Some(seed),
            ..config(max_size)
        };
        let mut case = Case::new(config);
        for step in steps {
            case.apply(step);
        }
        case.commit();
    }
}

#[test]
fn an_item_that_comes_and_goes_leaves_nothing() {
    let mut case = Case::new(TableConfig { max_times_sampled: 1, ..config(5) });
    for key in 0..1000 {
        let item = case.new_item(key, 1, 1.0);
        case.state.insert(item, 0);
        if key % 2 == 0 {
            // By another operation than it came, or by the same.
            case.end_operation();
        }
        case.apply(Step::SampleWhole(1));
        case.end_operation();
        assert_eq!(case.state.changes().unwrap().bytes(), 0);
    }
}

#[test]
fn updates_do_not_pile_up() {
    let mut case = Case::new(config(100));
    for key in 0..100 {
        let item = case.new_item(key, 1, 1.0);
        case.state.insert(item, 0);
    }
    case.commit();
    let updates: Vec<(u64, f64)> = (0..100).map(|key| (key, 5.0)).collect();
    let mut bytes = BTreeSet::new();
    for _ in 0..1000 {
        case.state.update(&updates, &mut Vec::new());
        case.end_operation();
        bytes.insert(case.state.changes().unwrap().bytes());
    }
    assert_eq!(bytes.len(), 1, "{bytes:?}");
    assert!(bytes.pop_first() <= Some(100 * 48));
}
