// SPDX-License-Identifier: Apache-2.0
//! A rate limiter that is off, as Python sees it.

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_wire::transport::RateLimiterHold as Core;

use crate::process::Local;
use crate::wait::wait;

/// Keeps a rate limiter off until it is released or dropped.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct RateLimiterHold(Mutex<Option<Local<Box<dyn Core>>>>);

impl RateLimiterHold {
    pub(crate) fn new(hold: Box<dyn Core>) -> Self {
        Self(Mutex::new(Some(Local::new(hold))))
    }
}

#[pymethods]
impl RateLimiterHold {
    /// Turns the limiter on again. Does nothing the second time, and in a forked child.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let hold = self.0.lock().take();
        match hold {
            Some(mut hold) if hold.origin().is_here() => wait(py, hold.release()),
            _ => Ok(()),
        }
    }
}
