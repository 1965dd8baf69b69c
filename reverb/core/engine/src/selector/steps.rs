// SPDX-License-Identifier: Apache-2.0
//! Selects every step with the same probability: items in proportion to their number of steps.

use rand::rngs::SmallRng;
use reverb_data::Draw;

use super::prioritized::Prioritized;
use super::{Handle, Pick, RestorePoint, Select};

/// Items weighed by their number of steps. The table passes that number wherever other selectors
/// get a priority; priorities themselves change nothing.
#[derive(Debug)]
pub(crate) struct Steps(Prioritized);

impl Default for Steps {
    fn default() -> Self {
        Self(Prioritized::new(1.0, Draw::Independent))
    }
}

impl Steps {
    /// Number of steps of all items.
    pub(super) fn mass(&self) -> f64 {
        self.0.mass()
    }
}

impl Select for Steps {
    // Beside the weight, four bytes for the number of steps that windows are cut from.
    const ITEM_BYTES: u64 = Prioritized::ITEM_BYTES + 4;
    const REPEATS: bool = true;

    fn insert(&mut self, handle: Handle, num_steps: f64) {
        self.0.insert(handle, num_steps);
    }

    fn remove(&mut self, handle: Handle) {
        self.0.remove(handle);
    }

    fn put_back(&mut self, handle: Handle, num_steps: f64, point: RestorePoint) {
        self.0.put_back(handle, num_steps, point);
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
