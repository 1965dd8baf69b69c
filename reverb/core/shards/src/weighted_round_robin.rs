// SPDX-License-Identifier: Apache-2.0
//! Weighted round robin: the choice of the shard for the next writer.
//!
//! Each choice adds every shard's weight to its credit, and the shard with the most credit pays for
//! all. After any number of choices, no shard is more than one off its share.

use std::collections::BTreeMap;

/// Largest number of skipped choices: with very different weights, a turn may be far away.
const MAX_PASSED: usize = 1000;

/// Credit of each shard, by index.
#[derive(Debug, Clone, Default)]
pub struct WeightedRoundRobin {
    credits: BTreeMap<i32, f64>,
    /// Random credit of new shards, so that clients start at different shards.
    start: f64,
}

impl WeightedRoundRobin {
    /// Starts at `start` in `[0, 1)`.
    pub fn new(start: f64) -> Self {
        Self { credits: BTreeMap::new(), start }
    }

    /// Advances the rotation until this shard is next.
    pub fn pass_before(&mut self, index: i32, shards: &[(i32, f64)]) {
        for _ in 0..MAX_PASSED {
            let mut ahead = self.clone();
            if shards.get(ahead.next(shards)).is_none_or(|(next, _)| *next == index) {
                return;
            }
            *self = ahead;
        }
    }

    /// The position in `shards` of the next shard. `shards` has at least one pair of index and
    /// weight, with weights above 0.
    pub fn next(&mut self, shards: &[(i32, f64)]) -> usize {
        let total: f64 = shards.iter().map(|(_, weight)| weight).sum();
        let mut best = 0;
        let mut most = f64::NEG_INFINITY;
        for (at, &(index, weight)) in shards.iter().enumerate() {
            let first = || {
                let turn = (self.start + at as f64 / shards.len() as f64).fract();
                turn * 1e-6
            };
            let start = first();
            let credit = self.credits.entry(index).or_insert(start);
            *credit += weight / total;
            if *credit > most {
                (best, most) = (at, *credit);
            }
        }
        if let Some(credit) = shards.get(best).and_then(|(index, _)| self.credits.get_mut(index)) {
            *credit -= 1.0;
        }
        self.credits.retain(|index, _| shards.iter().any(|(known, _)| known == index));
        best
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nobody_is_far_from_its_part(
            weights in proptest::collection::vec(0.1..10.0_f64, 1..12), start in 0.0..1.0,
        ) {
            let shards: Vec<(i32, f64)> =
                weights.iter().enumerate().map(|(i, &weight)| (i as i32 * 3, weight)).collect();
            let total: f64 = weights.iter().sum();
            let (mut rotation, mut counts) = (WeightedRoundRobin::new(start), vec![0.0; weights.len()]);
            for t in 1..500 {
                counts[rotation.next(&shards)] += 1.0;
                for (count, weight) in counts.iter().zip(&weights) {
                    let exact = f64::from(t) * weight / total;
                    prop_assert!((count - exact).abs() < weights.len() as f64 / 2.0 + 1.0);
                }
            }
        }
    }

    #[test]
    fn turns_pass_until_that_of_a_shard() {
        let shards = [(0, 1.0), (1, 2.0), (5, 1.0)];
        for start in [0.0, 0.3, 0.9] {
            for (at, (index, _)) in shards.into_iter().enumerate() {
                let mut rotation = WeightedRoundRobin::new(start);
                rotation.pass_before(index, &shards);
                assert_eq!(rotation.next(&shards), at);
            }
            WeightedRoundRobin::new(start).pass_before(7, &shards);
        }
    }

    #[test]
    fn equal_shards_come_in_turn() {
        let shards = [(0, 1.0), (1, 1.0), (2, 1.0)];
        let mut rotation = WeightedRoundRobin::new(0.4);
        let order: Vec<usize> = (0..9).map(|_| rotation.next(&shards)).collect();
        for round in order.chunks(3) {
            assert_eq!(round, &order[..3]);
            assert_eq!(round.iter().sum::<usize>(), 3);
        }
        // A shard that was away does not make up for missed turns.
        for _ in 0..100 {
            rotation.next(&shards[..2]);
        }
        let counts = (0..9).map(|_| rotation.next(&shards)).filter(|&shard| shard == 2).count();
        assert!(counts <= 4, "{counts}");
    }
}
