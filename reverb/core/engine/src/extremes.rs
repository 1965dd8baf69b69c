// SPDX-License-Identifier: Apache-2.0
//! The smallest and the largest of the weights in a tree of sums.

use crate::sum_tree::{FAN_OUT, SumTree};

/// The smallest weight above 0, and the largest one, of a part of the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    /// Infinity if all weights are 0.
    min: f64,
    max: f64,
}

impl Range {
    const NONE: Self = Self { min: f64::INFINITY, max: 0.0 };

    fn of(weight: f64) -> Self {
        Self { min: if weight > 0.0 { weight } else { f64::INFINITY }, max: weight }
    }

    fn with(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// The extremes of the weights of a [`SumTree`], for each of its nodes.
///
/// A change looks at the other weights of a node only if it takes an extreme away, and goes up only
/// while an extreme changes: mostly it reads and compares one entry.
#[derive(Debug)]
pub(crate) struct Extremes {
    /// Entry `i` of a level is of the children from `16 * i` on: weights at level 0, else entries of
    /// the level below. The last level has one entry.
    levels: Vec<Vec<Range>>,
}

impl Extremes {
    pub(crate) fn new() -> Self {
        Self { levels: vec![vec![Range::NONE]] }
    }

    /// The smallest weight above 0.
    pub(crate) fn min(&self) -> Option<f64> {
        Some(self.root().min).filter(|min| min.is_finite())
    }

    /// The index of a smallest weight above 0.
    pub(crate) fn min_index(&self, weights: &SumTree) -> Option<usize> {
        let min = self.min()?;
        self.find(weights, |range| range.min == min)
    }

    /// The index of a largest weight, if one is above 0.
    pub(crate) fn max_index(&self, weights: &SumTree) -> Option<usize> {
        let max = Some(self.root().max).filter(|&max| max > 0.0)?;
        self.find(weights, |range| range.max == max)
    }

    /// The weight at `index` was `old` and is another one now. Of several weights that have changed
    /// each must be told.
    pub(crate) fn changed(&mut self, weights: &SumTree, index: usize, old: f64) {
        let (mut before, mut after) = (Range::of(old), Range::of(weights.get(index)));
        self.grow_to(index / FAN_OUT);
        let mut at = index;
        for level in 0..self.levels.len() {
            at /= FAN_OUT;
            let range = self.levels[level][at];
            let mut new = range;
            if after.min <= range.min {
                new.min = after.min;
            }
            if after.max >= range.max {
                new.max = after.max;
            }
            let is_min_gone = before.min == range.min && after.min > range.min;
            if is_min_gone || (before.max == range.max && after.max < range.max) {
                new = self.range_of(weights, level, at);
            }
            if new == range {
                return;
            }
            self.levels[level][at] = new;
            (before, after) = (range, new);
        }
    }

    fn root(&self) -> Range {
        self.levels.last().and_then(|level| level.first()).copied().unwrap_or(Range::NONE)
    }

    /// The extremes of an entry, from all its children.
    fn range_of(&self, weights: &SumTree, level: usize, at: usize) -> Range {
        if level == 0 {
            let weights = weights.siblings(at).iter().map(|&weight| Range::of(weight));
            return weights.fold(Range::NONE, Range::with);
        }
        self.children(level, at).iter().copied().fold(Range::NONE, Range::with)
    }

    fn children(&self, level: usize, at: usize) -> &[Range] {
        let below = &self.levels[level - 1];
        &below[at * FAN_OUT..below.len().min((at + 1) * FAN_OUT)]
    }

    /// The index of a weight for which `is_it` holds, as it must for the root.
    fn find(&self, weights: &SumTree, is_it: impl Fn(Range) -> bool) -> Option<usize> {
        let mut at = 0;
        for level in (1..self.levels.len()).rev() {
            let child = self.children(level, at).iter().position(|&range| is_it(range))?;
            at = at * FAN_OUT + child;
        }
        let child = weights.siblings(at).iter().position(|&weight| is_it(Range::of(weight)))?;
        Some(at * FAN_OUT + child)
    }

    fn grow_to(&mut self, node: usize) {
        let mut entries = node + 1;
        for level in &mut self.levels {
            if level.len() >= entries {
                return;
            }
            level.resize(entries, Range::NONE);
            entries = entries.div_ceil(FAN_OUT);
        }
        while self.levels[self.levels.len() - 1].len() > 1 {
            let below = &self.levels[self.levels.len() - 1];
            let ranges = below.chunks(FAN_OUT);
            let level =
                ranges.map(|it| it.iter().copied().fold(Range::NONE, Range::with)).collect();
            self.levels.push(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn extremes_agree_with_a_plain_list(
            blocks in prop::collection::vec(
                prop::collection::vec((0usize..700, prop_oneof![Just(0u8), 1u8..6]), 1..40), 1..60),
        ) {
            let (mut weights, mut extremes) = (SumTree::new(), Extremes::new());
            let mut naive = vec![0.0f64; 700];
            for block in &blocks {
                let mut changes: Vec<_> =
                    block.iter().map(|&(index, weight)| (index, f64::from(weight))).collect();
                let old: Vec<_> =
                    block.iter().map(|&(index, _)| (index, naive[index])).collect();
                for &(index, weight) in &changes {
                    naive[index] = weight;
                }
                weights.set_many(&mut changes);
                for (index, old) in old {
                    extremes.changed(&weights, index, old);
                }
                let positive = || naive.iter().copied().filter(|&weight| weight > 0.0);
                prop_assert_eq!(extremes.min(), positive().reduce(f64::min));
                let min = extremes.min_index(&weights).map(|index| naive[index]);
                prop_assert_eq!(min, positive().reduce(f64::min));
                let max = extremes.max_index(&weights).map(|index| naive[index]);
                prop_assert_eq!(max, positive().reduce(f64::max));
            }
        }
    }
}
