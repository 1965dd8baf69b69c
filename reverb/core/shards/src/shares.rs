// SPDX-License-Identifier: Apache-2.0
//! Numbers of items that a request takes from each shard.
//!
//! Systematic sampling: the shards divide the interval `[0, n)` by their masses, and the points `u,
//! u + 1, u + 2, ...` fall into it. Every request has exactly `n` items, and the mean number from a
//! shard is `n` times its share. `u` advances by the golden ratio, so the error of a shard's total
//! grows with the logarithm of the number of requests instead of its square root.

/// The fractional part of the golden ratio.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Divides requests among shards.
#[derive(Debug, Clone)]
pub struct Shares {
    u: f64,
    /// Draw that gets the first leftover item of the next request over many shards.
    turn: usize,
}

impl Shares {
    /// Starts at `u` in `[0, 1)`. Clients use random values, to start at different shards.
    pub fn new(u: f64) -> Self {
        Self { u: u.fract().abs(), turn: (u * 1e6) as usize }
    }

    /// Divides `n` items among the shards by their masses, which are at least 0 and not all 0. At
    /// most `max_shards` (at least 1) shards get items.
    ///
    /// If there are more shards, `max_shards` draws by mass, with repetition, get the same number
    /// of items each, up to 1. The mean for a shard is still `n` times its share.
    pub fn split(&mut self, masses: &[f64], n: usize, max_shards: usize) -> Vec<usize> {
        let max_shards = max_shards.max(1);
        let num_filled = masses.iter().filter(|&&mass| mass > 0.0).count();
        if num_filled <= max_shards || n <= max_shards {
            return self.divide(masses, n);
        }
        let draws = self.divide(masses, max_shards);
        let each = n / max_shards;
        let rest = n % max_shards;
        // Leftover items go to the draws in rotation, regardless of their shards.
        let first = self.turn % max_shards;
        self.turn = self.turn.wrapping_add(rest);
        let mut draw = 0;
        let mut counts = Vec::with_capacity(masses.len());
        for num_draws in draws {
            let has_more = |draw: usize| (draw + max_shards - first) % max_shards < rest;
            let more = (draw..draw + num_draws).filter(|&draw| has_more(draw)).count();
            counts.push(num_draws * each + more);
            draw += num_draws;
        }
        counts
    }

    fn divide(&mut self, masses: &[f64], n: usize) -> Vec<usize> {
        let total: f64 = masses.iter().sum();
        let last = masses.iter().rposition(|&mass| mass > 0.0);
        let mut below = 0;
        let mut sum = 0.0;
        let counts = masses.iter().enumerate().map(|(shard, mass)| {
            sum += mass;
            // The last interval ends at n, regardless of rounding.
            let end = if Some(shard) >= last {
                n
            } else {
                ((n as f64).mul_add(sum / total, self.u).floor() as usize).min(n)
            };
            let count = end.saturating_sub(below);
            below = below.max(end);
            count
        });
        let counts = counts.collect();
        self.u = (self.u + GOLDEN).fract();
        counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masses() -> impl Strategy<Value = Vec<f64>> {
        let mass = prop_oneof![Just(0.0), 1e-9..1.0, 1.0..1e6, Just(1e300)];
        proptest::collection::vec(mass, 1..80)
            .prop_filter("some mass", |masses| masses.iter().any(|&mass| mass > 0.0))
    }

    proptest! {
        #[test]
        fn every_item_comes_from_a_shard_with_mass(
            masses in masses(), n in 1..600_usize, max_shards in 1..40_usize, u in 0.0..1.0,
        ) {
            let mut shares = Shares::new(u);
            for _ in 0..10 {
                let counts = shares.split(&masses, n, max_shards);
                prop_assert_eq!(counts.len(), masses.len());
                prop_assert_eq!(counts.iter().sum::<usize>(), n);
                for (count, mass) in counts.iter().zip(&masses) {
                    prop_assert!(*count == 0 || *mass > 0.0);
                }
                let used = counts.iter().filter(|&&count| count > 0).count();
                prop_assert!(used <= max_shards.max(n.min(max_shards)));
            }
        }

        #[test]
        fn totals_stay_near_the_shares(
            masses in proptest::collection::vec(0.1..10.0, 2..8), n in 1..300_usize, u in 0.0..1.0,
        ) {
            let total: f64 = masses.iter().sum();
            let mut shares = Shares::new(u);
            let mut sums = vec![0_usize; masses.len()];
            for t in 1..=2_000_usize {
                let counts = shares.split(&masses, n, 32);
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                if t % 100 == 0 {
                    for (sum, mass) in sums.iter().zip(&masses) {
                        let exact = (n * t) as f64 * mass / total;
                        let allowed = 2.0 + 2.0 * (t as f64).ln();
                        prop_assert!((*sum as f64 - exact).abs() <= allowed, "{sum} of {exact}, t = {t}");
                    }
                }
            }
        }
    }

    #[test]
    fn draws_of_some_of_many_shards_are_fair() {
        let masses: Vec<f64> = (0..1_000).map(|shard| f64::from(shard % 7)).collect();
        let total: f64 = masses.iter().sum();
        let mut shares = Shares::new(0.3);
        let mut sums = [0_usize; 7];
        let batches = 2_000;
        for _ in 0..batches {
            let counts = shares.split(&masses, 250, 32);
            assert!(counts.iter().filter(|&&count| count > 0).count() <= 32);
            counts.iter().enumerate().for_each(|(shard, count)| sums[shard % 7] += count);
        }
        for (class, sum) in sums.iter().enumerate() {
            let mass: f64 = masses.iter().skip(class).step_by(7).sum();
            let exact = f64::from(250 * batches) * mass / total;
            assert!((*sum as f64 - exact).abs() <= 0.02 * exact, "{class}: {sum} of {exact}");
        }
    }
}
