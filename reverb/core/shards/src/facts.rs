// SPDX-License-Identifier: Apache-2.0
//! What a client knows of one table of one shard, as last heard.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use reverb_data::Sampled;
use reverb_wire::generated::reverb::WatchedTable;

/// How a table chooses what it samples, as far as a group cares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampling {
    /// Every item alike.
    Uniform,
    /// By `priority ** exponent`.
    Prioritized {
        /// Of the priority.
        exponent: f64,
    },
    /// In some order. Each shard has its own.
    Ordered,
}

impl Sampling {
    /// The weight of an item.
    pub fn weight(self, priority: f64) -> f64 {
        match self {
            Self::Prioritized { exponent } if priority > 0.0 => priority.powf(exponent),
            Self::Prioritized { .. } => 0.0,
            Self::Uniform | Self::Ordered => 1.0,
        }
    }
}

/// A number that several threads read and write.
#[derive(Debug)]
struct Number(AtomicU64);

impl Number {
    const fn new(value: f64) -> Self {
        Self(AtomicU64::new(value.to_bits()))
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

/// One table of one shard.
#[derive(Debug)]
pub struct TableFacts {
    size: AtomicI64,
    /// The part of `max_size` that it has; NaN: not known.
    share: Number,
    /// NaN: not known.
    mass: Number,
    /// NaN: not known.
    max_priority: Number,
    /// 0: not known.
    min_probability: Number,
    cursor: Number,
    min_diff: Number,
    min_size: AtomicI64,
    insert_waits: AtomicBool,
    sample_waits: AtomicBool,
    /// Whether the shard has said anything of it.
    is_heard: AtomicBool,
    /// Whether no items of foreign slots are known to be in it.
    has_no_foreign_keys: AtomicBool,
}

impl Default for TableFacts {
    fn default() -> Self {
        Self {
            size: AtomicI64::new(0),
            share: Number::new(f64::NAN),
            mass: Number::new(f64::NAN),
            max_priority: Number::new(f64::NAN),
            min_probability: Number::new(0.0),
            cursor: Number::new(0.0),
            min_diff: Number::new(-f64::MAX),
            min_size: AtomicI64::new(0),
            insert_waits: AtomicBool::new(false),
            sample_waits: AtomicBool::new(false),
            is_heard: AtomicBool::new(false),
            has_no_foreign_keys: AtomicBool::new(false),
        }
    }
}

impl TableFacts {
    /// Takes what a watch says.
    pub fn watched(&self, table: &WatchedTable) {
        self.size.store(table.size, Ordering::Relaxed);
        self.mass.set(table.mass);
        self.max_priority.set(table.max_priority.unwrap_or(f64::NAN));
        self.cursor.set(table.cursor);
        self.min_diff.set(table.min_diff);
        self.min_size.store(table.min_size_to_sample, Ordering::Relaxed);
        self.insert_waits.store(table.insert_waits, Ordering::Relaxed);
        self.sample_waits.store(table.sample_waits, Ordering::Relaxed);
        self.has_no_foreign_keys.store(!table.has_foreign_keys, Ordering::Relaxed);
        self.is_heard.store(true, Ordering::Release);
    }

    /// Takes the part of its `max_size` or `max_bytes` that the table has.
    pub fn filled(&self, share: f64) {
        self.share.set(share);
    }

    /// Takes the size that a server without watches tells.
    pub fn polled(&self, size: i64, max_size: i64) {
        self.filled(size as f64 / max_size.max(1) as f64);
        self.size.store(size, Ordering::Relaxed);
        if size == 0 {
            self.mass.set(0.0);
        } else if self.mass.get() <= 0.0 {
            self.mass.set(f64::NAN);
        }
        self.is_heard.store(true, Ordering::Release);
    }

    /// Learns from an answer: the mass is the weight of an item divided by its probability.
    pub fn sampled(&self, samples: &[Sampled], sampling: Sampling) {
        let Some(last) = samples.last() else { return };
        self.size.store(last.table_size, Ordering::Relaxed);
        self.min_probability.set(last.min_probability);
        match sampling {
            Sampling::Uniform => self.mass.set(last.table_size as f64),
            Sampling::Ordered => {}
            Sampling::Prioritized { .. } => {
                let mass = samples.iter().rev().find_map(|it| {
                    let weight = sampling.weight(it.priority);
                    (weight > 0.0 && it.probability > 0.0).then(|| weight / it.probability)
                });
                if let Some(mass) = mass.filter(|mass| mass.is_finite()) {
                    self.mass.set(mass);
                }
            }
        }
    }

    /// Forgets everything: another server answers.
    pub fn forget(&self) {
        self.is_heard.store(false, Ordering::Relaxed);
        self.has_no_foreign_keys.store(false, Ordering::Relaxed);
        self.size.store(0, Ordering::Relaxed);
        self.share.set(f64::NAN);
        self.mass.set(f64::NAN);
        self.max_priority.set(f64::NAN);
        self.min_probability.set(0.0);
    }

    /// Number of items.
    pub fn size(&self) -> i64 {
        self.size.load(Ordering::Relaxed)
    }

    /// The part of its `max_size` or `max_bytes` that the table has, if it is known.
    pub fn share(&self) -> Option<f64> {
        Some(self.share.get()).filter(|share| share.is_finite())
    }

    /// The sum of the weights of all items, if it is known.
    pub fn mass(&self) -> Option<f64> {
        Some(self.mass.get()).filter(|mass| !mass.is_nan())
    }

    /// The largest priority of all items, if it is known.
    pub fn max_priority(&self) -> Option<f64> {
        Some(self.max_priority.get()).filter(|priority| !priority.is_nan())
    }

    /// The smallest probability of an item, as the shard has told it last; 0: not known.
    pub fn min_probability(&self) -> f64 {
        self.min_probability.get()
    }

    /// Inserts times `samples_per_insert` minus samples.
    pub fn cursor(&self) -> f64 {
        self.cursor.get()
    }

    /// How many samples the limiter allows, as far as is known.
    pub fn samples_allowed(&self) -> usize {
        let size = self.size();
        if size == 0 || size < self.min_size.load(Ordering::Relaxed) {
            return 0;
        }
        let room = self.cursor.get() - self.min_diff.get();
        if room >= usize::MAX as f64 { usize::MAX } else { room.max(0.0) as usize }
    }

    /// Whether the shard has said anything of the table.
    pub fn is_heard(&self) -> bool {
        self.is_heard.load(Ordering::Acquire)
    }

    /// Whether somebody waits to insert.
    pub fn insert_waits(&self) -> bool {
        self.insert_waits.load(Ordering::Relaxed)
    }

    /// Whether somebody waits to sample.
    pub fn sample_waits(&self) -> bool {
        self.sample_waits.load(Ordering::Relaxed)
    }

    /// Whether all its items have slots of the shard, for sure.
    pub fn has_no_foreign_keys(&self) -> bool {
        self.has_no_foreign_keys.load(Ordering::Relaxed)
    }

    /// Says that this is no longer known.
    pub fn doubt_keys(&self) {
        self.has_no_foreign_keys.store(false, Ordering::Relaxed);
    }
}
