// SPDX-License-Identifier: Apache-2.0
//! Parts of a status as messages.

pub(crate) mod json;
mod rollouts;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use reverb_auth::Reason;
use reverb_engine::ChangedBy;
use reverb_rpc::server::Traffic;
use reverb_rpc::status::Code;
use reverb_wire::generated::reverb::{
    AuthFailureCount, CallCount, RefusalCount, SetBy, StreamStatus, TrafficStatus,
};

use crate::observe::streams::{Stream, StreamKind, Streams};

pub(crate) use table::table_status;

/// A stream, with the table that it works on.
pub(crate) fn stream_status(stream: &Stream, table: Option<Arc<str>>) -> StreamStatus {
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

/// The counters of a port, of its open streams, and of refused callers by reason.
pub(crate) fn traffic_status(
    traffic: &Traffic,
    streams: &Streams,
    auth_failures: impl Iterator<Item = (Reason, u64)>,
) -> TrafficStatus {
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
        auth_failures: auth_failures
            .map(|(reason, count)| AuthFailureCount {
                reason: reason.name().to_owned(),
                count: number(count),
            })
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

/// The author of a change, and its time.
pub(crate) fn changed_by(by: &ChangedBy) -> SetBy {
    SetBy { client: by.client.to_string(), at_ns: nanoseconds(by.at) }
}

/// A count as messages have it.
pub(crate) fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> i64 {
    number(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// Nanoseconds since 1970.
pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
