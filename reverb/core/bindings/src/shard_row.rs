// SPDX-License-Identifier: Apache-2.0
//! A shard of a group, for Python.

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// One shard, as known by the group.
#[pyclass(frozen, get_all, module = "reverb.core._native")]
pub(crate) struct ShardRow {
    index: i32,
    address: String,
    server_id: Option<u64>,
    num_slots: usize,
    state: String,
    error: String,
    /// Seconds since its last message.
    last_seen_s: Option<f64>,
    tables: Py<PyBytes>,
}

impl ShardRow {
    pub(crate) fn new(py: Python<'_>, row: reverb_shards::info::ShardRow) -> Self {
        Self {
            index: row.index,
            address: row.address,
            server_id: row.server_id,
            num_slots: row.num_slots,
            state: row.state.to_owned(),
            error: row.error,
            last_seen_s: row.last_seen.map(|ago| ago.as_secs_f64()),
            tables: PyBytes::new(py, &row.tables.encode_to_vec()).unbind(),
        }
    }
}
