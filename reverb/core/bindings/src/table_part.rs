// SPDX-License-Identifier: Apache-2.0
//! Division of a table among the shards of a group.

use pyo3::prelude::*;
use reverb_shards::table_part::TableNumbers;

use crate::error::OrRaise;

/// The attributes of `reverb.cluster.table_part.TableNumbers`.
#[derive(FromPyObject)]
pub(crate) struct Numbers {
    name: String,
    max_size: i64,
    max_bytes: Option<u64>,
    max_times_sampled: i64,
    samples_per_insert: f64,
    min_size_to_sample: i64,
    min_diff: f64,
    max_diff: f64,
}

impl From<Numbers> for TableNumbers {
    fn from(it: Numbers) -> Self {
        Self {
            name: it.name,
            max_size: it.max_size,
            max_bytes: it.max_bytes,
            max_times_sampled: it.max_times_sampled,
            samples_per_insert: it.samples_per_insert,
            min_size_to_sample: it.min_size_to_sample,
            min_diff: it.min_diff,
            max_diff: it.max_diff,
        }
    }
}

/// Returns `(max_size, max_bytes, min_size_to_sample, min_diff, max_diff)` of a part.
#[pyfunction]
#[pyo3(signature = (table, index, num_shards))]
pub(crate) fn table_part(
    table: Numbers,
    index: usize,
    num_shards: usize,
) -> PyResult<(i64, Option<u64>, i64, f64, f64)> {
    let part = TableNumbers::from(table).part(index, num_shards).or_raise()?;
    Ok((part.max_size, part.max_bytes, part.min_size_to_sample, part.min_diff, part.max_diff))
}

/// Returns `(error, warning)`.
#[pyfunction]
#[pyo3(signature = (table, num_shards))]
pub(crate) fn table_narrowness(
    table: Numbers,
    num_shards: usize,
) -> (Option<String>, Option<String>) {
    let narrowness = TableNumbers::from(table).narrowness(num_shards);
    (narrowness.error, narrowness.warning)
}
