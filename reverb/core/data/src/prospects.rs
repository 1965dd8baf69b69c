// SPDX-License-Identifier: Apache-2.0
//! Deadlocks that follow from the settings of a table alone.

use std::collections::HashSet;

use crate::{RateLimiterConfig, TableConfig};
use reverb_base::error::grouped;

/// Maximum number of cursor values to search. Ratios with many digits have more.
const MAX_CURSORS: usize = 10_000;

/// Cursors closer than this are equal: sums of ratios are rounded.
const RESOLUTION: f64 = 1e-9;

impl TableConfig {
    /// Reason why samples can never begin, or why the table can stop for good; as sentences with a
    /// remedy. Memory limits are not considered here.
    pub fn why_never(&self) -> Option<String> {
        let too_small = self.why_too_small();
        // Items that leave after some samples make room for inserts that need no permission.
        too_small.or_else(|| (self.max_times_sampled <= 0).then(|| self.why_too_narrow()).flatten())
    }

    /// Reason why it can never hold as many items as sampling needs.
    pub fn why_too_small(&self) -> Option<String> {
        let min_size = self.rate_limiter.min_size_to_sample;
        (self.max_size < min_size).then(|| {
            format!(
                "It will never hold the {} items that sampling needs (min_size_to_sample): \
                 max_size is {}. Raise max_size, or lower min_size_to_sample.",
                grouped(min_size as usize),
                grouped(self.max_size as usize)
            )
        })
    }

    fn why_too_narrow(&self) -> Option<String> {
        let RateLimiterConfig { samples_per_insert, min_diff, max_diff, .. } = self.rate_limiter;
        let cursor = self.rate_limiter.deadlocked_cursor()?;
        Some(format!(
            "It can come to a stop for good: with inserts * samples_per_insert - samples = {cursor}, \
             an insert would go above max_diff {max_diff}, and a sample below min_diff {min_diff}. \
             Let them differ by {} or more (samples_per_insert + 1).",
            samples_per_insert + 1.0
        ))
    }
}

impl RateLimiterConfig {
    /// A reachable cursor value at which the table allows neither an insert nor a sample.
    fn deadlocked_cursor(&self) -> Option<f64> {
        let Self { samples_per_insert, min_size_to_sample, min_diff, max_diff } = *self;
        if !self.has_min() || !self.has_max() || max_diff - min_diff >= samples_per_insert + 1.0 {
            return None;
        }
        // Inserts up to the minimum size need no permission; after that only samples continue.
        let first = samples_per_insert * min_size_to_sample as f64;
        let first = first - (first - max_diff).floor().max(0.0);
        let mut seen = HashSet::new();
        let mut ahead = vec![first];
        while let Some(cursor) = ahead.pop() {
            let can_sample = cursor - 1.0 >= min_diff - RESOLUTION;
            let can_insert = cursor + samples_per_insert <= max_diff + RESOLUTION;
            if !can_sample && !can_insert {
                return Some(cursor);
            }
            if !seen.insert((cursor / RESOLUTION).round() as i64) || seen.len() > MAX_CURSORS {
                continue;
            }
            ahead.extend(can_sample.then_some(cursor - 1.0));
            ahead.extend(can_insert.then_some(cursor + samples_per_insert));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limiter(ratio: f64, min_size: i64, min_diff: f64, max_diff: f64) -> RateLimiterConfig {
        RateLimiterConfig {
            samples_per_insert: ratio,
            min_size_to_sample: min_size,
            min_diff,
            max_diff,
        }
    }

    #[test]
    fn usual_limiters_go_on() {
        for (ratio, min_size, min_diff, max_diff) in [
            (1.0, 1, 0.0, 1.0),
            (1.0, 1, 0.0, 1000.0),
            (1.0, 1, -f64::MAX, f64::MAX),
            (0.1, 1, 0.0, 1.1),
            (32.0, 1000, 32_000.0 - 64.0, 32_000.0 + 64.0),
            (1.0, 1, 0.0, 0.0 + 1.0),
            (0.25, 4, 0.0, 1.25),
        ] {
            let found = limiter(ratio, min_size, min_diff, max_diff).deadlocked_cursor();
            assert_eq!(found, None, "{ratio} {min_size} {min_diff} {max_diff}");
        }
    }

    #[test]
    fn narrow_bounds_stop_a_table() {
        for (ratio, min_size, min_diff, max_diff, cursor) in [
            (1.0, 1, 0.0, 0.5, 0.0),
            (2.0, 1, 1.0, 2.5, 1.0),
            (4.0, 1, 0.0, 3.0, 0.0),
            (1.0, 1_000_000_000, 0.0, 0.5, 0.0),
        ] {
            let found = limiter(ratio, min_size, min_diff, max_diff).deadlocked_cursor();
            assert_eq!(found, Some(cursor), "{ratio} {min_size} {min_diff} {max_diff}");
        }
    }

    proptest! {
        /// Random walks stop only where that was predicted.
        #[test]
        fn a_walk_stops_only_where_that_was_told(
            ratio in (1_u32..40).prop_map(|eighths| f64::from(eighths) / 8.0),
            min_size in 1_i64..5,
            min_diff in (-40_i32..40).prop_map(|eighths| f64::from(eighths) / 8.0),
            width in (0_u32..60).prop_map(|eighths| f64::from(eighths) / 8.0),
            choices in prop::collection::vec(any::<bool>(), 300),
        ) {
            let limiter = limiter(ratio, min_size, min_diff, min_diff + width);
            let found = limiter.deadlocked_cursor();
            let (mut size, mut cursor, mut stopped) = (0, 0.0, false);
            for insert in choices {
                let can_insert = limiter.missing_samples(size, cursor) == 0.0;
                let can_sample = limiter.missing_inserts(size, cursor) == 0.0;
                stopped = !can_insert && !can_sample;
                if (insert || !can_sample) && can_insert {
                    (size, cursor) = (size + 1, cursor + ratio);
                } else if can_sample {
                    cursor -= 1.0;
                }
            }
            prop_assert!(!stopped || found.is_some());
        }
    }
}
