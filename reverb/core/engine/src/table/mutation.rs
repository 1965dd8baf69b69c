// SPDX-License-Identifier: Apache-2.0
//! Changes of items by their keys.

use reverb_data::Result;

use super::Table;
use super::checks::check_priority;
use super::clock::Activity;

/// Number of priorities that are changed, and of items that are deleted, under one lock.
const MUTATED_AT_ONCE: usize = 16_384;

impl Table {
    /// Deletes items, then updates priorities. Returns the keys without items, which are otherwise
    /// ignored. Handles some ten thousand keys under one lock.
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
}
