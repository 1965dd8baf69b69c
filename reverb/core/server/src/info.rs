// SPDX-License-Identifier: Apache-2.0
//! Tables as the protocol describes them.

use prost::Message;
use reverb_engine::{RateLimiterConfig, SelectorConfig, TableInfo, WorkerTime};
use reverb_wire::generated as proto;
use reverb_wire::generated::key_distribution_options::{Distribution, Heap, Prioritized};
use reverb_wire::generated::tensorflow::StructuredValue;

/// The message about a table. Parts with only default values are present all the same: clients look
/// for them.
pub fn table_info(info: &TableInfo) -> proto::TableInfo {
    let config = &info.config;
    // Who gave the table its signature has checked it; one that cannot be read is none.
    let signature = config.signature.as_ref();
    let signature = signature.and_then(|it| StructuredValue::decode(it.encoded.as_ref()).ok());
    proto::TableInfo {
        sampler_options: Some(selector(config.sampler)),
        remover_options: Some(selector(config.remover)),
        max_size: config.max_size,
        max_times_sampled: config.max_times_sampled,
        rate_limiter_info: Some(rate_limiter(
            &config.rate_limiter,
            info.num_inserts,
            info.num_samples,
        )),
        signature,
        current_size: info.current_size,
        name: config.name.clone(),
        num_episodes: info.num_episodes,
        num_deleted_episodes: info.num_deleted_episodes,
        num_unique_samples: info.num_unique_samples,
        table_worker_time: Some(worker_time(info.worker_time)),
    }
}

/// A selector as the protocol names it.
pub fn selector(config: SelectorConfig) -> proto::KeyDistributionOptions {
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

fn worker_time(time: WorkerTime) -> proto::TableWorkerTime {
    proto::TableWorkerTime {
        running_ms: time.running_ms,
        sampling_ms: time.sampling_ms,
        inserting_ms: time.inserting_ms,
        sleeping_ms: time.sleeping_ms,
        waiting_for_sampling_ms: time.waiting_for_sampling_ms,
        waiting_for_inserts_ms: time.waiting_for_inserts_ms,
    }
}
