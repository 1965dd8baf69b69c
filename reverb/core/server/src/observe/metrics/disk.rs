// SPDX-License-Identifier: Apache-2.0
//! Metrics of the directory on disk of a server.

use reverb_base::StoreState;
use reverb_wire::generated::reverb::StoreStatus;

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
    let help = "Bytes in files of the store: payloads of chunks (live), and garbage (dead).";
    let parts = [("live", of.live_bytes as f64), ("dead", of.dead_bytes as f64)];
    family("reverb_disk_bytes", Kind::Gauge, help, "kind", &parts);
    let help = "Bytes written first (data), and again to free files of garbage (moved).";
    let parts = [("data", of.written_bytes as f64), ("moved", of.moved_bytes as f64)];
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
}

#[cfg(test)]
mod tests {
    use reverb_wire::generated::reverb::StatusResponse;

    use super::super::{Format, metrics};
    use super::*;

    #[test]
    fn the_disk_has_series_with_a_store_only() {
        let lines = |store| {
            let text = metrics(&StatusResponse { store, ..Default::default() }, Format::Prometheus);
            let of_disk = text.lines().filter(|line| line.starts_with("reverb_disk_"));
            of_disk.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(None), [""; 0]);
        let found = lines(Some(StoreStatus {
            state: "failing".to_owned(),
            dead_bytes: 7,
            write_errors: 3,
            ..Default::default()
        }));
        for line in [
            "reverb_disk_bytes{kind=\"live\"} 0",
            "reverb_disk_bytes{kind=\"dead\"} 7",
            "reverb_disk_errors_total{call=\"write\"} 3",
            "reverb_disk_state{state=\"ok\"} 0",
            "reverb_disk_state{state=\"failing\"} 1",
        ] {
            assert!(found.iter().any(|it| it == line), "{line}: {found:?}");
        }
    }
}
