// SPDX-License-Identifier: Apache-2.0
//! Ages of items with rollouts: the oldest version in each item that no learner has taken, and how
//! many of them may be taken while the others stay fresh enough. The rule of `OnStale::Wait`.
//!
//! The learner takes `B` items for each version, so each version `w + max_staleness` is a deadline
//! for the items that have tokens of `w`. A take of the oldest ready items first is that of the
//! earliest deadline, so nothing comes too late as long as, for each `w`, no more such items are
//! left than will be taken until then.

use std::collections::{BTreeMap, BTreeSet};

use reverb_data::rollouts::{OnStale, RolloutSettings};

/// Age of an item that no learner has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Age {
    /// Oldest version in it.
    pub(super) oldest: i64,
    /// True if it can be taken.
    pub(super) is_ready: bool,
}

/// How fast items are taken from now on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    version: i64,
    items_per_version: i128,
    max_staleness: i128,
    /// Items that are left to take for the version.
    left: i128,
}

impl Pace {
    /// The pace of a table in which `taken` items were taken for the version. `None` if items may
    /// be of any age, or need not wait for each other.
    pub(super) fn new(settings: &RolloutSettings, version: i64, taken: u64) -> Option<Self> {
        if settings.on_stale != OnStale::Wait {
            return None;
        }
        let items_per_version = settings.items_per_version?.into();
        let max_staleness = settings.max_staleness?.into();
        let left = items_per_version - i128::from(taken);
        Some(Self { version, items_per_version, max_staleness, left })
    }

    /// Number of items that will be taken while tokens of a version are fresh enough.
    fn left_for(&self, oldest: i64) -> i128 {
        let versions = i128::from(oldest) + self.max_staleness - i128::from(self.version);
        self.left + versions * self.items_per_version
    }
}

/// Order numbers of items by the oldest version in them.
type ByAge = BTreeMap<i64, BTreeSet<u64>>;

/// Items that no learner has taken, by age. Bare prompts have none.
#[derive(Debug, Default)]
pub(super) struct Ages {
    ready: ByAge,
    num_ready: usize,
    /// Open and settled ones.
    unready: ByAge,
}

impl Ages {
    fn of(&mut self, age: Age) -> &mut ByAge {
        if age.is_ready { &mut self.ready } else { &mut self.unready }
    }

    pub(super) fn insert(&mut self, age: Age, order: u64) {
        self.num_ready += usize::from(age.is_ready);
        self.of(age).entry(age.oldest).or_default().insert(order);
    }

    pub(super) fn remove(&mut self, age: Age, order: u64) {
        self.num_ready -= usize::from(age.is_ready);
        let by_age = self.of(age);
        if let Some(orders) = by_age.get_mut(&age.oldest) {
            orders.remove(&order);
            if orders.is_empty() {
                by_age.remove(&age.oldest);
            }
        }
    }

    /// Order numbers of the ready items, oldest first.
    pub(super) fn ready(&self) -> impl Iterator<Item = u64> {
        self.ready.values().flatten().copied()
    }

    /// Oldest version in ready items.
    pub(super) fn oldest_ready(&self) -> Option<i64> {
        self.ready.keys().next().copied()
    }

    /// Order number of the oldest item that is not ready.
    pub(super) fn oldest_unready(&self) -> Option<u64> {
        self.unready.values().next()?.first().copied()
    }

    /// Number of items that are not ready, and have tokens of this version or of older ones.
    pub(super) fn num_unready(&self, oldest: i64) -> usize {
        self.unready.range(..=oldest).map(|(_, orders)| orders.len()).sum()
    }

    /// How many ready items may be taken, oldest first; and the version whose unready items allow
    /// no more. Visits versions, not items.
    ///
    /// A take of `n` items waits if it leaves items with tokens of some version `w` or older that
    /// are not ready, and more of them than will be taken in time. Ready ones that it leaves are
    /// no reason: it takes the oldest, so it has no younger item than those.
    pub(super) fn num_takable(&self, pace: Pace) -> (usize, Option<i64>) {
        let (mut most, mut because) = (self.num_ready, None);
        let (mut num_unready, mut num_ready) = (0, 0);
        let mut ready = self.ready.iter().peekable();
        for (&oldest, orders) in &self.unready {
            num_unready += orders.len();
            while let Some((_, orders)) = ready.next_if(|(it, _)| **it <= oldest) {
                num_ready += orders.len();
            }
            if num_ready >= most {
                break;
            }
            let in_time = pace.left_for(oldest) - num_unready as i128;
            let in_time = usize::try_from(in_time.max(0)).unwrap_or(usize::MAX);
            let allowed = in_time.max(num_ready);
            if allowed < most {
                (most, because) = (allowed, Some(oldest));
            }
        }
        (most, because)
    }
}

#[cfg(test)]
impl Ages {
    /// All items, for checks: order, oldest version, and whether it is ready.
    pub(super) fn all(&self) -> BTreeMap<u64, Age> {
        let of = |by_age: &ByAge, is_ready| -> Vec<(u64, Age)> {
            let all = by_age.iter().flat_map(|(&oldest, orders)| {
                orders.iter().map(move |&order| (order, Age { oldest, is_ready }))
            });
            all.collect()
        };
        of(&self.ready, true).into_iter().chain(of(&self.unready, false)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Items of these versions, ready ones and others.
    fn ages(ready: &[i64], unready: &[i64]) -> Ages {
        let mut ages = Ages::default();
        let all = ready.iter().map(|it| (*it, true)).chain(unready.iter().map(|it| (*it, false)));
        for (order, (oldest, is_ready)) in all.enumerate() {
            ages.insert(Age { oldest, is_ready }, order as u64);
        }
        ages
    }

    /// At version 10, with 4 items a version, of which `left` are left.
    fn pace(left: i128, max_staleness: i128) -> Pace {
        Pace { version: 10, items_per_version: 4, max_staleness, left }
    }

    #[test]
    fn a_take_leaves_time_for_what_is_not_ready() {
        // Items of 9 may be taken for 10 and 11: 3 + 4 of them.
        let ready = [10; 20];
        for (num_unready, takable) in [(0, 20), (1, 6), (5, 2), (7, 0), (9, 0)] {
            let because = (num_unready > 0).then_some(9);
            let found = ages(&ready, &vec![9; num_unready]).num_takable(pace(3, 2));
            assert_eq!(found, (takable, because));
        }
    }

    #[test]
    fn items_of_all_older_versions_need_the_time() {
        let ages = ages(&[10; 20], &[8, 8, 9, 9, 9]);
        // Two of 8 have 3 left, five of 9 and before have 7.
        assert_eq!(ages.num_takable(pace(3, 2)), (1, Some(8)));
        assert_eq!(ages.num_takable(pace(4, 2)), (2, Some(8)));
        assert_eq!(ages.num_takable(pace(4, 3)), (6, Some(8)));
    }

    #[test]
    fn what_is_not_younger_is_always_taken() {
        // There is no time left, and those of 7 and 9 are taken before.
        let ages = ages(&[7, 9, 9, 10, 10], &[9; 9]);
        assert_eq!(ages.num_takable(pace(0, 0)), (3, Some(9)));
    }
}
