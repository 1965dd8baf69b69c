// SPDX-License-Identifier: Apache-2.0
//! What a table is made of.

use bytes::Bytes;
use reverb_data::{Error, Result, Signature};

use crate::rate_limiter::RateLimiterConfig;
use crate::selector::SelectorConfig;

/// Largest `max_size`: sizes are 32 bits wide in the protocol.
const MAX_MAX_SIZE: i64 = i32::MAX as i64;

/// What a table is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct TableConfig {
    /// Its name; not empty.
    pub name: String,
    /// Chooses items to sample.
    pub sampler: SelectorConfig,
    /// Chooses the item to remove when there is one too many.
    pub remover: SelectorConfig,
    /// Most items in it.
    pub max_size: i64,
    /// Samples after which an item is removed; no limit below 1.
    pub max_times_sampled: i32,
    /// Keeps inserts and samples in step.
    pub rate_limiter: RateLimiterConfig,
    /// What its items look like. Told to clients, which check their items; not checked here.
    pub signature: Option<TableSignature>,
    /// Makes random choices repeatable; seeded by the operating system if absent.
    pub seed: Option<u64>,
}

impl TableConfig {
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
            self.rate_limiter.validate()
        };
        check().map_err(|error| error.context(&format!("Table {}", self.name)))
    }
}

/// What a table's items look like.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSignature {
    /// The columns in flat order.
    pub flat: Signature,
    /// The nest of specs, a serialized `tensorflow.StructuredValue`; never looked into here.
    pub encoded: Bytes,
}
