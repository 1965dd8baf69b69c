// SPDX-License-Identifier: Apache-2.0
//! A checkpoint on disk for Python, and file operations that Ctrl-C cancels.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reverb_base::{Error, Result};
use reverb_checkpoint::{ItemCursor, Progress, Stored, TableStatistics};
use reverb_data::Sampled;
use reverb_files::masked_crc;
use reverb_wire::convert::table_info::from_checkpoint;

use crate::error::OrRaise;
use crate::process::runtime;
use crate::sampler::{Cursor, Sampler};
use crate::server;
use crate::wait::wait;

const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Cancels the work when its caller stops waiting.
struct CancelOnDrop(Arc<Progress>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn lost() -> Error {
    Error::internal("The work on a checkpoint ended without a result.")
}

/// Runs `work` on a thread for blocking work, and waits for it.
pub(crate) fn blocking<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Arc<Progress>) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let progress = CancelOnDrop(Arc::default());
    let shared = Arc::clone(&progress.0);
    let task = runtime().spawn_blocking(move || work(&shared));
    wait(py, async { task.await.unwrap_or_else(|_| Err(lost())) })
}

/// Like `blocking`, but after Ctrl-C it waits until the work has ended, which is cancelled.
pub(crate) fn blocking_until_ended<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Arc<Progress>) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let progress: Arc<Progress> = Arc::default();
    let mut task = runtime().spawn_blocking({
        let progress = Arc::clone(&progress);
        move || work(&progress)
    });
    let result = wait(py, async { (&mut task).await.unwrap_or_else(|_| Err(lost())) });
    if result.is_err() && !task.is_finished() {
        progress.cancel();
        py.detach(|| drop(runtime().block_on(task)));
    }
    result
}

/// A complete checkpoint.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct StoredCheckpoint {
    stored: Arc<Stored>,
}

type Summary = (f64, f64, f64, f64);
type Statistics = (String, u64, u64, u64, u64, [Option<Summary>; 4], u64);

#[pymethods]
impl StoredCheckpoint {
    #[new]
    #[pyo3(signature = (path, server_name))]
    fn new(py: Python<'_>, path: PathBuf, server_name: Option<&str>) -> PyResult<Self> {
        let name = server::server_name(server_name)?;
        let stored = blocking(py, move |_| Stored::open(&path, name.as_ref()))?;
        Ok(Self { stored: Arc::new(stored) })
    }

    fn path(&self) -> PathBuf {
        self.stored.path().to_owned()
    }

    fn server_name(&self) -> Option<&str> {
        Some(self.stored.server_name()?.as_str())
    }

    /// Group of the server that saved it, index of the shard, and number of shards.
    fn place(&self) -> Option<(&str, u32, u32)> {
        let shard = self.stored.shard()?;
        Some((&shard.group, shard.index, shard.num_shards))
    }

    /// The time of its snapshot, in seconds since 1970.
    fn taken_at(&self) -> Option<f64> {
        let since = self.stored.taken_at()?.duration_since(UNIX_EPOCH).ok()?;
        Some(since.as_secs_f64())
    }

    fn is_in_use(&self) -> bool {
        self.stored.is_in_use()
    }

    /// Size of its files, compared with what the checkpoint says.
    fn num_bytes(&self) -> PyResult<u64> {
        self.stored.bytes().or_raise()
    }

    /// The tables as serialized `TableInfo` messages.
    fn tables<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let tables = self.stored.tables().iter();
        tables
            .map(|table| from_checkpoint(table.message()).encode_to_vec())
            .map(|info| PyBytes::new(py, &info))
            .collect()
    }

    /// The tables as serialized `PriorityTableCheckpoint` messages, as they are stored.
    fn configs<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let tables = self.stored.tables().iter();
        tables.map(|table| PyBytes::new(py, &table.message().encode_to_vec())).collect()
    }

    /// For each table: name, items, chunks, encoded and decoded bytes, (min, median, mean, max) of
    /// insertion time, priority, times sampled and length, and the number of priorities that are 0.
    #[pyo3(signature = (progress))]
    fn statistics(
        &self,
        py: Python<'_>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Statistics>> {
        let stored = Arc::clone(&self.stored);
        let cancel = CancelOnDrop(Arc::default());
        let shared = Arc::clone(&cancel.0);
        let mut task = runtime().spawn_blocking(move || {
            let tables = stored.statistics(&shared)?;
            let names = stored.tables().iter().map(|table| table.name().to_owned());
            Ok(names.zip(tables).map(|(name, table)| summary(name, table)).collect())
        });
        loop {
            let done = wait(py, async {
                Ok(tokio::time::timeout(PROGRESS_INTERVAL, &mut task).await.ok())
            })?;
            if let Some(progress) = &progress {
                progress.call1((cancel.0.items_done(), cancel.0.items_total()))?;
            }
            if let Some(result) = done {
                return result.unwrap_or_else(|_| Err(lost())).or_raise();
            }
        }
    }

    #[pyo3(signature = (table, with_inserted_at))]
    fn scanner(&self, table: &str, with_inserted_at: bool) -> PyResult<Sampler> {
        let cursor = ItemCursor::new(&self.stored, table).or_raise()?;
        let cursor = StoredCursor { cursor: Some(cursor), ready: VecDeque::new(), failure: None };
        let cursor = Cursor::Stored(cursor);
        let mut sampler = Sampler::new(cursor, None);
        sampler.with_inserted_at = with_inserted_at;
        Ok(sampler)
    }
}

fn summary(name: String, table: TableStatistics) -> Statistics {
    let zeros = table.priorities.iter().filter(|&&priority| priority == 0.0).count() as u64;
    let num_items = table.priorities.len() as u64;
    let seconds = table.inserted_at_ns.iter().map(|&ns| ns as f64 / 1e9).collect();
    let times = table.times_sampled.iter().map(|&times| f64::from(times)).collect();
    let lengths = table.lengths.iter().map(|&length| f64::from(length)).collect();
    let summaries = [seconds, table.priorities, times, lengths].map(min_median_mean_max);
    let TableStatistics { num_chunks, chunk_bytes, decoded_bytes, .. } = table;
    (name, num_items, num_chunks, chunk_bytes, decoded_bytes, summaries, zeros)
}

fn min_median_mean_max(mut values: Vec<f64>) -> Option<Summary> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.sort_unstable_by(f64::total_cmp);
    let min = *values.first()?;
    let max = *values.last()?;
    let middle = values.len() / 2;
    let median = if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    };
    Some((min, median, mean, max))
}

/// The items of a checkpoint, read on a thread for blocking work.
pub(crate) struct StoredCursor {
    /// Absent while a thread reads; absent permanently if that read was interrupted.
    cursor: Option<ItemCursor>,
    ready: VecDeque<Sampled>,
    /// Error that ended it; later calls raise it again.
    failure: Option<Error>,
}

impl StoredCursor {
    pub(crate) fn take_ready(&mut self) -> Option<Sampled> {
        self.ready.pop_front()
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Sampled>> {
        if let Some(item) = self.take_ready() {
            return Ok(Some(item));
        }
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let Some(mut cursor) = self.cursor.take() else {
            return Err(Error::failed_precondition(
                "The scan was interrupted while it read; begin a new one.",
            ));
        };
        let read = tokio::task::spawn_blocking(move || {
            let items = cursor.next_items();
            (cursor, items)
        });
        let (cursor, items) = read.await.map_err(|_| lost())?;
        self.cursor = Some(cursor);
        match items {
            Ok(items) => self.ready.extend(items),
            Err(error) => self.failure = Some(error.clone()),
        }
        match &self.failure {
            Some(error) => Err(error.clone()),
            None => Ok(self.take_ready()),
        }
    }
}

/// Masked checksum of records in TensorFlow's file format.
#[pyfunction]
#[pyo3(signature = (data))]
pub(crate) fn masked_crc32c(data: &[u8]) -> u32 {
    masked_crc(data)
}
