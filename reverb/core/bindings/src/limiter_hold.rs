// SPDX-License-Identifier: Apache-2.0
//! A rate limiter that is turned off, for Python.

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_wire::transport::Hold as Core;

use crate::locks::Visit;
use crate::process::Local;
use crate::wait::wait;

/// Keeps a rate limiter off until it is released or dropped.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct RateLimiterHold(Mutex<Option<Local<Box<dyn Core>>>>);

impl RateLimiterHold {
    pub(crate) fn new(hold: Box<dyn Core>) -> Self {
        Self(Mutex::new(Some(Local::new(hold))))
    }

    /// Takes the hold, if it belongs to this process and was not released.
    pub(crate) fn take(&self) -> Option<Box<dyn Core>> {
        let hold = self.0.visit(Option::take)?;
        hold.origin().is_here().then(|| hold.into_inner())
    }
}

#[pymethods]
impl RateLimiterHold {
    /// Turns the limiter on again. Does nothing the second time, and in a forked child.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        match self.take() {
            Some(mut hold) => wait(py, hold.release()),
            None => Ok(()),
        }
    }
}
