// SPDX-License-Identifier: Apache-2.0
//! Conditions of items: bounds of their numbers, which need no decoded data.

/// Bounds of an item's numbers; an item fulfils the condition if it is within all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemCondition {
    /// Smallest and largest priority.
    pub priority: (f64, f64),
    /// Smallest and largest number of samples.
    pub times_sampled: (i32, i32),
    /// Time of insertion in seconds since 1970: the first that is included, and the first after
    /// that is not.
    pub inserted_at_s: (f64, f64),
}

impl Default for ItemCondition {
    fn default() -> Self {
        Self::ALL
    }
}

impl ItemCondition {
    /// All items fulfil it.
    pub const ALL: Self = Self {
        priority: (f64::NEG_INFINITY, f64::INFINITY),
        times_sampled: (i32::MIN, i32::MAX),
        inserted_at_s: (f64::NEG_INFINITY, f64::INFINITY),
    };

    /// True if an item with these numbers fulfils the condition.
    ///
    /// Times are compared as readers see them, in seconds: the time that a scan reports of an item
    /// includes that item as a first time, and excludes it as a last one.
    pub fn holds(&self, priority: f64, times_sampled: i32, inserted_at_ns: i64) -> bool {
        let inserted_at_s = seconds_of(inserted_at_ns);
        self.priority.0 <= priority
            && priority <= self.priority.1
            && (self.times_sampled.0..=self.times_sampled.1).contains(&times_sampled)
            && self.inserted_at_s.0 <= inserted_at_s
            && inserted_at_s < self.inserted_at_s.1
    }
}

/// A time in nanoseconds as readers see it: in seconds.
pub fn seconds_of(ns: i64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_within_no_bounds() {
        for priority in [f64::NEG_INFINITY, -1.0, 0.0, f64::MAX, f64::INFINITY] {
            assert!(ItemCondition::ALL.holds(priority, i32::MAX, i64::MAX));
            assert!(ItemCondition::ALL.holds(priority, i32::MIN, i64::MIN));
        }
    }

    #[test]
    fn both_ends_of_numbers_are_included() {
        let some =
            ItemCondition { priority: (1.0, 2.0), times_sampled: (3, 4), ..Default::default() };
        let held = |priority, times| some.holds(priority, times, 0);
        assert_eq!(
            [0.9, 1.0, 2.0, 2.1].map(|priority| held(priority, 3)),
            [false, true, true, false]
        );
        assert_eq!(
            [2, 3, 4, 5].map(|times_sampled| held(1.0, times_sampled)),
            [false, true, true, false]
        );
        assert!(!held(f64::NAN, 3));
    }

    #[test]
    fn times_split_the_items_exactly() {
        let ns = 1_700_000_000_123_456_789;
        let (from, before) = (
            ItemCondition { inserted_at_s: (seconds_of(ns), f64::INFINITY), ..Default::default() },
            ItemCondition { inserted_at_s: (f64::MIN, seconds_of(ns)), ..Default::default() },
        );
        for ns in ns - 2000..ns + 2000 {
            assert_ne!(from.holds(0.0, 0, ns), before.holds(0.0, 0, ns), "{ns}");
        }
        assert!(from.holds(0.0, 0, ns));
    }
}
