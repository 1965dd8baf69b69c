// SPDX-License-Identifier: Apache-2.0
//! The status of a table as a message.

use reverb_engine::{Histogram as Counted, Removal, Removed, Side, TableStatus as Status};
use reverb_wire::convert::table_config::{from_max_bytes, from_rate_limiter, from_when_full};
use reverb_wire::convert::table_info::worker_time;
use reverb_wire::generated::reverb::{
    Diagnosis, Histogram, RatesStatus, RemovedItems, SideStatus, TableStatus,
};

use super::rollouts::rollouts_status;
use super::{changed_by, number};
use crate::observe::diagnosis::{Surroundings, diagnose};
use crate::observe::forecast::table_forecast;

/// Conversion of the engine's microseconds to seconds.
const MICROSECOND: f64 = 1e-6;
const MILLISECOND: f64 = 1e-3;

/// The status of a table.
pub(crate) fn table_status(status: &Status, around: &Surroundings) -> TableStatus {
    let diagnosis = diagnose(status, around);
    let Status {
        info,
        statistics,
        restored,
        cursor,
        mass,
        limiter_off,
        inserting,
        sampling,
        rollouts,
    } = status;
    let config = &info.config;
    TableStatus {
        name: config.name.clone(),
        bytes: number(info.bytes),
        max_bytes: from_max_bytes(config.memory.max_bytes),
        when_full: from_when_full(config.memory.when_full).into(),
        num_items: info.current_size,
        num_chunks: number(info.num_chunks),
        forecast_bytes: number(
            table_forecast(info).map_or(0, |it| it.bytes.min(around.room.unwrap_or(u64::MAX))),
        ),
        max_items: config.max_size,
        num_episodes: info.num_episodes,
        limiter: Some(from_rate_limiter(info)),
        cursor: *cursor,
        mass: *mass,
        num_inserts: number(statistics.inserts),
        num_samples: number(statistics.sample_ages.count()),
        num_priority_updates: number(statistics.priority_updates),
        removed: Some(removed_items(&statistics.removed)),
        inserting: Some(SideStatus {
            waiting: info.waiting_inserts as i64,
            wait_s: Some(histogram(&statistics.insert_waits, MICROSECOND)),
            last_ns: statistics.last_insert_ns,
            reason: around.why_inserts_wait(status).unwrap_or_default(),
            ..side_status(inserting)
        }),
        sampling: Some(SideStatus {
            waiting: info.waiting_samples as i64,
            wait_s: Some(histogram(&statistics.sample_waits, MICROSECOND)),
            last_ns: statistics.last_sample_ns,
            ..side_status(sampling)
        }),
        busy: Some(worker_time(info.worker_time)),
        sample_age_s: Some(histogram(&statistics.sample_ages, MILLISECOND)),
        diagnosis: Some(Diagnosis {
            state: diagnosis.state.name().to_owned(),
            sentence: diagnosis.sentence(),
        }),
        rates: around.rates.map(|rates| RatesStatus {
            seconds: rates.seconds,
            inserts_per_s: rates.inserts,
            samples_per_s: rates.samples,
            insert_blocked: rates.insert_blocked,
            sample_blocked: rates.sample_blocked,
        }),
        rate_limiter_off: limiter_off.as_ref().map(changed_by),
        restored_inserts: number(restored.inserts),
        restored_samples: number(restored.samples),
        rollouts: rollouts.as_ref().map(|it| rollouts_status(it, &statistics.rollouts)),
    }
}

fn removed_items(removed: &Removed) -> RemovedItems {
    let of = |reason| number(removed.of(reason));
    RemovedItems {
        full: of(Removal::Full),
        bytes: of(Removal::Bytes),
        sampled_out: of(Removal::SampledOut),
        deleted: of(Removal::Deleted),
        reset: of(Removal::Reset),
        shrunk: of(Removal::Shrunk),
        lost: of(Removal::Lost),
        failed: of(Removal::Failed),
        stale: of(Removal::Stale),
        replaced: of(Removal::Replaced),
        unsampled: number(removed.unsampled()),
        times_sampled: Some(histogram(removed.sampled(), 1.0)),
    }
}

fn side_status(side: &Side) -> SideStatus {
    SideStatus {
        oldest_wait_s: side.oldest_wait.map(|wait| wait.as_secs_f64()),
        blocked_s: side.blocked.as_secs_f64(),
        paused: side.paused().map(changed_by),
        reason: side.why_it_waits().unwrap_or_default(),
        ..SideStatus::default()
    }
}

pub(super) fn histogram<const BUCKETS: usize>(counted: &Counted<BUCKETS>, unit: f64) -> Histogram {
    let used = counted.counts().iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    Histogram {
        counts: counted.counts()[..used].iter().map(|&count| number(count)).collect(),
        first_bound: unit,
        num_bounds: BUCKETS as i32 - 1,
        sum: counted.sum() as f64 * unit,
    }
}
