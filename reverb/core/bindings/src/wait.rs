// SPDX-License-Identifier: Apache-2.0
//! Waiting of calls from Python: without the GIL, interruptible by Ctrl-C, and ended by the
//! interpreter's exit.

use std::pin::pin;
use std::time::Duration;

use pyo3::prelude::*;
use reverb_base::{Error, Result};
use reverb_client::SendQueue;
use reverb_rpc::client::poll_for;

use crate::error::OrRaise;
use crate::exit::{self, GracePeriod};
use crate::process::runtime;

/// Maximum delay until a signal is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Runs a future to completion. `KeyboardInterrupt` drops it.
pub(crate) fn wait<T, F>(py: Python<'_>, future: F) -> PyResult<T>
where
    T: Send,
    F: Future<Output = Result<T>> + Send,
{
    wait_while(py, future, || Ok(()))
}

/// Like `wait`; an error of `check`, which is asked as often as signals are, drops the future, too.
pub(crate) fn wait_while<T, F>(
    py: Python<'_>,
    future: F,
    check: impl Fn() -> Result<()>,
) -> PyResult<T>
where
    T: Send,
    F: Future<Output = Result<T>> + Send,
{
    let mut future = pin!(future);
    let waiting = exit::Waiting::begin();
    let mut grace_period: Option<GracePeriod> = None;
    loop {
        let slice = future.as_mut();
        let finished = py.detach(|| {
            let finished = poll_for(runtime().handle(), SIGNAL_POLL, slice);
            waiting.park_if_finalizing();
            finished
        });
        if let Some(result) = finished {
            if result.is_ok() {
                exit::record_progress(py)?;
            }
            return result.or_raise();
        }
        py.check_signals()?;
        check().or_raise()?;
        if exit::is_shutting_down() {
            let more = match grace_period.take() {
                Some(grace_period) => grace_period,
                None => GracePeriod::new(py)?,
            };
            grace_period.insert(more).check(py)?;
        }
    }
}

/// Blocks a writer that is faster than its connection, unless its caller awaits that.
pub(crate) fn throttle(py: Python<'_>, queue: &SendQueue) -> PyResult<()> {
    if queue.is_over_limit() && !queue.is_throttled_by_caller() {
        wait(py, queue.throttle())
    } else {
        Ok(())
    }
}

/// Parses the timeout of a sample in milliseconds: `None` and -1 mean no limit.
///
/// # Errors
///
/// `InvalidArgument` below -1.
pub(crate) fn sample_timeout_ms(given: Option<i64>) -> Result<Option<Duration>> {
    match given {
        Some(below @ ..-1) => Err(Error::invalid_argument(format!(
            "timeout_ms must be a number of milliseconds of at least 0, or None for no limit, got \
             {below}"
        ))),
        given => Ok(timeout_ms(given)),
    }
}

/// Parses the timeout of a writer in milliseconds: `None` and negative values mean no limit, as in
/// dm-reverb.
pub(crate) fn timeout_ms(timeout_ms: Option<i64>) -> Option<Duration> {
    timeout_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
}
