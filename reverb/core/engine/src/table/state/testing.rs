// SPDX-License-Identifier: Apache-2.0
//! What tests read of a state.

use super::TableState;
use crate::table::items::AllItems;

impl TableState {
    /// All keys, sorted.
    pub(in crate::table) fn keys(&self) -> Vec<u64> {
        self.contents.items.keys()
    }

    /// All keys, oldest first.
    pub(in crate::table) fn keys_by_age(&self) -> Vec<u64> {
        let items = &self.contents.items;
        let mut found: Vec<_> = items
            .all(AllItems::Test)
            .map(|(_, item)| (item.inserted_at_ns(), item.key()))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, key)| key).collect()
    }

    /// Priority and number of samples of an item.
    pub(in crate::table) fn peek(&self, key: u64) -> (f64, i32) {
        let item = self.contents.items.get(self.contents.items.find(key).unwrap());
        (item.priority(), item.times_sampled())
    }
}
