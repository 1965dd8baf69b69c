// SPDX-License-Identifier: Apache-2.0
//! A consistent snapshot of several tables, copied while they stay in use.
//!
//! All tables are locked together, only to record their counters and the insertion time of their
//! newest item. From then on, every change of an older item first saves its before-image
//! ([`BeforeImages`]). The entries are copied a few hundred at a time, and the lock is free in
//! between. The before-images and the copied entries together are the tables at the time of the
//! lock, however long the copy takes. Chunks are shared and not copied.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use reverb_base::ranked::RankedGuard;
use reverb_base::{Error, Result};
use reverb_data::{StoredItem, TableInfo};

use super::items::Item;
use super::rollouts::Kept;
use super::state::{Contents, TableState};
use super::statistics::Removed;
use super::{Shared, Table};
use crate::selector::Handle;

/// Number of entries that are copied under one lock: each may cost a cache miss.
const COPIED_ENTRIES: usize = 512;

/// Number of before-images for which memory is reserved at the start.
const FIRST_CHANGES: usize = 4096;

/// Before-images: items of a table as they were at the snapshot, if they have changed since.
#[derive(Debug)]
pub(super) struct BeforeImages {
    /// Insertion time of the newest item in the snapshot.
    newest_ns: i64,
    /// Number of entries at the snapshot.
    num_entries: usize,
    /// Number of entries that were copied. Changes below it need no before-image.
    copied: usize,
    /// One bit per entry, set if `changed` has its before-image.
    recorded: Vec<u64>,
    changed: Vec<StoredItem>,
    /// The previous contents, if the table was reset.
    reset: Option<Contents>,
}

impl BeforeImages {
    /// Reserves memory for about `num_entries` entries. The snapshot starts later.
    fn prepare(num_entries: usize) -> Box<Self> {
        let recorded = Vec::with_capacity(num_entries.div_ceil(64));
        let changed = Vec::with_capacity(FIRST_CHANGES);
        Box::new(Self { newest_ns: 0, num_entries: 0, copied: 0, recorded, changed, reset: None })
    }

    /// Begins the snapshot: it includes all present items of the state.
    fn begin(&mut self, state: &TableState) {
        self.newest_ns = state.newest_ns();
        self.num_entries = state.items().num_entries();
        self.recorded.resize(self.num_entries.div_ceil(64), 0);
    }

    /// Saves the before-image of an item that is about to change or was just removed.
    pub(super) fn record(&mut self, handle: Handle, item: &Item, removal_priority: Option<f64>) {
        // After a reset, all items are newer than the snapshot.
        if self.reset.is_none() && self.is_part_of_snapshot(handle, item) {
            self.recorded[handle as usize / 64] |= 1 << (handle % 64);
            self.changed.push(item.to_stored(removal_priority));
        }
    }

    /// Keeps the contents that a reset discards if they are still needed, and counts their items as
    /// removed. Otherwise returns them.
    pub(super) fn record_reset(
        &mut self,
        contents: Contents,
        removed: &mut Removed,
    ) -> Option<Contents> {
        if self.reset.is_some() || self.copied >= self.num_entries {
            return Some(contents);
        }
        removed.merge(&contents.as_removed());
        self.reset = Some(contents);
        None
    }

    /// Excludes the item in this entry, which came later although its time may be older.
    pub(super) fn exclude(&mut self, handle: Handle) {
        let word = self.recorded.get_mut(handle as usize / 64);
        if let Some(word) = word.filter(|_| self.reset.is_none()) {
            *word |= 1 << (handle % 64);
        }
    }

    /// True if an item is in the snapshot, unchanged since, and not copied yet.
    fn is_part_of_snapshot(&self, handle: Handle, item: &Item) -> bool {
        let entry = handle as usize;
        item.inserted_at_ns() <= self.newest_ns
            && (self.copied..self.num_entries).contains(&entry)
            && self.recorded[entry / 64] & 1 << (entry % 64) == 0
    }

    /// Appends some of the items that the table no longer has, after those that it has. Returns
    /// false if they are the last ones.
    fn copy_rest(&mut self, items: &mut Vec<StoredItem>) -> bool {
        if let Some(contents) = self.reset.take() {
            self.copy(&contents, COPIED_ENTRIES, items);
            self.reset = Some(contents).filter(|_| self.copied < self.num_entries);
            return true;
        }
        let start = self.changed.len().saturating_sub(COPIED_ENTRIES);
        items.extend(self.changed.drain(start..));
        start > 0
    }

    fn copy(&mut self, contents: &Contents, num_entries: usize, items: &mut Vec<StoredItem>) {
        let end = self.num_entries.min(self.copied + num_entries);
        let entries = contents.items.piece(self.copied, end - self.copied);
        let unsaved = entries.filter(|(handle, item)| self.is_part_of_snapshot(*handle, item));
        items.extend(
            unsaved.map(|(handle, item)| item.to_stored(contents.removal_priority(handle))),
        );
        self.copied = end;
    }
}

/// A snapshot of one table.
#[derive(Debug)]
pub struct TableSnapshot {
    /// Settings and counters.
    pub info: TableInfo,
    /// Items, oldest first.
    pub items: Vec<StoredItem>,
    /// Where each of them is, and items that are not ready, in a table with rollouts.
    pub rollouts: Option<Arc<Kept>>,
}

/// A snapshot of several tables that is being copied. Dropping it abandons the copy.
#[derive(Debug)]
pub struct SnapshotCut {
    tables: Vec<TableCut>,
    taken_at: SystemTime,
    locked: Duration,
}

impl SnapshotCut {
    /// Begins a snapshot of `tables`, which must all be different.
    ///
    /// A closed table can be copied too.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if one of them is being copied for another snapshot.
    pub fn begin(tables: &[Arc<Table>]) -> Result<Self> {
        Self::begin_and(tables, |_| ())
    }

    /// Does that, and calls `also` for each table at the same moment.
    pub(super) fn begin_and(
        tables: &[Arc<Table>],
        mut also: impl FnMut(&mut Shared),
    ) -> Result<Self> {
        let prepare = |table: &Arc<Table>| {
            let num_entries = table.shared.lock().state.items().num_entries();
            BeforeImages::prepare(num_entries + COPIED_ENTRIES)
        };
        // Allocate before locking, because an allocation can be slow.
        let mut prepared: Vec<_> = tables.iter().map(prepare).collect();
        let mut cuts = Vec::with_capacity(tables.len());
        let mut all = lock_all(tables);
        let start = Instant::now();
        let taken_at = SystemTime::now();
        if let Some(at) = all.iter().position(|shared| shared.state.is_being_copied()) {
            return Err(Error::failed_precondition(format!(
                "Table {} is being copied already.",
                tables[at].name()
            )));
        }
        let prepared = prepared.drain(..);
        for ((table, shared), mut before) in tables.iter().zip(&mut all).zip(prepared) {
            let info = shared.info();
            before.begin(&shared.state);
            shared.state.set_before_images(before);
            also(shared);
            let rollouts = shared.state.rollouts().map(|rollouts| Arc::clone(rollouts.kept()));
            cuts.push(TableCut { info, table: Arc::clone(table), rollouts, ended: None });
        }
        Ok(Self { tables: cuts, taken_at, locked: start.elapsed() })
    }

    /// The time of the snapshot.
    pub fn taken_at(&self) -> SystemTime {
        self.taken_at
    }

    /// Time for which all tables were locked together.
    pub fn locked(&self) -> Duration {
        self.locked
    }

    /// Number of items in the snapshot, over all tables.
    pub fn num_items(&self) -> u64 {
        self.tables.iter().map(|cut| cut.info.current_size as u64).sum()
    }

    /// The tables in the given order, to be copied in pieces.
    pub fn into_tables(self) -> Vec<TableCut> {
        self.tables
    }

    /// Copies the tables in the given order. Takes about 100 ns per item, mostly without a lock.
    pub fn copy(self) -> Vec<TableSnapshot> {
        self.tables.into_iter().map(TableCut::copy).collect()
    }
}

/// One table of a snapshot that is being copied. Dropping it abandons the copy.
#[derive(Debug)]
pub struct TableCut {
    info: TableInfo,
    table: Arc<Table>,
    rollouts: Option<Arc<Kept>>,
    /// The before-images, once the table has no more entries to copy.
    ended: Option<Box<BeforeImages>>,
}

impl TableCut {
    /// Settings and counters.
    pub fn info(&self) -> &TableInfo {
        &self.info
    }

    /// Appends the next items, a few hundred at most, in no particular order. Returns false if they
    /// are the last ones.
    pub fn next_piece(&mut self, items: &mut Vec<StoredItem>) -> bool {
        if let Some(before) = &mut self.ended {
            return before.copy_rest(items);
        }
        yield_core();
        self.ended = copy_some(&mut self.table.shared.lock().state, COPIED_ENTRIES, items);
        true
    }

    fn copy(mut self) -> TableSnapshot {
        let mut items = Vec::with_capacity(self.info.current_size as usize);
        while self.next_piece(&mut items) {}
        items.extend(self.rollouts.iter().flat_map(|kept| kept.ready_held()));
        // Entries are mostly filled in order, and a stable sort is fast on sorted runs.
        items.sort_by_key(|item| item.inserted_at_ns);
        TableSnapshot { info: self.info.clone(), items, rollouts: self.rollouts.take() }
    }
}

impl Drop for TableCut {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let before = self.table.shared.lock().state.take_before_images();
            drop(before);
        }
    }
}

/// Locks all tables together.
pub(super) fn lock_all(tables: &[Arc<Table>]) -> Vec<RankedGuard<'_, Shared>> {
    let mut all = Vec::with_capacity(tables.len());
    yield_core();
    all.extend(tables.iter().map(|table| table.shared.lock()));
    all
}

/// Yields the core while no lock is held. The scheduler would preempt a copying thread anyway, and
/// nearly always while it holds a lock that other threads wait for.
fn yield_core() {
    std::thread::yield_now();
}

/// Copies the next entries. Returns the before-images after the last entry.
fn copy_some(
    state: &mut TableState,
    num_entries: usize,
    items: &mut Vec<StoredItem>,
) -> Option<Box<BeforeImages>> {
    let mut before = state.take_before_images().expect("the snapshot is not finished");
    if before.reset.is_some() || before.copied >= before.num_entries {
        return Some(before);
    }
    before.copy(state.contents(), num_entries, items);
    state.set_before_images(before);
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Confirm;
    use super::super::items::AllItems;
    use super::super::state::Batch;
    use super::super::testing::{IgnoreConfirm, config, insert, item, table};
    use super::*;
    use reverb_data::{NewItem, SampleOptions, SelectorConfig};

    fn keys(items: &[StoredItem]) -> Vec<u64> {
        items.iter().map(|item| item.key).collect()
    }

    #[test]
    fn changes_during_the_copy_are_not_in_the_snapshot() {
        let table = table(5000);
        (0..4000).for_each(|key| insert(&table, key));
        let cut = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap();
        assert_eq!(cut.num_items(), 4000);
        // Entries that are copied at the beginning, in the middle and at the end.
        table.mutate(&[(1, 50.0), (2000, 51.0), (3999, 52.0)], &[2, 2001, 3998]).unwrap();
        table.mutate(&[(1, 60.0)], &[3999]).unwrap();
        (4000..4010).for_each(|key| insert(&table, key));
        table.try_sample(32).unwrap();
        let snapshot = cut.copy().pop().unwrap();
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
    fn an_updated_item_is_in_the_snapshot_with_its_former_removal_priority() {
        let table = table(10);
        let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
        let update = |removal_priority| {
            let items = [1, 2].map(|key| NewItem { removal_priority, ..item(key) });
            table.insert(items.to_vec(), &confirm).unwrap();
        };
        insert(&table, 2);
        for (before, after) in [(None, Some(4.0)), (Some(4.0), Some(5.0)), (Some(5.0), None)] {
            table.mutate(&[], &[1]).unwrap();
            insert(&table, 1);
            if before.is_some() {
                update(before);
            }
            let cut = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap();
            update(after);
            let items = cut.copy().remove(0).items;
            assert_eq!(
                items.iter().map(|item| item.removal_priority).collect::<Vec<_>>(),
                [before, before]
            );
        }
    }

    #[test]
    fn a_table_that_is_reset_or_closed_during_the_copy_is_still_copied() {
        let table = table(5000);
        (0..3000).for_each(|key| insert(&table, key));
        let cut = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap();
        table.mutate(&[(7, 9.0)], &[8]).unwrap();
        table.reset();
        (0..10).for_each(|key| insert(&table, key));
        table.reset();
        table.close();
        let snapshot = cut.copy().pop().unwrap();
        assert_eq!(keys(&snapshot.items), (0..3000).collect::<Vec<_>>());
        assert_eq!(table.info().current_size, 0);
    }

    #[test]
    fn an_abandoned_snapshot_leaves_no_trace() {
        let table = table(10);
        insert(&table, 1);
        let cut = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap();
        let second = SnapshotCut::begin(std::slice::from_ref(&table)).unwrap_err();
        assert_eq!(second.message(), "Table t is being copied already.");
        drop(cut);
        assert_eq!(SnapshotCut::begin(&[table]).unwrap().copy()[0].items.len(), 1);
    }

    #[test]
    fn pieces_are_small_and_make_up_the_snapshot() {
        let (first, second) = (table(5000), table(5000));
        (0..3000).for_each(|key| [&first, &second].iter().for_each(|table| insert(table, key)));
        let cut = SnapshotCut::begin(&[Arc::clone(&first), Arc::clone(&second)]).unwrap();
        let keys_of = |table: &Table, mut cut: TableCut, change: &dyn Fn(&Table)| {
            let (mut keys, mut is_over) = (Vec::new(), false);
            change(table);
            while !is_over {
                let mut piece = Vec::new();
                is_over = !cut.next_piece(&mut piece);
                assert!(piece.len() <= COPIED_ENTRIES, "{} items in a piece", piece.len());
                keys.extend(piece.iter().map(|item: &StoredItem| item.key));
                if keys.len() == 2 * COPIED_ENTRIES {
                    change(table);
                }
            }
            keys.sort_unstable();
            keys
        };
        let all: Vec<u64> = (0..3000).collect();
        let updates: Vec<(u64, f64)> = all.iter().map(|&key| (key, 9.0)).collect();
        let mut cuts = cut.into_tables().into_iter();
        let update = |table: &Table| drop(table.mutate(&updates, &[]).unwrap());
        assert_eq!(keys_of(&first, cuts.next().unwrap(), &update), all);
        // A table that is copied, or whose copy is abandoned, can be copied again.
        let again = SnapshotCut::begin(std::slice::from_ref(&first)).unwrap();
        assert_eq!(keys_of(&second, cuts.next().unwrap(), &Table::reset), all);
        assert_eq!(again.copy()[0].items.len(), 3000);
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// Insert of an item, or its new priority, with this removal priority.
        Insert(u64, Option<f64>),
        /// Insert of an item that takes the place of the one with its key.
        Replace(u64, Option<f64>),
        Sample(usize),
        Update(u64, f64),
        Delete(u64),
        Reset,
        /// Transfer of an item that is older than all inserted ones.
        Transfer(u64),
        Copy(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..40u64;
        prop_oneof![
            4 => (key.clone(), prop::option::of(0.0..9.0))
                .prop_map(|(key, removal_priority)| Step::Insert(key, removal_priority)),
            3 => (key.clone(), prop::option::of(0.0..9.0))
                .prop_map(|(key, removal_priority)| Step::Replace(key, removal_priority)),
            2 => (1..5usize).prop_map(Step::Sample),
            2 => (key.clone(), 0.0..9.0).prop_map(|(key, priority)| Step::Update(key, priority)),
            2 => key.clone().prop_map(Step::Delete),
            3 => key.prop_map(Step::Transfer),
            1 => Just(Step::Reset),
            3 => (1..4usize).prop_map(Step::Copy),
        ]
    }

    fn apply(state: &mut TableState, step: &Step) {
        match *step {
            Step::Insert(key, removal_priority) => {
                state.insert(NewItem { removal_priority, ..item(key) }, 0);
            }
            Step::Replace(key, removal_priority) => {
                // Its chunk has another key than those that `Insert` and `Replace` have inserted.
                let chunk = state.statistics().inserts + 1000;
                let new = NewItem { key, replaces: true, removal_priority, ..item(chunk) };
                state.insert(new, 0);
            }
            Step::Sample(num) => state.sample(&mut Batch::new(num, SampleOptions::default())),
            Step::Update(key, priority) => state.update(&[(key, priority)], &mut Vec::new()),
            Step::Delete(key) => drop(state.delete(key)),
            Step::Reset => drop(state.reset(&config(20))),
            Step::Transfer(key) if state.items().find(key).is_none() => {
                let trajectory = item(key).trajectory;
                let inserted_at_ns = key as i64 - 100;
                let times_sampled = 1;
                state.transfer(StoredItem {
                    key,
                    priority: 1.0,
                    removal_priority: None,
                    times_sampled,
                    inserted_at_ns,
                    trajectory,
                });
            }
            Step::Transfer(_) | Step::Copy(_) => {}
        }
    }

    /// Key, priority, removal priority, number of samples, time of insertion.
    type Values = (u64, f64, Option<f64>, i32, i64);

    /// All items at once, oldest first.
    fn all(state: &TableState) -> Vec<Values> {
        let all = state.items().all(AllItems::Test);
        let all = all.map(|(handle, item)| item.to_stored(state.removal_priority(handle)));
        values_of(all.collect())
    }

    /// What changes of items, oldest first.
    fn values_of(mut items: Vec<StoredItem>) -> Vec<Values> {
        items.sort_by_key(|item| item.inserted_at_ns);
        let values = |item: &StoredItem| {
            let StoredItem { key, priority, removal_priority, times_sampled, .. } = *item;
            (key, priority, removal_priority, times_sampled, item.inserted_at_ns)
        };
        items.iter().map(values).collect()
    }

    proptest! {
        /// Operations during the copy do not change the snapshot.
        #[test]
        fn a_snapshot_is_consistent(
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
            state.set_before_images(before);
            let (mut items, mut finished) = (Vec::new(), None);
            for step in &later {
                apply(&mut state, step);
                if let Step::Copy(entries) = *step && finished.is_none() {
                    finished = copy_some(&mut state, entries, &mut items);
                }
            }
            while finished.is_none() {
                finished = copy_some(&mut state, 2, &mut items);
            }
            let mut rest = finished.unwrap();
            while rest.copy_rest(&mut items) {}
            prop_assert_eq!(values_of(items), expected);
        }
    }
}
