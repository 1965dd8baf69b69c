// SPDX-License-Identifier: Apache-2.0
//! Table statistics: the last known numbers of one table at one shard.

use parking_lot::Mutex;
use reverb_data::{GroupSampling, Sampled};
use reverb_wire::generated::reverb::WatchedTable;

/// Numbers of one table at one shard at one time. `None` means unknown, except in `min_diff`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct Stats {
    /// Number of items.
    pub size: i64,
    /// Fill level from 0 to 1: the used part of `max_size` or `max_bytes`, whichever is larger.
    pub share: Option<f64>,
    /// Sum of the weights of all items.
    pub mass: Option<f64>,
    /// Largest priority of all items.
    pub max_priority: Option<f64>,
    /// Smallest sampling probability of an item.
    pub min_probability: Option<f64>,
    /// Inserts times `samples_per_insert` minus samples.
    pub cursor: f64,
    /// Lower bound of the cursor; `None`: unbounded.
    pub min_diff: Option<f64>,
    /// Smallest number of items at which the table can be sampled.
    pub min_size: i64,
    /// True if inserts are blocked.
    pub insert_waits: bool,
    /// True if sample requests are blocked.
    pub sample_waits: bool,
    /// True once the shard has reported this table.
    pub is_heard: bool,
    /// True if the keys of all items are known to lie in slots of the shard.
    pub has_no_foreign_keys: bool,
}

impl Stats {
    /// True unless an item came or left, or settings changed, between these numbers and others.
    pub fn has_same_items(&self, other: &Self) -> bool {
        let same = Self {
            sample_waits: self.sample_waits,
            insert_waits: self.insert_waits,
            min_probability: self.min_probability,
            is_heard: self.is_heard,
            has_no_foreign_keys: self.has_no_foreign_keys,
            ..*other
        };
        same == *self
    }

    /// Number of samples that the limiter allows now, as far as is known.
    pub fn samples_allowed(&self) -> usize {
        if self.size == 0 || self.size < self.min_size {
            return 0;
        }
        match self.min_diff {
            // The cast turns larger values into the largest usize.
            Some(min_diff) => (self.cursor - min_diff).max(0.0) as usize,
            None => usize::MAX,
        }
    }
}

/// Statistics of one table at one shard, shared by threads.
#[derive(Debug, Default)]
pub struct TableStats(Mutex<Stats>);

impl TableStats {
    /// The current statistics.
    pub fn now(&self) -> Stats {
        *self.0.lock()
    }

    /// Stores the report of a watch.
    pub fn watched(&self, table: &WatchedTable) {
        let mut stats = self.0.lock();
        *stats = Stats {
            size: table.size,
            mass: Some(table.mass).filter(|mass| !mass.is_nan()),
            max_priority: table.max_priority,
            cursor: table.cursor,
            min_diff: Some(table.min_diff).filter(|min_diff| *min_diff > -f64::MAX),
            min_size: table.min_size_to_sample,
            insert_waits: table.insert_waits,
            sample_waits: table.sample_waits,
            is_heard: true,
            has_no_foreign_keys: !table.has_foreign_keys,
            share: stats.share,
            min_probability: stats.min_probability,
        };
    }

    /// Stores the fill level, from 0 to 1.
    pub fn filled(&self, share: f64) {
        self.0.lock().share = Some(share).filter(|share| share.is_finite());
    }

    /// Stores the size reported by a server that has no watches.
    pub fn polled(&self, size: i64, max_size: i64) {
        let mut stats = self.0.lock();
        stats.share = Some(size as f64 / max_size.max(1) as f64);
        stats.size = size;
        if size == 0 {
            stats.mass = Some(0.0);
        } else if stats.mass.is_some_and(|mass| mass <= 0.0) {
            stats.mass = None;
        }
        stats.is_heard = true;
    }

    /// Estimates the mass from samples: the weight of an item divided by its probability.
    pub fn sampled(&self, samples: &[Sampled], sampling: GroupSampling) {
        let Some(last) = samples.last() else { return };
        let mut stats = self.0.lock();
        stats.size = last.table_size;
        stats.min_probability = Some(last.min_probability);
        match sampling {
            GroupSampling::Uniform => stats.mass = Some(last.table_size as f64),
            GroupSampling::Ordered | GroupSampling::Steps => {}
            GroupSampling::Prioritized { .. } => {
                let mass = samples.iter().rev().find_map(|sample| {
                    let weight = sampling.weight(sample.priority);
                    (weight > 0.0 && sample.probability > 0.0).then(|| weight / sample.probability)
                });
                stats.mass = mass.filter(|mass| mass.is_finite()).or(stats.mass);
            }
        }
    }

    /// Forgets everything, because another server has taken over.
    pub fn forget(&self) {
        *self.0.lock() = Stats::default();
    }

    /// Records that items with keys of other shards' slots are possible.
    pub fn doubt_keys(&self) {
        self.0.lock().has_no_foreign_keys = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(size: i64) -> WatchedTable {
        WatchedTable {
            size,
            mass: 6.0,
            max_priority: Some(3.0),
            cursor: 4.0,
            min_diff: 1.0,
            min_size_to_sample: 2,
            has_foreign_keys: false,
            ..WatchedTable::default()
        }
    }

    #[test]
    fn nothing_is_known_of_a_table_that_was_not_heard_of() {
        let stats = TableStats::default();
        assert_eq!((stats.now().mass, stats.now().is_heard), (None, false));
        stats.watched(&reported(5));
        let now = stats.now();
        assert_eq!((now.size, now.mass, now.samples_allowed()), (5, Some(6.0), 3));
        stats.forget();
        assert_eq!(stats.now(), Stats::default());
    }

    #[test]
    fn a_watch_keeps_what_it_does_not_tell() {
        let stats = TableStats::default();
        stats.filled(0.5);
        stats.watched(&reported(5));
        assert_eq!(stats.now().share, Some(0.5));
        stats.filled(f64::NAN);
        assert_eq!(stats.now().share, None);
    }

    #[test]
    fn without_a_bound_or_items_the_limiter_allows_all_or_nothing() {
        let stats = TableStats::default();
        stats.watched(&WatchedTable { min_diff: -f64::MAX, ..reported(2) });
        assert_eq!(stats.now().samples_allowed(), usize::MAX);
        stats.watched(&WatchedTable { min_diff: -f64::MAX, ..reported(1) });
        assert_eq!(stats.now().samples_allowed(), 0);
    }

    #[test]
    fn a_poll_of_items_says_that_a_mass_of_nothing_is_out_of_date() {
        let stats = TableStats::default();
        stats.polled(0, 10);
        assert_eq!(stats.now().mass, Some(0.0));
        stats.polled(4, 10);
        assert_eq!((stats.now().mass, stats.now().share), (None, Some(0.4)));
    }
}
