// SPDX-License-Identifier: Apache-2.0
//! Changes of a table's settings while it runs.

use std::sync::Arc;

use crate::rollouts::RolloutSettings;
use crate::{RateLimiterConfig, SelectorConfig, TableConfig};
use reverb_base::{Error, Result};

/// New values for some settings of a table; missing ones stay as they are.
///
/// The kinds of the selectors, the signature and the name cannot change.
#[derive(Debug, Clone, Default, PartialEq)]
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
    /// New settings of its rollouts.
    pub rollouts: Option<Box<RolloutsChange>>,
}

/// New settings of the rollouts of a table: all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutsChange {
    /// The settings. Those of columns are ignored, because a client has names, and no positions.
    pub settings: RolloutSettings,
    /// Names of the columns that an item has once.
    pub item: Vec<String>,
}

impl RolloutsChange {
    /// The settings for a table, which has the same columns and number of rollouts.
    fn apply(&self, config: &TableConfig) -> Result<RolloutSettings> {
        let name = &config.name;
        let Some(present) = &config.rollouts else {
            return Err(Error::invalid_argument(format!(
                "Table {name} has no rollouts and cannot get some: its items are whole. Make a \
                 table with rollouts."
            )));
        };
        let Self { settings, item } = self;
        let names = item_names(config, present);
        let is_same = names.len() == item.len() && names.iter().all(|it| item.contains(it));
        let differences = [
            (
                "num_rollouts",
                present.num_rollouts == settings.num_rollouts,
                present.num_rollouts.to_string(),
                settings.num_rollouts.to_string(),
            ),
            ("item", is_same, listed(&names), listed(item)),
        ];
        for (argument, is_same, before, after) in differences {
            if !is_same {
                return Err(Error::invalid_argument(format!(
                    "{argument} of the rollouts of table {name} is {before} and cannot become \
                     {after}: the items that are there are made for it. Give {before}, or make a \
                     new table."
                )));
            }
        }
        Ok(RolloutSettings {
            num_columns: present.num_columns,
            item_columns: present.item_columns.clone(),
            ..settings.clone()
        })
    }
}

/// Names of the columns that an item has once.
fn item_names(config: &TableConfig, settings: &RolloutSettings) -> Vec<String> {
    let columns = config.signature.as_ref().map_or(&[][..], |it| &it.flat.0);
    let name = |&at: &u32| match columns.get(at as usize) {
        Some(spec) => spec.path.to_string(),
        None => at.to_string(),
    };
    settings.item_columns.iter().map(name).collect()
}

fn listed(names: &[String]) -> String {
    format!("({})", names.join(", "))
}

impl TableChange {
    /// The settings with the new values, checked like those of a new table.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a value that a new table would not accept, for an exponent of a
    /// sampler that has none, for a `max_size` or rate limiter with which nothing could be sampled,
    /// and for rollouts of another number or with other columns of items.
    pub fn apply(&self, config: &TableConfig) -> Result<TableConfig> {
        // The pattern is exhaustive, so that the compiler points here when a setting is added.
        let Self {
            max_size,
            max_bytes,
            max_times_sampled,
            rate_limiter,
            priority_exponent,
            sampler,
            ref rollouts,
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
        if let Some(change) = rollouts {
            new.rollouts = Some(Arc::new(change.apply(config)?));
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
    use bytes::Bytes;

    use super::*;
    use crate::column_names::ColumnPath;
    use crate::rollouts::OnStale;
    use crate::{DType, Signature, TableSignature, TensorSpec};

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
            text(later.clone(), &config()),
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
    fn rollouts_keep_their_number_and_the_columns_of_items() {
        let spec =
            |name: &str| TensorSpec::new(ColumnPath::from_label(name), "", DType::Int64, None);
        let flat = Signature(["prompt", "score", "tokens"].map(spec).to_vec());
        let settings = RolloutSettings {
            num_columns: 3,
            item_columns: [0].into(),
            num_rollouts: 8,
            min_rollouts: 8,
            ahead: None,
            items_per_version: Some(4),
            max_staleness: Some(2),
            on_stale: OnStale::Again,
            open_timeout: None,
            max_attempts: 5,
        };
        let train = TableConfig {
            signature: Some(TableSignature { flat, encoded: Bytes::new() }),
            rollouts: Some(Arc::new(settings.clone())),
            ..TableConfig::fifo("train", 100)
        };
        train.validate().unwrap();
        let new = RolloutSettings {
            num_columns: 0,
            item_columns: [].into(),
            min_rollouts: 6,
            ahead: Some(0),
            ..settings.clone()
        };
        let change = |settings: RolloutSettings, item: &[&str]| {
            let item = item.iter().map(|it| (*it).to_owned()).collect();
            let rollouts = Some(Box::new(RolloutsChange { settings, item }));
            TableChange { rollouts, ..TableChange::default() }
        };
        let after = change(new.clone(), &["prompt"]).apply(&train).unwrap();
        let expected = RolloutSettings { min_rollouts: 6, ahead: Some(0), ..settings };
        assert_eq!(after.rollouts.as_deref(), Some(&expected));
        let changed = train.changes_to(&after);
        let texts = changed.iter().map(|(name, old, new)| format!("{name} {old} -> {new}"));
        assert_eq!(texts.collect::<Vec<_>>(), ["min_rollouts 8 -> 6", "ahead none -> 0"]);

        let text = |change: TableChange, config: &TableConfig| {
            change.apply(config).unwrap_err().message().to_owned()
        };
        let fewer = RolloutSettings { num_rollouts: 4, ..new.clone() };
        assert_eq!(
            text(change(fewer, &["prompt"]), &train),
            "num_rollouts of the rollouts of table train is 8 and cannot become 4: the items that \
             are there are made for it. Give 8, or make a new table."
        );
        assert_eq!(
            text(change(new.clone(), &["tokens", "prompt"]), &train),
            "item of the rollouts of table train is (prompt) and cannot become (tokens, prompt): \
             the items that are there are made for it. Give (prompt), or make a new table."
        );
        assert_eq!(
            text(change(new.clone(), &["prompt"]), &config()),
            "Table replay has no rollouts and cannot get some: its items are whole. Make a table \
             with rollouts."
        );
        let odd = RolloutSettings { min_rollouts: 9, ..new };
        assert_eq!(
            text(change(odd, &["prompt"]), &train),
            "Table train: min_rollouts must be at least 1 and at most num_rollouts (8), got 9."
        );
    }

    #[test]
    fn a_table_that_was_made_too_small_can_still_change() {
        let small = TableConfig { max_size: 5, ..config() };
        let change = TableChange { max_times_sampled: Some(1), ..TableChange::default() };
        assert_eq!(change.apply(&small).unwrap().max_times_sampled, 1);
    }
}
