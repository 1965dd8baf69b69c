// SPDX-License-Identifier: Apache-2.0
//! The legacy writer, for Python.

use std::sync::Arc;
use std::time::Duration;

use pyo3::PyClass;
use pyo3::prelude::*;
use reverb_base::Error;
use reverb_client::LegacyWriter;
use reverb_data::ItemPriority;

use crate::array::{all_values, parse_leaves};
use crate::error::OrRaise;
use crate::exit;
use crate::flat_nest::ColumnNames;
use crate::process::Local;
use crate::queued_writer::QueuedWriter;
use crate::wait::{throttle, wait};

/// Writes whole steps; items cover the last steps of all columns.
#[pyclass(frozen, extends = QueuedWriter, module = "reverb.core._native")]
pub(crate) struct Writer {
    core: Local<LegacyWriter>,
}

impl Writer {
    pub(crate) fn wrap(py: Python<'_>, core: LegacyWriter) -> PyResult<Py<Self>> {
        let queue = Arc::clone(core.queue());
        QueuedWriter::create(py, queue, Self { core: Local::new(core) })
    }

    fn check(&self) -> PyResult<()> {
        self.core.origin().check(Self::NAME).or_raise()
    }
}

/// Appends the leaves of one step; returns true if it completed a chunk.
fn append_step(
    core: &LegacyWriter,
    leaves: &[Bound<'_, PyAny>],
    names: &ColumnNames,
) -> PyResult<bool> {
    let mut parsed = parse_leaves(leaves, Some(&names.0)).collect::<PyResult<Vec<_>>>()?;
    core.append(all_values(&mut parsed, &names.0)?, &names.0).or_raise()
}

#[pymethods]
impl Writer {
    #[pyo3(signature = (leaves, names))]
    fn append(
        &self,
        py: Python<'_>,
        leaves: Vec<Bound<'_, PyAny>>,
        names: &Bound<'_, ColumnNames>,
    ) -> PyResult<()> {
        self.check()?;
        if append_step(&self.core, &leaves, names.get())? {
            wait(py, self.core.settle())?;
        }
        Ok(())
    }

    #[pyo3(signature = (leaves, names))]
    fn append_sequence(
        &self,
        py: Python<'_>,
        leaves: Vec<Bound<'_, PyAny>>,
        names: &Bound<'_, ColumnNames>,
    ) -> PyResult<()> {
        self.check()?;
        let numpy = py.import("numpy")?;
        let arrays: PyResult<Vec<_>> =
            leaves.iter().map(|leaf| numpy.call_method1("asarray", (leaf,))).collect();
        let arrays = arrays?;
        let mut num_steps = None;
        for array in &arrays {
            let shape: Vec<usize> = array.getattr("shape")?.extract()?;
            let Some(&len) = shape.first() else {
                return Err(Error::invalid_argument(
                    "append_sequence needs leaves with a leading dimension of steps, got a scalar",
                ))
                .or_raise();
            };
            if *num_steps.get_or_insert(len) != len {
                return Err(Error::invalid_argument(format!(
                    "append_sequence needs leaves with the same number of steps, got {} and {len}",
                    num_steps.unwrap_or_default()
                )))
                .or_raise();
            }
        }
        let Some(num_steps) = num_steps else {
            return Err(Error::invalid_argument(
                "append_sequence needs at least one leaf, got none",
            ))
            .or_raise();
        };
        for step in 0..num_steps {
            let rows: PyResult<Vec<_>> = arrays.iter().map(|array| array.get_item(step)).collect();
            if append_step(&self.core, &rows?, names.get())? {
                wait(py, self.core.settle())?;
            }
        }
        Ok(())
    }

    #[pyo3(signature = (table, num_timesteps, priority, removal_priority))]
    fn create_item(
        &self,
        py: Python<'_>,
        table: &str,
        num_timesteps: usize,
        priority: f64,
        removal_priority: Option<f64>,
    ) -> PyResult<()> {
        self.check()?;
        let priority = ItemPriority { value: priority, removal: removal_priority };
        // Invalid arguments are reported before any waiting.
        self.core.check(table, num_timesteps).or_raise()?;
        if !self.core.has_item_room() {
            wait(py, self.core.wait_for_item_room())?;
        }
        self.core.create_item(table, num_timesteps, priority).or_raise()?;
        throttle(py, self.core.queue())
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.check()?;
        wait(py, self.core.flush())
    }

    #[pyo3(signature = (retry_on_unavailable))]
    fn close(&self, py: Python<'_>, retry_on_unavailable: bool) -> PyResult<()> {
        if !self.core.origin().is_here() {
            return Ok(());
        }
        let closed = wait(py, self.core.close(retry_on_unavailable));
        if exit::is_shutting_down() && closed.is_err() {
            // The garbage collector usually makes this call, and cannot report an error.
            tracing::warn!(
                "a writer was closed with {} unconfirmed items, because the interpreter is exiting",
                self.core.queue().num_pending()
            );
            return Ok(());
        }
        closed
    }

    /// Sends waiting items, and waits for all confirmations.
    #[pyo3(signature = (timeout_ms))]
    fn confirm(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        self.check()?;
        wait(py, self.core.confirm(Duration::from_millis(timeout_ms)))
    }

    /// Closes at once, without a wait.
    fn abandon(&self) {
        if self.core.origin().is_here() {
            self.core.abandon();
        }
    }

    fn __repr__(&self) -> String {
        let options = self.core.options();
        let (episode_id, step) = self.core.position();
        format!(
            "Writer(chunk_length={}, max_timesteps={}, delta_encoded={}, max_in_flight_items={}, episode_id={episode_id}, \
             index_within_episode={step}, closed={})",
            options.chunk_length,
            options.max_sequence_length,
            u8::from(options.delta_encoded),
            options.max_in_flight_items,
            u8::from(self.core.origin().is_here() && self.core.is_closed()),
        )
    }
}
