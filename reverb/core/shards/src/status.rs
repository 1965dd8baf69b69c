// SPDX-License-Identifier: Apache-2.0
//! Status of a group: the sum over its shards.

mod diagnosis;

use reverb_wire::generated::deepmind::reverb::{RateLimiterCheckpoint, TableInfo};
use reverb_wire::generated::reverb::{
    CheckpointStatusResponse, Diagnosis, Histogram, MemoryStatus, ProcessStatus, RatesStatus,
    RemovedItems, ShardStatus, SideStatus, StatusResponse, StreamStatus, TableChange, TableStatus,
    TrafficStatus,
};

use crate::tables::{add_bound, add_time};
use diagnosis::{Part, SHARD_DOWN, of_group};

/// Merges the status of the shards, and keeps the parts.
pub(crate) fn together(shards: Vec<ShardStatus>) -> StatusResponse {
    let mut sum = StatusResponse::default();
    for shard in &shards {
        let Some(status) = &shard.status else { continue };
        add(&mut sum, status, shard);
    }
    let checkpoints = shards.iter().filter_map(|shard| shard.status.as_ref()?.checkpoints.as_ref());
    sum.checkpoints = Some(checkpoints_together(checkpoints));
    let missing = who_is_missing(&shards);
    for table in &mut sum.tables {
        let parts = parts_of(&shards, &table.name);
        let told = of_group(table, &parts, sum.now_ns);
        // A missing shard is the diagnosis, whatever the states of the others.
        table.diagnosis = Some(match &missing {
            None => told,
            Some(missing) => Diagnosis {
                state: SHARD_DOWN.to_owned(),
                sentence: format!("{missing} Without it: {}, {}", told.state, told.sentence),
            },
        });
    }
    sum.shards = shards;
    sum
}

/// Parts of a table at all shards that answer.
fn parts_of<'a>(shards: &'a [ShardStatus], name: &str) -> Vec<Part<'a>> {
    let parts = shards.iter().filter_map(|shard| {
        let status = shard.status.as_ref()?;
        let table = status.tables.iter().find(|it| it.name == name)?;
        Some(Part { index: shard.index, table, memory: status.memory.unwrap_or_default() })
    });
    parts.collect()
}

/// Sentence with the shards that do not answer; `None` if all do.
fn who_is_missing(shards: &[ShardStatus]) -> Option<String> {
    let down = shards.iter().filter(|it| it.status.is_none());
    let names: Vec<String> = down
        .map(|it| {
            let role = if it.is_coordinator { ", the coordinator" } else { "" };
            format!("{} ({}{role})", it.index, it.address)
        })
        .collect();
    let who = match names.as_slice() {
        [] => return None,
        [only] => format!("Shard {only} does not answer"),
        several => format!("Shards {} do not answer", several.join(", ")),
    };
    let (up, all) = (shards.len() - names.len(), shards.len());
    Some(format!("{who}, so its items are missing; {up} of {all} shards go on."))
}

fn add(sum: &mut StatusResponse, part: &StatusResponse, shard: &ShardStatus) {
    if sum.version.is_empty() {
        sum.version.clone_from(&part.version);
        sum.started_at_ns = part.started_at_ns;
    }
    sum.started_at_ns = sum.started_at_ns.min(part.started_at_ns);
    sum.now_ns = sum.now_ns.max(part.now_ns);
    if let Some(part) = &part.memory {
        add_memory(sum.memory.get_or_insert_default(), part);
    }
    for table in &part.tables {
        match sum.tables.iter_mut().find(|it| it.name == table.name) {
            Some(sum) => add_table(sum, table),
            None => sum.tables.push(table.clone()),
        }
    }
    if let Some(part) = &part.traffic {
        add_traffic(sum.traffic.get_or_insert_default(), part);
    }
    if let Some(part) = &part.process {
        add_process(sum.process.get_or_insert_default(), part);
    }
    let named = |stream: &StreamStatus| StreamStatus {
        peer: format!("{} at shard {}", stream.peer, shard.index),
        ..stream.clone()
    };
    sum.streams.extend(part.streams.iter().map(named));
    if sum.draining.is_none() {
        sum.draining.clone_from(&part.draining);
    }
    if sum.security.is_none() {
        sum.security.clone_from(&part.security);
    }
}

fn add_memory(sum: &mut MemoryStatus, part: &MemoryStatus) {
    sum.total += part.total;
    sum.limit += part.limit;
    sum.tables += part.tables;
    sum.queued += part.queued;
    sum.streams += part.streams;
    sum.other += part.other;
    sum.readers += part.readers;
}

fn add_process(sum: &mut ProcessStatus, part: &ProcessStatus) {
    sum.started_at_ns = match sum.started_at_ns {
        0 => part.started_at_ns,
        at => at.min(part.started_at_ns),
    };
    sum.cpu_s += part.cpu_s;
    sum.resident_bytes += part.resident_bytes;
    sum.open_fds += part.open_fds;
    sum.max_fds += part.max_fds;
}

fn add_traffic(sum: &mut TrafficStatus, part: &TrafficStatus) {
    sum.connections += part.connections;
    sum.insert_streams += part.insert_streams;
    sum.sample_streams += part.sample_streams;
    sum.scan_streams += part.scan_streams;
    sum.received_bytes += part.received_bytes;
    sum.sent_bytes += part.sent_bytes;
    add_counts(
        &mut sum.calls,
        &part.calls,
        |a, b| a.method == b.method && a.code == b.code,
        |sum, part| sum.count += part.count,
    );
    add_counts(
        &mut sum.refused,
        &part.refused,
        |a, b| a.limit == b.limit,
        |sum, part| sum.count += part.count,
    );
    add_counts(
        &mut sum.auth_failures,
        &part.auth_failures,
        |a, b| a.reason == b.reason,
        |sum, part| sum.count += part.count,
    );
}

/// Adds counts that have the same name.
fn add_counts<T: Clone>(
    sum: &mut Vec<T>,
    part: &[T],
    is_same: impl Fn(&T, &T) -> bool,
    add: impl Fn(&mut T, &T),
) {
    for more in part {
        match sum.iter_mut().find(|it| is_same(it, more)) {
            Some(it) => add(it, more),
            None => sum.push(more.clone()),
        }
    }
}

fn add_table(sum: &mut TableStatus, part: &TableStatus) {
    sum.bytes += part.bytes;
    sum.max_bytes += part.max_bytes;
    sum.num_items += part.num_items;
    sum.num_chunks += part.num_chunks;
    sum.forecast_bytes += part.forecast_bytes;
    sum.max_items = sum.max_items.saturating_add(part.max_items);
    sum.num_episodes += part.num_episodes;
    if let (Some(sum), Some(part)) = (&mut sum.limiter, &part.limiter) {
        add_limiter(sum, part);
    }
    sum.cursor += part.cursor;
    if let (Some(sum), Some(part)) = (&mut sum.mass, part.mass) {
        *sum += part;
    }
    sum.num_inserts += part.num_inserts;
    sum.num_samples += part.num_samples;
    sum.num_priority_updates += part.num_priority_updates;
    if let Some(part) = &part.removed {
        add_removed(sum.removed.get_or_insert_default(), part);
    }
    if let Some(part) = &part.inserting {
        add_side(sum.inserting.get_or_insert_default(), part);
    }
    if let Some(part) = &part.sampling {
        add_side(sum.sampling.get_or_insert_default(), part);
    }
    if let (Some(sum), Some(part)) = (&mut sum.busy, &part.busy) {
        add_time(sum, part);
    }
    add_histogram(&mut sum.sample_age_s, part.sample_age_s.as_ref());
    match (&mut sum.rates, &part.rates) {
        (Some(sum), Some(part)) => add_rates(sum, part),
        (sum @ None, Some(part)) => *sum = Some(*part),
        _ => {}
    }
    if sum.rate_limiter_off.is_none() {
        sum.rate_limiter_off.clone_from(&part.rate_limiter_off);
    }
}

fn add_limiter(sum: &mut RateLimiterCheckpoint, part: &RateLimiterCheckpoint) {
    sum.min_diff = add_bound(sum.min_diff, part.min_diff);
    sum.max_diff = add_bound(sum.max_diff, part.max_diff);
    sum.min_size_to_sample = sum.min_size_to_sample.saturating_add(part.min_size_to_sample);
    sum.sample_count += part.sample_count;
    sum.insert_count += part.insert_count;
    sum.delete_count += part.delete_count;
}

fn add_removed(sum: &mut RemovedItems, part: &RemovedItems) {
    sum.full += part.full;
    sum.bytes += part.bytes;
    sum.sampled_out += part.sampled_out;
    sum.deleted += part.deleted;
    sum.reset += part.reset;
    sum.unsampled += part.unsampled;
    sum.shrunk += part.shrunk;
    add_histogram(&mut sum.times_sampled, part.times_sampled.as_ref());
}

fn add_side(sum: &mut SideStatus, part: &SideStatus) {
    sum.waiting += part.waiting;
    sum.oldest_wait_s = match (sum.oldest_wait_s, part.oldest_wait_s) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    sum.blocked_s = sum.blocked_s.max(part.blocked_s);
    add_histogram(&mut sum.wait_s, part.wait_s.as_ref());
    sum.last_ns = sum.last_ns.max(part.last_ns);
    if sum.paused.is_none() {
        sum.paused.clone_from(&part.paused);
    }
    if sum.reason.is_empty() {
        sum.reason.clone_from(&part.reason);
    }
}

fn add_rates(sum: &mut RatesStatus, part: &RatesStatus) {
    sum.seconds = sum.seconds.max(part.seconds);
    sum.inserts_per_s += part.inserts_per_s;
    sum.samples_per_s += part.samples_per_s;
    sum.insert_blocked = sum.insert_blocked.max(part.insert_blocked);
    sum.sample_blocked = sum.sample_blocked.max(part.sample_blocked);
}

/// The bounds are equal: the shards are of the same release.
fn add_histogram(sum: &mut Option<Histogram>, part: Option<&Histogram>) {
    let Some(part) = part else { return };
    let Some(sum) = sum else {
        *sum = Some(part.clone());
        return;
    };
    if sum.counts.len() < part.counts.len() {
        sum.counts.resize(part.counts.len(), 0);
    }
    sum.counts.iter_mut().zip(&part.counts).for_each(|(sum, part)| *sum += part);
    sum.sum += part.sum;
}

/// Merges the checkpoints of all shards: the latest complete ones count as one.
pub(crate) fn checkpoints_together<'a>(
    all: impl IntoIterator<Item = &'a CheckpointStatusResponse>,
) -> CheckpointStatusResponse {
    let mut sum = CheckpointStatusResponse::default();
    let join = |a: &mut String, b: &str| {
        if !a.is_empty() && !b.is_empty() {
            a.push(',');
        }
        a.push_str(b);
    };
    for part in all {
        sum.is_saving |= part.is_saving;
        sum.items_written += part.items_written;
        sum.items_total += part.items_total;
        sum.bytes_written += part.bytes_written;
        join(&mut sum.latest_path, &part.latest_path);
        sum.latest_saved_at_ns = sum.latest_saved_at_ns.max(part.latest_saved_at_ns);
        sum.latest_duration_s = sum.latest_duration_s.max(part.latest_duration_s);
        sum.latest_pause_ms = sum.latest_pause_ms.max(part.latest_pause_ms);
        join(&mut sum.latest_error, &part.latest_error);
        sum.num_saved += part.num_saved;
        sum.num_failed += part.num_failed;
        join(&mut sum.restored_from, &part.restored_from);
        sum.latest_bytes += part.latest_bytes;
        sum.interval_s = sum.interval_s.max(part.interval_s);
    }
    sum
}

/// The change that undoes `change` at a table with these settings.
pub(crate) fn old_settings(change: &TableChange, table: &TableInfo) -> TableChange {
    let limiter = table.rate_limiter_info.unwrap_or_default();
    let exponent = match crate::tables::sampling(table) {
        crate::table_stats::Sampling::Prioritized { exponent } => Some(exponent),
        _ => None,
    };
    TableChange {
        table: change.table.clone(),
        max_size: change.max_size.map(|_| table.max_size),
        max_bytes: change.max_bytes.map(|_| table.max_bytes),
        max_times_sampled: change.max_times_sampled.map(|_| table.max_times_sampled),
        rate_limiter: change.rate_limiter.map(|_| RateLimiterCheckpoint {
            samples_per_insert: limiter.samples_per_insert,
            min_diff: limiter.min_diff,
            max_diff: limiter.max_diff,
            min_size_to_sample: limiter.min_size_to_sample,
            ..RateLimiterCheckpoint::default()
        }),
        priority_exponent: change.priority_exponent.and(exponent),
        sampler: change.sampler.and(table.sampler_options),
    }
}
