// SPDX-License-Identifier: Apache-2.0
//! Smallest and largest weight of a tree of sums.
#![expect(clippy::float_cmp, reason = "an extreme is one of the weights, bit for bit")]

use crate::sum_tree::{FAN_OUT, SumTree};

/// Smallest weight above 0 and largest weight of a range of weights.
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

/// Number of adjacent weights whose extremes are stored. A larger number changes less often, but
/// its extremes take longer to find.
const GROUP: usize = NODES * FAN_OUT;

/// The same number in nodes.
const NODES: usize = 8;

/// Number of weights that are compared together.
const LANES: usize = 4;

/// Extremes of adjacent weights.
#[derive(Debug, Clone, Copy)]
struct Group {
    range: Range,
    /// Number of weights equal to the smallest; often all are equal.
    num_min: u32,
    num_max: u32,
}

impl Group {
    const EMPTY: Self = Self { range: Range::NONE, num_min: 0, num_max: 0 };

    /// Adds a weight that is not 0.
    fn add(&mut self, weight: f64) {
        if weight <= self.range.min {
            self.num_min = if weight < self.range.min { 1 } else { self.num_min + 1 };
            self.range.min = weight;
        }
        if weight >= self.range.max {
            self.num_max = if weight > self.range.max { 1 } else { self.num_max + 1 };
            self.range.max = weight;
        }
    }

    /// Removes a weight that is not 0.
    fn remove(&mut self, weight: f64) {
        self.num_min -= u32::from(weight == self.range.min);
        self.num_max -= u32::from(weight == self.range.max);
    }

    /// False if an extreme was removed and has to be searched.
    fn is_known(&self) -> bool {
        self.num_min > 0 && self.num_max > 0
    }
}

/// Smallest weight above 0 and largest weight of a [`SumTree`].
///
/// A change mostly compares the old and the new weight with both extremes of its group. It reads
/// the other weights of the group only if it removes the last one that equals an extreme, and
/// changes upper levels only as far as their extremes change.
#[derive(Debug)]
pub(crate) struct Extremes {
    groups: Vec<Group>,
    /// Entry `i` of a level covers the entries from `16 * i` on of the level below; at the first
    /// level, these are groups. The last level has one entry.
    levels: Vec<Vec<Range>>,
}

impl Extremes {
    pub(crate) fn new() -> Self {
        Self { groups: vec![Group::EMPTY], levels: vec![vec![Range::NONE]] }
    }

    /// The smallest weight above 0.
    pub(crate) fn min(&self) -> Option<f64> {
        Some(self.root().min).filter(|min| min.is_finite())
    }

    /// Index of a smallest weight above 0.
    pub(crate) fn min_index(&self, weights: &SumTree) -> Option<usize> {
        let min = self.min()?;
        self.find(weights, |range| range.min == min)
    }

    /// Index of a largest weight, if one is above 0.
    pub(crate) fn max_index(&self, weights: &SumTree) -> Option<usize> {
        let max = Some(self.root().max).filter(|&max| max > 0.0)?;
        self.find(weights, |range| range.max == max)
    }

    /// Updates the extremes after a change of the weight at `index` from `old`. Called for every
    /// change before the next one.
    #[inline]
    pub(crate) fn changed(&mut self, weights: &SumTree, index: usize, old: f64) {
        let new = weights.get(index);
        if index / GROUP >= self.groups.len() {
            self.grow_to(index / GROUP);
        }
        let group = &mut self.groups[index / GROUP];
        let before = group.range;
        if old > 0.0 {
            group.remove(old);
        }
        // A weight beyond the one that was an extreme is the next one, without a search.
        if new > 0.0 {
            group.add(new);
        }
        if old > 0.0 && !group.is_known() {
            *group = group_of(weights, index / GROUP);
        }
        if group.range != before {
            let after = group.range;
            self.go_up(index / GROUP, before, after);
        }
    }

    /// Replaces the range of a group, from `before` to `after`.
    fn go_up(&mut self, group: usize, mut before: Range, mut after: Range) {
        let mut at = group;
        for level in 0..self.levels.len() {
            at /= FAN_OUT;
            let range = self.levels[level][at];
            let mut new = range.with(after);
            let is_min_gone = before.min == range.min && after.min > range.min;
            if is_min_gone || (before.max == range.max && after.max < range.max) {
                new = self.children(level, at).fold(Range::NONE, Range::with);
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

    fn children(&self, level: usize, at: usize) -> impl Iterator<Item = Range> {
        let part = |len: usize| len.min(at * FAN_OUT)..len.min((at + 1) * FAN_OUT);
        let (groups, below) = match level.checked_sub(1) {
            None => (&self.groups[part(self.groups.len())], &[][..]),
            Some(below) => (&[][..], &self.levels[below][part(self.levels[below].len())]),
        };
        groups.iter().map(|group| group.range).chain(below.iter().copied())
    }

    /// Index of a weight whose range satisfies `is_it`, which must hold for the root.
    fn find(&self, weights: &SumTree, is_it: impl Fn(Range) -> bool) -> Option<usize> {
        let mut at = 0;
        for level in (0..self.levels.len()).rev() {
            at = at * FAN_OUT + self.children(level, at).position(&is_it)?;
        }
        let group = at * GROUP;
        let weights = weights.nodes(at * NODES..(at + 1) * NODES).flatten();
        weights.enumerate().find_map(|(i, &weight)| is_it(Range::of(weight)).then_some(group + i))
    }

    fn grow_to(&mut self, group: usize) {
        self.groups.resize(group + 1, Group::EMPTY);
        let mut entries = (group + 1).div_ceil(FAN_OUT);
        for level in &mut self.levels {
            if level.len() >= entries {
                return;
            }
            level.resize(entries, Range::NONE);
            entries = entries.div_ceil(FAN_OUT);
        }
        while self.levels[self.levels.len() - 1].len() > 1 {
            let level = self.levels.len();
            let entries = self.levels[self.levels.len() - 1].len();
            let entries = 0..entries.div_ceil(FAN_OUT);
            let ranges = entries.map(|at| self.children(level, at).fold(Range::NONE, Range::with));
            let ranges = ranges.collect();
            self.levels.push(ranges);
        }
    }
}

/// Extremes of a group, from all of its weights.
#[inline(never)]
fn group_of(weights: &SumTree, group: usize) -> Group {
    let nodes = || weights.nodes(group * NODES..(group + 1) * NODES);
    // Four at a time and without branches: `f64::min` would ask for NaN.
    let mut min = [f64::INFINITY; LANES];
    let mut max = [0.0; LANES];
    for lanes in nodes().flat_map(|node| node.as_chunks::<LANES>().0) {
        for (at, &weight) in lanes.iter().enumerate() {
            let positive = if weight > 0.0 { weight } else { f64::INFINITY };
            min[at] = if positive < min[at] { positive } else { min[at] };
            max[at] = if weight > max[at] { weight } else { max[at] };
        }
    }
    let min = min.into_iter().fold(f64::INFINITY, f64::min);
    let max = max.into_iter().fold(0.0, f64::max);
    if max == 0.0 {
        return Group::EMPTY;
    }
    let mut num_min = [0u64; LANES];
    let mut num_max = [0u64; LANES];
    for lanes in nodes().flat_map(|node| node.as_chunks::<LANES>().0) {
        for (at, &weight) in lanes.iter().enumerate() {
            num_min[at] += u64::from(weight == min);
            num_max[at] += u64::from(weight == max);
        }
    }
    let [num_min, num_max] = [num_min, num_max].map(|nums| nums.iter().sum::<u64>() as u32);
    Group { range: Range { min, max }, num_min, num_max }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few items of a group, of equal and of unequal weights: the state is that of a search.
        #[test]
        fn a_group_is_known_as_after_a_search(
            changes in prop::collection::vec((0usize..6, 0u8..40), 1..200),
        ) {
            let (mut weights, mut extremes) = (SumTree::new(), Extremes::new());
            for (index, weight) in changes {
                let old = weights.get_or_zero(index);
                weights.set(index, f64::from(weight));
                extremes.changed(&weights, index, old);
                let Group { range, num_min, num_max } = group_of(&weights, 0);
                let known = extremes.groups[0];
                prop_assert_eq!((known.range, known.num_min, known.num_max), (range, num_min, num_max));
            }
        }

        #[test]
        fn extremes_agree_with_a_plain_list(
            blocks in prop::collection::vec(
                prop::collection::vec((0usize..5000, prop_oneof![Just(0u8), 1u8..6]), 1..40),
                1..60,
            ),
        ) {
            let (mut weights, mut extremes) = (SumTree::new(), Extremes::new());
            let mut naive = vec![0.0f64; 5000];
            for block in &blocks {
                let mut changes: Vec<_> =
                    block.iter().map(|&(index, weight)| (index, f64::from(weight))).collect();
                for &(index, weight) in &changes {
                    naive[index] = weight;
                }
                weights.set_many(&mut changes, |weights, index, old| {
                    extremes.changed(weights, index, old);
                });
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
