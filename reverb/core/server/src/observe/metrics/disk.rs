// SPDX-License-Identifier: Apache-2.0
//! Metrics of the directory on disk of a server.

use reverb_base::StoreState;
use reverb_wire::generated::reverb::StoreStatus;

use super::NS_PER_S;
use super::text::{Kind, Text};

/// No series without a store.
pub(super) fn disk(text: &mut Text, store: Option<&StoreStatus>) {
    // The values are then those of an empty status.
    let of = store.cloned().unwrap_or_default();
    let mut family = |name, kind, help, label: &'static str, series: &[(&str, f64)]| {
        text.family(name, kind, help);
        for (part, value) in series.iter().filter(|_| store.is_some()) {
            text.series(&[(label, *part)], *value);
        }
    };
    let help =
        "Bytes in files of the store: payloads of chunks (live), garbage (dead), logs, bases.";
    let parts = [
        ("live", of.live_bytes as f64),
        ("dead", of.dead_bytes as f64),
        ("log", of.log_bytes as f64),
        ("base", of.base_bytes as f64),
    ];
    family("reverb_disk_bytes", Kind::Gauge, help, "kind", &parts);
    let help = "Bytes of payloads written first (data), and again to free files of garbage (moved); \
                of logs and bases.";
    let parts = [
        ("data", of.written_bytes as f64),
        ("moved", of.moved_bytes as f64),
        ("log", of.written_log_bytes as f64),
        ("base", of.written_base_bytes as f64),
    ];
    family("reverb_disk_written_bytes_total", Kind::Counter, help, "kind", &parts);
    let help = "Failed calls of the disk; a read of other bytes than were written is one.";
    let parts = [("read", of.read_errors as f64), ("write", of.write_errors as f64)];
    family("reverb_disk_errors_total", Kind::Counter, help, "call", &parts);
    let help = "1 for the state of the store, 0 for the others.";
    let states = StoreState::ALL.map(StoreState::name);
    let parts = states.map(|name| (name, f64::from(u8::from(of.state == name))));
    family("reverb_disk_state", Kind::Gauge, help, "state", &parts);

    let mut one = |name, kind, help, value| {
        text.family(name, kind, help);
        if store.is_some() {
            text.series(&[], value);
        }
    };
    let help = "Limit of the bytes in files.";
    one("reverb_disk_max_bytes", Kind::Gauge, help, of.max_bytes as f64);
    one("reverb_disk_files", Kind::Gauge, "Number of files.", of.files as f64);
    let help = "Payloads in memory that may leave it.";
    one("reverb_disk_resident_bytes", Kind::Gauge, help, of.resident_bytes as f64);
    let help = "Payloads that are to be written.";
    one("reverb_disk_waiting_bytes", Kind::Gauge, help, of.waiting_bytes as f64);
    one("reverb_disk_reads_total", Kind::Counter, "Reads of files.", of.reads as f64);
    one("reverb_disk_read_bytes_total", Kind::Counter, "Bytes read.", of.read_bytes as f64);
    let help = "Time of all reads together.";
    one("reverb_disk_read_seconds_total", Kind::Counter, help, of.read_seconds);
    let help = "Age of the oldest change that is not in the journal; 0 without one.";
    one("reverb_disk_lag_seconds", Kind::Gauge, help, of.lag_seconds);
    let help = "When the last commit on disk was made, in seconds since 1970; 0: none.";
    let at = of.synced_at_ns as f64 / NS_PER_S;
    one("reverb_disk_synced_timestamp_seconds", Kind::Gauge, help, at);
    let help = "When the newest base of this server began, in seconds since 1970; 0: never.";
    let at = of.last_base_at_ns as f64 / NS_PER_S;
    one("reverb_disk_last_base_timestamp_seconds", Kind::Gauge, help, at);
    one("reverb_disk_syncs_total", Kind::Counter, "Syncs of files.", of.syncs as f64);
    let help = "Time of all syncs together.";
    one("reverb_disk_sync_seconds_total", Kind::Counter, help, of.sync_seconds);
}

#[cfg(test)]
mod tests {
    use reverb_wire::generated::reverb::StatusResponse;

    use super::super::{Format, metrics};
    use super::*;

    #[test]
    fn the_disk_has_series_with_a_store_only() {
        let lines = |store| {
            let text =
                metrics(&StatusResponse { store, ..Default::default() }, None, Format::Prometheus);
            let of_disk = text.lines().filter(|line| line.starts_with("reverb_disk_"));
            of_disk.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(None), [""; 0]);
        let found = lines(Some(StoreStatus {
            state: "behind".to_owned(),
            dead_bytes: 7,
            log_bytes: 9,
            lag_seconds: 2.5,
            write_errors: 3,
            ..Default::default()
        }));
        for line in [
            "reverb_disk_bytes{kind=\"live\"} 0",
            "reverb_disk_bytes{kind=\"dead\"} 7",
            "reverb_disk_bytes{kind=\"log\"} 9",
            "reverb_disk_lag_seconds 2.5",
            "reverb_disk_errors_total{call=\"write\"} 3",
            "reverb_disk_state{state=\"ok\"} 0",
            "reverb_disk_state{state=\"behind\"} 1",
        ] {
            assert!(found.iter().any(|it| it == line), "{line}: {found:?}");
        }
    }
}
