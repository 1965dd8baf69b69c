// SPDX-License-Identifier: Apache-2.0
//! What becomes of waiting threads when the interpreter ends.
//!
//! First it joins all threads but daemons: those that wait in vain give up then. Later it is taken down while daemons
//! still run: those that wait never come back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_data::Error;

use crate::error::OrRaise;

/// Waits give up when none of them got on for this long.
const PATIENCE: Duration = Duration::from_secs(3);

/// A wait that began only then has at least this long.
const LEAST_PATIENCE: Duration = Duration::from_millis(300);

/// How long the end of the process waits for daemon threads to get out of the way, at most.
const PARKING_TIME: Duration = Duration::from_millis(500);

/// Whether the interpreter joins its threads, or has done so.
static NEAR: AtomicBool = AtomicBool::new(false);
/// Whether waits have given up: later ones are short.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// Whether the interpreter is being taken down.
static HERE: AtomicBool = AtomicBool::new(false);
/// Threads inside `wait` that may want the GIL.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static STATE: Mutex<State> =
    Mutex::new(State { finalizer: None, progress: None, blocked: BTreeSet::new() });

struct State {
    /// The thread that takes the interpreter down.
    finalizer: Option<ThreadId>,
    /// When a thread that the interpreter joins last got what it waited for.
    progress: Option<Instant>,
    /// Threads that have waited for a while, as Python numbers them.
    blocked: BTreeSet<u64>,
}

/// The interpreter begins to join its threads.
pub(crate) fn comes_near() {
    STATE.lock().progress = Some(Instant::now());
    NEAR.store(true, Ordering::Release);
}

/// Whether it does so, or did.
pub(crate) fn is_near() -> bool {
    NEAR.load(Ordering::Acquire)
}

/// The interpreter is taken down now, by this thread. Returns when no other is on its way to take the GIL: older
/// versions of Python end such a thread with its Rust frames still on the stack.
pub(crate) fn is_here() {
    STATE.lock().finalizer = Some(std::thread::current().id());
    HERE.store(true, Ordering::Release);
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

    /// Never returns once the interpreter is taken down, except to the thread that does it.
    #[expect(clippy::unused_self, reason = "only a thread that is counted as waiting may park")]
    pub(crate) fn park_at_the_end(&self) {
        if !HERE.load(Ordering::Acquire) || is_alone() {
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
    if is_near() && !is_daemon(py)? {
        STATE.lock().progress = Some(Instant::now());
    }
    Ok(())
}

/// How much longer a wait goes on once the main thread has ended.
///
/// Threads that work on are left alone, as Python does it. Only when every thread that the interpreter joins waits
/// here, and nothing comes for any of them, they give up: the program would never end otherwise.
pub(crate) struct Patience {
    thread: u64,
    began: Instant,
}

impl Patience {
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        if is_alone() {
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

/// Whether this is the thread that takes the interpreter down. Python's modules may be gone by then.
fn is_alone() -> bool {
    HERE.load(Ordering::Acquire) && STATE.lock().finalizer == Some(std::thread::current().id())
}

/// Whether the interpreter ends without this thread.
fn is_daemon(py: Python<'_>) -> PyResult<bool> {
    if is_alone() {
        return Ok(false);
    }
    py.import("threading")?.call_method0("current_thread")?.getattr("daemon")?.extract()
}

/// Whether every thread that the interpreter joins is inside `wait`.
fn are_all_blocked(py: Python<'_>) -> PyResult<bool> {
    if is_alone() {
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
