// SPDX-License-Identifier: Apache-2.0
//! Status of a group: the sum over its shards.

mod diagnosis;

use reverb_base::StoreState;
use reverb_data::TableConfig;
use reverb_wire::convert::rollouts;
use reverb_wire::convert::table_config::{from_limiter, from_max_bytes, from_selector};
use reverb_wire::generated::deepmind::reverb::RateLimiterCheckpoint;
use reverb_wire::generated::reverb::{
    CheckpointStatusResponse, Diagnosis, Histogram, MemoryForecast, MemoryStatus, ProcessStatus,
    RatesStatus, RemovedItems, ShardStatus, SideStatus, StatusResponse, StoreRecovery, StoreStatus,
    StreamStatus, TableChange, TableStatus, TrafficStatus,
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
        let diagnosis = of_group(table, &parts, sum.now_ns);
        // A missing shard is the diagnosis, whatever the states of the others.
        table.diagnosis = Some(match &missing {
            None => diagnosis,
            Some(missing) => Diagnosis {
                state: SHARD_DOWN.to_owned(),
                sentence: format!(
                    "{missing} Without it: {}, {}",
                    diagnosis.state, diagnosis.sentence
                ),
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
        let table = status.tables.iter().find(|table| table.name == name)?;
        Some(Part { index: shard.index, table, memory: status.memory.unwrap_or_default() })
    });
    parts.collect()
}

/// Sentence with the shards that do not answer; `None` if all do.
fn who_is_missing(shards: &[ShardStatus]) -> Option<String> {
    let down = shards.iter().filter(|shard| shard.status.is_none());
    let names: Vec<String> = down
        .map(|shard| {
            let role = if shard.is_coordinator { ", the coordinator" } else { "" };
            format!("{} ({}{role})", shard.index, shard.address)
        })
        .collect();
    let who = match names.as_slice() {
        [] => return None,
        [only] => format!("Shard {only} does not answer"),
        several => format!("Shards {} do not answer", several.join(", ")),
    };
    let up = shards.len() - names.len();
    let all = shards.len();
    Some(format!("{who}, so its items are missing; {up} of {all} shards continue."))
}

// The patterns below are exhaustive, so that the compiler points here when a field is added.

fn add(sum: &mut StatusResponse, part: &StatusResponse, shard: &ShardStatus) {
    let StatusResponse {
        version,
        started_at_ns,
        now_ns,
        memory,
        tables,
        traffic,
        process,
        streams,
        draining,
        security,
        store,
        forecast,
        // They are added elsewhere.
        checkpoints: _,
        shards: _,
    } = part;
    if sum.version.is_empty() {
        sum.version.clone_from(version);
        sum.started_at_ns = *started_at_ns;
    }
    sum.started_at_ns = sum.started_at_ns.min(*started_at_ns);
    sum.now_ns = sum.now_ns.max(*now_ns);
    if let Some(part) = memory {
        add_memory(sum.memory.get_or_insert_default(), part);
    }
    for table in tables {
        match sum.tables.iter_mut().find(|known| known.name == table.name) {
            Some(sum) => add_table(sum, table),
            None => sum.tables.push(table.clone()),
        }
    }
    if let Some(part) = traffic {
        add_traffic(sum.traffic.get_or_insert_default(), part);
    }
    if let Some(part) = process {
        add_process(sum.process.get_or_insert_default(), part);
    }
    let named = |stream: &StreamStatus| StreamStatus {
        peer: format!("{} at shard {}", stream.peer, shard.index),
        ..stream.clone()
    };
    sum.streams.extend(streams.iter().map(named));
    if sum.draining.is_none() {
        sum.draining.clone_from(draining);
    }
    if sum.security.is_none() {
        sum.security.clone_from(security);
    }
    match (&mut sum.store, store) {
        (Some(sum), Some(part)) => add_store(sum, part),
        (sum @ None, Some(part)) => *sum = Some(part.clone()),
        (_, None) => {}
    }
    if let Some(part) = forecast {
        add_forecast(&mut sum.forecast, part, shard);
    }
}

/// The group has the forecast of the shard that is nearest to its limit.
fn add_forecast(sum: &mut Option<MemoryForecast>, part: &MemoryForecast, shard: &ShardStatus) {
    let use_of = |it: &MemoryForecast| it.needed_bytes as f64 / it.first_limit_bytes.max(1) as f64;
    if sum.as_ref().is_none_or(|sum| use_of(sum) < use_of(part)) {
        let sentence = format!("Shard {} ({}): {}", shard.index, shard.address, part.sentence);
        *sum = Some(MemoryForecast { sentence, ..part.clone() });
    }
}

/// The state of the group is the gravest one, and the error is the first one.
fn add_store(sum: &mut StoreStatus, part: &StoreStatus) {
    let StoreStatus {
        path,
        state,
        error,
        failing_since_ns,
        live_bytes,
        dead_bytes,
        max_bytes,
        resident_bytes,
        files,
        written_bytes,
        moved_bytes,
        waiting_bytes,
        write_bytes_per_second,
        reads,
        read_bytes,
        read_seconds,
        read_errors,
        write_errors,
        lag_seconds,
        // Each shard counts its own.
        commit: _,
        synced_at_ns,
        log_bytes,
        base_bytes,
        written_log_bytes,
        written_base_bytes,
        syncs,
        sync_seconds,
        last_base_at_ns,
        recovered,
        is_journal,
    } = part;
    join(&mut sum.path, path);
    if StoreState::named(state) > StoreState::named(&sum.state) {
        sum.state.clone_from(state);
    }
    if sum.error.is_empty() {
        sum.error.clone_from(error);
    }
    sum.failing_since_ns = earlier(sum.failing_since_ns, *failing_since_ns);
    sum.live_bytes += live_bytes;
    sum.dead_bytes += dead_bytes;
    sum.max_bytes += max_bytes;
    sum.resident_bytes += resident_bytes;
    sum.files += files;
    sum.written_bytes += written_bytes;
    sum.moved_bytes += moved_bytes;
    sum.waiting_bytes += waiting_bytes;
    sum.write_bytes_per_second += write_bytes_per_second;
    sum.reads += reads;
    sum.read_bytes += read_bytes;
    sum.read_seconds += read_seconds;
    sum.read_errors += read_errors;
    sum.write_errors += write_errors;
    sum.lag_seconds = sum.lag_seconds.max(*lag_seconds);
    sum.commit = 0;
    sum.synced_at_ns = earlier(sum.synced_at_ns, *synced_at_ns);
    sum.log_bytes += log_bytes;
    sum.base_bytes += base_bytes;
    sum.written_log_bytes += written_log_bytes;
    sum.written_base_bytes += written_base_bytes;
    sum.syncs += syncs;
    sum.sync_seconds += sync_seconds;
    sum.last_base_at_ns = earlier(sum.last_base_at_ns, *last_base_at_ns);
    sum.is_journal |= is_journal;
    match (&mut sum.recovered, recovered) {
        (Some(sum), Some(part)) => add_recovery(sum, part),
        (sum @ None, Some(part)) => *sum = Some(part.clone()),
        (_, None) => {}
    }
}

/// The earlier of two moments, of which 0 is none.
fn earlier(one: i64, other: i64) -> i64 {
    if one.min(other) == 0 { one.max(other) } else { one.min(other) }
}

/// The shards belong to moments of their own; the earliest is the group's, with its notes.
fn add_recovery(sum: &mut StoreRecovery, part: &StoreRecovery) {
    let StoreRecovery { at_ns, commit: _, items, notes, took_seconds, dropped_bytes } = part;
    if *at_ns < sum.at_ns {
        sum.at_ns = *at_ns;
        sum.notes.clone_from(notes);
    }
    sum.commit = 0;
    sum.items += items;
    sum.took_seconds = sum.took_seconds.max(*took_seconds);
    sum.dropped_bytes += dropped_bytes;
}

/// Appends a text to a list with commas.
fn join(list: &mut String, text: &str) {
    if !list.is_empty() && !text.is_empty() {
        list.push(',');
    }
    list.push_str(text);
}

fn add_memory(sum: &mut MemoryStatus, part: &MemoryStatus) {
    let MemoryStatus { total, limit, tables, queued, streams, other, readers } = part;
    sum.total += total;
    sum.limit += limit;
    sum.tables += tables;
    sum.queued += queued;
    sum.streams += streams;
    sum.other += other;
    sum.readers += readers;
}

fn add_process(sum: &mut ProcessStatus, part: &ProcessStatus) {
    let ProcessStatus { started_at_ns, cpu_s, resident_bytes, open_fds, max_fds } = part;
    sum.started_at_ns = match sum.started_at_ns {
        0 => *started_at_ns,
        at => at.min(*started_at_ns),
    };
    sum.cpu_s += cpu_s;
    sum.resident_bytes += resident_bytes;
    sum.open_fds += open_fds;
    sum.max_fds += max_fds;
}

fn add_traffic(sum: &mut TrafficStatus, part: &TrafficStatus) {
    let TrafficStatus {
        connections,
        insert_streams,
        sample_streams,
        scan_streams,
        received_bytes,
        sent_bytes,
        calls,
        refused,
        auth_failures,
        requests,
    } = part;
    sum.connections += connections;
    sum.insert_streams += insert_streams;
    sum.sample_streams += sample_streams;
    sum.scan_streams += scan_streams;
    sum.received_bytes += received_bytes;
    sum.sent_bytes += sent_bytes;
    for (sum, part) in [(&mut sum.calls, calls), (&mut sum.requests, requests)] {
        add_counts(
            sum,
            part,
            |a, b| a.method == b.method && a.code == b.code,
            |sum, more| sum.count += more.count,
        );
    }
    add_counts(
        &mut sum.refused,
        refused,
        |a, b| a.limit == b.limit,
        |sum, more| sum.count += more.count,
    );
    add_counts(
        &mut sum.auth_failures,
        auth_failures,
        |a, b| a.reason == b.reason,
        |sum, more| sum.count += more.count,
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
        match sum.iter_mut().find(|known| is_same(known, more)) {
            Some(known) => add(known, more),
            None => sum.push(more.clone()),
        }
    }
}

fn add_table(sum: &mut TableStatus, part: &TableStatus) {
    let TableStatus {
        name: _,
        bytes,
        max_bytes,
        when_full: _,
        num_items,
        num_chunks,
        forecast_bytes,
        max_items,
        num_episodes,
        limiter,
        cursor,
        mass,
        num_inserts,
        num_samples,
        num_priority_updates,
        removed,
        inserting,
        sampling,
        busy,
        sample_age_s,
        diagnosis: _,
        rates,
        rate_limiter_off,
        restored_inserts,
        restored_samples,
        rollouts,
    } = part;
    sum.bytes += bytes;
    sum.max_bytes += max_bytes;
    sum.num_items += num_items;
    sum.num_chunks += num_chunks;
    sum.forecast_bytes += forecast_bytes;
    sum.max_items = sum.max_items.saturating_add(*max_items);
    sum.num_episodes += num_episodes;
    if let (Some(sum), Some(part)) = (&mut sum.limiter, limiter) {
        add_limiter(sum, part);
    }
    sum.cursor += cursor;
    if let (Some(sum), Some(part)) = (&mut sum.mass, *mass) {
        *sum += part;
    }
    sum.num_inserts += num_inserts;
    sum.num_samples += num_samples;
    sum.restored_inserts += restored_inserts;
    sum.restored_samples += restored_samples;
    sum.num_priority_updates += num_priority_updates;
    if let Some(part) = removed {
        add_removed(sum.removed.get_or_insert_default(), part);
    }
    if let Some(part) = inserting {
        add_side(sum.inserting.get_or_insert_default(), part);
    }
    if let Some(part) = sampling {
        add_side(sum.sampling.get_or_insert_default(), part);
    }
    if let (Some(sum), Some(part)) = (&mut sum.busy, busy) {
        add_time(sum, part);
    }
    add_histogram(&mut sum.sample_age_s, sample_age_s.as_ref());
    match (&mut sum.rates, rates) {
        (Some(sum), Some(part)) => add_rates(sum, part),
        (sum @ None, Some(part)) => *sum = Some(*part),
        _ => {}
    }
    if sum.rate_limiter_off.is_none() {
        sum.rate_limiter_off.clone_from(rate_limiter_off);
    }
    // Only a group of one has such a table.
    if sum.rollouts.is_none() {
        sum.rollouts.clone_from(rollouts);
    }
}

fn add_limiter(sum: &mut RateLimiterCheckpoint, part: &RateLimiterCheckpoint) {
    let RateLimiterCheckpoint {
        samples_per_insert: _,
        min_diff,
        max_diff,
        min_size_to_sample,
        sample_count,
        insert_count,
        delete_count,
    } = part;
    sum.min_diff = add_bound(sum.min_diff, *min_diff);
    sum.max_diff = add_bound(sum.max_diff, *max_diff);
    sum.min_size_to_sample = sum.min_size_to_sample.saturating_add(*min_size_to_sample);
    sum.sample_count += sample_count;
    sum.insert_count += insert_count;
    sum.delete_count += delete_count;
}

fn add_removed(sum: &mut RemovedItems, part: &RemovedItems) {
    let RemovedItems {
        full,
        bytes,
        sampled_out,
        deleted,
        reset,
        unsampled,
        times_sampled,
        shrunk,
        lost,
        failed,
        stale,
        replaced,
    } = part;
    sum.full += full;
    sum.bytes += bytes;
    sum.sampled_out += sampled_out;
    sum.deleted += deleted;
    sum.reset += reset;
    sum.unsampled += unsampled;
    sum.shrunk += shrunk;
    sum.lost += lost;
    sum.failed += failed;
    sum.stale += stale;
    sum.replaced += replaced;
    add_histogram(&mut sum.times_sampled, times_sampled.as_ref());
}

fn add_side(sum: &mut SideStatus, part: &SideStatus) {
    let SideStatus { waiting, oldest_wait_s, blocked_s, wait_s, last_ns, paused, reason } = part;
    sum.waiting += waiting;
    sum.oldest_wait_s = match (sum.oldest_wait_s, *oldest_wait_s) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    };
    sum.blocked_s = sum.blocked_s.max(*blocked_s);
    add_histogram(&mut sum.wait_s, wait_s.as_ref());
    sum.last_ns = sum.last_ns.max(*last_ns);
    if sum.paused.is_none() {
        sum.paused.clone_from(paused);
    }
    if sum.reason.is_empty() {
        sum.reason.clone_from(reason);
    }
}

fn add_rates(sum: &mut RatesStatus, part: &RatesStatus) {
    let RatesStatus { seconds, inserts_per_s, samples_per_s, insert_blocked, sample_blocked } =
        part;
    sum.seconds = sum.seconds.max(*seconds);
    sum.inserts_per_s += inserts_per_s;
    sum.samples_per_s += samples_per_s;
    sum.insert_blocked = sum.insert_blocked.max(*insert_blocked);
    sum.sample_blocked = sum.sample_blocked.max(*sample_blocked);
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
    for part in all {
        let CheckpointStatusResponse {
            is_saving,
            items_written,
            items_total,
            bytes_written,
            latest_path,
            latest_saved_at_ns,
            latest_duration_s,
            latest_pause_ms,
            latest_error,
            num_saved,
            num_failed,
            restored_from,
            latest_bytes,
            interval_s,
            restored_saved_at_ns,
        } = part;
        sum.is_saving |= is_saving;
        sum.items_written += items_written;
        sum.items_total += items_total;
        sum.bytes_written += bytes_written;
        join(&mut sum.latest_path, latest_path);
        sum.latest_saved_at_ns = sum.latest_saved_at_ns.max(*latest_saved_at_ns);
        sum.latest_duration_s = sum.latest_duration_s.max(*latest_duration_s);
        sum.latest_pause_ms = sum.latest_pause_ms.max(*latest_pause_ms);
        join(&mut sum.latest_error, latest_error);
        sum.num_saved += num_saved;
        sum.num_failed += num_failed;
        join(&mut sum.restored_from, restored_from);
        sum.restored_saved_at_ns = earlier(sum.restored_saved_at_ns, *restored_saved_at_ns);
        sum.latest_bytes += latest_bytes;
        sum.interval_s = sum.interval_s.max(*interval_s);
    }
    sum
}

/// The settings that `change` has, with the values of this table.
pub(crate) fn settings_in(change: &TableChange, table: &TableConfig) -> TableChange {
    TableChange {
        table: change.table.clone(),
        max_size: change.max_size.and(Some(table.max_size)),
        max_bytes: change.max_bytes.and(Some(from_max_bytes(table.memory.max_bytes))),
        max_times_sampled: change.max_times_sampled.and(Some(table.max_times_sampled)),
        rate_limiter: change.rate_limiter.and(Some(from_limiter(&table.rate_limiter))),
        priority_exponent: change.priority_exponent.and(table.sampler.exponent()),
        sampler: change.sampler.and(Some(from_selector(table.sampler))),
        rollouts: change
            .rollouts
            .as_ref()
            .zip(table.rollouts.as_deref())
            .map(|(change, settings)| rollouts::from_new_settings(settings, change.item.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(store: Option<StoreStatus>) -> ShardStatus {
        let status = Some(StatusResponse { store, ..StatusResponse::default() });
        ShardStatus { status, ..ShardStatus::default() }
    }

    fn store(path: &str, state: &str, error: &str, failing_since_ns: i64) -> StoreStatus {
        let [path, state, error] = [path, state, error].map(str::to_owned);
        StoreStatus { path, state, error, failing_since_ns, live_bytes: 5, ..Default::default() }
    }

    #[test]
    fn the_store_of_a_group_has_the_gravest_state() {
        let parts = [
            store("/a", "ok", "", 0),
            store("/b", "failing", "disk full", 70),
            store("/c", "failing", "other", 50),
            store("/d", "full", "", 0),
            store("/e", "of a later release", "", 0),
        ];
        let mut shards: Vec<_> = parts.into_iter().map(|part| shard(Some(part))).collect();
        shards.push(shard(None));
        let group =
            StoreStatus { live_bytes: 25, ..store("/a,/b,/c,/d,/e", "failing", "disk full", 50) };
        assert_eq!(together(shards.clone()).store, Some(group.clone()));
        shards.reverse();
        let store = together(shards).store.unwrap();
        assert_eq!((store.state, store.failing_since_ns), (group.state, 50));
        assert_eq!(together(vec![shard(None), shard(None)]).store, None);
    }
}
