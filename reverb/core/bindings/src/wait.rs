// SPDX-License-Identifier: Apache-2.0
//! The one way a call from Python waits: without the GIL, answering Ctrl-C, ended by the
//! interpreter's exit.

use std::pin::pin;
use std::time::Duration;

use pyo3::prelude::*;
use reverb_client::ItemQueue;
use reverb_data::Result;

use crate::error::OrRaise;
use crate::exit::{self, Patience};
use crate::process::runtime;

/// How long a signal may go unnoticed.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Runs a future to its end. `KeyboardInterrupt` drops it in the middle.
pub(crate) fn wait<T, F>(py: Python<'_>, future: F) -> PyResult<T>
where
    T: Send,
    F: Future<Output = Result<T>> + Send,
{
    let mut future = pin!(future);
    let waiting = exit::Waiting::begin();
    let mut patience: Option<Patience> = None;
    loop {
        let slice = future.as_mut();
        let finished = py.detach(|| {
            let finished =
                runtime().block_on(async { tokio::time::timeout(SIGNAL_POLL, slice).await.ok() });
            waiting.park_at_the_end();
            finished
        });
        if let Some(result) = finished {
            if result.is_ok() {
                exit::progressed(py)?;
            }
            return result.or_raise();
        }
        py.check_signals()?;
        if exit::is_shutting_down() {
            let more = match patience.take() {
                Some(patience) => patience,
                None => Patience::new(py)?,
            };
            patience.insert(more).check(py)?;
        }
    }
}

/// Slows a writer down that is faster than its connection.
pub(crate) fn throttle(py: Python<'_>, queue: &ItemQueue) -> PyResult<()> {
    if queue.is_over_limit() { wait(py, queue.throttle()) } else { Ok(()) }
}

/// A timeout in milliseconds as Python gives it: `None` and negative mean no limit.
pub(crate) fn timeout_ms(timeout_ms: Option<i64>) -> Option<Duration> {
    timeout_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
}
