// SPDX-License-Identifier: Apache-2.0
//! Shutdown: how blocked threads end when the interpreter exits.
//!
//! The interpreter first joins all threads but daemons: blocked calls give up then. Later it is
//! finalized while daemons still run: a daemon that is blocked here never returns to Python
//! (<https://github.com/python/cpython/issues/87135>: a thread that takes the GIL then crashes or
//! hangs).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_data::Error;

use crate::error::OrRaise;

/// Blocked calls give up when none of them made progress for this long.
const PATIENCE: Duration = Duration::from_secs(3);

/// A call that began during the shutdown blocks at least this long.
const LEAST_PATIENCE: Duration = Duration::from_millis(300);

/// How long the finalization waits for daemon threads to park, at most.
const PARKING_TIME: Duration = Duration::from_millis(500);

/// Whether the interpreter joins its threads, or has done so.
static SHUTTING_DOWN: AtomicBool = AtomicBool::new(false);
/// Whether waits have given up: later ones are short.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// Whether the interpreter is being finalized.
static FINALIZING: AtomicBool = AtomicBool::new(false);
/// Threads inside `wait` that may want the GIL.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static STATE: Mutex<State> =
    Mutex::new(State { finalizer: None, progress: None, blocked: BTreeSet::new() });

struct State {
    /// The thread that finalizes the interpreter.
    finalizer: Option<ThreadId>,
    /// When a thread that the interpreter joins last got what it waited for.
    progress: Option<Instant>,
    /// Threads that have waited for a while, as Python numbers them.
    blocked: BTreeSet<u64>,
}

/// Starts the shutdown: the interpreter begins to join its threads.
pub(crate) fn begin_shutdown() {
    STATE.lock().progress = Some(Instant::now());
    SHUTTING_DOWN.store(true, Ordering::Release);
}

/// Whether the interpreter joins its threads, or has done so.
pub(crate) fn is_shutting_down() -> bool {
    SHUTTING_DOWN.load(Ordering::Acquire)
}

/// Starts the finalization, which this thread runs. Blocks for at most [`PARKING_TIME`], until no
/// other thread is about to take the GIL: older versions of Python end such a thread with its Rust
/// frames still on the stack.
pub(crate) fn finalize() {
    STATE.lock().finalizer = Some(std::thread::current().id());
    FINALIZING.store(true, Ordering::Release);
    let deadline = Instant::now() + PARKING_TIME;
    while WAITING.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// This process is the child of a fork: the other threads are not here.
pub(crate) fn forked() {
    WAITING.store(0, Ordering::Release);
}

/// A thread inside `wait`.
pub(crate) struct Waiting;

impl Waiting {
    pub(crate) fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::AcqRel);
        Self
    }

    /// Never returns once the interpreter is being finalized, except to the thread that does it.
    #[expect(clippy::unused_self, reason = "only a thread that is counted as waiting may park")]
    pub(crate) fn park_at_the_end(&self) {
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

/// This thread got what it waited for.
pub(crate) fn progressed(py: Python<'_>) -> PyResult<()> {
    if is_shutting_down() && !is_daemon(py)? {
        STATE.lock().progress = Some(Instant::now());
    }
    Ok(())
}

/// How long a call stays blocked after the main thread has ended.
///
/// Threads that still work are left alone, as in Python. Calls give up only when every thread that
/// the interpreter joins is blocked here and none makes progress: the program would never end
/// otherwise.
pub(crate) struct Patience {
    thread: u64,
    began: Instant,
}

impl Patience {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        if is_finalizer_thread() {
            return Ok(Self { thread: 0, began: Instant::now() });
        }
        let thread = py.import("threading")?.call_method0("get_ident")?.extract()?;
        STATE.lock().blocked.insert(thread);
        Ok(Self { thread, began: Instant::now() })
    }

    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        if is_daemon(py)? {
            return Ok(());
        }
        if !GIVEN_UP.load(Ordering::Acquire) {
            if !are_all_blocked(py)? {
                STATE.lock().progress = Some(Instant::now());
            }
            let progress = STATE.lock().progress;
            if progress.is_none_or(|progress| progress.elapsed() < PATIENCE) {
                return Ok(());
            }
            GIVEN_UP.store(true, Ordering::Release);
        }
        if self.began.elapsed() < LEAST_PATIENCE {
            return Ok(());
        }
        Err(Error::cancelled("The interpreter is exiting; the call was given up.")).or_raise()
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        STATE.lock().blocked.remove(&self.thread);
    }
}

/// Whether this thread finalizes the interpreter. Python's modules may be gone by then.
fn is_finalizer_thread() -> bool {
    FINALIZING.load(Ordering::Acquire)
        && STATE.lock().finalizer == Some(std::thread::current().id())
}

/// Whether the interpreter ends without this thread.
fn is_daemon(py: Python<'_>) -> PyResult<bool> {
    if is_finalizer_thread() {
        return Ok(false);
    }
    py.import("threading")?.call_method0("current_thread")?.getattr("daemon")?.extract()
}

/// Whether every thread that the interpreter joins is inside `wait`.
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
        if !ident.is_some_and(|ident| STATE.lock().blocked.contains(&ident)) {
            return Ok(false);
        }
    }
    Ok(true)
}
