// SPDX-License-Identifier: Apache-2.0
//! One moment of several tables, copied while they go on.
//!
//! All tables are locked together for as long as it takes to note their counters, and the time of
//! their newest item. From then on every change of an older item first notes the item as it was
//! ([`BeforeImages`]), and the slots are copied some hundreds at a time, with the lock free in
//! between. What was noted and what was copied make up the tables at that moment, however long the
//! copying takes. Data is shared and not copied.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_data::{Error, Result, StoredItem, TableInfo};

use super::Table;
use super::items::Item;
use super::state::{Contents, TableState};
use crate::selector::Handle;

/// Slots that are copied under one lock: each may cost a wait for the memory.
const COPIED_SLOTS: usize = 512;

/// Changes that are noted before memory has to be found for them.
const FIRST_CHANGES: usize = 4096;

/// Items of a table as they were at a moment, as far as they have changed since.
#[derive(Debug)]
pub(super) struct BeforeImages {
    /// When the newest item was inserted that takes part.
    newest_ns: i64,
    /// Slots there were.
    num_slots: usize,
    /// Slots that were copied already; what changes there may be forgotten.
    copied: usize,
    /// One bit a slot: whether `changed` has what was in it.
    noted: Vec<u64>,
    changed: Vec<StoredItem>,
    /// Everything there was, if the table was reset.
    reset: Option<Contents>,
}

impl BeforeImages {
    /// Memory for some `num_slots` slots. Nothing takes part yet.
    fn prepare(num_slots: usize) -> Box<Self> {
        let noted = Vec::with_capacity(num_slots.div_ceil(64));
        let changed = Vec::with_capacity(FIRST_CHANGES);
        Box::new(Self { newest_ns: 0, num_slots: 0, copied: 0, noted, changed, reset: None })
    }

    /// Makes what a state holds now take part.
    fn begin(&mut self, state: &TableState) {
        self.newest_ns = state.newest_ns();
        self.num_slots = state.items().num_slots();
        self.noted.resize(self.num_slots.div_ceil(64), 0);
    }

    /// Notes an item that is about to change or was just removed.
    pub(super) fn record(&mut self, handle: Handle, item: &Item) {
        if self.is_part_of_snapshot(handle, item) {
            self.noted[handle as usize / 64] |= 1 << (handle % 64);
            self.changed.push(item.to_stored());
        }
    }

    /// Keeps what a reset throws away, unless it is not needed any more.
    pub(super) fn record_reset(&mut self, contents: Contents) -> Option<Contents> {
        if self.reset.is_some() || self.copied >= self.num_slots {
            return Some(contents);
        }
        self.reset = Some(contents);
        None
    }

    /// Whether an item was there at the moment, is as it was then, and was not copied.
    fn is_part_of_snapshot(&self, handle: Handle, item: &Item) -> bool {
        let slot = handle as usize;
        item.inserted_at_ns <= self.newest_ns
            && slot >= self.copied
            && self.noted[slot / 64] & 1 << (slot % 64) == 0
    }

    /// All items of the moment, oldest first, of which `items` were copied.
    fn finish(mut self, mut items: Vec<StoredItem>) -> Vec<StoredItem> {
        if let Some(contents) = self.reset.take() {
            self.copy(&contents, self.num_slots, &mut items);
        }
        items.append(&mut self.changed);
        // Slots are mostly filled in order, which is what a stable sort is fast at.
        items.sort_by_key(|item| item.inserted_at_ns);
        items
    }

    fn copy(&mut self, contents: &Contents, num_slots: usize, items: &mut Vec<StoredItem>) {
        let end = self.num_slots.min(self.copied + num_slots);
        let slots = contents.items.in_slots(self.copied..end);
        let there = slots.filter(|(handle, item)| self.is_part_of_snapshot(*handle, item));
        items.extend(there.map(|(_, item)| item.to_stored()));
        self.copied = end;
    }
}

/// A table at one moment.
#[derive(Debug)]
pub struct TableSnapshot {
    /// Its settings and counters.
    pub info: TableInfo,
    /// Its items, oldest first.
    pub items: Vec<StoredItem>,
}

/// A moment of several tables that is being copied. Dropping it gives up.
#[derive(Debug)]
pub struct SnapshotCut {
    /// What was noted of each table, and the table until it is copied.
    tables: Vec<(TableInfo, Arc<Table>)>,
    locked: Duration,
}

impl SnapshotCut {
    /// Notes the present moment of `tables`, which are all different.
    ///
    /// A table that is closed can be copied like any other.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if another moment of one of them is being copied.
    pub fn begin(tables: &[Arc<Table>]) -> Result<Self> {
        let prepare = |table: &Arc<Table>| {
            let num_slots = table.shared.lock().state.items().num_slots();
            (table.config().clone(), BeforeImages::prepare(num_slots + COPIED_SLOTS))
        };
        // Memory first: a system may take its time to give it.
        let mut prepared: Vec<_> = tables.iter().map(prepare).collect();
        let mut moment = Self { tables: Vec::with_capacity(tables.len()), locked: Duration::ZERO };
        let mut all = Vec::with_capacity(tables.len());
        yield_core();
        all.extend(tables.iter().map(|table| table.shared.lock()));
        let start = Instant::now();
        if let Some(at) =
            all.iter_mut().position(|shared| shared.state.before_images_mut().is_some())
        {
            return Err(Error::failed_precondition(format!(
                "Table {} is being copied already.",
                tables[at].name()
            )));
        }
        let prepared = prepared.drain(..);
        for ((table, shared), (config, mut before)) in tables.iter().zip(&mut all).zip(prepared) {
            let info = shared.info(config);
            before.begin(&shared.state);
            *shared.state.before_images_mut() = Some(before);
            moment.tables.push((info, Arc::clone(table)));
        }
        moment.locked = start.elapsed();
        Ok(moment)
    }

    /// How long all tables were locked together.
    pub fn locked(&self) -> Duration {
        self.locked
    }

    /// Items there were, in all tables.
    pub fn num_items(&self) -> u64 {
        self.tables.iter().map(|(info, _)| info.current_size as u64).sum()
    }

    /// Copies the tables, in the order they were given. Takes some 100 ns an item, most of it
    /// without a lock.
    pub fn copy(mut self) -> Vec<TableSnapshot> {
        let tables = std::mem::take(&mut self.tables);
        let mut snapshots = Vec::with_capacity(tables.len());
        // What is not copied yet stays in `self`, whose drop ends it in any case.
        self.tables.extend(tables.into_iter().rev());
        while let Some((info, table)) = self.tables.last() {
            let items = copy_items(table, info.current_size as usize);
            if let Some((info, _)) = self.tables.pop() {
                snapshots.push(TableSnapshot { info, items });
            }
        }
        snapshots
    }
}

impl Drop for SnapshotCut {
    fn drop(&mut self) {
        for (_, table) in &self.tables {
            let before = table.shared.lock().state.before_images_mut().take();
            drop(before);
        }
    }
}

/// Lets others have this core, without a lock. A thread that copies all the time loses its core in
/// any case, and without this it would nearly always be with a lock that others wait for.
fn yield_core() {
    std::thread::yield_now();
}

/// Copies one table and ends the noting of its changes.
fn copy_items(table: &Table, size: usize) -> Vec<StoredItem> {
    let mut items = Vec::with_capacity(size);
    let before = loop {
        yield_core();
        let mut shared = table.shared.lock();
        if let Some(before) = copy_some(&mut shared.state, COPIED_SLOTS, &mut items) {
            break before;
        }
    };
    before.finish(items)
}

/// Copies the next slots; once nothing is left that needs the state, what was noted about it.
fn copy_some(
    state: &mut TableState,
    num_slots: usize,
    items: &mut Vec<StoredItem>,
) -> Option<Box<BeforeImages>> {
    let mut before = state.before_images_mut().take().expect("the moment is not over");
    if before.reset.is_some() || before.copied >= before.num_slots {
        return Some(before);
    }
    before.copy(state.contents(), num_slots, items);
    *state.before_images_mut() = Some(before);
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::state::Batch;
    use super::super::testing::{config, insert, item, table};
    use super::*;
    use reverb_data::SelectorConfig;

    fn keys(items: &[StoredItem]) -> Vec<u64> {
        items.iter().map(|item| item.key).collect()
    }

    #[test]
    fn what_changes_while_it_is_copied_is_kept_as_it_was() {
        let table = table(5000);
        (0..4000).for_each(|key| insert(&table, key));
        let moment = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap();
        assert_eq!(moment.num_items(), 4000);
        // In slots that are copied in the beginning, in the middle and at the end.
        table.mutate(&[(1, 50.0), (2000, 51.0), (3999, 52.0)], &[2, 2001, 3998]).unwrap();
        table.mutate(&[(1, 60.0)], &[3999]).unwrap();
        (4000..4010).for_each(|key| insert(&table, key));
        table.try_sample(32).unwrap();
        let snapshot = moment.copy().pop().unwrap();
        assert_eq!(keys(&snapshot.items), (0..4000).collect::<Vec<_>>());
        assert!(snapshot.items.iter().all(|item| item.times_sampled == 0));
        assert!(snapshot.items.iter().all(|item| item.priority.to_bits() == 1f64.to_bits()));
        assert_eq!(snapshot.info.num_inserts, 4000);
        assert_eq!(snapshot.info.num_deletes, 0);
        let later = SnapshotCut::begin(&[table]).unwrap().copy().pop().unwrap();
        assert_eq!(later.items.len(), 4006);
        assert!(later.items[1].priority > 59.0);
    }

    #[test]
    fn a_table_that_is_reset_or_closed_meanwhile_is_copied_all_the_same() {
        let table = table(5000);
        (0..3000).for_each(|key| insert(&table, key));
        let moment = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap();
        table.mutate(&[(7, 9.0)], &[8]).unwrap();
        table.reset();
        (0..10).for_each(|key| insert(&table, key));
        table.reset();
        table.close();
        let snapshot = moment.copy().pop().unwrap();
        assert_eq!(keys(&snapshot.items), (0..3000).collect::<Vec<_>>());
        assert_eq!(table.info().current_size, 0);
    }

    #[test]
    fn a_moment_that_is_given_up_leaves_no_trace() {
        let table = table(10);
        insert(&table, 1);
        let moment = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap();
        let second = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap_err();
        assert_eq!(second.message(), "Table t is being copied already.");
        drop(moment);
        assert_eq!(SnapshotCut::begin(&[table]).unwrap().copy()[0].items.len(), 1);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64),
        Sample(usize),
        Update(u64, f64),
        Delete(u64),
        Reset,
        Copy(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..40u64;
        prop_oneof![
            4 => key.clone().prop_map(Step::Insert),
            2 => (1..5usize).prop_map(Step::Sample),
            2 => (key.clone(), 0.0..9.0).prop_map(|(key, priority)| Step::Update(key, priority)),
            2 => key.prop_map(Step::Delete),
            1 => Just(Step::Reset),
            3 => (1..4usize).prop_map(Step::Copy),
        ]
    }

    fn apply(state: &mut TableState, step: &Step) {
        match *step {
            Step::Insert(key) => state.insert(item(key), 0),
            Step::Sample(num) => state.sample(&mut Batch::new(num)),
            Step::Update(key, priority) => state.update(&[(key, priority)]),
            Step::Delete(key) => state.delete(key),
            Step::Reset => drop(state.reset(&config(20))),
            Step::Copy(_) => {}
        }
    }

    /// All items at once, oldest first.
    fn all(state: &TableState) -> Vec<(u64, f64, i32, i64)> {
        let items = state.items();
        let mut all: Vec<_> = items
            .in_slots(0..items.num_slots())
            .map(|(_, it)| (it.key, it.priority, it.times_sampled, it.inserted_at_ns))
            .collect();
        all.sort_by_key(|it| it.3);
        all
    }

    proptest! {
        /// Whatever happens while slots are copied, the copy is of the moment it began.
        #[test]
        fn a_copy_is_one_moment(
            earlier in proptest::collection::vec(step(), 0..60),
            later in proptest::collection::vec(step(), 0..60),
        ) {
            let config = reverb_data::TableConfig {
                sampler: SelectorConfig::Uniform,
                max_times_sampled: 3,
                ..config(20)
            };
            let mut state = TableState::new(&config);
            for step in &earlier {
                apply(&mut state, step);
            }
            let expected = all(&state);
            let mut before = BeforeImages::prepare(3);
            before.begin(&state);
            *state.before_images_mut() = Some(before);
            let (mut items, mut finished) = (Vec::new(), None);
            for step in &later {
                apply(&mut state, step);
                if let Step::Copy(slots) = *step && finished.is_none() {
                    finished = copy_some(&mut state, slots, &mut items);
                }
            }
            while finished.is_none() {
                finished = copy_some(&mut state, 2, &mut items);
            }
            let copy = finished.unwrap().finish(items);
            let copy: Vec<_> = copy
                .iter()
                .map(|it| (it.key, it.priority, it.times_sampled, it.inserted_at_ns))
                .collect();
            prop_assert_eq!(copy, expected);
        }
    }
}
