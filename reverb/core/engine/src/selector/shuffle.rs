// SPDX-License-Identifier: Apache-2.0
//! Selects every item once, in random order, before it selects any item again.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::uniform::probability;
use super::{Handle, Pick, RestorePoint, Select, ensure};

/// All handles: first the ones that were not selected in this epoch, then the selected ones.
#[derive(Debug)]
pub(crate) struct Shuffle {
    dense: Vec<Handle>,
    /// Number of items that were not selected in this epoch.
    num_left: usize,
    epoch: i64,
    /// Number of selections in this epoch, also of items that were removed afterwards.
    num_picked: usize,
    /// Own random numbers; if absent, the table's are used.
    rng: Option<SmallRng>,
    /// Position of each handle in the list. Entries of absent handles are meaningless.
    positions: Vec<u32>,
}

impl Shuffle {
    pub(super) fn new(seed: Option<u64>) -> Self {
        Self {
            dense: Vec::new(),
            num_left: 0,
            epoch: 0,
            num_picked: 0,
            rng: seed.map(SmallRng::seed_from_u64),
            positions: Vec::new(),
        }
    }

    fn place_at(&mut self, at: usize, handle: Handle) {
        self.dense[at] = handle;
        self.positions[handle as usize] = at as u32;
    }

    fn swap(&mut self, a: usize, b: usize) {
        let first = self.dense[a];
        let second = self.dense[b];
        self.place_at(a, second);
        self.place_at(b, first);
    }

    /// Adds an item to the selected ones.
    fn push(&mut self, handle: Handle) {
        ensure(&mut self.positions, handle, 0);
        self.dense.push(handle);
        self.place_at(self.dense.len() - 1, handle);
    }

    /// Number of the epoch.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Number of items that were not selected in this epoch, and of all.
    pub(crate) fn num_left_of(&self) -> (usize, usize) {
        (self.num_left, self.dense.len())
    }

    /// Returns true if an item was selected in this epoch.
    pub(crate) fn has_begun(&self) -> bool {
        self.num_picked > 0
    }

    /// Begins a new epoch: no item was selected in it.
    pub(crate) fn begin_epoch(&mut self) {
        self.num_left = self.dense.len();
        self.num_picked = 0;
        self.epoch += 1;
    }

    /// Moves an item to those that were not selected.
    fn move_to_left(&mut self, handle: Handle) {
        self.swap(self.positions[handle as usize] as usize, self.num_left);
        self.num_left += 1;
    }
}

impl Select for Shuffle {
    // A place in a list and the way back.
    const ITEM_BYTES: u64 = 8;
    const REPEATS: bool = false;

    /// A new item joins the epoch.
    fn insert(&mut self, handle: Handle, _priority: f64) {
        self.push(handle);
        self.move_to_left(handle);
    }

    fn remove(&mut self, handle: Handle) {
        let mut at = self.positions[handle as usize] as usize;
        if at < self.num_left {
            self.num_left -= 1;
            self.swap(at, self.num_left);
            at = self.num_left;
        }
        self.swap(at, self.dense.len() - 1);
        self.dense.pop();
    }

    /// The epoch, and a bit for an item that was not selected in it.
    fn restore_point(&self, handle: Handle) -> RestorePoint {
        let is_left = (self.positions[handle as usize] as usize) < self.num_left;
        (self.epoch as RestorePoint) << 1 | RestorePoint::from(is_left)
    }

    fn put_back(&mut self, handle: Handle, _priority: f64, point: RestorePoint) {
        self.push(handle);
        // The item may have missed the start of an epoch.
        if point & 1 == 1 || point >> 1 != self.epoch as RestorePoint {
            self.move_to_left(handle);
        }
    }

    fn update(&mut self, _handle: Handle, _priority: f64) {}

    fn pick_many(&mut self, rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        if self.dense.is_empty() {
            return;
        }
        for _ in 0..count {
            if self.num_left == 0 {
                self.begin_epoch();
            }
            let at = self.rng.as_mut().unwrap_or(rng).random_range(0..self.num_left as u32);
            self.num_left -= 1;
            self.num_picked += 1;
            self.swap(at as usize, self.num_left);
            picks.push(Pick {
                handle: self.dense[self.num_left],
                // Over an epoch all items have the same probability, whatever was selected before.
                probability: self.min_probability(),
                epoch: self.epoch,
            });
        }
    }

    fn unpick(&mut self, pick: Pick) {
        if self.epoch > pick.epoch {
            // All items were selected in the epoch before.
            (self.epoch, self.num_left) = (pick.epoch, 0);
            self.num_picked = self.dense.len();
        }
        self.num_picked = self.num_picked.saturating_sub(1);
        if (self.positions[pick.handle as usize] as usize) >= self.num_left {
            self.move_to_left(pick.handle);
        }
    }

    fn probability_of(&self, _handle: Handle) -> f64 {
        probability(self.dense.len())
    }

    fn min_probability(&self) -> f64 {
        probability(self.dense.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn pick(shuffle: &mut Shuffle, count: usize) -> Vec<Pick> {
        let mut picks = Vec::new();
        shuffle.pick_many(&mut SmallRng::seed_from_u64(5), count, &mut picks);
        picks
    }

    #[test]
    fn a_seed_repeats_the_order_whatever_the_table_draws() {
        let order = |seed, table_seed| {
            let mut shuffle = Shuffle::new(seed);
            (0..50).for_each(|handle| shuffle.insert(handle, 1.0));
            let mut picks = Vec::new();
            shuffle.pick_many(&mut SmallRng::seed_from_u64(table_seed), 50, &mut picks);
            picks.iter().map(|pick| pick.handle).collect::<Vec<_>>()
        };
        assert_eq!(order(Some(1), 2), order(Some(1), 3));
        assert_ne!(order(Some(1), 2), order(Some(2), 2));
        assert_ne!(order(None, 2), order(None, 3));
        assert_eq!(order(None, 2), order(None, 2));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(Handle),
        Remove(Handle),
        Pick(usize),
        /// Picks, and takes the picks back.
        Unpick(usize),
        RemoveAndPutBack(Handle),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let handle = 0u32..20;
        prop::collection::vec(
            prop_oneof![
                handle.clone().prop_map(Step::Insert),
                handle.clone().prop_map(Step::Remove),
                (1usize..25).prop_map(Step::Pick),
                (1usize..25).prop_map(Step::Unpick),
                handle.prop_map(Step::RemoveAndPutBack),
            ],
            1..200,
        )
    }

    proptest! {
        /// Model: number of selections of each item, and number of the epoch.
        #[test]
        fn every_item_once_an_epoch(steps in steps()) {
            let mut shuffle = Shuffle::new(Some(3));
            let mut last_epoch: BTreeMap<Handle, i64> = BTreeMap::new();
            let mut epoch = 0;
            for step in steps {
                match step {
                    Step::Insert(handle) if !last_epoch.contains_key(&handle) => {
                        shuffle.insert(handle, 1.0);
                        last_epoch.insert(handle, -1);
                    }
                    Step::Remove(handle) if last_epoch.contains_key(&handle) => {
                        shuffle.remove(handle);
                        last_epoch.remove(&handle);
                    }
                    Step::RemoveAndPutBack(handle) if last_epoch.contains_key(&handle) => {
                        let point = shuffle.restore_point(handle);
                        shuffle.remove(handle);
                        shuffle.put_back(handle, 1.0, point);
                    }
                    Step::Pick(count) => {
                        for pick in pick(&mut shuffle, count) {
                            prop_assert!(last_epoch[&pick.handle] < pick.epoch);
                            if pick.epoch > epoch {
                                prop_assert_eq!(pick.epoch, epoch + 1);
                                prop_assert!(last_epoch.values().all(|&last| last == epoch));
                                epoch = pick.epoch;
                            }
                            last_epoch.insert(pick.handle, pick.epoch);
                            prop_assert_eq!(pick.probability, 1.0 / last_epoch.len() as f64);
                        }
                    }
                    Step::Unpick(count) => {
                        for pick in pick(&mut shuffle, count).into_iter().rev() {
                            shuffle.unpick(pick);
                        }
                        let all_are_over = last_epoch.values().all(|&last| last == epoch);
                        if shuffle.epoch > epoch {
                            // The epoch had ended, and its first item was taken back.
                            prop_assert!(all_are_over);
                            epoch += 1;
                        }
                    }
                    _ => {}
                }
                let left = last_epoch.values().filter(|&&last| last < epoch).count();
                prop_assert_eq!(shuffle.num_left, left);
                prop_assert_eq!(shuffle.dense.len(), last_epoch.len());
            }
        }
    }
}
