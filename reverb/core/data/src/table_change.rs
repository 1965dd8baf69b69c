// SPDX-License-Identifier: Apache-2.0
//! Changes of a table's settings while it runs.

use crate::{RateLimiterConfig, SelectorConfig, TableConfig};
use reverb_base::{Error, Result};

/// New values for some settings of a table; missing ones stay as they are.
///
/// The kinds of the selectors, the signature and the name cannot change.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TableChange {
    /// Maximum number of items.
    pub max_size: Option<i64>,
    /// Maximum number of bytes; `Some(None)` removes the limit.
    pub max_bytes: Option<Option<u64>>,
    /// Number of samples after which an item is removed; no limit if it is below 1.
    pub max_times_sampled: Option<i32>,
    /// Bounds of the ratio of samples to inserts.
    pub rate_limiter: Option<RateLimiterConfig>,
    /// Exponent of a prioritized sampler.
    pub priority_exponent: Option<f64>,
    /// New parameters of the sampler, which must be of the same kind.
    pub sampler: Option<SelectorConfig>,
}

impl TableChange {
    /// The settings with the new values, checked like those of a new table.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a value that a new table would not accept, for an exponent of a
    /// sampler that has none, and for a `max_size` or rate limiter with which nothing could be
    /// sampled.
    pub fn apply(&self, config: &TableConfig) -> Result<TableConfig> {
        // The pattern is exhaustive, so that the compiler points here when a setting is added.
        let Self {
            max_size,
            max_bytes,
            max_times_sampled,
            rate_limiter,
            priority_exponent,
            sampler,
        } = *self;
        let mut new = config.clone();
        new.max_size = max_size.unwrap_or(new.max_size);
        new.memory.max_bytes = max_bytes.unwrap_or(new.memory.max_bytes);
        new.max_times_sampled = max_times_sampled.unwrap_or(new.max_times_sampled);
        new.rate_limiter = rate_limiter.unwrap_or(new.rate_limiter);
        if let Some(sampler) = sampler {
            if !sampler.is_of_kind(&config.sampler) {
                return Err(Error::invalid_argument(format!(
                    "The sampler of table {} is {} and cannot become {}: a running table changes \
                     the parameters of its sampler, and never its kind. Make a new table.",
                    config.name,
                    config.sampler.name(),
                    sampler.name()
                )));
            }
            if matches!(sampler, SelectorConfig::Shuffle { .. }) {
                return Err(Error::invalid_argument(format!(
                    "The sampler of table {} is shuffle: it has no parameter that can change.",
                    config.name,
                )));
            }
            new.sampler = sampler;
        }
        if let Some(exponent) = priority_exponent {
            let SelectorConfig::Prioritized { priority_exponent, .. } = &mut new.sampler else {
                return Err(Error::invalid_argument(format!(
                    "The sampler of table {} is {}: it has no priority_exponent.",
                    config.name,
                    config.sampler.name()
                )));
            };
            *priority_exponent = exponent;
        }
        new.validate()?;
        self.check_size(&new)?;
        Ok(new)
    }

    /// Refuses a change after which the table could never hold the items that sampling needs. A
    /// table that was created like that may keep it.
    fn check_size(&self, new: &TableConfig) -> Result<()> {
        let TableConfig { name, max_size, rate_limiter, .. } = new;
        let min_size = rate_limiter.min_size_to_sample;
        if *max_size >= min_size {
            return Ok(());
        }
        if self.max_size.is_some() {
            return Err(Error::invalid_argument(format!(
                "max_size {max_size} is below min_size_to_sample {min_size} of table {name}: \
                 nothing could be sampled any more. Change the rate limiter in the same call."
            )));
        }
        if self.rate_limiter.is_some() {
            return Err(Error::invalid_argument(format!(
                "min_size_to_sample {min_size} is above max_size {max_size} of table {name}: \
                 nothing could be sampled any more. Change max_size in the same call."
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> TableConfig {
        TableConfig {
            sampler: SelectorConfig::prioritized(0.8),
            rate_limiter: RateLimiterConfig {
                samples_per_insert: 1.0,
                min_size_to_sample: 10,
                min_diff: -f64::MAX,
                max_diff: f64::MAX,
            },
            ..TableConfig::fifo("replay", 100)
        }
    }

    #[test]
    fn values_that_are_absent_stay() {
        let unchanged = TableChange::default().apply(&config()).unwrap();
        assert_eq!(unchanged, config());
        let change = TableChange {
            max_size: Some(50),
            max_bytes: Some(Some(1 << 20)),
            max_times_sampled: Some(3),
            priority_exponent: Some(0.5),
            ..TableChange::default()
        };
        let new = change.apply(&config()).unwrap();
        assert_eq!((new.max_size, new.max_times_sampled), (50, 3));
        assert_eq!(new.memory.max_bytes, Some(1 << 20));
        assert_eq!(new.sampler, SelectorConfig::prioritized(0.5));
        let unlimited = TableChange { max_bytes: Some(None), ..TableChange::default() };
        assert_eq!(unlimited.apply(&new).unwrap().memory.max_bytes, None);
        assert_eq!(TableChange::default().apply(&new).unwrap(), new);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let text = |change: TableChange, config: &TableConfig| {
            change.apply(config).unwrap_err().message().to_owned()
        };
        let smaller = TableChange { max_size: Some(9), ..TableChange::default() };
        assert_eq!(
            text(smaller, &config()),
            "max_size 9 is below min_size_to_sample 10 of table replay: nothing could be sampled \
             any more. Change the rate limiter in the same call."
        );
        let limiter = RateLimiterConfig { min_size_to_sample: 101, ..config().rate_limiter };
        let later = TableChange { rate_limiter: Some(limiter), ..TableChange::default() };
        assert_eq!(
            text(later, &config()),
            "min_size_to_sample 101 is above max_size 100 of table replay: nothing could be \
             sampled any more. Change max_size in the same call."
        );
        let both = TableChange { max_size: Some(101), ..later };
        assert_eq!(both.apply(&config()).unwrap().max_size, 101);
        let nan = TableChange { priority_exponent: Some(f64::NAN), ..TableChange::default() };
        assert_eq!(
            text(nan, &config()),
            "Table replay: priority_exponent must be finite, got NaN."
        );
        let uniform = TableConfig { sampler: SelectorConfig::Uniform, ..config() };
        let exponent = TableChange { priority_exponent: Some(1.0), ..TableChange::default() };
        assert_eq!(
            text(exponent, &uniform),
            "The sampler of table replay is uniform: it has no priority_exponent."
        );
        let none = TableChange { max_size: Some(0), ..TableChange::default() };
        assert!(text(none, &config()).contains("max_size must be at least 1"));
    }

    #[test]
    fn a_table_that_was_made_too_small_can_still_change() {
        let small = TableConfig { max_size: 5, ..config() };
        let change = TableChange { max_times_sampled: Some(1), ..TableChange::default() };
        assert_eq!(change.apply(&small).unwrap().max_times_sampled, 1);
    }
}
