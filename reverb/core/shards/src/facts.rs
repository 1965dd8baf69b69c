// SPDX-License-Identifier: Apache-2.0
//! What a client knows of one table of one shard, as last heard.

use parking_lot::Mutex;
use reverb_data::{GroupSampling, Sampled};
use reverb_wire::generated::reverb::WatchedTable;

/// One table of one shard at one time; `None` is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct Facts {
    /// Number of items.
    pub size: i64,
    /// The part of its `max_size` or `max_bytes` that the table has.
    pub share: Option<f64>,
    /// The sum of the weights of all items.
    pub mass: Option<f64>,
    /// The largest priority of all items.
    pub max_priority: Option<f64>,
    /// The smallest probability of an item.
    pub min_probability: Option<f64>,
    /// Inserts times `samples_per_insert` minus samples.
    pub cursor: f64,
    /// The lower bound of the cursor; `None`: no bound.
    pub min_diff: Option<f64>,
    /// Below this many items nothing is sampled.
    pub min_size: i64,
    /// Whether inserts wait.
    pub insert_waits: bool,
    /// Whether sample requests wait.
    pub sample_waits: bool,
    /// Whether the shard has said anything of the table.
    pub is_heard: bool,
    /// Whether all its items have slots of the shard, for sure.
    pub has_no_foreign_keys: bool,
}

impl Facts {
    /// How many samples the limiter allows, as far as is known.
    pub fn samples_allowed(&self) -> usize {
        if self.size == 0 || self.size < self.min_size {
            return 0;
        }
        match self.min_diff {
            // Floats beyond the largest usize become that.
            Some(min_diff) => (self.cursor - min_diff).max(0.0) as usize,
            None => usize::MAX,
        }
    }

    fn polled(&mut self, size: i64, max_size: i64) {
        self.share = Some(size as f64 / max_size.max(1) as f64);
        self.size = size;
        if size == 0 {
            self.mass = Some(0.0);
        } else if self.mass.is_some_and(|mass| mass <= 0.0) {
            self.mass = None;
        }
        self.is_heard = true;
    }

    fn watched(&mut self, table: &WatchedTable) {
        *self = Self {
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
            share: self.share,
            min_probability: self.min_probability,
        };
    }

    fn sampled(&mut self, samples: &[Sampled], sampling: GroupSampling) {
        let Some(last) = samples.last() else { return };
        self.size = last.table_size;
        self.min_probability = Some(last.min_probability);
        match sampling {
            GroupSampling::Uniform => self.mass = Some(last.table_size as f64),
            GroupSampling::Ordered => {}
            GroupSampling::Prioritized { .. } => {
                let mass = samples.iter().rev().find_map(|it| {
                    let weight = sampling.weight(it.priority);
                    (weight > 0.0 && it.probability > 0.0).then(|| weight / it.probability)
                });
                self.mass = mass.filter(|mass| mass.is_finite()).or(self.mass);
            }
        }
    }
}

/// The facts of one table of one shard, which several threads read and write.
#[derive(Debug, Default)]
pub struct TableFacts(Mutex<Facts>);

impl TableFacts {
    /// What is known now.
    pub fn now(&self) -> Facts {
        *self.0.lock()
    }

    /// Takes what a watch says.
    pub fn watched(&self, table: &WatchedTable) {
        self.0.lock().watched(table);
    }

    /// Takes the part of its `max_size` or `max_bytes` that the table has.
    pub fn filled(&self, share: f64) {
        self.0.lock().share = Some(share).filter(|share| share.is_finite());
    }

    /// Takes the size that a server without watches tells.
    pub fn polled(&self, size: i64, max_size: i64) {
        self.0.lock().polled(size, max_size);
    }

    /// Learns from an answer: the mass is the weight of an item divided by its probability.
    pub fn sampled(&self, samples: &[Sampled], sampling: GroupSampling) {
        self.0.lock().sampled(samples, sampling);
    }

    /// Forgets everything: another server answers.
    pub fn forget(&self) {
        *self.0.lock() = Facts::default();
    }

    /// Says that there may be items of foreign slots.
    pub fn doubt_keys(&self) {
        self.0.lock().has_no_foreign_keys = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(size: i64) -> WatchedTable {
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
        let facts = TableFacts::default();
        assert_eq!((facts.now().mass, facts.now().is_heard), (None, false));
        facts.watched(&told(5));
        let now = facts.now();
        assert_eq!((now.size, now.mass, now.samples_allowed()), (5, Some(6.0), 3));
        facts.forget();
        assert_eq!(facts.now(), Facts::default());
    }

    #[test]
    fn a_watch_keeps_what_it_does_not_tell() {
        let facts = TableFacts::default();
        facts.filled(0.5);
        facts.watched(&told(5));
        assert_eq!(facts.now().share, Some(0.5));
        facts.filled(f64::NAN);
        assert_eq!(facts.now().share, None);
    }

    #[test]
    fn without_a_bound_or_items_the_limiter_allows_all_or_nothing() {
        let facts = TableFacts::default();
        facts.watched(&WatchedTable { min_diff: -f64::MAX, ..told(2) });
        assert_eq!(facts.now().samples_allowed(), usize::MAX);
        facts.watched(&WatchedTable { min_diff: -f64::MAX, ..told(1) });
        assert_eq!(facts.now().samples_allowed(), 0);
    }

    #[test]
    fn a_poll_of_items_says_that_a_mass_of_nothing_is_out_of_date() {
        let facts = TableFacts::default();
        facts.polled(0, 10);
        assert_eq!(facts.now().mass, Some(0.0));
        facts.polled(4, 10);
        assert_eq!((facts.now().mass, facts.now().share), (None, Some(0.4)));
    }
}
