// SPDX-License-Identifier: Apache-2.0
//! The settings of a table as messages name them, and back.

use prost::Message;
use reverb_data::{Error, Result};
use reverb_engine::{
    Counters, RateLimiterConfig, SelectorConfig, TableConfig, TableInfo, TableSignature,
};
use reverb_wire::convert::signature::flatten_signature;
use reverb_wire::generated as proto;
use reverb_wire::generated::key_distribution_options::{Distribution, Heap, Prioritized};
use reverb_wire::generated::tensorflow::StructuredValue;

/// A selector as the protocol names it.
pub fn selector_options(config: SelectorConfig) -> proto::KeyDistributionOptions {
    let distribution = match config {
        SelectorConfig::Fifo => Distribution::Fifo(true),
        SelectorConfig::Lifo => Distribution::Lifo(true),
        SelectorConfig::Uniform => Distribution::Uniform(true),
        SelectorConfig::Prioritized { priority_exponent } => {
            Distribution::Prioritized(Prioritized { priority_exponent })
        }
        SelectorConfig::Heap { min_heap } => Distribution::Heap(Heap { min_heap }),
    };
    proto::KeyDistributionOptions {
        is_deterministic: config.is_deterministic(),
        distribution: Some(distribution),
    }
}

/// The message behind a signature.
pub fn signature_message(signature: &TableSignature) -> Option<StructuredValue> {
    // Who gave the table its signature has checked it; one that cannot be read is none.
    StructuredValue::decode(signature.encoded.as_ref()).ok()
}

/// A signature of a message.
///
/// # Errors
///
/// `InvalidArgument` if it holds anything but specs.
pub fn signature_of(message: &StructuredValue) -> Result<TableSignature> {
    let flat = flatten_signature(message)?;
    Ok(TableSignature { flat, encoded: message.encode_to_vec().into() })
}

fn selector_config(
    which: &str,
    options: Option<&proto::KeyDistributionOptions>,
) -> Result<SelectorConfig> {
    let distribution = options.and_then(|options| options.distribution.as_ref());
    let config = match distribution {
        Some(Distribution::Fifo(true)) => SelectorConfig::Fifo,
        Some(Distribution::Lifo(true)) => SelectorConfig::Lifo,
        Some(Distribution::Uniform(true)) => SelectorConfig::Uniform,
        Some(Distribution::Prioritized(Prioritized { priority_exponent })) => {
            SelectorConfig::Prioritized { priority_exponent: *priority_exponent }
        }
        Some(Distribution::Heap(Heap { min_heap })) => SelectorConfig::Heap { min_heap: *min_heap },
        _ => return Err(Error::invalid_argument(format!("{which} is not set."))),
    };
    Ok(config)
}

/// What a checkpoint says about a table besides its items.
pub(crate) fn to_message(info: &TableInfo) -> proto::PriorityTableCheckpoint {
    let TableConfig { rate_limiter, .. } = &info.config;
    proto::PriorityTableCheckpoint {
        table_name: info.config.name.clone(),
        rate_limiter: Some(proto::RateLimiterCheckpoint {
            samples_per_insert: rate_limiter.samples_per_insert,
            min_diff: rate_limiter.min_diff,
            max_diff: rate_limiter.max_diff,
            min_size_to_sample: rate_limiter.min_size_to_sample,
            sample_count: info.num_samples,
            insert_count: info.num_inserts,
            delete_count: info.num_deletes,
        }),
        sampler: Some(selector_options(info.config.sampler)),
        remover: Some(selector_options(info.config.remover)),
        max_size: info.config.max_size,
        max_times_sampled: info.config.max_times_sampled,
        num_deleted_episodes: info.num_deleted_episodes,
        signature: info.config.signature.as_ref().and_then(signature_message),
        num_unique_samples: info.num_unique_samples,
        ..proto::PriorityTableCheckpoint::default()
    }
}

/// A stored table as a server describes one: what a checkpoint does not have is 0.
pub fn table_info(message: &proto::PriorityTableCheckpoint) -> proto::TableInfo {
    let limiter = message.rate_limiter.unwrap_or_default();
    let stats = |completed| Some(proto::RateLimiterCallStats { completed });
    proto::TableInfo {
        name: message.table_name.clone(),
        sampler_options: message.sampler,
        remover_options: message.remover,
        max_size: message.max_size,
        current_size: limiter.insert_count - limiter.delete_count,
        rate_limiter_info: Some(proto::RateLimiterInfo {
            samples_per_insert: limiter.samples_per_insert,
            min_diff: limiter.min_diff,
            max_diff: limiter.max_diff,
            min_size_to_sample: limiter.min_size_to_sample,
            insert_stats: stats(limiter.insert_count),
            sample_stats: stats(limiter.sample_count),
        }),
        signature: message.signature.clone(),
        max_times_sampled: message.max_times_sampled,
        num_deleted_episodes: message.num_deleted_episodes,
        num_unique_samples: message.num_unique_samples,
        ..proto::TableInfo::default()
    }
}

/// The settings in such a message.
///
/// # Errors
///
/// `InvalidArgument` that names what a table cannot have.
pub(crate) fn config_of(message: &proto::PriorityTableCheckpoint) -> Result<TableConfig> {
    let rate_limiter = message.rate_limiter.unwrap_or_default();
    let config = TableConfig {
        name: message.table_name.clone(),
        sampler: selector_config("sampler", message.sampler.as_ref())?,
        remover: selector_config("remover", message.remover.as_ref())?,
        max_size: message.max_size,
        max_times_sampled: message.max_times_sampled,
        rate_limiter: RateLimiterConfig {
            samples_per_insert: rate_limiter.samples_per_insert,
            min_size_to_sample: rate_limiter.min_size_to_sample,
            min_diff: rate_limiter.min_diff,
            max_diff: rate_limiter.max_diff,
        },
        signature: message.signature.as_ref().map(signature_of).transpose()?,
        seed: None,
    };
    config.validate()?;
    Ok(config)
}

/// The counters in such a message.
pub(crate) fn counters_of(message: &proto::PriorityTableCheckpoint) -> Counters {
    let rate_limiter = message.rate_limiter.unwrap_or_default();
    Counters {
        inserts: rate_limiter.insert_count,
        samples: rate_limiter.sample_count,
        deletes: rate_limiter.delete_count,
        deleted_episodes: message.num_deleted_episodes,
        unique_samples: message.num_unique_samples,
    }
}

/// The settings in which a stored table differs from one in code: name, stored value, value in code.
pub(crate) fn differences(
    stored: &proto::PriorityTableCheckpoint,
    code: &TableConfig,
) -> Vec<(&'static str, String, String)> {
    let limiter = stored.rate_limiter.unwrap_or_default();
    let selector = |options: &Option<_>| selector_config("", options.as_ref()).ok();
    let text = |config: Option<SelectorConfig>| {
        config.map_or_else(|| "not set".to_owned(), |config| format!("{config:?}"))
    };
    let flat = |signature: Option<TableSignature>| signature.map(|signature| signature.flat);
    let stored_signature = stored.signature.as_ref().and_then(|it| signature_of(it).ok());
    let (stored_signature, code_signature) = (flat(stored_signature), flat(code.signature.clone()));
    let describe = |signature: &Option<reverb_data::Signature>| {
        signature.as_ref().map_or_else(|| "none".to_owned(), reverb_data::Signature::describe)
    };
    let all = [
        ("sampler", text(selector(&stored.sampler)), text(Some(code.sampler))),
        ("remover", text(selector(&stored.remover)), text(Some(code.remover))),
        ("max_size", stored.max_size.to_string(), code.max_size.to_string()),
        (
            "max_times_sampled",
            stored.max_times_sampled.max(0).to_string(),
            code.max_times_sampled.max(0).to_string(),
        ),
        (
            "samples_per_insert",
            limiter.samples_per_insert.to_string(),
            code.rate_limiter.samples_per_insert.to_string(),
        ),
        (
            "min_size_to_sample",
            limiter.min_size_to_sample.to_string(),
            code.rate_limiter.min_size_to_sample.to_string(),
        ),
        ("min_diff", bound(limiter.min_diff), bound(code.rate_limiter.min_diff)),
        ("max_diff", bound(limiter.max_diff), bound(code.rate_limiter.max_diff)),
        ("signature", describe(&stored_signature), describe(&code_signature)),
    ];
    all.into_iter().filter(|(_, stored, code)| stored != code).collect()
}

/// A limit in few digits: "none" is the largest double, which has 309.
fn bound(value: f64) -> String {
    if value.abs() < 1e15 { value.to_string() } else { format!("{value:.5e}") }
}
