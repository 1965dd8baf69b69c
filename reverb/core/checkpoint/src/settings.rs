// SPDX-License-Identifier: Apache-2.0
//! The settings and counters of a table in a checkpoint.

use reverb_base::{Error, Result};
use reverb_data::rollouts::{RolloutSettings, RolloutsInfo};
use reverb_data::{
    Counters, MaxPriority, MemoryConfig, RateLimiterConfig, SelectorConfig, Signature, TableConfig,
    TableInfo, Totals, WhenFull,
};
use reverb_wire::convert::rollouts::from_settings;
use reverb_wire::convert::table_config::{
    from_limiter, from_max_bytes, from_max_priority, from_rate_limiter, from_selector,
    from_signature, from_when_full, to_max_priority, to_memory, to_rate_limiter, to_selector,
    to_signature,
};
use reverb_wire::convert::table_info::{from_rollouts, settings_of};
use reverb_wire::generated as proto;

/// Message for a table in a checkpoint, without its items.
pub fn to_message(info: &TableInfo) -> proto::PriorityTableCheckpoint {
    let mut message = from_config(&info.config);
    take_counters(&mut message, &to_counters_message(info));
    message
}

/// Message for the counters of a table, without its settings except those of the rate limiter.
pub fn to_counters_message(info: &TableInfo) -> proto::PriorityTableCheckpoint {
    proto::PriorityTableCheckpoint {
        rate_limiter: Some(from_rate_limiter(info)),
        num_deleted_episodes: info.num_deleted_episodes,
        num_unique_samples: info.num_unique_samples,
        largest_priority: info.largest_priority,
        total_inserts: unless_counted(info.totals.inserts, info.num_inserts),
        total_samples: unless_counted(info.totals.samples, info.num_samples),
        rollouts: info.rollouts.as_ref().zip(info.config.rollouts.as_deref()).map(|both| {
            let RolloutsInfo { taken, taken_held, .. } = *both.0;
            // What clients hold is free in the checkpoint, as if it had been given back.
            proto::RolloutsInfo {
                leased: 0,
                taken: taken.saturating_sub(taken_held),
                ..from_rollouts(both)
            }
        }),
        ..proto::PriorityTableCheckpoint::default()
    }
}

/// Gives a table's message the counters of another one.
pub(crate) fn take_counters(
    message: &mut proto::PriorityTableCheckpoint,
    counters: &proto::PriorityTableCheckpoint,
) {
    message.rate_limiter = counters.rate_limiter;
    message.num_deleted_episodes = counters.num_deleted_episodes;
    message.num_unique_samples = counters.num_unique_samples;
    message.largest_priority = counters.largest_priority;
    message.total_inserts = counters.total_inserts;
    message.total_samples = counters.total_samples;
    if counters.rollouts.is_some() {
        message.rollouts.clone_from(&counters.rollouts);
    }
}

/// Message for settings, without counters.
pub fn from_config(config: &TableConfig) -> proto::PriorityTableCheckpoint {
    // The pattern is exhaustive, so that the compiler points here when an option is added. The seed
    // is not stored.
    let TableConfig {
        name,
        sampler,
        remover,
        max_size,
        max_times_sampled,
        rate_limiter,
        signature,
        seed: _,
        memory: MemoryConfig { max_bytes, when_full },
        max_priority,
        rollouts,
    } = config;
    proto::PriorityTableCheckpoint {
        table_name: name.clone(),
        rate_limiter: Some(from_limiter(rate_limiter)),
        sampler: Some(from_selector(*sampler)),
        remover: Some(from_selector(*remover)),
        max_size: *max_size,
        max_times_sampled: *max_times_sampled,
        signature: signature.as_ref().and_then(from_signature),
        max_bytes: from_max_bytes(*max_bytes),
        when_full: from_when_full(*when_full).into(),
        max_priority: from_max_priority(*max_priority).into(),
        rollouts: rollouts.as_deref().map(|settings| proto::RolloutsInfo {
            settings: Some(from_settings(settings)),
            ..proto::RolloutsInfo::default()
        }),
        ..proto::PriorityTableCheckpoint::default()
    }
}

/// Settings in such a message.
///
/// # Errors
///
/// `InvalidArgument` that names the invalid setting.
pub fn to_config(message: &proto::PriorityTableCheckpoint) -> Result<TableConfig> {
    let config = TableConfig {
        name: message.table_name.clone(),
        sampler: selector("sampler", message.sampler.as_ref())?,
        remover: selector("remover", message.remover.as_ref())?,
        max_size: message.max_size,
        max_times_sampled: message.max_times_sampled,
        rate_limiter: to_rate_limiter(&message.rate_limiter.unwrap_or_default()),
        signature: message.signature.as_ref().map(to_signature).transpose()?,
        seed: None,
        memory: to_memory(message),
        max_priority: to_max_priority(message),
        rollouts: settings_of(message.rollouts.as_ref()),
    };
    config.validate()?;
    Ok(config)
}

/// A total, unless it is what the limiter has counted, as in every table without a reset.
fn unless_counted(total: u64, counted: i64) -> Option<i64> {
    i64::try_from(total).ok().filter(|&total| total != counted)
}

/// Signature of a stored table, if it has one that can be read.
pub(crate) fn stored_signature(message: &proto::PriorityTableCheckpoint) -> Option<Signature> {
    Some(to_signature(message.signature.as_ref()?).ok()?.flat)
}

pub(crate) fn to_counters(message: &proto::PriorityTableCheckpoint) -> Counters {
    let rate_limiter = message.rate_limiter.unwrap_or_default();
    let total = |stored: Option<i64>, counted| stored.unwrap_or(counted).max(0).cast_unsigned();
    Counters {
        inserts: rate_limiter.insert_count,
        samples: rate_limiter.sample_count,
        totals: Totals {
            inserts: total(message.total_inserts, rate_limiter.insert_count),
            samples: total(message.total_samples, rate_limiter.sample_count),
        },
        deletes: rate_limiter.delete_count,
        deleted_episodes: message.num_deleted_episodes,
        unique_samples: message.num_unique_samples,
        largest_priority: message.largest_priority,
    }
}

/// The settings that differ between a stored table and one in code: name, stored value, value in
/// code.
pub(crate) fn differences(
    stored: &proto::PriorityTableCheckpoint,
    code: &TableConfig,
) -> Vec<(&'static str, String, String)> {
    // The pattern is exhaustive, so that the compiler points here when an option is added. The seed
    // is not stored.
    let TableConfig {
        name: _,
        sampler,
        remover,
        max_size,
        max_times_sampled,
        rate_limiter:
            RateLimiterConfig { samples_per_insert, min_size_to_sample, min_diff, max_diff },
        signature,
        seed: _,
        memory: MemoryConfig { max_bytes, when_full },
        max_priority,
        rollouts,
    } = code;
    let limiter = stored.rate_limiter.unwrap_or_default();
    let selector = |options: &Option<_>| to_selector(options.as_ref());
    let text = |config: Option<SelectorConfig>| {
        config.map_or_else(|| "not set".to_owned(), |config| format!("{config:?}"))
    };
    let describe = |signature: Option<&Signature>| {
        signature.map_or_else(|| "none".to_owned(), Signature::describe)
    };
    let code_signature = signature.as_ref().map(|signature| &signature.flat);
    let all = [
        ("sampler", text(selector(&stored.sampler)), text(Some(sampler.without_seed()))),
        ("remover", text(selector(&stored.remover)), text(Some(remover.without_seed()))),
        ("max_size", stored.max_size.to_string(), max_size.to_string()),
        (
            "max_times_sampled",
            stored.max_times_sampled.max(0).to_string(),
            (*max_times_sampled).max(0).to_string(),
        ),
        (
            "samples_per_insert",
            limiter.samples_per_insert.to_string(),
            samples_per_insert.to_string(),
        ),
        (
            "min_size_to_sample",
            limiter.min_size_to_sample.to_string(),
            min_size_to_sample.to_string(),
        ),
        ("min_diff", bound(limiter.min_diff), bound(*min_diff)),
        ("max_diff", bound(limiter.max_diff), bound(*max_diff)),
        ("max_bytes", bytes(to_memory(stored).max_bytes), bytes(*max_bytes)),
        ("when_full", word(to_memory(stored).when_full), word(*when_full)),
        ("max_priority", which(to_max_priority(stored)), which(*max_priority)),
        (
            "rollouts",
            of_rollouts(settings_of(stored.rollouts.as_ref()).as_deref()),
            of_rollouts(rollouts.as_deref()),
        ),
        ("signature", describe(stored_signature(stored).as_ref()), describe(code_signature)),
    ];
    all.into_iter().filter(|(_, stored, code)| stored != code).collect()
}

fn bytes(max_bytes: Option<u64>) -> String {
    max_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string())
}

fn which(max_priority: MaxPriority) -> String {
    format!("{max_priority:?}").to_lowercase()
}

fn of_rollouts(settings: Option<&RolloutSettings>) -> String {
    settings.map_or_else(|| "none".to_owned(), |settings| format!("{settings:?}"))
}

fn word(when_full: WhenFull) -> String {
    format!("{when_full:?}").to_lowercase()
}

fn selector(
    which: &str,
    options: Option<&proto::KeyDistributionOptions>,
) -> Result<SelectorConfig> {
    to_selector(options).ok_or_else(|| Error::invalid_argument(format!("{which} is not set.")))
}

/// Formats a limit. The largest double, which has 309 digits, is "none".
fn bound(value: f64) -> String {
    if value.abs() < 1e15 { value.to_string() } else { format!("{value:.5e}") }
}
