// SPDX-License-Identifier: Apache-2.0
//! Converts the settings of a table to messages and back.

use prost::Message;
use reverb_base::Result;
use reverb_data::{
    Draw, MaxPriority, MemoryConfig, RateLimiterConfig, SelectorConfig, TableInfo, TableSignature,
    WhenFull,
};

use super::signature::flatten_signature;
use crate::generated::key_distribution_options::extension::{
    self, Distribution as ExtendedDistribution, Recent, Shuffle, UniformOverSteps,
};
use crate::generated::key_distribution_options::{Distribution, Extension, Heap, Prioritized};
use crate::generated::tensorflow::StructuredValue;
use crate::generated::{
    KeyDistributionOptions, PriorityTableCheckpoint, RateLimiterCheckpoint,
    priority_table_checkpoint,
};

/// Message of a selector. A selector that dm-reverb lacks goes into `extension`, beside the nearest
/// one that it has.
pub fn from_selector(config: SelectorConfig) -> KeyDistributionOptions {
    let mut extension = None;
    let distribution = match config {
        SelectorConfig::Fifo => Distribution::Fifo(true),
        SelectorConfig::Lifo => Distribution::Lifo(true),
        SelectorConfig::Uniform => Distribution::Uniform(true),
        SelectorConfig::UniformOverSteps => {
            extension = Some(ExtendedDistribution::UniformOverSteps(UniformOverSteps {}));
            Distribution::Uniform(true)
        }
        SelectorConfig::Prioritized { priority_exponent, draw } => {
            extension = (draw != Draw::Independent)
                .then(|| ExtendedDistribution::Draw(from_draw(draw).into()));
            Distribution::Prioritized(Prioritized { priority_exponent })
        }
        SelectorConfig::Heap { min_heap } => Distribution::Heap(Heap { min_heap }),
        SelectorConfig::Shuffle { .. } => {
            extension = Some(ExtendedDistribution::Shuffle(Shuffle {}));
            Distribution::Uniform(true)
        }
        SelectorConfig::Recent { expected_age } => {
            extension = Some(ExtendedDistribution::Recent(Recent { expected_age }));
            Distribution::Uniform(true)
        }
    };
    KeyDistributionOptions {
        is_deterministic: config.is_deterministic(),
        distribution: Some(distribution),
        extension: extension.map(|extended| Extension { distribution: Some(extended) }),
    }
}

fn from_draw(draw: Draw) -> extension::Draw {
    match draw {
        Draw::Independent => extension::Draw::Independent,
        Draw::Stratified => extension::Draw::Stratified,
        Draw::Systematic => extension::Draw::Systematic,
    }
}

/// The message of a signature.
pub fn from_signature(signature: &TableSignature) -> Option<StructuredValue> {
    // The signature was checked when the table was created. One that cannot be decoded is left out.
    StructuredValue::decode(signature.encoded.as_ref()).ok()
}

/// The signature of a message.
///
/// # Errors
///
/// `InvalidArgument` if it has a value that is not a spec.
pub fn to_signature(message: &StructuredValue) -> Result<TableSignature> {
    let flat = flatten_signature(message)?;
    Ok(TableSignature { flat, encoded: message.encode_to_vec().into() })
}

/// The selector of a message, or `None` if it has none.
pub fn to_selector(options: Option<&KeyDistributionOptions>) -> Option<SelectorConfig> {
    // The matches are exhaustive, so that the compiler points here when a variant is added.
    let extension =
        options?.extension.as_ref().and_then(|extension| extension.distribution.as_ref());
    let draw = match extension {
        Some(ExtendedDistribution::Shuffle(Shuffle {})) => {
            return Some(SelectorConfig::Shuffle { seed: None });
        }
        Some(ExtendedDistribution::Recent(Recent { expected_age })) => {
            return Some(SelectorConfig::Recent { expected_age: *expected_age });
        }
        Some(ExtendedDistribution::UniformOverSteps(UniformOverSteps {})) => {
            return Some(SelectorConfig::UniformOverSteps);
        }
        Some(ExtendedDistribution::Draw(draw)) => match extension::Draw::try_from(*draw) {
            Ok(extension::Draw::Stratified) => Draw::Stratified,
            Ok(extension::Draw::Systematic) => Draw::Systematic,
            // An unknown one, from a newer release, differs only in its variance.
            Ok(extension::Draw::Independent) | Err(_) => Draw::Independent,
        },
        None => Draw::Independent,
    };
    match options?.distribution.as_ref()? {
        Distribution::Fifo(is_set) => is_set.then_some(SelectorConfig::Fifo),
        Distribution::Lifo(is_set) => is_set.then_some(SelectorConfig::Lifo),
        Distribution::Uniform(is_set) => is_set.then_some(SelectorConfig::Uniform),
        Distribution::Prioritized(Prioritized { priority_exponent }) => {
            Some(SelectorConfig::Prioritized { priority_exponent: *priority_exponent, draw })
        }
        Distribution::Heap(Heap { min_heap }) => Some(SelectorConfig::Heap { min_heap: *min_heap }),
    }
}

/// Number of bytes in messages; 0 for no limit.
pub fn from_max_bytes(max_bytes: Option<u64>) -> i64 {
    max_bytes.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// Limit of a message, where 0 means no limit.
pub fn to_max_bytes(max_bytes: i64) -> Option<u64> {
    u64::try_from(max_bytes).ok().filter(|&bytes| bytes > 0)
}

/// Action of a full table, as an enum of messages.
pub fn from_when_full(when_full: WhenFull) -> priority_table_checkpoint::WhenFull {
    match when_full {
        WhenFull::Remove => priority_table_checkpoint::WhenFull::Remove,
        WhenFull::Wait => priority_table_checkpoint::WhenFull::Wait,
    }
}

/// Memory limit of a message; none in older messages.
pub fn to_memory(message: &PriorityTableCheckpoint) -> MemoryConfig {
    let when_full = match message.when_full() {
        priority_table_checkpoint::WhenFull::Remove => WhenFull::Remove,
        priority_table_checkpoint::WhenFull::Wait => WhenFull::Wait,
    };
    MemoryConfig { max_bytes: to_max_bytes(message.max_bytes), when_full }
}

/// Definition of a table's largest priority, as an enum of messages.
pub fn from_max_priority(max_priority: MaxPriority) -> priority_table_checkpoint::MaxPriority {
    match max_priority {
        MaxPriority::Present => priority_table_checkpoint::MaxPriority::Present,
        MaxPriority::Ever => priority_table_checkpoint::MaxPriority::Ever,
    }
}

/// Definition of a table's largest priority in a message.
pub fn to_max_priority(message: &PriorityTableCheckpoint) -> MaxPriority {
    match message.max_priority() {
        priority_table_checkpoint::MaxPriority::Present => MaxPriority::Present,
        priority_table_checkpoint::MaxPriority::Ever => MaxPriority::Ever,
    }
}

/// The message for the rate limiter of a table, with its counters.
pub fn from_rate_limiter(info: &TableInfo) -> RateLimiterCheckpoint {
    RateLimiterCheckpoint {
        sample_count: info.num_samples,
        insert_count: info.num_inserts,
        delete_count: info.num_deletes,
        ..from_limiter(&info.config.rate_limiter)
    }
}

/// The message for a rate limiter without counters.
pub fn from_limiter(config: &RateLimiterConfig) -> RateLimiterCheckpoint {
    RateLimiterCheckpoint {
        samples_per_insert: config.samples_per_insert,
        min_diff: config.min_diff,
        max_diff: config.max_diff,
        min_size_to_sample: config.min_size_to_sample,
        ..RateLimiterCheckpoint::default()
    }
}

/// The rate limiter that a message describes; its counters are ignored.
pub fn to_rate_limiter(message: &RateLimiterCheckpoint) -> RateLimiterConfig {
    RateLimiterConfig {
        samples_per_insert: message.samples_per_insert,
        min_size_to_sample: message.min_size_to_sample,
        min_diff: message.min_diff,
        max_diff: message.max_diff,
    }
}
