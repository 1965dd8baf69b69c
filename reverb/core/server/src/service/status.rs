// SPDX-License-Identifier: Apache-2.0
//! The `Status` call: all counters of a server at one moment.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reverb_auth::Right;
use reverb_base::{Error, ErrorKind, Result};
use reverb_engine::{Table, TableStatus};
use reverb_wire::generated::reverb::{
    CheckpointStatusResponse, MemoryForecast, ReloadFailureCount, SecurityStatus, SetBy,
    StatusRequest, StatusResponse, StoreStatus, TableStatus as TableStatusMessage,
    WaitReasonResponse,
};

use super::Service;
use super::caller::Caller;
use super::local;
use super::process_memory::process_limits;
use super::rotation::Rotation;
use crate::observe::diagnosis::{
    Diagnosis, NOTICEABLE, SlowReaders, State, Surroundings, diagnose,
};
use crate::observe::forecast::{MemoryLimits, memory_forecast};
use crate::observe::long_waits::LONG;
use crate::observe::process_status::process_status;
use crate::observe::status::{
    changed_by, nanoseconds, number, seconds, stream_status, table_status, traffic_status,
};
use crate::observe::streams::{Stream, StreamKind};
use crate::observe::timeline::TablePoint;

/// Status of the server, without tables that the caller may not sample from.
pub(crate) fn status(service: &Service, request: StatusRequest, caller: &Caller) -> StatusResponse {
    let may_know = |table: &str| caller.may(Right::Sample, table);
    // A caller with rights on some tables only sees nothing of the whole server: no paths, no
    // author of a drain, and no streams without a table.
    let sees_all = caller.may_everywhere(Right::Sample);
    let is_own = |stream: &Stream| stream.caller.as_deref() == caller.name();
    let streams = service.streams.all();
    let (tables, now_ns) = table_statuses(service, &streams, sees_all, may_know);
    StatusResponse {
        forecast: forecast(service),
        memory: Some(service.memory.status()),
        tables,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_ns: nanoseconds(service.started_at),
        now_ns,
        traffic: Some(traffic_status(
            &service.traffic,
            &service.streams,
            service.authentication.failures(),
        )),
        checkpoints: Some(checkpoint_status(service, caller)),
        process: Some(process_status()),
        streams: streams
            .iter()
            .filter(|_| request.with_streams)
            .map(|stream| (stream, table_of(service, stream)))
            .filter(|(stream, table)| match table {
                Some(table) => may_know(table),
                None => sees_all || is_own(stream),
            })
            .map(|(stream, table)| stream_status(stream, table))
            .collect(),
        draining: service.drain.by().as_ref().map(|by| {
            let by = changed_by(by);
            if sees_all { by } else { SetBy { client: String::new(), ..by } }
        }),
        security: Some(security_status(&service.rotation)),
        shards: Vec::new(),
        store: service.store_status().map(|it| if sees_all { it } else { without_details(it) }),
    }
}

/// What full tables need, and which limit of the memory they reach first.
fn forecast(service: &Service) -> Option<MemoryForecast> {
    let tables = service.tables.all().iter();
    let tables: Vec<_> = tables.map(|table| (table.info(), table.payload_bytes())).collect();
    let store = service.memory.tier.as_ref().map(|tier| tier.max_bytes());
    let [cgroup, machine] = process_limits();
    let max_bytes = service.memory.max_bytes;
    memory_forecast(&tables, &MemoryLimits { max_bytes, store, cgroup, machine })
}

/// The status of one table, for a caller that waits for it.
///
/// # Errors
///
/// `TableNotFound` for a table on which the caller has no right.
pub(crate) fn wait_reason(
    service: &Service,
    table: &str,
    caller: &Caller,
) -> Result<WaitReasonResponse> {
    let may_see = |known: &str| caller.may_see(known);
    let is_asked = |known: &str| known == table && may_see(known);
    let sees_all = caller.may_everywhere(Right::Sample);
    let (tables, now_ns) = table_statuses(service, &service.streams.all(), sees_all, is_asked);
    let found = tables.into_iter().next();
    let found = found.ok_or_else(|| service.tables.not_found(table, may_see))?;
    let memory = Some(service.memory.status());
    Ok(WaitReasonResponse { table: Some(found), memory, now_ns })
}

/// The statuses of these tables, and the time at which they were true, in nanoseconds since 1970.
fn table_statuses(
    service: &Service,
    streams: &[Arc<Stream>],
    shows_paths: bool,
    is_asked: impl Fn(&str) -> bool,
) -> (Vec<TableStatusMessage>, i64) {
    let tables: Vec<_> = service
        .tables
        .all()
        .iter()
        .map(|table| service.streams.with_held(table.status()))
        .collect();
    let points: Vec<_> = tables.iter().map(TablePoint::new).collect();
    let rates = service.timeline.look(&points);
    let now_ns = nanoseconds(SystemTime::now());
    let around = surroundings(service, now_ns, shows_paths);
    let of_table = |(status, rates): (&TableStatus, _)| {
        let slow_readers = SlowReaders::of(streams, &status.info.config.name);
        let room = service.memory.room_for(status.info.bytes);
        table_status(status, &Surroundings { rates, slow_readers, room, ..around.clone() })
    };
    let asked = tables.iter().zip(rates).filter(|(table, _)| is_asked(&table.info.config.name));
    (asked.map(of_table).collect(), now_ns)
}

/// Status of checkpoints, without paths for a caller with rights on some tables only.
pub(crate) fn checkpoint_status(service: &Service, caller: &Caller) -> CheckpointStatusResponse {
    let status = service.checkpoints.status();
    if caller.may_everywhere(Right::Sample) {
        return status;
    }
    CheckpointStatusResponse {
        latest_path: String::new(),
        restored_from: String::new(),
        latest_error: if status.latest_error.is_empty() {
            String::new()
        } else {
            "The last checkpoint failed; the log of the server says why.".to_owned()
        },
        ..status
    }
}

/// Status of the store for a caller with rights on some tables only.
fn without_details(status: StoreStatus) -> StoreStatus {
    let error = if status.error.is_empty() {
        String::new()
    } else {
        "Writes to the disk fail; the log of the server says why.".to_owned()
    };
    StoreStatus { path: String::new(), error, ..status }
}

/// Adds the diagnosis of the table to the timeout error of a sample request.
///
/// Short waits are normal, so their error stays as it is.
pub(crate) fn explain_timeout(
    service: &Service,
    table: &Table,
    waited: Option<Duration>,
    error: Error,
) -> Error {
    let Some(waited) = waited.filter(|waited| *waited >= NOTICEABLE) else { return error };
    if error.kind() != ErrorKind::RateLimiterTimeout {
        return error;
    }
    let around = surroundings(service, nanoseconds(SystemTime::now()), false);
    let mut status = service.streams.with_held(table.status());
    // The request that timed out has left the queue, so the status does not count it.
    status.info.waiting_samples += 1;
    status.sampling.oldest_wait = status.sampling.oldest_wait.max(Some(waited));
    let Diagnosis { state, around, .. } = diagnose(&status, &around);
    match state {
        // The error already says the same.
        State::Paused | State::Never | State::Idle | State::Flowing => error,
        _ => error.followed_by(&format!("The table is {}: {around}", state.name())),
    }
}

/// Logs long waits at the servers of this process, once each. The caller runs this periodically, so
/// servers need no timer.
pub fn warn_of_long_waits() {
    for service in local::running_servers() {
        let streams = &service.streams;
        for table in service.long_waits.new_ones(service.tables.all(), streams, LONG) {
            let around = surroundings(&service, nanoseconds(SystemTime::now()), true);
            let slow_readers = SlowReaders::of(&streams.all(), table.name());
            let status = streams.with_held(table.status());
            let diagnosis = diagnose(&status, &Surroundings { slow_readers, ..around });
            tracing::warn!(
                table = table.name(),
                "somebody has waited for more than 5 minutes. {}",
                diagnosis.sentence()
            );
        }
    }
}

/// Facts about the server that all diagnoses share, without paths unless their reader may know
/// them.
fn surroundings(service: &Service, now_ns: i64, shows_paths: bool) -> Surroundings {
    let memory = &service.memory;
    Surroundings {
        rates: None,
        now_ns,
        writers: service.streams.count(StreamKind::Insert),
        readers: service.streams.count(StreamKind::Sample),
        slow_readers: None,
        room: None,
        draining: service.drain.by(),
        journal: memory.journal_facts(shows_paths),
        full_server: memory.is_full().then(|| memory.what_makes_room(shows_paths)),
        full_for_growing: memory.full_for_growing(),
    }
}

/// The table that blocks a stream with items for several tables, or else the last one.
fn table_of(service: &Service, stream: &Stream) -> Option<Arc<str>> {
    let lets_wait = |name: &Arc<str>| {
        let table = service.tables.get(name);
        table.is_ok_and(|(_, table)| table.info().waiting_inserts > 0)
    };
    stream.waiting_tables().into_iter().find(lets_wait).or_else(|| stream.table())
}

fn security_status(rotation: &Rotation) -> SecurityStatus {
    SecurityStatus {
        certificate_expires_at_s: rotation.certificate_expires_at().map(seconds),
        reload_failures: rotation
            .failures()
            .map(|(file, count)| ReloadFailureCount { file: file.to_owned(), count: number(count) })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_of_some_tables_see_no_path_and_no_error_of_a_store() {
        let error = "write to /scratch/replay/data-0000000001.seg: Input/output error".to_owned();
        let path = "/scratch/replay".to_owned();
        let status = StoreStatus { path, error, live_bytes: 5, ..StoreStatus::default() };
        let shown = without_details(status);
        assert!(!format!("{shown:?}").contains("scratch"));
        assert_eq!(shown.error, "Writes to the disk fail; the log of the server says why.");
        assert_eq!(shown.live_bytes, 5);
        assert_eq!(without_details(StoreStatus::default()), StoreStatus::default());
    }
}
