// SPDX-License-Identifier: Apache-2.0
//! Histogram with bounds at powers of two.

/// Number of values up to 1, 2, 4, 8 and so on, in the caller's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram<const BUCKETS: usize> {
    /// The last count is for values above all bounds.
    counts: [u64; BUCKETS],
    sum: u64,
}

impl<const BUCKETS: usize> Default for Histogram<BUCKETS> {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.add_many(value, 1);
    }

    /// Counts a value several times.
    pub(crate) fn add_many(&mut self, value: u64, count: u64) {
        // Exponent of the smallest power of two that is not below the value.
        let power = u64::BITS - value.saturating_sub(1).leading_zeros();
        self.counts[(power as usize).min(BUCKETS - 1)] += count;
        self.sum = self.sum.saturating_add(value.saturating_mul(count));
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, other)| *mine += other);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Number of values up to 1, above 1 up to 2, above 2 up to 4 and so on; the last count is for
    /// values above all bounds.
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_under_the_next_power_of_two() {
        let mut histogram = Histogram::<4>::default();
        for value in [0, 1, 2, 3, 4, 5, u64::MAX] {
            histogram.add(value);
        }
        histogram.add_many(3, 2);
        let again = histogram;
        histogram.merge(&again);
        assert_eq!(histogram.counts(), &[4, 2, 8, 4]);
        assert_eq!((histogram.count(), histogram.sum()), (18, u64::MAX));
    }
}
