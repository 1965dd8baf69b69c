// SPDX-License-Identifier: Apache-2.0
//! Selects the item with the smallest or the largest order number, which never changes. Items that
//! leave for a while come back to where they were, which the lists of `at_end` cannot do.

use rand::rngs::SmallRng;

use super::heap::Heap;
use super::{Handle, Pick, RestorePoint, Select};

/// Gets an order number, below 2^53, where other selectors get a priority.
#[derive(Debug)]
pub(crate) struct Ordered(Heap);

impl Ordered {
    pub(super) fn new(is_newest: bool) -> Self {
        Self(Heap::new(!is_newest))
    }
}

impl Select for Ordered {
    const ITEM_BYTES: u64 = Heap::ITEM_BYTES;
    const REPEATS: bool = false;

    fn insert(&mut self, handle: Handle, order: f64) {
        self.0.insert(handle, order);
    }

    fn remove(&mut self, handle: Handle) {
        self.0.remove(handle);
    }

    fn restore_point(&self, handle: Handle) -> RestorePoint {
        self.0.priority_of(handle).to_bits()
    }

    fn put_back(&mut self, handle: Handle, _priority: f64, point: RestorePoint) {
        self.0.insert(handle, f64::from_bits(point));
    }

    fn update(&mut self, _handle: Handle, _priority: f64) {}

    fn pick_many(&mut self, rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        self.0.pick_many(rng, count, picks);
    }

    fn probability_of(&self, handle: Handle) -> f64 {
        self.0.probability_of(handle)
    }

    fn min_probability(&self) -> f64 {
        self.0.min_probability()
    }
}
