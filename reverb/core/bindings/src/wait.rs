// SPDX-License-Identifier: Apache-2.0
//! Waiting of calls from Python: without the GIL, interruptible by Ctrl-C, and ended by the
//! interpreter's exit.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use reverb_base::{Error, Result};
use reverb_client::SendQueue;

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
            let finished = poll_for(SIGNAL_POLL, slice);
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

/// Polls a future in this thread until it is finished, or for `limit`.
///
/// Tokio's `timeout` would set a timer for every call, which wakes a thread of the runtime. So only
/// the polls run in `block_on`, which bounds the work of each of them.
fn poll_for<T>(limit: Duration, mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    }
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        let mut end = None;
        loop {
            let polled = poll_fn(|_| Poll::Ready(future.as_mut().poll(&mut context)));
            if let Poll::Ready(result) = runtime().block_on(polled) {
                return Some(result);
            }
            let now = Instant::now();
            let end = *end.get_or_insert(now + limit);
            if now >= end {
                return None;
            }
            // Returns at once if there was a wake since the poll began.
            std::thread::park_timeout(end - now);
        }
    })
}

/// Waker of a thread that polls a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
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
