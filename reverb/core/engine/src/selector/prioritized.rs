// SPDX-License-Identifier: Apache-2.0
//! Items in proportion to a power of their priority.

use rand::Rng;
use rand::rngs::SmallRng;
use reverb_data::{Error, Result};

use super::uniform::Uniform;
use super::{Handle, Pick, Select};
use crate::sum_tree::SumTree;

/// Largest weight of one item, so that the weights of 2^31 items cannot add up to infinity.
const MAX_WEIGHT: f64 = 1e298;

/// Weight of an item: nothing for priority 0, even with exponent 0.
#[expect(clippy::float_cmp, reason = "exactly 1 can be had without computing a power")]
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
    if weight(priority, exponent) > MAX_WEIGHT {
        return Err(Error::invalid_argument(format!(
            "Priority {priority} to the power of priority_exponent {exponent} must be at most \
             {MAX_WEIGHT:e}."
        )));
    }
    Ok(())
}

/// Weights in a sum tree whose leaves are numbered by handle.
#[derive(Debug)]
pub(crate) struct Prioritized {
    exponent: f64,
    weights: SumTree,
    /// Who is there: chosen from while nothing has a weight.
    members: Uniform,
}

impl Prioritized {
    pub(super) fn new(exponent: f64) -> Self {
        Self { exponent, weights: SumTree::new(), members: Uniform::default() }
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

    fn update(&mut self, handle: Handle, priority: f64) {
        self.weights.set(handle as usize, weight(priority, self.exponent));
    }

    fn pick(&self, rng: &mut SmallRng) -> Option<Pick> {
        let total = self.weights.total();
        if total <= 0.0 {
            return self.members.pick(rng);
        }
        let index = self.weights.find(rng.random::<f64>() * total);
        Some(Pick { handle: index as Handle, probability: self.weights.get(index) / total })
    }
}
