// SPDX-License-Identifier: Apache-2.0
//! Selects items in proportion to a power of their priority.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use reverb_base::{Error, Result};
use reverb_data::Draw;

use super::uniform::Uniform;
use super::{Handle, Largest, Pick, RestorePoint, Select, ensure};
use crate::extremes::Extremes;
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

/// Weights by handle, with their sums and their extremes.
#[derive(Debug)]
struct Weights {
    sums: SumTree,
    extremes: Extremes,
}

impl Weights {
    fn new() -> Self {
        Self { sums: SumTree::new(), extremes: Extremes::new() }
    }

    fn set(&mut self, handle: Handle, weight: f64) {
        let index = handle as usize;
        let old = self.sums.get_or_zero(index);
        self.sums.set(index, weight);
        self.extremes.changed(&self.sums, index, old);
    }

    fn set_many(&mut self, changes: &mut [(usize, f64)]) {
        let Self { sums, extremes } = self;
        sums.set_many(changes, |sums, index, old| extremes.changed(sums, index, old));
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
    draw: Draw,
    weights: Weights,
    /// Number of times that the weights were exchanged.
    num_swaps: u64,
    /// All items. They are selected uniformly while all weights are 0.
    members: Uniform,
}

impl Prioritized {
    pub(super) fn new(exponent: f64, draw: Draw) -> Self {
        Self { exponent, draw, weights: Weights::new(), num_swaps: 0, members: Uniform::default() }
    }

    pub(super) fn set_draw(&mut self, draw: Draw) {
        self.draw = draw;
    }

    /// True if the items of a request depend on each other.
    pub(super) fn chooses_together(&self) -> bool {
        self.draw != Draw::Independent
    }

    /// Item of the largest priority. Unknown with exponent 0, because all weights are equal.
    pub(super) fn largest(&self) -> Largest {
        let Weights { sums, extremes } = &self.weights;
        let index = match self.exponent {
            0.0 => return Largest::Unknown,
            exponent if exponent > 0.0 => extremes.max_index(sums),
            _ => extremes.min_index(sums),
        };
        index.map_or(Largest::Zero, |index| Largest::Item(index as Handle))
    }

    /// The weight of a present item; all have the same while all weights are 0.
    pub(super) fn weight_of(&self, handle: Handle) -> f64 {
        if self.mass() > 0.0 { self.weights.sums.get(handle as usize) } else { 1.0 }
    }

    /// Changes whenever `weight_of` changes for all items at once.
    pub(super) fn weights_version(&self) -> u64 {
        self.num_swaps << 1 | u64::from(self.mass() > 0.0)
    }

    /// Sum of all weights.
    pub(super) fn mass(&self) -> f64 {
        self.weights.sums.total()
    }
}

/// Weights with another exponent, made beside a selector that stays in use.
#[derive(Debug)]
pub(crate) struct NewWeights {
    exponent: f64,
    weights: Weights,
    /// Priority of which each weight was made, by handle; NaN for none.
    priorities: Vec<f64>,
}

impl NewWeights {
    pub(crate) fn new(exponent: f64) -> Self {
        Self { exponent, weights: Weights::new(), priorities: Vec::new() }
    }

    /// Number of handles, including unused ones.
    pub(crate) fn num_handles(&self) -> usize {
        self.priorities.len()
    }

    /// Sets the weight of an item, unless it was made of this priority already.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a priority that has no finite weight with the new exponent.
    #[expect(clippy::float_cmp, reason = "the weight of the same priority is the same")]
    pub(crate) fn set(&mut self, handle: Handle, priority: f64) -> Result<()> {
        ensure(&mut self.priorities, handle, f64::NAN);
        let known = &mut self.priorities[handle as usize];
        if *known != priority {
            check_priority(priority, self.exponent)?;
            *known = priority;
            self.weights.set(handle, weight(priority, self.exponent));
        }
        Ok(())
    }

    /// Removes the weight of a handle without an item.
    pub(crate) fn clear(&mut self, handle: Handle) {
        if let Some(known) = self.priorities.get_mut(handle as usize)
            && !known.is_nan()
        {
            *known = f64::NAN;
            self.weights.set(handle, 0.0);
        }
    }
}

impl Prioritized {
    /// Exchanges the weights and the exponent. The new weights must cover all items.
    pub(super) fn swap_weights(&mut self, mut new: NewWeights) -> NewWeights {
        self.num_swaps += 1;
        std::mem::swap(&mut self.exponent, &mut new.exponent);
        std::mem::swap(&mut self.weights, &mut new.weights);
        new
    }
}

impl Select for Prioritized {
    // A weight with its part of the sums and extremes above, and a uniform selector.
    const ITEM_BYTES: u64 = 18;
    const REPEATS: bool = true;

    fn insert(&mut self, handle: Handle, priority: f64) {
        self.members.insert(handle, priority);
        self.update(handle, priority);
    }

    fn remove(&mut self, handle: Handle) {
        self.members.remove(handle);
        self.weights.set(handle, 0.0);
    }

    fn put_back(&mut self, handle: Handle, priority: f64, point: RestorePoint) {
        self.members.put_back(handle, priority, point);
        self.update(handle, priority);
    }

    fn update(&mut self, handle: Handle, priority: f64) {
        self.weights.set(handle, weight(priority, self.exponent));
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

    fn pick_many(&mut self, rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        let sums = &self.weights.sums;
        let total = sums.total();
        if total <= 0.0 {
            return self.members.pick_many(rng, count, picks);
        }
        let first = picks.len();
        let offset = match self.draw {
            Draw::Systematic => rng.random(),
            Draw::Independent | Draw::Stratified => 0.0,
        };
        let stratum = total / count as f64;
        for begin in (0..count).step_by(BLOCK) {
            let mut points = [Descent::from(0.0); BLOCK];
            let points = &mut points[..BLOCK.min(count - begin)];
            for (i, point) in points.iter_mut().enumerate() {
                let strata = (begin + i) as f64;
                *point = Descent::from(match self.draw {
                    Draw::Independent => rng.random::<f64>() * total,
                    Draw::Stratified => (strata + rng.random::<f64>()) * stratum,
                    Draw::Systematic => (strata + offset) * stratum,
                });
            }
            sums.find(points);
            picks.extend(points.iter().map(|point| Pick {
                handle: point.index as Handle,
                probability: sums.get(point.index) / total,
                epoch: 0,
            }));
        }
        if self.draw != Draw::Independent {
            // A caller that takes only the first picks must not get the first strata.
            picks[first..].shuffle(rng);
        }
    }

    fn probability_of(&self, handle: Handle) -> f64 {
        let sums = &self.weights.sums;
        if sums.total() > 0.0 {
            return sums.get(handle as usize) / sums.total();
        }
        self.members.probability_of(handle)
    }

    fn min_probability(&self) -> f64 {
        let Weights { sums, extremes } = &self.weights;
        match extremes.min() {
            Some(weight) => weight / sums.total(),
            None => self.members.min_probability(),
        }
    }
}
