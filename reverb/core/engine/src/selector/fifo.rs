// SPDX-License-Identifier: Apache-2.0
//! Selects the oldest item.

use rand::rngs::SmallRng;

use super::insertion_order::InsertionOrder;
use super::{Handle, Pick, Place, Select};

/// Ignores priorities. Updates do not move an item.
#[derive(Debug, Default)]
pub(crate) struct Fifo(InsertionOrder);

impl Select for Fifo {
    // Two links.
    const ITEM_BYTES: u64 = 8;
    const REPEATS: bool = false;

    fn insert(&mut self, handle: Handle, _priority: f64) {
        self.0.push(handle);
    }

    fn remove(&mut self, handle: Handle) {
        self.0.remove(handle);
    }

    fn put_back(&mut self, handle: Handle, _priority: f64, _place: Place) {
        self.0.put_back(handle);
    }

    fn update(&mut self, _handle: Handle, _priority: f64) {}

    fn pick_many(&mut self, _rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        if let Some(handle) = self.0.oldest() {
            picks.extend(std::iter::repeat_n(Pick::certain(handle), count));
        }
    }

    fn probability_of(&self, _handle: Handle) -> f64 {
        1.0
    }

    fn min_probability(&self) -> f64 {
        if self.0.oldest().is_some() { 1.0 } else { 0.0 }
    }
}
