// SPDX-License-Identifier: Apache-2.0
//! Changes of items by their keys.

use reverb_base::Result;
use reverb_data::ItemCondition;

use super::Table;
use super::checks::check_priority;
use super::clock::Activity;
use super::rollouts::GrowingValues;
use super::scan::fulfils;

/// Number of priorities that are changed, and of items that are deleted, under one lock.
const MUTATED_AT_ONCE: usize = 4096;

/// Number of items that are checked, and deleted if they fulfil a condition, under one lock. A
/// delete takes one or two microseconds.
const CHECKED_AT_ONCE: usize = 1024;

impl Table {
    /// Deletes items, then updates priorities. Returns the keys without items, which are otherwise
    /// ignored. Handles some thousand keys under one lock.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a priority that a selector of this table does not accept; nothing is
    /// changed then. `Cancelled` if the table is closed.
    pub fn mutate(&self, updates: &[(u64, f64)], deletes: &[u64]) -> Result<Vec<u64>> {
        let (first_deletes, more_deletes) = deletes.split_at(deletes.len().min(MUTATED_AT_ONCE));
        let room = if more_deletes.is_empty() { MUTATED_AT_ONCE - first_deletes.len() } else { 0 };
        let (first_updates, more_updates) = updates.split_at(updates.len().min(room));
        let mut missing = self.operate(Activity::Running, |shared, _| {
            for &(key, priority) in updates {
                check_priority(&shared.config, key, priority)?;
            }
            let state = &mut shared.state;
            let mut missing: Vec<u64> =
                first_deletes.iter().copied().filter(|&key| !state.delete(key)).collect();
            state.update(first_updates, &mut missing);
            Ok(missing)
        })??;
        for deletes in more_deletes.chunks(MUTATED_AT_ONCE) {
            self.operate(Activity::Running, |shared, _| {
                missing.extend(deletes.iter().filter(|&&key| !shared.state.delete(key)));
            })?;
        }
        for updates in more_updates.chunks(MUTATED_AT_ONCE) {
            self.operate(Activity::Running, |shared, _| {
                shared.state.update(updates, &mut missing);
            })?;
        }
        Ok(missing)
    }

    /// Deletes the items with these keys that fulfil a condition. Unknown keys are ignored. Returns
    /// the number of deleted items. Handles a thousand keys under one lock.
    ///
    /// The limiter counts samples as taken that only these items allowed; after [`Self::mutate`],
    /// as in dm-reverb, it does not.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed; items may have been deleted before.
    pub fn delete_keys(&self, keys: &[u64], condition: &ItemCondition) -> Result<usize> {
        let mut num_deleted = 0;
        for keys in keys.chunks(CHECKED_AT_ONCE) {
            num_deleted += self.operate(Activity::Running, |shared, _| {
                let state = &mut shared.state;
                let delete = |&&key: &&u64| {
                    let items = state.items();
                    let found = items.find(key).map(|handle| fulfils(condition, items.get(handle)));
                    let aside = || {
                        let values = state.rollouts()?.get(key)?.values;
                        let GrowingValues { priority, times_sampled, inserted_at_ns, .. } = values;
                        Some(condition.holds(priority, times_sampled, inserted_at_ns))
                    };
                    found.or_else(aside).unwrap_or(false) && state.delete(key)
                };
                keys.iter().filter(delete).count()
            })?;
        }
        self.count_impossible_samples()?;
        Ok(num_deleted)
    }

    /// Deletes the items that fulfil a condition and are in the table now. Returns their number.
    /// Handles a thousand items under one lock. Takes some nanoseconds for every item of the
    /// table, so it belongs on a thread that may be busy.
    ///
    /// # Errors
    ///
    /// As `delete_keys`.
    pub fn delete_where(&self, condition: &ItemCondition) -> Result<usize> {
        let (newest_ns, num_entries) = self.operate(Activity::Running, |shared, _| {
            (shared.state.newest_ns(), shared.state.items().num_entries())
        })?;
        let mut keys = Vec::with_capacity(CHECKED_AT_ONCE);
        let mut num_deleted = 0;
        for start in (0..num_entries).step_by(CHECKED_AT_ONCE) {
            num_deleted += self.operate(Activity::Running, |shared, _| {
                let state = &mut shared.state;
                keys.clear();
                let items = state.items().piece(start, CHECKED_AT_ONCE);
                let chosen = items.filter(|(_, item)| {
                    item.inserted_at_ns() <= newest_ns && fulfils(condition, item)
                });
                keys.extend(chosen.map(|(_, item)| item.key()));
                keys.iter().filter(|&&key| state.delete(key)).count()
            })?;
        }
        self.count_impossible_samples()?;
        Ok(num_deleted)
    }

    /// Counts samples as taken that only removed items allowed.
    pub(super) fn count_impossible_samples(&self) -> Result<()> {
        self.operate(Activity::Running, |shared, _| {
            shared.state.count_impossible_samples(shared.config.max_times_sampled);
        })
    }
}
