// SPDX-License-Identifier: Apache-2.0
//! The one way a call from Python waits: without the GIL, answering Ctrl-C, ended by the interpreter's exit.

use std::pin::pin;
use std::time::Duration;

use pyo3::prelude::*;
use reverb_data::{Error, Result};

use crate::error::OrRaise;
use crate::process::{is_shutting_down, runtime};

/// How long a signal may go unnoticed.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Runs a future to its end. `KeyboardInterrupt` drops it in the middle.
pub(crate) fn wait<T, F>(py: Python<'_>, future: F) -> PyResult<T>
where
    T: Send,
    F: Future<Output = Result<T>> + Send,
{
    let mut future = pin!(future);
    loop {
        let slice = future.as_mut();
        let finished = py.detach(|| {
            runtime().block_on(async { tokio::time::timeout(SIGNAL_POLL, slice).await.ok() })
        });
        if let Some(result) = finished {
            return result.or_raise();
        }
        py.check_signals()?;
        if is_shutting_down() {
            return Err(Error::cancelled("The interpreter is exiting; the call was given up.")).or_raise();
        }
    }
}

/// A timeout in milliseconds as Python gives it: `None` and negative mean no limit.
pub(crate) fn timeout_ms(timeout_ms: Option<i64>) -> Option<Duration> {
    timeout_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
}
