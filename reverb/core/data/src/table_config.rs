// SPDX-License-Identifier: Apache-2.0
//! The settings of a table, with their limits.

use std::sync::Arc;

use bytes::Bytes;

use crate::Signature;
use crate::max_priority::MaxPriority;
use crate::rollouts::{OnStale, RolloutSettings};
use crate::selector_config::SelectorConfig;
use reverb_base::{Error, Result};

/// Largest `max_size`: sizes are 32 bits wide in the protocol.
pub const MAX_MAX_SIZE: i64 = i32::MAX as i64;

/// The settings of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableConfig {
    /// Its name; not empty.
    pub name: String,
    /// Selects the items to sample.
    pub sampler: SelectorConfig,
    /// Selects the item to evict when the table is over `max_size`.
    pub remover: SelectorConfig,
    /// Maximum number of items.
    pub max_size: i64,
    /// Number of samples after which an item is removed. There is no limit if it is below 1.
    pub max_times_sampled: i32,
    /// Bounds of the ratio of samples to inserts.
    pub rate_limiter: RateLimiterConfig,
    /// Dtypes and shapes of its items. Clients receive it and check their items; the table does
    /// not.
    pub signature: Option<TableSignature>,
    /// Seed of random choices, which makes them reproducible. `None` takes one from the operating
    /// system.
    pub seed: Option<u64>,
    /// Limit on the bytes of its items.
    pub memory: MemoryConfig,
    /// Meaning of [`MAX_PRIORITY`](crate::MAX_PRIORITY) as the priority of a new item.
    pub max_priority: MaxPriority,
    /// Settings of a table whose items have rollouts.
    pub rollouts: Option<Arc<RolloutSettings>>,
}

impl TableConfig {
    /// A table that samples and evicts its oldest item, with no limit but its size.
    pub fn fifo(name: impl Into<String>, max_size: i64) -> Self {
        Self {
            name: name.into(),
            sampler: SelectorConfig::Fifo,
            remover: SelectorConfig::Fifo,
            max_size,
            max_times_sampled: 0,
            rate_limiter: RateLimiterConfig {
                samples_per_insert: 1.0,
                min_size_to_sample: 1,
                min_diff: -f64::MAX,
                max_diff: f64::MAX,
            },
            signature: None,
            seed: None,
            memory: MemoryConfig::default(),
            max_priority: MaxPriority::default(),
            rollouts: None,
        }
    }

    /// Settings that can change while the table runs, as text: name and value. Every table has the
    /// same ones in the same order.
    pub fn settings(&self) -> [(&'static str, String); 17] {
        let RateLimiterConfig { samples_per_insert, min_size_to_sample, min_diff, max_diff } =
            self.rate_limiter;
        let [exponent, draw, expected_age] = self.sampler.parameters().map(or_none);
        let rollouts = self.rollouts.as_deref();
        let number = |of: fn(&RolloutSettings) -> Option<u32>| or_none(rollouts.and_then(of));
        let open_timeout = rollouts.and_then(|it| it.open_timeout);
        [
            ("max_size", self.max_size.to_string()),
            ("max_bytes", or_none(self.memory.max_bytes)),
            ("max_times_sampled", or_none(Some(self.max_times_sampled).filter(|&times| times > 0))),
            ("samples_per_insert", samples_per_insert.to_string()),
            ("min_size_to_sample", min_size_to_sample.to_string()),
            ("min_diff", or_none(Some(min_diff).filter(|&bound| bound > -f64::MAX))),
            ("max_diff", or_none(Some(max_diff).filter(|&bound| bound < f64::MAX))),
            ("priority_exponent", exponent),
            ("draw", draw),
            ("expected_age", expected_age),
            ("min_rollouts", number(|it| Some(it.min_rollouts))),
            ("ahead", number(|it| it.ahead)),
            ("items_per_version", number(|it| it.items_per_version)),
            ("max_staleness", number(|it| it.max_staleness)),
            ("on_stale", or_none(rollouts.map(|it| it.on_stale.name()))),
            ("open_timeout_s", or_none(open_timeout.map(|it| it.as_secs_f64()))),
            ("max_attempts", number(|it| Some(it.max_attempts))),
        ]
    }

    /// Settings that differ afterwards: name, value before, value after.
    pub fn changes_to(&self, after: &Self) -> Vec<(&'static str, String, String)> {
        let pairs = self.settings().into_iter().zip(after.settings());
        pairs
            .filter(|((_, before), (_, after))| before != after)
            .map(|((name, before), (_, after))| (name, before, after))
            .collect()
    }

    /// Checks every argument.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the argument, its value and its limit.
    pub fn validate(&self) -> Result<()> {
        if self.name.is_empty() {
            return Err(Error::invalid_argument("name of a table must not be empty."));
        }
        let check = || {
            if !(1..=MAX_MAX_SIZE).contains(&self.max_size) {
                return Err(Error::invalid_argument(format!(
                    "max_size must be at least 1 and at most {MAX_MAX_SIZE}, got {}.",
                    self.max_size
                )));
            }
            self.sampler.validate()?;
            self.remover.validate()?;
            if self.remover == SelectorConfig::UniformOverSteps {
                return Err(Error::invalid_argument(
                    "remover must not be Uniform(over=\"steps\"), which is for samplers: it would \
                     remove long items first. Choose Uniform().",
                ));
            }
            self.rate_limiter.validate()?;
            self.memory.validate()?;
            self.rollouts.as_ref().map_or(Ok(()), |rollouts| self.check_rollouts(rollouts))
        };
        check().map_err(|error| error.context(&format!("Table {}", self.name)))
    }
}

impl TableConfig {
    /// Checks what else a table with rollouts needs.
    fn check_rollouts(&self, rollouts: &RolloutSettings) -> Result<()> {
        rollouts.validate()?;
        for (side, selector) in [("sampler", &self.sampler), ("remover", &self.remover)] {
            let name = match selector {
                SelectorConfig::Shuffle { .. } => "Shuffle",
                SelectorConfig::Recent { .. } => "Recent",
                SelectorConfig::UniformOverSteps => "Uniform(over=\"steps\")",
                _ => continue,
            };
            return Err(Error::invalid_argument(format!(
                "items with rollouts go back to their order, which the {side} {name} cannot; use \
                 Fifo, Lifo, Uniform, Prioritized, MinHeap or MaxHeap."
            )));
        }
        if self.rate_limiter.has_min() || self.rate_limiter.has_max() {
            return Err(Error::invalid_argument(
                "the rate limiter of a table with rollouts must be MinSize: items that leave \
                 untrained would close SampleToInsertRatio; use items_per_version.",
            ));
        }
        if rollouts.on_stale == OnStale::Wait
            && (self.sampler != SelectorConfig::Fifo || self.max_times_sampled != 1)
        {
            return Err(Error::invalid_argument(
                "on_stale=\"wait\" takes the oldest items first, and each once: it needs the sampler \
                 Fifo and max_times_sampled=1.",
            ));
        }
        let num_columns = self.signature.as_ref().map(|it| it.flat.0.len());
        if num_columns != Some(rollouts.num_columns as usize) {
            return Err(Error::invalid_argument(format!(
                "a table with rollouts needs a signature of its {} columns.",
                rollouts.num_columns
            )));
        }
        Ok(())
    }
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

/// Limit on the bytes of a table's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryConfig {
    /// Maximum number of bytes, each chunk counted once. `None` for no limit.
    pub max_bytes: Option<u64>,
    /// Action when an item does not fit.
    pub when_full: WhenFull,
}

impl MemoryConfig {
    /// Checks the number of bytes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the argument, its value and its limit.
    pub fn validate(&self) -> Result<()> {
        match self.max_bytes {
            Some(bytes) if bytes == 0 || i64::try_from(bytes).is_err() => {
                Err(Error::invalid_argument(format!(
                    "max_bytes must be at least 1 and at most {}, or None, got {bytes}.",
                    i64::MAX
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Action of a table for an item that does not fit into its `max_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The remover evicts items until it fits.
    #[default]
    Remove,
    /// The insert waits until items leave.
    Wait,
}

/// The signature of a table's items.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSignature {
    /// The columns in flat order.
    pub flat: Signature,
    /// The nest of specs, a serialized `tensorflow.StructuredValue`. The core never parses it.
    pub encoded: Bytes,
}

/// The four parameters of a rate limiter.
///
/// With `I` inserts, `S` samples and `D` deletes so far, a table holds `I - D` items, and the
/// cursor `I * samples_per_insert - S` must stay between `min_diff` and `max_diff`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimiterConfig {
    /// Number of samples that each insert allows.
    pub samples_per_insert: f64,
    /// Number of items that the table must hold before the first sample.
    pub min_size_to_sample: i64,
    /// Samples wait when the cursor would fall below this.
    pub min_diff: f64,
    /// Inserts wait when the cursor would rise above this.
    pub max_diff: f64,
}

impl RateLimiterConfig {
    /// True if the cursor has a lower bound. The largest numbers mean that there is none.
    pub fn has_min(&self) -> bool {
        self.min_diff > -f64::MAX
    }

    /// True if the cursor has an upper bound.
    pub fn has_max(&self) -> bool {
        self.max_diff < f64::MAX
    }

    /// Inserts that a table of `size` items needs before its next sample; 0 if that is allowed now.
    /// `cursor` is `inserts * samples_per_insert - samples`.
    pub fn missing_inserts(&self, size: i64, cursor: f64) -> f64 {
        let for_diff = ((self.min_diff + 1.0 - cursor) / self.samples_per_insert).ceil();
        for_diff.max((self.min_size_to_sample - size) as f64).max(0.0)
    }

    /// Samples that a table of `size` items needs before its next insert; 0 if that is allowed now.
    ///
    /// Inserts up to the minimum size are always allowed, because sampling starts only there.
    pub fn missing_samples(&self, size: i64, cursor: f64) -> f64 {
        if size < self.min_size_to_sample {
            return 0.0;
        }
        (cursor + self.samples_per_insert - self.max_diff).ceil().max(0.0)
    }

    /// Checks the four parameters.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the argument, its value and its limit.
    pub fn validate(&self) -> Result<()> {
        let Self { samples_per_insert, min_size_to_sample, min_diff, max_diff } = *self;
        if !(samples_per_insert > 0.0 && samples_per_insert.is_finite()) {
            return Err(Error::invalid_argument(format!(
                "samples_per_insert must be finite and greater than 0, got {samples_per_insert}."
            )));
        }
        if min_size_to_sample < 1 {
            return Err(Error::invalid_argument(format!(
                "min_size_to_sample must be at least 1, got {min_size_to_sample}."
            )));
        }
        for (argument, value) in [("min_diff", min_diff), ("max_diff", max_diff)] {
            if value.is_nan() {
                return Err(Error::invalid_argument(format!(
                    "{argument} must be a number, got NaN."
                )));
            }
        }
        Ok(())
    }
}
