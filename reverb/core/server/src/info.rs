// SPDX-License-Identifier: Apache-2.0
//! Tables as the protocol describes them.

use reverb_checkpoint::settings::{selector_options, signature_message};
use reverb_engine::{RateLimiterConfig, TableInfo, WorkerTime};
use reverb_wire::generated as proto;

/// The message about a table. Parts with only default values are present all the same: clients look
/// for them.
pub fn table_info(info: &TableInfo) -> proto::TableInfo {
    let config = &info.config;
    proto::TableInfo {
        sampler_options: Some(selector_options(config.sampler)),
        remover_options: Some(selector_options(config.remover)),
        max_size: config.max_size,
        max_times_sampled: config.max_times_sampled,
        rate_limiter_info: Some(rate_limiter(
            &config.rate_limiter,
            info.num_inserts,
            info.num_samples,
        )),
        signature: config.signature.as_ref().and_then(signature_message),
        current_size: info.current_size,
        name: config.name.clone(),
        num_episodes: info.num_episodes,
        num_deleted_episodes: info.num_deleted_episodes,
        num_unique_samples: info.num_unique_samples,
        table_worker_time: Some(worker_time(info.worker_time)),
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
