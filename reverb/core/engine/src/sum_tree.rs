// SPDX-License-Identifier: Apache-2.0
//! A tree of partial sums, for weighted choice among millions of entries in a few steps.

use std::hint::black_box;
use std::ops::Range;

/// Children of a node: two cache lines of `f64`.
pub(crate) const FAN_OUT: usize = 16;

/// Sixteen adjacent entries of a level. Their sum is one entry of the level above.
#[derive(Debug, Clone)]
#[repr(align(64))]
struct Node([f64; FAN_OUT]);

impl Node {
    const ZERO: Self = Self([0.0; FAN_OUT]);

    /// Adds always in the same order, so that equal children have equal sums.
    fn sum(&self) -> f64 {
        let [a, b, c, d] = self.group_sums();
        (a + b) + (c + d)
    }

    fn group_sums(&self) -> [f64; 4] {
        let w = &self.0;
        std::array::from_fn(|at| (w[4 * at] + w[4 * at + 1]) + (w[4 * at + 2] + w[4 * at + 3]))
    }

    /// Finds the child whose span contains `rest`, and sets `rest` to the offset in that span.
    /// First searches four groups, then the children of one.
    fn find(&self, rest: &mut f64) -> usize {
        let group = find_in_four(&self.group_sums(), rest);
        let four = &self.0[4 * group..4 * group + 4];
        let child = 4 * group + find_in_four(&[four[0], four[1], four[2], four[3]], rest);
        if self.0[child] > 0.0 {
            return child;
        }
        // Rounding moved the point past the end. Take the last child of nonzero weight.
        self.0.iter().rposition(|&weight| weight > 0.0).unwrap_or(0)
    }
}

/// Finds which of four spans contains `rest`, and sets `rest` to the offset in it. Has no branches,
/// because they would be unpredictable.
fn find_in_four(spans: &[f64; 4], rest: &mut f64) -> usize {
    let begins = [0.0, spans[0], spans[0] + spans[1], (spans[0] + spans[1]) + spans[2]];
    let at = usize::from(begins[1] <= *rest)
        + usize::from(begins[2] <= *rest)
        + usize::from(begins[3] <= *rest);
    *rest -= begins[at];
    at
}

/// A point on its way down the tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descent {
    /// Offset in the span of `index`.
    pub(crate) rest: f64,
    /// Index in the current level; at the end, the index of a weight.
    pub(crate) index: usize,
}

impl Descent {
    pub(crate) fn from(point: f64) -> Self {
        Self { rest: point, index: 0 }
    }
}

/// Weights by index, with their sums.
///
/// An entry above the leaves is always recomputed as the sum of its sixteen children, and never
/// adjusted by a difference. So there is no drift, and a sum is zero exactly when all weights under
/// it are zero.
#[derive(Debug)]
pub(crate) struct SumTree {
    /// Level 0 holds the weights; the last level is a single node.
    levels: Vec<Vec<Node>>,
    total: f64,
}

impl SumTree {
    pub(crate) fn new() -> Self {
        Self { levels: vec![vec![Node::ZERO]], total: 0.0 }
    }

    /// Sum of all weights.
    pub(crate) fn total(&self) -> f64 {
        self.total
    }

    /// The weight at `index`, which was set before.
    pub(crate) fn get(&self, index: usize) -> f64 {
        self.levels[0][index / FAN_OUT].0[index % FAN_OUT]
    }

    /// Weights of some nodes; node `n` has those from `16 * n` on. Unset nodes may be missing.
    pub(crate) fn nodes(&self, nodes: Range<usize>) -> impl Iterator<Item = &[f64; FAN_OUT]> {
        let len = self.levels[0].len();
        self.levels[0][nodes.start.min(len)..nodes.end.min(len)].iter().map(|node| &node.0)
    }

    /// The weight at `index`; 0 if it was not set before.
    pub(crate) fn get_or_zero(&self, index: usize) -> f64 {
        self.levels[0].get(index / FAN_OUT).map_or(0.0, |node| node.0[index % FAN_OUT])
    }

    /// Sum of the weights before `end`.
    pub(crate) fn sum_before(&self, end: usize) -> f64 {
        let mut at = end;
        let mut sum = 0.0;
        for level in &self.levels {
            if let Some(node) = level.get(at / FAN_OUT) {
                sum += node.0[..at % FAN_OUT].iter().sum::<f64>();
            } else {
                // Nothing was set from here on. Earlier weights belong to the levels above.
                at = level.len() * FAN_OUT;
            }
            at /= FAN_OUT;
        }
        // `end` is beyond the last level, after all weights.
        if at == 0 { sum } else { self.total }
    }

    /// Sets the weight at `index`. It must be finite and not negative. Unset indices have weight 0.
    pub(crate) fn set(&mut self, index: usize, weight: f64) {
        self.grow_to(index);
        let mut at = index;
        let mut entry = weight;
        for level in &mut self.levels {
            let node = &mut level[at / FAN_OUT];
            node.0[at % FAN_OUT] = entry;
            entry = node.sum();
            at /= FAN_OUT;
        }
        self.total = entry;
    }

    /// Sets several weights. Updates the tree level by level for all of them, for the same reason
    /// as in `find`.
    ///
    /// Overwrites the weights in `changes`. If an index occurs twice, its last weight counts.
    ///
    /// Calls `written` with the index of each weight and its old value, one after the other. It can
    /// read the weights then, and not the sums.
    pub(crate) fn set_many(
        &mut self,
        changes: &mut [(usize, f64)],
        mut written: impl FnMut(&Self, usize, f64),
    ) {
        let Some(highest) = changes.iter().map(|&(index, _)| index).max() else { return };
        self.grow_to(highest);
        // Separate reads, so that the processor fetches all weights from memory in parallel.
        let bits = changes.iter().fold(0, |bits, &(index, _)| bits ^ self.get(index).to_bits());
        black_box(bits);
        for &(index, weight) in &*changes {
            let place = &mut self.levels[0][index / FAN_OUT].0[index % FAN_OUT];
            let old = std::mem::replace(place, weight);
            written(self, index, old);
        }
        for level in 0..self.levels.len() {
            if level > 0 {
                for (at, entry) in &*changes {
                    self.levels[level][at / FAN_OUT].0[at % FAN_OUT] = *entry;
                }
            }
            let level = &self.levels[level];
            if let [top] = &level[..] {
                self.total = top.sum();
                return;
            }
            for (at, entry) in &mut *changes {
                *at /= FAN_OUT;
                *entry = level[*at].sum();
            }
        }
    }

    /// Finds for each of `points`, between 0 and the total, the index whose span contains it.
    ///
    /// Never finds an index of weight 0, unless all weights are 0. Descends level by level for all
    /// points together: their steps are independent, so the processor runs many in parallel.
    pub(crate) fn find(&self, points: &mut [Descent]) {
        for level in self.levels.iter().rev() {
            for point in &mut *points {
                let node = &level[point.index];
                let child = node.find(&mut point.rest);
                point.index = point.index * FAN_OUT + child;
            }
        }
    }

    fn grow_to(&mut self, index: usize) {
        let mut nodes = index / FAN_OUT + 1;
        for level in &mut self.levels {
            if level.len() >= nodes {
                return;
            }
            level.resize(nodes, Node::ZERO);
            nodes = nodes.div_ceil(FAN_OUT);
        }
        while self.levels[self.levels.len() - 1].len() > 1 {
            let below = &self.levels[self.levels.len() - 1];
            let mut level = vec![Node::ZERO; below.len().div_ceil(FAN_OUT)];
            for (at, node) in below.iter().enumerate() {
                level[at / FAN_OUT].0[at % FAN_OUT] = node.sum();
            }
            self.levels.push(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn find(tree: &SumTree, point: f64) -> usize {
        let mut points = [Descent::from(point)];
        tree.find(&mut points);
        points[0].index
    }

    proptest! {
            #[test]
            fn sums_and_finds_agree_with_a_plain_list(
                changes in prop::collection::vec((0usize..5000, prop_oneof![Just(0u32), 1u32..1000]), 1..200),
                points in prop::collection::vec(0.0f64..1.0, 20),
            ) {
                let mut tree = SumTree::new();
                let mut naive = vec![0.0f64; 5000];
                for &(index, weight) in &changes {
                    tree.set(index, f64::from(weight));
                    naive[index] = f64::from(weight);
                }
                // Small whole numbers add up exactly in any order.
                let total: f64 = naive.iter().sum();
                prop_assert_eq!(tree.total(), total);
                prop_assert_eq!(tree.sum_before(1 << 30), total);
                for point in points {
                    let point = point * total;
                    let mut rest = point;
                    let expected = naive.iter().position(|&weight| {
                        let here = rest < weight;
                        if !here {
                            rest -= weight;
                        }
                        here
                    });
                    if let Some(expected) = expected {
                        let before: f64 = naive[..expected].iter().sum();
                        prop_assert_eq!(tree.sum_before(expected), before);
                        prop_assert_eq!(find(&tree, point), expected);
                        prop_assert_eq!(tree.get(expected), naive[expected]);
                    }
                }
            }

            #[test]
            fn many_changes_at_once_are_the_same_as_one_by_one(
                blocks in prop::collection::vec(
                    prop::collection::vec((0usize..700, 0.0f64..1.0), 0..40), 1..20),
            ) {
                let mut together = SumTree::new();
                let mut single = SumTree::new();
                for block in &blocks {
                    for &(index, weight) in block {
     single.set(index, weight);
    }
                    together.set_many(&mut block.clone(), |_, _, _| {});
                    prop_assert_eq!(together.total().to_bits(), single.total().to_bits());
                }
                for &(index, _) in blocks.iter().flatten() {
                    prop_assert_eq!(together.get(index), single.get(index));
                }
            }

            #[test]
            fn awkward_weights_never_lead_to_an_entry_of_weight_zero(
                weights in prop::collection::vec(
                    prop_oneof![Just(0.0f64), 1e-320f64..1e-300, 0.1f64..0.3, 1e290f64..1e298], 1..400),
                points in prop::collection::vec(0.0f64..=1.0, 20),
            ) {
                let mut tree = SumTree::new();
                for (index, &weight) in weights.iter().enumerate() {
                    tree.set(index, weight);
                }
                prop_assert!(tree.total().is_finite());
                prop_assert_eq!(tree.total() > 0.0, weights.iter().any(|&weight| weight > 0.0));
                if tree.total() > 0.0 {
                    for point in points {
                        prop_assert!(weights[find(&tree, point * tree.total())] > 0.0);
                    }
                }
            }
        }

    #[test]
    fn a_weight_set_back_leaves_no_trace() {
        let mut tree = SumTree::new();
        (0..1000).for_each(|index| tree.set(index, 0.1));
        let before = tree.total();
        for round in 0..1000 {
            tree.set(round, 1e17);
            tree.set(round, 0.1);
        }
        assert_eq!(tree.total().to_bits(), before.to_bits());
        (0..1000).for_each(|index| tree.set(index, 0.0));
        assert_eq!(tree.total(), 0.0);
    }
}
