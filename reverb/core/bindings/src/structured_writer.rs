// SPDX-License-Identifier: Apache-2.0
//! The structured writer, for Python.

use std::sync::Arc;

use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use reverb_client::StructuredWriter as Core;

use crate::array::{Leaf, parse_leaves};
use crate::error::OrRaise;
use crate::exit;
use crate::process::{Local, runtime};
use crate::queued_writer::QueuedWriter;
use crate::trajectory_writer::label;
use crate::wait::{throttle, timeout_ms as timeout, wait};

/// Writes steps and creates items by patterns. Dropping it waits for its items, for a bounded time.
#[pyclass(frozen, extends = QueuedWriter, module = "reverb.core._native")]
pub(crate) struct StructuredWriter {
    core: Local<Core>,
}

impl StructuredWriter {
    pub(crate) fn wrap(py: Python<'_>, core: Core) -> PyResult<Py<Self>> {
        let queue = Arc::clone(core.queue());
        QueuedWriter::create(py, queue, Self { core: Local::new(core) })
    }

    /// Returns true if dropping it may wait: not in a forked child, at the interpreter's exit, or
    /// in a task.
    fn may_wait(&self) -> bool {
        self.core.origin().is_here()
            && !exit::is_shutting_down()
            && tokio::runtime::Handle::try_current().is_err()
    }

    fn check(&self) -> PyResult<()> {
        self.core.origin().check(Self::NAME).or_raise()
    }
}

impl Drop for StructuredWriter {
    #[expect(clippy::disallowed_methods, reason = "no lock is held")]
    fn drop(&mut self) {
        if self.may_wait() && self.core.queue().num_pending() > 0 {
            Python::attach(|py| py.detach(|| runtime().block_on(self.core.settle())));
        }
    }
}

#[pymethods]
impl StructuredWriter {
    #[getter]
    fn step_is_open(&self) -> bool {
        self.core.step_is_open()
    }

    #[pyo3(signature = (paths))]
    fn set_column_paths(&self, paths: Vec<Bound<'_, PyTuple>>) -> PyResult<()> {
        let labels: PyResult<Vec<String>> = paths.iter().map(|path| label(path)).collect();
        self.core.set_paths(labels?);
        Ok(())
    }

    #[pyo3(signature = (leaves, partial_step))]
    fn append(
        &self,
        py: Python<'_>,
        leaves: Vec<Bound<'_, PyAny>>,
        partial_step: bool,
    ) -> PyResult<()> {
        self.check()?;
        if !self.core.has_signatures() {
            wait(py, self.core.learn_signatures())?;
        }
        let parsed: PyResult<Vec<Leaf<'_>>> = parse_leaves(&leaves, None).collect();
        let mut parsed = parsed?;
        let cells = parsed.iter_mut().map(Leaf::value).collect();
        self.core.append(cells, partial_step).or_raise()?;
        throttle(py, self.core.queue())
    }

    #[pyo3(signature = (clear_buffers, timeout_ms))]
    fn end_episode(
        &self,
        py: Python<'_>,
        clear_buffers: bool,
        timeout_ms: Option<i64>,
    ) -> PyResult<()> {
        self.check()?;
        wait(py, self.core.end_episode(clear_buffers, timeout(timeout_ms)))
    }
}
