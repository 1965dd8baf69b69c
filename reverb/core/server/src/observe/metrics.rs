// SPDX-License-Identifier: Apache-2.0
//! Metrics of a server's status: names, types and help texts of all series.

mod disk;
mod rollouts;
mod text;

use reverb_wire::generated::RateLimiterCheckpoint;
use reverb_wire::generated::reverb::{
    CheckpointStatusResponse, Histogram, MemoryForecast, MemoryStatus, ProcessStatus, RemovedItems,
    SecurityStatus, ShardMap, SideStatus, StatusResponse, TableStatus, TrafficStatus,
};

use disk::disk;
use rollouts::rollouts;
pub(crate) use text::Format;
use text::{Kind, Label, Text};

/// Release of dm-reverb with the same protocol.
const PROTOCOL: &str = "dm-reverb 0.14";

const NS_PER_S: f64 = 1e9;
const MS_PER_S: f64 = 1e3;

/// The metrics of a server with this status, which may be a shard of a group.
pub(crate) fn metrics(
    status: &StatusResponse,
    place: Option<(&ShardMap, i32)>,
    format: Format,
) -> String {
    let mut text = Text::new(format, place.map(|(_, index)| index));
    text.family("reverb_build_info", Kind::Info, "Version of the server, and its protocol.");
    text.series(&[("version", &status.version), ("protocol", PROTOCOL)], 1.0);
    text.family(
        "reverb_shards",
        Kind::Gauge,
        "Shards of the group: 1 for this server itself, else 0.",
    );
    if let Some((map, index)) = place {
        for member in map.shards.iter().map(|shard| shard.index) {
            let labels = [("group", &*map.group), ("member", &*member.to_string())];
            text.series(&labels, f64::from(u8::from(member == index)));
        }
    }
    process(&mut text, &status.process.unwrap_or_default());
    memory(&mut text, &status.memory.unwrap_or_default());
    forecast(&mut text, status.forecast.as_ref());
    disk(&mut text, status.store.as_ref());
    traffic(&mut text, status.traffic.as_ref().unwrap_or(&TrafficStatus::default()));
    security(&mut text, status.security.as_ref().unwrap_or(&SecurityStatus::default()));
    let checkpoints = status.checkpoints.as_ref();
    checkpoint(&mut text, checkpoints.unwrap_or(&CheckpointStatusResponse::default()));
    tables(&mut text, &status.tables);
    text.finish()
}

fn process(text: &mut Text, process: &ProcessStatus) {
    let mut one = |name, kind, help, value| {
        text.family(name, kind, help);
        text.series(&[], value);
    };
    one(
        "process_start_time_seconds",
        Kind::Gauge,
        "When the process started, in seconds since 1970.",
        process.started_at_ns as f64 / NS_PER_S,
    );
    one(
        "process_cpu_seconds_total",
        Kind::Counter,
        "CPU time of all threads of the process.",
        process.cpu_s,
    );
    one(
        "process_resident_memory_bytes",
        Kind::Gauge,
        "Memory of the process (RSS).",
        process.resident_bytes as f64,
    );
    one(
        "process_open_fds",
        Kind::Gauge,
        "Open file descriptors of the process.",
        process.open_fds as f64,
    );
    one(
        "process_max_fds",
        Kind::Gauge,
        "Limit of open file descriptors of the process.",
        process.max_fds as f64,
    );
}

fn memory(text: &mut Text, memory: &MemoryStatus) {
    text.family("reverb_memory_bytes", Kind::Gauge, "Bytes of chunks and items, by their use.");
    for (kind, bytes) in [
        ("tables", memory.tables),
        ("streams", memory.streams),
        ("queued", memory.queued),
        ("other", memory.other),
        ("readers", memory.readers),
    ] {
        text.series(&[("kind", kind)], bytes as f64);
    }
    text.family("reverb_memory_limit_bytes", Kind::Gauge, "max_bytes of the server.");
    text.series(&[], limit(memory.limit));
}

/// No series while the forecast is not known.
fn forecast(text: &mut Text, forecast: Option<&MemoryForecast>) {
    let help = "Forecast of the bytes of all tables when they are full.";
    text.family("reverb_memory_forecast_bytes", Kind::Gauge, help);
    if let Some(forecast) = forecast {
        text.series(&[], forecast.needed_bytes as f64);
    }
    let help = "Limit of the memory that full tables reach first.";
    text.family("reverb_memory_first_limit_bytes", Kind::Gauge, help);
    if let Some(forecast) = forecast.filter(|forecast| forecast.first_limit_bytes > 0) {
        let labels = [("limit", &*forecast.first_limit)];
        text.series(&labels, forecast.first_limit_bytes as f64);
    }
}

fn traffic(text: &mut Text, traffic: &TrafficStatus) {
    text.family("reverb_connections", Kind::Gauge, "Open connections.");
    text.series(&[], traffic.connections as f64);
    text.family(
        "reverb_streams",
        Kind::Gauge,
        "Open streams, with those of clients in the process of the server.",
    );
    for (kind, count) in [
        ("insert", traffic.insert_streams),
        ("sample", traffic.sample_streams),
        ("scan", traffic.scan_streams),
    ] {
        text.series(&[("kind", kind)], count as f64);
    }
    text.family("reverb_received_bytes_total", Kind::Counter, "Bytes from all connections.");
    text.series(&[], traffic.received_bytes as f64);
    text.family("reverb_sent_bytes_total", Kind::Counter, "Bytes to all connections.");
    text.series(&[], traffic.sent_bytes as f64);
    text.family("reverb_calls_total", Kind::Counter, "Calls over the network that have ended.");
    for call in &traffic.calls {
        text.series(&[("method", &call.method), ("code", &call.code)], call.count as f64);
    }
    text.family(
        "reverb_requests_total",
        Kind::Counter,
        "Requests over the network that were answered or have failed; those of a stream one by one.",
    );
    for request in &traffic.requests {
        let labels = [("method", &*request.method), ("code", &*request.code)];
        text.series(&labels, request.count as f64);
    }
    text.family(
        "reverb_refused_total",
        Kind::Counter,
        "Connections and calls that were refused, by the limit.",
    );
    for refused in &traffic.refused {
        text.series(&[("limit", &refused.limit)], refused.count as f64);
    }
    text.family(
        "reverb_auth_failures_total",
        Kind::Counter,
        "Callers without a good token or certificate, or without the right, by the reason.",
    );
    for failures in &traffic.auth_failures {
        text.series(&[("reason", &failures.reason)], failures.count as f64);
    }
}

/// Leaves out absent features: the expiry of certificates without TLS, refusals without tokens.
fn security(text: &mut Text, security: &SecurityStatus) {
    text.family(
        "reverb_tls_certificate_expiry_timestamp_seconds",
        Kind::Gauge,
        "When the certificate in use expires, in seconds since 1970.",
    );
    if let Some(at) = security.certificate_expires_at_s {
        text.series(&[], at as f64);
    }
    text.family(
        "reverb_reload_failures_total",
        Kind::Counter,
        "Changes of certificates or tokens that could not be used; each problem counts once.",
    );
    for failures in &security.reload_failures {
        text.series(&[("file", &failures.file)], failures.count as f64);
    }
}

fn checkpoint(text: &mut Text, status: &CheckpointStatusResponse) {
    text.family("reverb_checkpoints_total", Kind::Counter, "Checkpoints, by their result.");
    text.series(&[("result", "saved")], status.num_saved as f64);
    text.series(&[("result", "failed")], status.num_failed as f64);
    let mut one = |name, help, value| {
        text.family(name, Kind::Gauge, help);
        text.series(&[], value);
    };
    one(
        "reverb_checkpoint_last_success_timestamp_seconds",
        "When the last checkpoint was completed, in seconds since 1970; 0: never.",
        status.latest_saved_at_ns as f64 / NS_PER_S,
    );
    one(
        "reverb_checkpoint_last_duration_seconds",
        "Duration of the last checkpoint.",
        status.latest_duration_s,
    );
    one(
        "reverb_checkpoint_last_pause_seconds",
        "Time for which all tables were locked for the last checkpoint.",
        status.latest_pause_ms / MS_PER_S,
    );
    one(
        "reverb_checkpoint_last_bytes",
        "Size of the last checkpoint on disk.",
        status.latest_bytes as f64,
    );
    one(
        "reverb_checkpoint_interval_seconds",
        "Interval of periodic checkpoints; 0: none.",
        status.interval_s,
    );
    one(
        "reverb_checkpoint_saving",
        "1 while a checkpoint is written.",
        f64::from(u8::from(status.is_saving)),
    );
}

/// Stands in for an absent message.
static NO_VALUES: Histogram =
    Histogram { counts: Vec::new(), first_bound: 0.0, num_bounds: 0, sum: 0.0 };
static NONE_REMOVED: RemovedItems = RemovedItems {
    full: 0,
    bytes: 0,
    sampled_out: 0,
    deleted: 0,
    reset: 0,
    unsampled: 0,
    times_sampled: None,
    shrunk: 0,
    lost: 0,
    failed: 0,
    stale: 0,
    replaced: 0,
};

/// Family with one series per table.
struct OfTables<'a> {
    text: &'a mut Text,
    tables: &'a [TableStatus],
}

impl OfTables<'_> {
    fn gauge(&mut self, name: &'static str, help: &str, value: impl Fn(&TableStatus) -> f64) {
        self.family(name, Kind::Gauge, help, value);
    }

    fn counter(&mut self, name: &'static str, help: &str, value: impl Fn(&TableStatus) -> f64) {
        self.family(name, Kind::Counter, help, value);
    }

    fn family(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &str,
        value: impl Fn(&TableStatus) -> f64,
    ) {
        self.text.family(name, kind, help);
        for table in self.tables {
            self.text.series(&[("table", &table.name)], value(table));
        }
    }

    /// One series for each table and each value of another label.
    fn split<const PARTS: usize>(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &str,
        label: &'static str,
        values: impl Fn(&TableStatus) -> [(&'static str, f64); PARTS],
    ) {
        self.text.family(name, kind, help);
        for table in self.tables {
            for (part, value) in values(table) {
                self.text.series(&[("table", &table.name), (label, part)], value);
            }
        }
    }

    /// One series for inserts and one for samples.
    fn sides(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &str,
        value: impl Fn(&SideStatus) -> f64,
    ) {
        self.split(name, kind, help, "side", |table| {
            sides(table).map(|(name, side)| (name, side.map_or(0.0, &value)))
        });
    }
}

fn sides(table: &TableStatus) -> [(&'static str, Option<&SideStatus>); 2] {
    [("insert", table.inserting.as_ref()), ("sample", table.sampling.as_ref())]
}

fn tables(text: &mut Text, tables: &[TableStatus]) {
    let mut all = OfTables { text, tables };
    all.gauge("reverb_table_items", "Number of items.", |table| table.num_items as f64);
    all.gauge("reverb_table_max_items", "max_size.", |table| table.max_items as f64);
    all.gauge("reverb_table_bytes", "Bytes of items and their chunks.", |table| table.bytes as f64);
    all.gauge("reverb_table_max_bytes", "max_bytes.", |table| limit(table.max_bytes));
    all.gauge(
        "reverb_table_forecast_bytes",
        "Forecast of the bytes of the table with max_size items; NaN if unknown.",
        |table| if table.forecast_bytes > 0 { table.forecast_bytes as f64 } else { f64::NAN },
    );
    all.gauge("reverb_table_chunks", "Number of different chunks.", |table| {
        table.num_chunks as f64
    });
    all.gauge("reverb_table_episodes", "Episodes of the items.", |table| table.num_episodes as f64);
    all.gauge(
        "reverb_table_mass",
        "Sum of the weights of all items; NaN if the sampler has no weights.",
        |table| table.mass.unwrap_or(f64::NAN),
    );
    all.counter("reverb_table_inserts_total", "Items added.", |table| table.num_inserts as f64);
    all.counter("reverb_table_samples_total", "Items sampled.", |table| table.num_samples as f64);
    all.counter("reverb_table_priority_updates_total", "Items that got a new priority.", |table| {
        table.num_priority_updates as f64
    });
    removals(&mut all);
    limiter(&mut all);
    waiting(&mut all);
    histograms(all.text, tables);
    rollouts(text, tables);
}

fn removals(all: &mut OfTables<'_>) {
    all.split(
        "reverb_table_removed_total",
        Kind::Counter,
        "Items that left, by the reason.",
        "reason",
        |table| {
            let removed = table.removed.as_ref().unwrap_or(&NONE_REMOVED);
            [
                ("full", removed.full),
                ("bytes", removed.bytes),
                ("sampled_out", removed.sampled_out),
                ("deleted", removed.deleted),
                ("reset", removed.reset),
                ("shrunk", removed.shrunk),
                ("lost", removed.lost),
                ("failed", removed.failed),
                ("stale", removed.stale),
                ("replaced", removed.replaced),
            ]
            .map(|(reason, count)| (reason, count as f64))
        },
    );
    all.counter(
        "reverb_table_removed_unsampled_total",
        "Items that left and had never been sampled.",
        |table| table.removed.as_ref().unwrap_or(&NONE_REMOVED).unsampled as f64,
    );
}

fn limiter(all: &mut OfTables<'_>) {
    let of = |table: &TableStatus| table.limiter.unwrap_or_default();
    all.gauge(
        "reverb_table_limiter_diff",
        "Inserts times samples_per_insert minus samples.",
        |table| table.cursor,
    );
    all.gauge("reverb_table_limiter_min_diff", "Lower bound of the diff.", |table| {
        bound(of(table).min_diff)
    });
    all.gauge("reverb_table_limiter_max_diff", "Upper bound of the diff.", |table| {
        bound(of(table).max_diff)
    });
    all.gauge("reverb_table_limiter_samples_per_insert", "samples_per_insert.", |table| {
        of(table).samples_per_insert
    });
    all.gauge("reverb_table_limiter_min_size", "min_size_to_sample.", |table| {
        let RateLimiterCheckpoint { min_size_to_sample, .. } = of(table);
        min_size_to_sample as f64
    });
}

fn waiting(all: &mut OfTables<'_>) {
    all.sides(
        "reverb_table_waiting",
        Kind::Gauge,
        "Items that wait to be inserted, and requests that wait for samples.",
        |side| side.waiting as f64,
    );
    all.sides(
        "reverb_table_oldest_wait_seconds",
        Kind::Gauge,
        "Age of the oldest waiting insert or sample request; 0 if none waits.",
        |side| side.oldest_wait_s.unwrap_or(0.0),
    );
    all.sides(
        "reverb_table_paused",
        Kind::Gauge,
        "1 while this side of the table is paused.",
        |side| f64::from(u8::from(side.paused.is_some())),
    );
    all.sides(
        "reverb_table_blocked_seconds_total",
        Kind::Counter,
        "Time in which at least one waited.",
        |side| side.blocked_s,
    );
    let last = |side: &Option<SideStatus>| {
        side.as_ref().map_or(0.0, |side| side.last_ns as f64 / NS_PER_S)
    };
    all.gauge(
        "reverb_table_last_insert_timestamp_seconds",
        "When the last item was inserted, in seconds since 1970; 0: never.",
        |table| last(&table.inserting),
    );
    all.gauge(
        "reverb_table_last_sample_timestamp_seconds",
        "When the last item was sampled, in seconds since 1970; 0: never.",
        |table| last(&table.sampling),
    );
    all.split(
        "reverb_table_busy_seconds_total",
        Kind::Counter,
        "Time of the table by activity.",
        "activity",
        |table| {
            let busy = table.busy.unwrap_or_default();
            [
                ("running", busy.running_ms),
                ("sampling", busy.sampling_ms),
                ("inserting", busy.inserting_ms),
                ("sleeping", busy.sleeping_ms),
                ("waiting_for_sampling", busy.waiting_for_sampling_ms),
                ("waiting_for_inserts", busy.waiting_for_inserts_ms),
            ]
            .map(|(activity, ms)| (activity, ms as f64 / MS_PER_S))
        },
    );
}

fn histograms(text: &mut Text, tables: &[TableStatus]) {
    text.family(
        "reverb_table_wait_seconds",
        Kind::Histogram,
        "Wait of each item or sample request in the table's queues.",
    );
    for table in tables {
        for (name, side) in sides(table) {
            let waits = side.and_then(|side| side.wait_s.as_ref());
            histogram(text, &[("table", &table.name), ("side", name)], waits);
        }
    }
    text.family("reverb_table_sample_age_seconds", Kind::Histogram, "Age of each sampled item.");
    for table in tables {
        histogram(text, &[("table", &table.name)], table.sample_age_s.as_ref());
    }
    text.family(
        "reverb_table_times_sampled",
        Kind::Histogram,
        "Number of samples of each item that left.",
    );
    for table in tables {
        let removed = table.removed.as_ref().unwrap_or(&NONE_REMOVED);
        let times = removed.times_sampled.as_ref().unwrap_or(&NO_VALUES);
        let (bounds, above) = buckets(times);
        // Items that were never sampled get a bucket of their own.
        let all = std::iter::once((0.0, removed.unsampled as u64)).chain(bounds);
        text.histogram(&[("table", &table.name)], all, above, times.sum);
    }
}

fn histogram(text: &mut Text, labels: &[Label<'_>], histogram: Option<&Histogram>) {
    let histogram = histogram.unwrap_or(&NO_VALUES);
    let (bounds, above) = buckets(histogram);
    text.histogram(labels, bounds, above, histogram.sum);
}

/// The bounds of a histogram with the numbers of values, and the number above all bounds.
fn buckets(histogram: &Histogram) -> (impl Iterator<Item = (f64, u64)> + '_, u64) {
    let count = |at: usize| histogram.counts.get(at).copied().unwrap_or(0) as u64;
    let bounds = usize::try_from(histogram.num_bounds).unwrap_or(0);
    let bound = |at: usize| histogram.first_bound * 2f64.powi(at as i32);
    ((0..bounds).map(move |at| (bound(at), count(at))), count(bounds))
}

/// Limit in a message; 0 means unlimited.
fn limit(bytes: i64) -> f64 {
    if bytes > 0 { bytes as f64 } else { f64::INFINITY }
}

/// Bound of a rate limiter. The largest and smallest floats mean "unbounded".
fn bound(number: f64) -> f64 {
    if number.abs() >= f64::MAX { f64::INFINITY.copysign(number) } else { number }
}

#[cfg(test)]
mod tests {
    use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

    use super::*;
    use crate::observe::status::json::DESCRIPTOR;

    /// Numbers without a series: sums and rates, which Prometheus makes itself, moments of a
    /// change, counts that a reset takes back, and what is of one stream, one save or one start.
    // Counters are those of the process, so that what was restored is none.
    const NO_SERIES: [&str; 37] = [
        "memory.total",
        "tables.limiter.sample_count",
        "tables.limiter.insert_count",
        "tables.limiter.delete_count",
        "tables.inserting.paused.at_ns",
        "tables.sampling.paused.at_ns",
        "tables.rates.seconds",
        "tables.rates.inserts_per_s",
        "tables.rates.samples_per_s",
        "tables.rates.insert_blocked",
        "tables.rates.sample_blocked",
        "tables.rate_limiter_off.at_ns",
        "tables.restored_inserts",
        "tables.restored_samples",
        "tables.rollouts.oldest_open.num_final",
        "tables.rollouts.oldest_open.num_rollouts",
        "tables.rollouts.oldest_lease.num_items",
        "started_at_ns",
        "now_ns",
        "checkpoints.items_written",
        "checkpoints.items_total",
        "checkpoints.bytes_written",
        "checkpoints.restored_saved_at_ns",
        "streams.items",
        "streams.open_s",
        "streams.wait_s",
        "draining.at_ns",
        "store.failing_since_ns",
        "store.write_bytes_per_second",
        "store.commit",
        "store.recovered.at_ns",
        "store.recovered.commit",
        "store.recovered.items",
        "store.recovered.notes.at_ns",
        "store.recovered.took_seconds",
        "store.recovered.dropped_bytes",
        "store.is_journal",
    ];

    /// A message with all messages below it, each list with one.
    fn filled(of: &MessageDescriptor) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        for field in of.fields() {
            if field.name() == "num_bounds" {
                message.set_field(&field, Value::I32(3));
            }
            let Kind::Message(kind) = field.kind() else { continue };
            if field.name() != "shards" {
                let value = Value::Message(filled(&kind));
                let value = if field.is_list() { Value::List(vec![value]) } else { value };
                message.set_field(&field, value);
            }
        }
        message
    }

    /// Sets a number below a message to 5.
    fn set(message: &mut DynamicMessage, path: &[FieldDescriptor]) {
        let (field, rest) = path.split_first().expect("a field");
        if rest.is_empty() {
            let value = match field.kind() {
                Kind::Double => Value::F64(5.0),
                Kind::Int32 => Value::I32(5),
                Kind::Bool => Value::Bool(true),
                _ => Value::I64(5),
            };
            let value = if field.is_list() { Value::List(vec![value]) } else { value };
            return message.set_field(field, value);
        }
        match message.get_field_mut(field) {
            Value::List(values) => set(values[0].as_message_mut().expect("it is filled"), rest),
            value => set(value.as_message_mut().expect("it is filled"), rest),
        }
    }

    /// The paths of all numbers below a message.
    fn numbers(of: &MessageDescriptor, path: &[FieldDescriptor]) -> Vec<Vec<FieldDescriptor>> {
        let below = |field: FieldDescriptor| {
            let path = [path, std::slice::from_ref(&field)].concat();
            match field.kind() {
                Kind::Message(_) if field.name() == "shards" => vec![],
                Kind::Message(kind) => numbers(&kind, &path),
                Kind::String | Kind::Bytes | Kind::Enum(_) => vec![],
                _ => vec![path],
            }
        };
        of.fields().flat_map(below).collect()
    }

    #[test]
    fn every_number_of_a_status_has_a_series() {
        let text = |message: &DynamicMessage| {
            metrics(&message.transcode_to::<StatusResponse>().unwrap(), None, Format::Prometheus)
        };
        let before = filled(&DESCRIPTOR);
        let has_none = |path: &[FieldDescriptor]| {
            let mut after = before.clone();
            set(&mut after, path);
            text(&before) == text(&after)
        };
        let all = numbers(&DESCRIPTOR, &[]);
        let found = all.iter().filter(|path| has_none(path));
        let names =
            found.map(|path| path.iter().map(FieldDescriptor::name).collect::<Vec<_>>().join("."));
        assert_eq!(names.collect::<Vec<_>>(), NO_SERIES);
    }
}
