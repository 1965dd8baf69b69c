// SPDX-License-Identifier: Apache-2.0
//! Division of a table among the shards of a group. Tables are serialized `PriorityTableCheckpoint`
//! messages; their counters are ignored.

use prost::Message as _;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reverb_base::Error;
use reverb_checkpoint::{from_config, to_config};
use reverb_data::TableConfig;
use reverb_shards::table_part::{narrowness, part, whole};
use reverb_wire::generated::PriorityTableCheckpoint;

use crate::error::OrRaise;

fn parse(table: &[u8]) -> PyResult<TableConfig> {
    let message = PriorityTableCheckpoint::decode(table);
    let message = message.map_err(|error| Error::invalid_argument(error.to_string())).or_raise()?;
    to_config(&message).or_raise()
}

fn encode<'py>(py: Python<'py>, table: &TableConfig) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &from_config(table).encode_to_vec())
}

/// Returns the part of a shard.
#[pyfunction]
#[pyo3(signature = (table, index, num_shards))]
pub(crate) fn table_part<'py>(
    py: Python<'py>,
    table: &[u8],
    index: usize,
    num_shards: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    Ok(encode(py, &part(&parse(table)?, index, num_shards).or_raise()?))
}

/// Returns the table that has these parts; `None` if there are none.
#[pyfunction]
#[pyo3(signature = (parts))]
pub(crate) fn table_whole<'py>(
    py: Python<'py>,
    parts: Vec<Vec<u8>>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let parts = parts.iter().map(|part| parse(part)).collect::<PyResult<Vec<_>>>()?;
    Ok(whole(&parts).map(|table| encode(py, &table)))
}

/// Returns `(error, warning)`.
#[pyfunction]
#[pyo3(signature = (table, num_shards))]
pub(crate) fn table_narrowness(
    table: &[u8],
    num_shards: usize,
) -> PyResult<(Option<String>, Option<String>)> {
    let narrowness = narrowness(&parse(table)?, num_shards);
    Ok((narrowness.error, narrowness.warning))
}
