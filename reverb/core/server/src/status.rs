// SPDX-License-Identifier: Apache-2.0
//! The `Status` call: all counters of a server at one moment.

pub(crate) mod json;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reverb_auth::Right;
use reverb_base::{Error, ErrorKind, Result};
use reverb_engine::{ChangedBy, Table, TableStatus};
use reverb_rpc::status::Code;
use reverb_wire::convert::table_config::from_max_bytes;
use reverb_wire::generated::reverb::{
    AuthFailureCount, CallCount, CheckpointStatusResponse, MemoryStatus, RefusalCount,
    ReloadFailureCount, SecurityStatus, SetBy as SetByMessage, StatusRequest, StatusResponse,
    StreamStatus, TableStatus as TableStatusMessage, TrafficStatus, WaitReasonResponse,
};

use crate::caller::Caller;
use crate::diagnosis::{Diagnosis, NOTICEABLE, SlowReaders, State, Surroundings, diagnose};
use crate::memory::Memory;
use crate::process_status::process_status;
use crate::rotation::Rotation;
use crate::service::Service;
use crate::streams::{Stream, StreamKind};
use crate::timeline::TablePoint;

/// Status of the server, without tables that the caller may not sample from.
pub(crate) fn status(
    service: &Arc<Service>,
    request: StatusRequest,
    caller: &Caller,
) -> StatusResponse {
    let may_know = |table: &str| caller.may(Right::Sample, table);
    // A caller with rights on some tables only sees nothing of the whole server: no paths, no
    // author of a drain, and no streams without a table.
    let sees_all = caller.may_everywhere(Right::Sample);
    let is_own = |stream: &Stream| stream.caller.as_deref() == caller.name();
    let streams = service.streams.all();
    let (tables, now_ns) = table_statuses(service, &streams, may_know);
    StatusResponse {
        memory: Some(memory_status(&service.memory)),
        tables,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_ns: nanoseconds(service.started_at),
        now_ns,
        traffic: Some(traffic_status(service)),
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
            if sees_all { by } else { SetByMessage { client: String::new(), ..by } }
        }),
        security: Some(security_status(&service.rotation)),
        shards: Vec::new(),
    }
}

/// The status of one table, for a caller that waits for it.
///
/// # Errors
///
/// `TableNotFound` for a table on which the caller has no right.
pub(crate) fn wait_reason(
    service: &Arc<Service>,
    table: &str,
    caller: &Caller,
) -> Result<WaitReasonResponse> {
    let may_see = |known: &str| caller.may_see(known);
    let is_asked = |known: &str| known == table && may_see(known);
    let (tables, now_ns) = table_statuses(service, &service.streams.all(), is_asked);
    let found = tables.into_iter().next();
    let found = found.ok_or_else(|| service.tables.not_found(table, may_see))?;
    let memory = Some(memory_status(&service.memory));
    Ok(WaitReasonResponse { table: Some(found), memory, now_ns })
}

/// The statuses of these tables, and the time at which they were true, in nanoseconds since 1970.
fn table_statuses(
    service: &Arc<Service>,
    streams: &[Arc<Stream>],
    is_asked: impl Fn(&str) -> bool,
) -> (Vec<TableStatusMessage>, i64) {
    let tables: Vec<_> = service.tables.all().iter().map(|table| table.status()).collect();
    let points: Vec<_> = tables.iter().map(TablePoint::new).collect();
    let rates = service.timeline.look(&Arc::downgrade(service), &points);
    let now_ns = nanoseconds(SystemTime::now());
    let around = surroundings(service, now_ns);
    let of_table = |(status, rates): (&TableStatus, _)| {
        let slow_readers = SlowReaders::of(streams, &status.info.config.name);
        let room = service.memory.room_for(status.info.bytes);
        table::table_status(status, &Surroundings { rates, slow_readers, room, ..around.clone() })
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
    let around = surroundings(service, nanoseconds(SystemTime::now()));
    let mut status = table.status();
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

/// Diagnosis of a table.
pub(crate) fn diagnosis(service: &Service, table: &Table) -> Diagnosis {
    let around = surroundings(service, nanoseconds(SystemTime::now()));
    let slow_readers = SlowReaders::of(&service.streams.all(), table.name());
    diagnose(&table.status(), &Surroundings { slow_readers, ..around })
}

/// Facts about the server that all diagnoses share.
fn surroundings(service: &Service, now_ns: i64) -> Surroundings {
    let memory = &service.memory;
    Surroundings {
        rates: None,
        now_ns,
        writers: service.streams.count(StreamKind::Insert),
        readers: service.streams.count(StreamKind::Sample),
        slow_readers: None,
        room: None,
        draining: service.drain.by(),
        full_server: memory
            .max_bytes
            .filter(|_| memory.is_full())
            .map(|max_bytes| (memory.account.total(), max_bytes)),
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

fn stream_status(stream: &Stream, table: Option<Arc<str>>) -> StreamStatus {
    let wait = stream.wait();
    StreamStatus {
        kind: stream.kind.name().to_owned(),
        peer: stream.peer.clone(),
        client: stream.client.clone(),
        table: table.map_or_else(String::new, |table| table.to_string()),
        items: number(stream.items()),
        open_s: stream.opened_at.elapsed().as_secs_f64(),
        waits_for: wait.map_or("", |(waits_for, _)| waits_for.name()).to_owned(),
        wait_s: wait.map_or(0.0, |(_, time)| time.as_secs_f64()),
    }
}

fn memory_status(memory: &Memory) -> MemoryStatus {
    let usage = memory.usage();
    MemoryStatus {
        total: number(usage.total),
        limit: from_max_bytes(memory.max_bytes),
        tables: number(usage.tables),
        queued: number(usage.queued),
        streams: number(usage.streams),
        other: number(usage.other),
        readers: number(usage.readers),
    }
}

fn traffic_status(service: &Service) -> TrafficStatus {
    let (traffic, streams) = (&service.traffic, &service.streams);
    let open = |kind| streams.count(kind) as i64;
    let call = |((method, code), count): ((&str, &str), u64)| CallCount {
        method: method.to_owned(),
        code: code.to_owned(),
        count: number(count),
    };
    TrafficStatus {
        connections: traffic.connections() as i64,
        insert_streams: open(StreamKind::Insert),
        sample_streams: open(StreamKind::Sample),
        scan_streams: open(StreamKind::Scan),
        received_bytes: number(traffic.received_bytes()),
        sent_bytes: number(traffic.sent_bytes()),
        calls: by_method(traffic.calls()).into_iter().map(call).collect(),
        requests: by_method(traffic.requests()).into_iter().map(call).collect(),
        refused: traffic
            .refused()
            .map(|(limit, count)| RefusalCount { limit: limit.to_owned(), count: number(count) })
            .collect(),
        auth_failures: service
            .authentication
            .failures()
            .map(|(reason, count)| AuthFailureCount {
                reason: reason.name().to_owned(),
                count: number(count),
            })
            .collect(),
    }
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

/// Counts by method and code. The two reflection services have a method of the same
/// name, and count together.
fn by_method(
    by_path: impl Iterator<Item = (&'static str, Code, u64)>,
) -> BTreeMap<(&'static str, &'static str), u64> {
    let mut counts = BTreeMap::new();
    for (path, code, count) in by_path.filter(|(_, _, count)| *count > 0) {
        *counts.entry((method_name(path), code.name())).or_default() += count;
    }
    counts
}

/// Name of a method without its package.
fn method_name(path: &'static str) -> &'static str {
    match path.rsplit_once('/') {
        Some((_, name)) => name,
        None => "unknown",
    }
}

fn changed_by(by: &ChangedBy) -> SetByMessage {
    SetByMessage { client: by.client.to_string(), at_ns: nanoseconds(by.at) }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn seconds(time: SystemTime) -> i64 {
    number(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

fn nanoseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
