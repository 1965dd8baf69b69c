// SPDX-License-Identifier: Apache-2.0
//! Counts the items that are visited under one lock of a table, in tests of this crate; nothing
//! otherwise. It finds operations whose hold grows with the table.

use reverb_base::ranked::{Rank, Ranked, RankedGuard};

/// The lock of a table.
pub(super) struct Lock<T>(Ranked<T>);

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Ranked::new(Rank::Table, value))
    }

    pub(super) fn lock(&self) -> RankedGuard<'_, T> {
        let guard = self.0.lock();
        #[cfg(test)]
        counter::begin_hold();
        guard
    }
}

/// Counts visited items.
#[inline]
pub(super) fn count(num_items: usize) {
    #[cfg(test)]
    counter::count(num_items);
    #[cfg(not(test))]
    let _ = num_items;
}

#[cfg(test)]
mod counter {
    use std::cell::Cell;

    thread_local! {
        static VISITED: Cell<usize> = const { Cell::new(0) };
        static MOST: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count(num_items: usize) {
        VISITED.set(VISITED.get() + num_items);
    }

    /// Ends the hold before.
    pub(super) fn begin_hold() {
        MOST.set(MOST.get().max(VISITED.replace(0)));
    }

    /// The most items that this thread has visited under one lock since the last call.
    pub(super) fn take_most() -> usize {
        begin_hold();
        MOST.replace(0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use reverb_data::{
        Chunk, ItemCondition, NewItem, RateLimiterConfig, SampleOptions, SelectorConfig,
        SequenceRange, StepWindow, TableChange, TableConfig, TrajectoryBuilder,
    };

    use super::super::items::{AllItems, LARGEST_PIECE};
    use super::super::testing::{IgnoreConfirm, config, item, item_of_length};
    use super::super::{Commit, Confirm, SlotSet, SnapshotCut, Table, configure};
    use super::counter::take_most;

    const NUM_ITEMS: u64 = 40_000;
    /// A piece, of whose items some operations look at each twice.
    const MOST: usize = 2 * LARGEST_PIECE;

    fn filled(config: TableConfig) -> Arc<Table> {
        let table = Table::new(config).unwrap();
        let steps = |key: u64| if key % 5_000 == 7 { 9 } else { 2 };
        for keys in (0..NUM_ITEMS).collect::<Vec<_>>().chunks(500) {
            insert(&table, keys.iter().map(|&key| item_of_length(key, steps(key), 1.0)).collect());
        }
        table
    }

    fn insert(table: &Table, items: Vec<NewItem>) {
        let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
        table.insert(items, &confirm).unwrap();
    }

    fn of(sampler: SelectorConfig) -> TableConfig {
        TableConfig { sampler, ..config(NUM_ITEMS as i64) }
    }

    /// Runs an operation, which may not visit more items under one lock.
    fn check(name: &str, operation: impl FnOnce()) {
        take_most();
        operation();
        let most = take_most();
        assert!(most <= MOST, "{name} visits {most} items under one lock, and may visit {MOST}");
    }

    fn sample(table: &Table, count: usize, options: SampleOptions) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let sampled = table.sample_with(count, Some(Duration::ZERO), options);
        runtime.block_on(sampled).map_or(0, |items| items.len())
    }

    #[test]
    fn samples_visit_few_items_under_one_lock() {
        for (sampler, max_times_sampled) in [
            (SelectorConfig::Uniform, 0),
            (SelectorConfig::Uniform, 1_000),
            (SelectorConfig::UniformOverSteps, 0),
            (SelectorConfig::prioritized(0.6), 0),
        ] {
            let table = filled(TableConfig { max_times_sampled, ..of(sampler) });
            for (length, distinct, expected) in
                [(1, false, 50), (2, true, 5), (3, false, 50), (4, true, 5), (50, false, 0)]
            {
                let window = StepWindow { length, before: 0, pads_left: false, pads_right: false };
                let window = Some(window);
                let options = SampleOptions { window, distinct, ..SampleOptions::default() };
                let count = if distinct { 5 } else { 50 };
                check(&format!("{sampler:?}, a window of {length}"), || {
                    assert_eq!(sample(&table, count, options), expected);
                });
            }
            let distinct = SampleOptions { distinct: true, ..SampleOptions::default() };
            check("distinct items", || assert_eq!(sample(&table, 1_000, distinct), 1_000));
            check("status", || drop(table.status()));
        }
    }

    #[test]
    fn reads_and_updates_visit_few_items_under_one_lock() {
        let table = filled(of(SelectorConfig::prioritized(0.6)));
        let none = ItemCondition { priority: (1e9, f64::INFINITY), ..ItemCondition::ALL };
        check("scan", || {
            let mut scan = table.begin_scan().unwrap();
            while !table.scan(&mut scan).unwrap().is_empty() {}
        });
        check("scan where", || drop(table.begin_scan_where(none).unwrap()));
        let keys: Vec<u64> = (0..NUM_ITEMS).collect();
        check("fetch", || {
            let mut scan = table.begin_fetch(&keys, ItemCondition::ALL).unwrap();
            while !table.scan(&mut scan).unwrap().is_empty() {}
        });
        check("sweep", || {
            let mut next = Some(0);
            while let Some(start) = next {
                next = table.sweep(start, &mut Vec::new(), &mut Vec::new());
            }
        });
        check("lost items", || assert_eq!(table.remove_lost(&keys), 0));
        check("snapshot", || {
            drop(SnapshotCut::begin(&[Arc::clone(&table)]).unwrap().copy());
        });
        table.record_changes(Duration::from_secs(2));
        let updates: Vec<(u64, f64)> = keys.iter().map(|&key| (key, 2.0)).collect();
        check("updates", || drop(table.mutate(&updates, &[]).unwrap()));
        check("commit", || {
            let commit = Commit::take(&[Arc::clone(&table)]);
            assert_eq!(commit.tables[0].changes.changed.len(), NUM_ITEMS as usize);
        });
        check("deletes where", || assert_eq!(table.delete_where(&none), Ok(0)));
        check("deletes", || drop(table.mutate(&[], &keys[..15_000]).unwrap()));
        check("deletes of keys", || {
            table.delete_keys(&keys[15_000..], &ItemCondition::ALL).unwrap();
        });
    }

    #[test]
    fn inserts_and_changes_visit_few_items_under_one_lock() {
        let table = filled(of(SelectorConfig::Fifo));
        check("inserts", || insert(&table, (0..500).map(|key| item(key + NUM_ITEMS)).collect()));
        check("own slots", || table.set_own_slots(&Arc::new(SlotSet::new(0..4096))));
        let change = |change: TableChange| {
            drop(configure(&[(Arc::clone(&table), change)], false).unwrap());
        };
        let smaller = Some(NUM_ITEMS as i64 / 4 * 3);
        check("a smaller table", || {
            change(TableChange { max_size: smaller, ..TableChange::default() });
        });
        let max_bytes = Some(Some(table.bytes()));
        change(TableChange { max_bytes, ..TableChange::default() });
        let range = SequenceRange { episode_id: 1, ..SequenceRange::default() };
        let chunk = Chunk::from_slice(1, range, false, &vec![0; table.bytes() as usize / 5 * 4]);
        let mut trajectory = TrajectoryBuilder::new();
        trajectory.slice(&chunk, 0, 0, 1);
        trajectory.end_column(false);
        let large = NewItem::new(1 << 40, "t", 1.0, trajectory.finish().unwrap());
        let before = table.len();
        check("a large item", || insert(&table, vec![large]));
        assert!(table.len() < before / 2, "{} of {before} are left", table.len());
        assert!(table.bytes() <= max_bytes.flatten().unwrap());
        check("reset", || table.reset());
    }

    #[test]
    fn every_reason_to_visit_all_items_is_in_the_docs() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/design/engine.md");
        let page = std::fs::read_to_string(page).unwrap();
        for reason in [AllItems::OutsideTheLock, AllItems::SamplesLeft] {
            // The match is exhaustive, so that the compiler points here when a reason is added.
            let name = match reason {
                AllItems::OutsideTheLock => "`OutsideTheLock`",
                AllItems::SamplesLeft => "`SamplesLeft`",
                AllItems::Test => continue,
            };
            assert!(page.contains(name), "docs/design/engine.md has no row with {name}");
        }
    }

    /// The counter counts.
    #[test]
    fn sums_of_allowed_samples_visit_all_items() {
        let rate_limiter = RateLimiterConfig { min_diff: 0.0, ..config(1).rate_limiter };
        let table = filled(TableConfig { rate_limiter, max_times_sampled: 5, ..config(40_000) });
        take_most();
        table.delete_keys(&[1], &ItemCondition::ALL).unwrap();
        assert!(take_most() >= NUM_ITEMS as usize - 1);
    }
}
