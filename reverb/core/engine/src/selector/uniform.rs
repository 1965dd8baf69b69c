// SPDX-License-Identifier: Apache-2.0
//! Selects every item with the same probability.

use rand::Rng;
use rand::rngs::SmallRng;

use super::{Handle, Pick, Place, Select, ensure};

/// All handles without gaps, and the position of each.
#[derive(Debug, Default)]
pub(crate) struct Uniform {
    dense: Vec<Handle>,
    /// By handle. Entries of absent handles are meaningless.
    positions: Vec<u32>,
}

/// Of each of `size` items.
pub(super) fn probability(size: usize) -> f64 {
    if size == 0 { 0.0 } else { 1.0 / size as f64 }
}

impl Select for Uniform {
    // A place in a list and the way back.
    const ITEM_BYTES: u64 = 8;
    const REPEATS: bool = true;

    fn insert(&mut self, handle: Handle, _priority: f64) {
        ensure(&mut self.positions, handle, 0);
        self.positions[handle as usize] = self.dense.len() as u32;
        self.dense.push(handle);
    }

    fn remove(&mut self, handle: Handle) {
        let position = self.positions[handle as usize];
        self.dense.swap_remove(position as usize);
        if let Some(&moved) = self.dense.get(position as usize) {
            self.positions[moved as usize] = position;
        }
    }

    fn put_back(&mut self, handle: Handle, _priority: f64, _place: Place) {
        let position = self.positions[handle as usize];
        let last = self.dense.len() as u32;
        if let Some(&moved) = self.dense.get(position as usize) {
            self.positions[moved as usize] = last;
            self.dense.push(moved);
            self.dense[position as usize] = handle;
        } else {
            self.dense.push(handle);
        }
    }

    fn update(&mut self, _handle: Handle, _priority: f64) {}

    fn pick_many(&mut self, rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        let size = self.dense.len();
        if size > 0 {
            let probability = probability(size);
            picks.extend((0..count).map(|_| {
                let handle = self.dense[rng.random_range(0..size as u32) as usize];
                Pick { handle, probability, epoch: 0 }
            }));
        }
    }

    fn probability_of(&self, _handle: Handle) -> f64 {
        probability(self.dense.len())
    }

    fn min_probability(&self) -> f64 {
        probability(self.dense.len())
    }
}
