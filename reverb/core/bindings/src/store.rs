// SPDX-License-Identifier: Apache-2.0
//! The journal of a stopped server for Python.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use reverb_files::SystemDisk;
use reverb_store::{StoredTable, check, repair};
use reverb_wire::generated::PriorityTableCheckpoint;

use crate::checkpoint::{blocking, blocking_until_ended};

/// Checks the journal in a directory, and repairs it if `repairs` is true. Returns what it has; its
/// tables have names, numbers of items, and how many are lost by their reasons.
#[pyfunction]
#[pyo3(signature = (path, repairs, bytes_per_second))]
pub(crate) fn examine_store<'py>(
    py: Python<'py>,
    path: PathBuf,
    repairs: bool,
    bytes_per_second: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let disk = Arc::new(SystemDisk);
    let report = if repairs {
        // After Ctrl-C a repair that writes goes on to its end.
        blocking_until_ended(py, move |it| repair(&path, disk, bytes_per_second, it.cancelled()))
    } else {
        blocking(py, move |it| check(&path, disk, bytes_per_second, it.cancelled()))
    }?;
    let dict = PyDict::new(py);
    dict.set_item("is_damaged", report.is_damaged())?;
    dict.set_item("commit", report.commit)?;
    dict.set_item("at", seconds(report.at))?;
    let tables: Vec<_> = report.tables.iter().map(described).collect();
    dict.set_item("tables", tables)?;
    let note = |text| PyBytes::new(py, text);
    let notes = report.notes.iter().map(|it| (seconds(it.at), &it.client, note(&it.text)));
    dict.set_item("notes", notes.collect::<Vec<_>>())?;
    let shard = report.shard.map(|it| (it.index, it.num_shards, it.group));
    dict.set_item("shard", shard)?;
    dict.set_item("files", report.files)?;
    dict.set_item("garbage_bytes", report.garbage_bytes)?;
    dict.set_item("unfinished_bytes", report.dropped_bytes)?;
    dict.set_item("damaged_bases", report.damaged_bases)?;
    dict.set_item("damage", report.damage)?;
    dict.set_item("moved_to", report.moved_to)?;
    Ok(dict)
}

fn described(table: &StoredTable) -> (String, u64, Vec<(&str, usize)>) {
    let message = PriorityTableCheckpoint::decode(&table.settings[..]);
    let name = message.map_or_else(|_| format!("number {}", table.number), |it| it.table_name);
    let lost = table.lost.iter().map(|(why, keys)| (why.as_str(), keys.len()));
    (name, table.num_items, lost.collect())
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
