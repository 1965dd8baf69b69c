// SPDX-License-Identifier: Apache-2.0
//! A tree of partial sums: weighted choice among millions of entries in a handful of steps.

/// Children of a node: two cache lines of `f64`.
const FAN_OUT: usize = 16;

/// Sixteen neighbouring entries of a level. Their sum is one entry of the level above.
#[derive(Debug, Clone)]
#[repr(align(64))]
struct Node([f64; FAN_OUT]);

impl Node {
    const ZERO: Self = Self([0.0; FAN_OUT]);

    /// Always added in the same order, so that equal children give equal sums, and in four lanes,
    /// so that the compiler can use vector instructions.
    fn sum(&self) -> f64 {
        let mut lanes = [0.0; 4];
        for four in self.0.chunks_exact(4) {
            for (lane, weight) in lanes.iter_mut().zip(four) {
                *lane += weight;
            }
        }
        (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    }
}

/// Weights by index, with their sums.
///
/// An entry above the leaves is always recomputed as the sum of its sixteen children, never
/// corrected by a difference. So there is no drift, and a sum is zero exactly when all weights
/// under it are.
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

    /// Sets the weight at `index`, which is finite and not negative. Indices never set weigh 0.
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

    /// The index whose weights' span contains `point`, counted from 0 up to the total.
    ///
    /// Never an index of weight 0, unless all are: where rounding carries `point` past the end of
    /// a node, its last entry that weighs something is taken.
    pub(crate) fn find(&self, point: f64) -> usize {
        let mut rest = point;
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let mut chosen = 0;
            for (child, &weight) in level[at].0.iter().enumerate() {
                if rest < weight {
                    chosen = child;
                    break;
                }
                if weight > 0.0 {
                    chosen = child;
                }
                rest -= weight;
            }
            at = at * FAN_OUT + chosen;
        }
        at
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
                    prop_assert_eq!(tree.find(point), expected);
                    prop_assert_eq!(tree.get(expected), naive[expected]);
                }
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
                    prop_assert!(weights[tree.find(point * tree.total())] > 0.0);
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
