// SPDX-License-Identifier: Apache-2.0
//! What all writers have for Python: items that wait for their confirmation.

use std::sync::Arc;

use pyo3::PyClass;
use pyo3::prelude::*;
use reverb_base::Result;
use reverb_client::SendQueue;

use crate::error::OrRaise;
use crate::process::Local;
use crate::wait::{timeout_ms as timeout, wait};

/// A writer of any class.
#[pyclass(frozen, subclass, module = "reverb.core._native")]
pub(crate) struct QueuedWriter {
    queue: Local<Arc<SendQueue>>,
    /// The class of the writer, for errors.
    name: &'static str,
}

impl QueuedWriter {
    /// The object of a writer with this queue; `writer` has what its class adds.
    pub(crate) fn create<W>(py: Python<'_>, queue: Arc<SendQueue>, writer: W) -> PyResult<Py<W>>
    where
        W: PyClass<BaseType = Self>,
        PyClassInitializer<W>: From<(W, Self)>,
    {
        Py::new(py, (writer, Self { queue: Local::new(queue), name: W::NAME }))
    }

    /// The queue, for a call that outlives this one.
    pub(crate) fn queue(&self) -> Result<Arc<SendQueue>> {
        self.queue.origin().check(self.name)?;
        Ok(Arc::clone(&self.queue))
    }
}

#[pymethods]
impl QueuedWriter {
    /// Waits until at most this many items are not confirmed. The legacy writer has its own.
    #[pyo3(signature = (block_until_num_items, timeout_ms))]
    fn flush(
        &self,
        py: Python<'_>,
        block_until_num_items: usize,
        timeout_ms: Option<i64>,
    ) -> PyResult<()> {
        let queue = self.queue().or_raise()?;
        wait(py, queue.flush(block_until_num_items, timeout(timeout_ms)))
    }

    /// Closes at once. The legacy writer has its own.
    fn close(&self) {
        if self.queue.origin().is_here() {
            self.queue.close();
        }
    }

    /// Logs how many items are not confirmed, if any. `how` says how the program left the writer.
    fn report_unconfirmed(&self, how: &str) {
        if self.queue.origin().is_here() {
            self.queue.report_unconfirmed(how);
        }
    }

    #[pyo3(signature = (max_pending_bytes))]
    fn limit_pending(&self, max_pending_bytes: usize) {
        self.queue.limit_pending(max_pending_bytes);
    }

    /// Returns true if an event loop should make the writer wait; see `AsyncClient.throttle`.
    #[getter]
    fn is_over_limit(&self) -> bool {
        self.queue.is_over_limit()
    }

    /// A writer of the parent is not closed in a forked child, where its lock may be held for ever.
    #[getter]
    fn closed(&self) -> bool {
        self.queue.origin().is_here() && self.queue.is_closed()
    }

    /// Number of items that are not confirmed yet.
    #[getter]
    fn num_pending(&self) -> usize {
        if self.queue.origin().is_here() { self.queue.num_pending() } else { 0 }
    }
}
