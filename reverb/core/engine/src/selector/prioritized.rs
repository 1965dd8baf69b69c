// SPDX-License-Identifier: Apache-2.0
//! Selects items in proportion to a power of their priority.

use rand::Rng;
use rand::rngs::SmallRng;
use reverb_data::{Error, Result};

use super::uniform::Uniform;
use super::{Handle, Pick, Place, Select};
use crate::sum_tree::{Descent, SumTree};

/// Largest weight of one item, so that the weights of 2^31 items cannot add up to infinity.
const MAX_WEIGHT: f64 = 1e298;

/// Number of choices or updates that are done together.
const BLOCK: usize = 32;

/// Weight of an item. It is 0 for priority 0, even with exponent 0.
#[expect(clippy::float_cmp, reason = "an exponent of exactly 1 needs no power")]
fn weight(priority: f64, exponent: f64) -> f64 {
    if priority == 0.0 {
        0.0
    } else if exponent == 1.0 {
        priority
    } else {
        priority.powf(exponent)
    }
}

/// Refuses priorities that have no finite weight.
pub(super) fn check_priority(priority: f64, exponent: f64) -> Result<()> {
    if priority < 0.0 {
        return Err(Error::invalid_argument(format!(
            "Priority must not be negative. Got {priority} for a prioritized selector."
        )));
    }
    if priority.is_infinite() {
        return Err(Error::invalid_argument(format!(
            "Priority must be finite for a prioritized selector, got {priority}."
        )));
    }
    // Most exponents need no power here: it is not larger than the priority, or than 1.
    let is_small = (0.0..=1.0).contains(&exponent) && priority <= MAX_WEIGHT;
    if !is_small && weight(priority, exponent) > MAX_WEIGHT {
        return Err(Error::invalid_argument(format!(
            "Priority {priority:?} to the power of priority_exponent {exponent} must be at most \
             {MAX_WEIGHT:e}."
        )));
    }
    Ok(())
}

/// Weights in a sum tree whose leaves are indexed by handle.
#[derive(Debug)]
pub(crate) struct Prioritized {
    exponent: f64,
    weights: SumTree,
    /// All items. They are selected uniformly while all weights are 0.
    members: Uniform,
}

impl Prioritized {
    pub(super) fn new(exponent: f64) -> Self {
        Self { exponent, weights: SumTree::new(), members: Uniform::default() }
    }

    /// Sum of all weights.
    pub(super) fn mass(&self) -> f64 {
        self.weights.total()
    }
}

impl Select for Prioritized {
    fn insert(&mut self, handle: Handle, priority: f64) {
        self.members.insert(handle, priority);
        self.update(handle, priority);
    }

    fn remove(&mut self, handle: Handle) {
        self.members.remove(handle);
        self.weights.set(handle as usize, 0.0);
    }

    fn put_back(&mut self, handle: Handle, priority: f64, place: Place) {
        self.members.put_back(handle, priority, place);
        self.update(handle, priority);
    }

    fn update(&mut self, handle: Handle, priority: f64) {
        self.weights.set(handle as usize, weight(priority, self.exponent));
    }

    fn update_many(&mut self, updates: &[(Handle, f64)]) {
        for block in updates.chunks(BLOCK) {
            let mut changes = [(0, 0.0); BLOCK];
            let changes = &mut changes[..block.len()];
            for (change, &(handle, priority)) in changes.iter_mut().zip(block) {
                *change = (handle as usize, weight(priority, self.exponent));
            }
            self.weights.set_many(changes);
        }
    }

    fn pick_many(&self, rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        let total = self.weights.total();
        if total <= 0.0 {
            return self.members.pick_many(rng, count, picks);
        }
        for begin in (0..count).step_by(BLOCK) {
            let mut points = [Descent::from(0.0); BLOCK];
            let points = &mut points[..BLOCK.min(count - begin)];
            points.fill_with(|| Descent::from(rng.random::<f64>() * total));
            self.weights.find(points);
            picks.extend(points.iter().map(|point| Pick {
                handle: point.index as Handle,
                probability: self.weights.get(point.index) / total,
            }));
        }
    }
}
