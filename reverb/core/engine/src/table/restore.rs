// SPDX-License-Identifier: Apache-2.0
//! Restoring a table from stored items.

use reverb_base::{Error, Result};
use reverb_data::rollouts::{RolloutsInfo, StoredGrowing};
use reverb_data::{Counters, StoredItem, TableConfig};

use super::Table;
use super::checks::{check_priority, check_removal_priority, no_rollouts};
use super::clock::Activity;
use super::state::TableState;
use super::statistics::Statistics;

/// Number of deleted items that are freed at a time.
const MAX_GARBAGE: usize = 1024;

/// Contents for a table, which changes only in [`Table::install`].
#[derive(Debug)]
pub struct Restored {
    config: TableConfig,
    state: TableState,
    num_removed: u64,
}

impl Restored {
    /// Starts without items; `counters` are those of the stored table.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `config` is invalid.
    pub fn new(config: TableConfig, counters: &Counters) -> Result<Self> {
        config.validate()?;
        Ok(Self { state: TableState::with_counters(&config, counters), config, num_removed: 0 })
    }

    /// Adds the next item, in order of insertion. An insertion time that is not later than the
    /// previous one is set to one nanosecond after it. Above `max_size` items, the remover evicts
    /// one.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the key exists already, or if a selector of this table does not
    /// accept the priority.
    pub fn push(&mut self, item: StoredItem) -> Result<()> {
        let TableConfig { name, .. } = &self.config;
        if self.state.items().find(item.key).is_some() {
            return Err(Error::failed_precondition(format!(
                "Table {name} has two items with the key {}.",
                item.key
            )));
        }
        let removal = check_removal_priority(&self.config, item.key, item.removal_priority);
        check_priority(&self.config, item.key, item.priority).and(removal).map_err(|error| {
            Error::failed_precondition(format!(
                "{error} Change the priority in the running table, or choose selectors that take it."
            ))
        })?;
        if self.config.rollouts.is_some() {
            self.state.restore_ready(item);
            return Ok(());
        }
        let before = self.state.len();
        self.state.add(item);
        while self.state.has_surplus() {
            self.state.evict_surplus();
        }
        if self.state.len() == before {
            self.num_removed += 1;
            if self.num_removed.is_multiple_of(MAX_GARBAGE as u64) {
                drop(self.state.take_garbage());
            }
        }
        Ok(())
    }

    /// Sets the version and what counts with it, of a table with rollouts. Before its items.
    pub fn set_rollouts(&mut self, info: &RolloutsInfo) {
        self.state.restore_rollouts(info);
    }

    /// Adds an item with rollouts, before all whole ones. A ready one comes again with its columns.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the key exists already, or if the table has no rollouts.
    pub fn push_growing(&mut self, item: StoredGrowing) -> Result<()> {
        let name = &self.config.name;
        let Some(rollouts) = self.state.rollouts() else { return Err(no_rollouts(name)) };
        if rollouts.get(item.key).is_some() {
            return Err(Error::failed_precondition(format!(
                "Table {name} has two items with the key {}.",
                item.key
            )));
        }
        self.state.restore_growing(item);
        Ok(())
    }

    /// Settings of the table.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Number of items so far.
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// True if there are no items so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of items evicted above `max_size`.
    pub fn num_removed(&self) -> u64 {
        self.num_removed
    }

    /// Repairs the counters so that inserts minus deletes is the number of items, as the rate
    /// limiter assumes. Returns true if they were wrong.
    pub fn repair_counters(&mut self) -> bool {
        if self.config.rollouts.is_some() {
            // Items that clients held are back, so the counters of the moment are not right.
            self.state.forget_incomplete();
            self.state.repair_counters(&self.config);
            return false;
        }
        let limiter = self.state.limiter();
        let is_wrong = limiter.inserts() - limiter.deletes() != self.state.len() as i64
            || limiter.inserts() < 0
            || limiter.deletes() < 0;
        if is_wrong {
            self.state.repair_counters(&self.config);
        }
        is_wrong
    }
}

impl Table {
    /// Replaces the contents of the table. Meant for a table that is not in use yet, with the
    /// settings of `restored`. Not recorded for commits: they begin later.
    pub fn install(&self, mut restored: Restored) {
        debug_assert_eq!(*self.config(), restored.config);
        drop(restored.state.take_garbage());
        // Loaded items are no inserts, and items that were left out are no removals.
        *restored.state.statistics_mut() = Statistics::default();
        let mut shared = self.shared.lock();
        debug_assert!(shared.state.changes().is_none(), "commits begin after a load");
        let before = std::mem::replace(&mut shared.state, restored.state);
        let has_unchecked = shared.state.has_unchecked();
        drop(shared);
        drop(before);
        if has_unchecked {
            // An operation checks the staleness of items as long as some are left. The table is
            // open, so it does not fail.
            let _ = self.operate(Activity::Running, |shared, _| shared.state.check_staleness());
        }
    }
}

#[cfg(test)]
mod tests {
    use reverb_data::Totals;

    use super::super::testing::{config, item};
    use super::*;

    fn stored(key: u64, priority: f64, inserted_at_ns: i64) -> StoredItem {
        let trajectory = item(key).trajectory;
        StoredItem {
            key,
            priority,
            removal_priority: None,
            times_sampled: 1,
            inserted_at_ns,
            trajectory,
        }
    }

    fn counters(inserts: i64, deletes: i64) -> Counters {
        Counters {
            inserts,
            samples: 9,
            totals: Totals { inserts: 70, samples: 90 },
            deletes,
            deleted_episodes: 2,
            unique_samples: 3,
            largest_priority: None,
        }
    }

    #[test]
    fn items_and_counters_are_those_that_were_stored() {
        let mut restored = Restored::new(config(10), &counters(7, 4)).unwrap();
        // The order of the calls decides, not the stored times.
        for (key, time) in [(1, 100), (2, 100), (3, 50)] {
            restored.push(stored(key, 1.0, time)).unwrap();
        }
        assert!(!restored.repair_counters());
        let table = Table::new(config(10)).unwrap();
        table.install(restored);
        let info = table.info();
        assert_eq!((info.num_inserts, info.num_samples, info.num_deletes), (7, 9, 4));
        assert_eq!(info.totals, Totals { inserts: 70, samples: 90 });
        assert_eq!((info.num_deleted_episodes, info.num_unique_samples), (2, 3));
        assert_eq!((info.current_size, info.num_episodes), (3, 1));
        let mut scan = table.begin_scan().unwrap();
        let seen = table.scan(&mut scan).unwrap();
        let seen: Vec<_> = seen.iter().map(|item| (item.key, item.inserted_at_ns)).collect();
        assert_eq!(seen, [(1, 100), (2, 101), (3, 102)]);
    }

    #[test]
    fn the_remover_makes_room_in_a_smaller_table() {
        let mut restored = Restored::new(config(2), &counters(4, 0)).unwrap();
        (1..=4).for_each(|key| restored.push(stored(key, 1.0, key as i64)).unwrap());
        assert_eq!((restored.len(), restored.num_removed()), (2, 2));
        assert!(!restored.repair_counters());
    }

    #[test]
    fn invalid_items_are_refused() {
        let mut restored = Restored::new(config(2), &counters(0, 0)).unwrap();
        restored.push(stored(1, 1.0, 1)).unwrap();
        let error = restored.push(stored(1, 1.0, 1)).unwrap_err();
        assert_eq!(error.message(), "Table t has two items with the key 1.");
        let error = restored.push(stored(2, f64::NAN, 1)).unwrap_err();
        assert!(error.message().starts_with("Item 2 of table t: Priority must not be NaN."));
        assert!(restored.repair_counters());
        assert!(!restored.repair_counters());
    }
}
