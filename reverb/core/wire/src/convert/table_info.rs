// SPDX-License-Identifier: Apache-2.0
//! Converts descriptions of tables to messages.

use std::sync::Arc;

use reverb_data::rollouts::{RolloutSettings, RolloutsInfo};
use reverb_data::{
    MaxPriority, MemoryConfig, RateLimiterConfig, SelectorConfig, TableConfig, TableInfo,
    WorkerTime,
};

use super::rollouts;
use super::table_config::{
    from_max_bytes, from_selector, from_signature, to_max_bytes, to_rate_limiter, to_selector,
};
use crate::generated as proto;

/// The message for a table. Parts with only default values are still present, because clients look
/// for them.
pub fn from_table_info(info: &TableInfo) -> proto::TableInfo {
    let config = &info.config;
    proto::TableInfo {
        sampler_options: Some(from_selector(config.sampler)),
        remover_options: Some(from_selector(config.remover)),
        max_size: config.max_size,
        max_times_sampled: config.max_times_sampled,
        rate_limiter_info: Some(rate_limiter(
            &config.rate_limiter,
            info.num_inserts,
            info.num_samples,
        )),
        signature: config.signature.as_ref().and_then(from_signature),
        current_size: info.current_size,
        name: config.name.clone(),
        num_episodes: info.num_episodes,
        num_deleted_episodes: info.num_deleted_episodes,
        num_unique_samples: info.num_unique_samples,
        table_worker_time: Some(worker_time(info.worker_time)),
        max_priority: info.max_priority,
        max_bytes: from_max_bytes(config.memory.max_bytes),
        rollouts: info.rollouts.as_ref().zip(config.rollouts.as_deref()).map(from_rollouts),
    }
}

/// The message for the rollouts of a table with these settings.
pub fn from_rollouts((info, settings): (&RolloutsInfo, &RolloutSettings)) -> proto::RolloutsInfo {
    proto::RolloutsInfo {
        settings: Some(rollouts::from_settings(settings)),
        version: info.version,
        newest: info.newest.to_string(),
        taken: info.taken,
        backlog: info.backlog,
        open: info.open,
        settled: info.settled,
        ready: info.ready,
        leased: info.leased,
        items: Vec::new(),
        left: info.left.iter().map(from_left).collect(),
    }
}

fn from_left((reason, count): &(Box<str>, u64)) -> proto::LeftItems {
    let count = i64::try_from(*count).unwrap_or(i64::MAX);
    proto::LeftItems { reason: reason.to_string(), count }
}

/// Numbers of items that left, by the name of the reason.
pub fn to_left(message: &proto::RolloutsInfo) -> Vec<(Box<str>, u64)> {
    let one = |it: &proto::LeftItems| (it.reason.as_str().into(), it.count.max(0).cast_unsigned());
    message.left.iter().map(one).collect()
}

/// The message for a stored table. Values that a checkpoint does not have are 0.
pub fn from_checkpoint(message: &proto::PriorityTableCheckpoint) -> proto::TableInfo {
    let limiter = message.rate_limiter.unwrap_or_default();
    proto::TableInfo {
        name: message.table_name.clone(),
        sampler_options: message.sampler,
        remover_options: message.remover,
        max_size: message.max_size,
        current_size: message.rollouts.as_ref().map_or_else(
            || limiter.insert_count - limiter.delete_count,
            |it| i64::try_from(it.open + it.settled + it.ready).unwrap_or(i64::MAX),
        ),
        rate_limiter_info: Some(rate_limiter(
            &to_rate_limiter(&limiter),
            limiter.insert_count,
            limiter.sample_count,
        )),
        signature: message.signature.clone(),
        max_times_sampled: message.max_times_sampled,
        num_deleted_episodes: message.num_deleted_episodes,
        num_unique_samples: message.num_unique_samples,
        num_episodes: 0,
        table_worker_time: None,
        max_priority: None,
        max_bytes: message.max_bytes,
        rollouts: message.rollouts.clone(),
    }
}

/// Settings of a message that can change while the table runs, and its selectors.
pub fn to_settings(message: &proto::TableInfo) -> TableConfig {
    let limiter = message.rate_limiter_info.unwrap_or_default();
    let selector =
        |options: &Option<_>| to_selector(options.as_ref()).unwrap_or(SelectorConfig::Fifo);
    TableConfig {
        name: message.name.clone(),
        sampler: selector(&message.sampler_options),
        remover: selector(&message.remover_options),
        max_size: message.max_size,
        max_times_sampled: message.max_times_sampled,
        rate_limiter: RateLimiterConfig {
            samples_per_insert: limiter.samples_per_insert,
            min_size_to_sample: limiter.min_size_to_sample,
            min_diff: limiter.min_diff,
            max_diff: limiter.max_diff,
        },
        signature: None,
        seed: None,
        max_priority: MaxPriority::default(),
        memory: MemoryConfig {
            max_bytes: to_max_bytes(message.max_bytes),
            ..MemoryConfig::default()
        },
        rollouts: settings_of(message.rollouts.as_ref()),
    }
}

/// Settings of the rollouts of a table, if it has some.
pub fn settings_of(message: Option<&proto::RolloutsInfo>) -> Option<Arc<RolloutSettings>> {
    Some(Arc::new(rollouts::to_settings(message?.settings.as_ref()?)))
}

fn rate_limiter(config: &RateLimiterConfig, inserts: i64, samples: i64) -> proto::RateLimiterInfo {
    proto::RateLimiterInfo {
        samples_per_insert: config.samples_per_insert,
        min_diff: config.min_diff,
        max_diff: config.max_diff,
        min_size_to_sample: config.min_size_to_sample,
        insert_stats: Some(proto::RateLimiterCallStats { completed: inserts }),
        sample_stats: Some(proto::RateLimiterCallStats { completed: samples }),
    }
}

/// Message for the time that a table spent in each state.
pub fn worker_time(time: WorkerTime) -> proto::TableWorkerTime {
    proto::TableWorkerTime {
        running_ms: time.running_ms,
        sampling_ms: time.sampling_ms,
        inserting_ms: time.inserting_ms,
        sleeping_ms: time.sleeping_ms,
        waiting_for_sampling_ms: time.waiting_for_sampling_ms,
        waiting_for_inserts_ms: time.waiting_for_inserts_ms,
    }
}
