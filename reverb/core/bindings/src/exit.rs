// SPDX-License-Identifier: Apache-2.0
//! Shutdown: how blocked threads end when the interpreter exits.
//!
//! The interpreter first joins all threads except daemons; blocked calls give up then. Later it is
//! finalized while daemons still run. A daemon thread that is blocked here never returns to Python:
//! a thread that takes the GIL during finalization crashes or hangs
//! (<https://github.com/python/cpython/issues/87135>).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_base::{Error, PerProcess};

use crate::error::OrRaise;
use crate::locks::Visit;

/// Time without any progress after which blocked calls give up.
const GRACE_PERIOD: Duration = Duration::from_secs(3);

/// Minimum time that a call blocks if it began during the shutdown.
const MIN_GRACE_PERIOD: Duration = Duration::from_millis(300);

/// Maximum time that the finalization waits for daemon threads to park.
const MAX_PARKING_TIME: Duration = Duration::from_millis(500);

/// True when the interpreter is joining its threads, or has joined them.
static SHUTTING_DOWN: AtomicBool = AtomicBool::new(false);
/// True after blocked calls have been aborted. From then on, calls block only briefly.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// True when the interpreter is being finalized.
static FINALIZING: AtomicBool = AtomicBool::new(false);
/// Number of threads inside `wait` that may take the GIL.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static STATE: PerProcess<Mutex<State>> = PerProcess::new();

#[derive(Default)]
struct State {
    finalizer: Option<ThreadId>,
    /// Time of the last successful call on a thread that the interpreter joins.
    progress: Option<Instant>,
    /// Threads that have been blocked for a while, by Python's thread identifier.
    blocked: BTreeSet<u64>,
}

/// Starts the shutdown: the interpreter is about to join its threads.
pub(crate) fn begin_shutdown() {
    STATE.get().visit(|state| state.progress = Some(Instant::now()));
    SHUTTING_DOWN.store(true, Ordering::Release);
}

/// Returns true if the interpreter is joining its threads, or has joined them.
pub(crate) fn is_shutting_down() -> bool {
    SHUTTING_DOWN.load(Ordering::Acquire)
}

/// Starts the finalization, on the calling thread. Blocks until no other thread is about to take
/// the GIL, for at most [`MAX_PARKING_TIME`]. Older versions of Python end such a thread with its
/// Rust frames still on the stack.
pub(crate) fn finalize() {
    STATE.get().visit(|state| state.finalizer = Some(std::thread::current().id()));
    FINALIZING.store(true, Ordering::Release);
    let deadline = Instant::now() + MAX_PARKING_TIME;
    while WAITING.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Resets the count in the child of a fork: the other threads do not exist there.
pub(crate) fn reset_after_fork() {
    WAITING.store(0, Ordering::Release);
}

/// A thread inside `wait`.
pub(crate) struct Waiting;

impl Waiting {
    pub(crate) fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::AcqRel);
        Self
    }

    /// Parks the thread for good once the interpreter is being finalized. Returns at once
    /// otherwise, and on the thread that finalizes it.
    #[expect(clippy::unused_self, reason = "only a thread that is counted as waiting may park")]
    pub(crate) fn park_if_finalizing(&self) {
        if !FINALIZING.load(Ordering::Acquire) || is_finalizer_thread() {
            return;
        }
        WAITING.fetch_sub(1, Ordering::AcqRel);
        loop {
            std::thread::park();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Records that a call on this thread succeeded.
pub(crate) fn record_progress(py: Python<'_>) -> PyResult<()> {
    if is_shutting_down() && !is_daemon(py)? {
        STATE.get().visit(|state| state.progress = Some(Instant::now()));
    }
    Ok(())
}

/// Time limit for a call that stays blocked after the main thread has ended.
///
/// As in Python, threads that still work may finish. Calls give up only if every thread that the
/// interpreter joins is blocked here and none makes progress. Otherwise the program would never
/// end.
pub(crate) struct GracePeriod {
    thread: u64,
    began: Instant,
}

impl GracePeriod {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        if is_finalizer_thread() {
            return Ok(Self { thread: 0, began: Instant::now() });
        }
        let thread = py.import("threading")?.call_method0("get_ident")?.extract()?;
        STATE.get().visit(|state| state.blocked.insert(thread));
        Ok(Self { thread, began: Instant::now() })
    }

    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        if is_daemon(py)? {
            return Ok(());
        }
        if !GIVEN_UP.load(Ordering::Acquire) {
            if !are_all_blocked(py)? {
                STATE.get().visit(|state| state.progress = Some(Instant::now()));
            }
            let progress = STATE.get().visit(|state| state.progress);
            if progress.is_none_or(|progress| progress.elapsed() < GRACE_PERIOD) {
                return Ok(());
            }
            GIVEN_UP.store(true, Ordering::Release);
        }
        if self.began.elapsed() < MIN_GRACE_PERIOD {
            return Ok(());
        }
        Err(Error::cancelled("The interpreter is exiting; the call was aborted.")).or_raise()
    }
}

impl Drop for GracePeriod {
    fn drop(&mut self) {
        STATE.get().visit(|state| state.blocked.remove(&self.thread));
    }
}

/// Returns true on the thread that finalizes the interpreter. Python's modules may be gone then.
fn is_finalizer_thread() -> bool {
    FINALIZING.load(Ordering::Acquire)
        && STATE.get().visit(|state| state.finalizer) == Some(std::thread::current().id())
}

/// Returns true on a daemon thread, which the interpreter does not join.
fn is_daemon(py: Python<'_>) -> PyResult<bool> {
    if is_finalizer_thread() {
        return Ok(false);
    }
    py.import("threading")?.call_method0("current_thread")?.getattr("daemon")?.extract()
}

/// Returns true if every thread that the interpreter joins is inside `wait`.
fn are_all_blocked(py: Python<'_>) -> PyResult<bool> {
    if is_finalizer_thread() {
        return Ok(true);
    }
    let threading = py.import("threading")?;
    let main_thread = threading.call_method0("main_thread")?;
    for thread in threading.call_method0("enumerate")?.try_iter()? {
        let thread = thread?;
        if thread.is(&main_thread) || thread.getattr("daemon")?.is_truthy()? {
            continue;
        }
        let ident: Option<u64> = thread.getattr("ident")?.extract()?;
        if !ident.is_some_and(|ident| STATE.get().visit(|state| state.blocked.contains(&ident))) {
            return Ok(false);
        }
    }
    Ok(true)
}
