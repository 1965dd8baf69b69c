// SPDX-License-Identifier: Apache-2.0
//! Select the oldest item, or the newest.

use rand::rngs::SmallRng;

use super::insertion_order::InsertionOrder;
use super::{Handle, Pick, RestorePoint, Select};

/// Selects the oldest item.
pub(crate) type Fifo = AtEnd<false>;
/// Selects the newest item.
pub(crate) type Lifo = AtEnd<true>;

/// Ignores priorities. Updates do not move an item.
#[derive(Debug, Default)]
pub(crate) struct AtEnd<const IS_NEWEST: bool>(InsertionOrder);

impl<const IS_NEWEST: bool> AtEnd<IS_NEWEST> {
    fn selected(&self) -> Option<Handle> {
        if IS_NEWEST { self.0.newest() } else { self.0.oldest() }
    }
}

impl AtEnd<false> {
    /// All handles in the order of the choices, if each choice is removed.
    pub(super) fn in_order(&self) -> impl Iterator<Item = Handle> {
        self.0.oldest_first()
    }
}

impl<const IS_NEWEST: bool> Select for AtEnd<IS_NEWEST> {
    // Two links.
    const ITEM_BYTES: u64 = 8;
    const REPEATS: bool = false;

    fn insert(&mut self, handle: Handle, _priority: f64) {
        self.0.push(handle);
    }

    fn remove(&mut self, handle: Handle) {
        self.0.remove(handle);
    }

    fn put_back(&mut self, handle: Handle, _priority: f64, _point: RestorePoint) {
        self.0.put_back(handle);
    }

    fn update(&mut self, _handle: Handle, _priority: f64) {}

    fn pick_many(&mut self, _rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        if let Some(handle) = self.selected() {
            picks.extend(std::iter::repeat_n(Pick::certain(handle), count));
        }
    }

    fn probability_of(&self, _handle: Handle) -> f64 {
        1.0
    }

    fn min_probability(&self) -> f64 {
        if self.selected().is_some() { 1.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::selector::Selector;

    proptest! {
        #[test]
        fn upcoming_choices_are_those_that_come(
            changes in prop::collection::vec((any::<bool>(), 0u32..20), 0..60),
        ) {
            let mut fifo = Fifo::default();
            let mut present = std::collections::BTreeSet::new();
            for (inserts, handle) in changes {
                if inserts && present.insert(handle) {
                    fifo.insert(handle, 0.0);
                } else if !inserts && present.remove(&handle) {
                    fifo.remove(handle);
                }
            }
            let upcoming: Vec<Handle> = fifo.in_order().collect();
            let mut chosen = Vec::new();
            while let Some(handle) = fifo.selected() {
                chosen.push(handle);
                fifo.remove(handle);
            }
            prop_assert_eq!(upcoming, chosen);
        }
    }

    #[test]
    fn only_the_oldest_first_are_known() {
        let mut lifo = Selector::Lifo(Lifo::default());
        lifo.insert(1, 0.0);
        assert_eq!(lifo.upcoming().count(), 0);
        let mut fifo = Selector::Fifo(Fifo::default());
        fifo.insert(1, 0.0);
        assert_eq!(fifo.upcoming().collect::<Vec<_>>(), [1]);
    }
}
