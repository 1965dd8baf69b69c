// SPDX-License-Identifier: Apache-2.0
//! The process: its runtime, forks, and shutdown.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use pyo3::prelude::*;
use reverb_base::process::generation;
use reverb_base::{Error, PerProcess, Result};
use reverb_files::leave_locks_to_parent;
use tokio::runtime::Runtime;
use tracing::warn;

#[cfg(unix)]
use crate::inherited_ports;
use crate::{exit, tensorflow};

/// Never dropped: the threads end with the process.
static RUNTIME: PerProcess<Runtime> = PerProcess::new();

/// Variable with the number of threads of the runtime; without it, one for each processor.
const THREADS: &str = "REVERB_THREADS";
const MAX_THREADS: usize = 1024;

/// The runtime of this process, started on first use.
pub(crate) fn runtime() -> &'static Runtime {
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let threads = std::env::var(THREADS).unwrap_or_default();
        match threads.parse() {
            Ok(number @ 1..=MAX_THREADS) => _ = builder.worker_threads(number),
            Err(_) if threads.is_empty() => {}
            _ => warn!("{THREADS} must be from 1 to {MAX_THREADS}, got {threads:?}; it is ignored"),
        }
        let runtime = builder
            .enable_all()
            .thread_name("reverb")
            .build()
            .expect("the system can start threads");
        runtime.spawn(run_housekeeping());
        reverb_log::log_config_problems();
        runtime
    })
}

/// Interval of the housekeeping. It is long, so that memory in frequent use is not purged.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(5);

/// Periodic tasks that no call triggers, in this order.
const HOUSEKEEPING: [fn(); 3] =
    [tensorflow::evict_idle_clients, reverb_base::memory::purge, reverb_allocator::purge];

/// Number of rounds between two searches for long waits: once a minute. A timer of its own would
/// wake an idle process.
const LONG_WAITS_EVERY: u32 = 12;

async fn run_housekeeping() {
    for round in (1..LONG_WAITS_EVERY).chain([0]).cycle() {
        tokio::time::sleep(HOUSEKEEPING_INTERVAL).await;
        for task in HOUSEKEEPING {
            task();
        }
        if round == 0 {
            reverb_server::warn_of_long_waits();
        }
    }
}

/// Process that created an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin(usize);

impl Origin {
    pub(crate) fn here() -> Self {
        Self(generation())
    }

    /// Returns true if this process created the object, and not a parent before a fork.
    pub(crate) fn is_here(self) -> bool {
        self.0 == generation()
    }

    /// Rejects the use of an object in a forked child, where its threads do not exist.
    pub(crate) fn check(self, what: &str) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Error::failed_precondition(format!(
            "This {what} was created before the process forked and does not work in the child. Create a new one in the \
             child, or start processes with the 'spawn' method."
        )))
    }
}

/// A value that belongs to threads of the process that created it.
///
/// A forked child has a copy of it, with locks that may be held by threads that do not exist there.
/// So the child does not even drop it.
#[derive(Debug)]
pub(crate) struct Local<T> {
    /// `None` only while it is being dropped.
    value: Option<T>,
    origin: Origin,
}

impl<T> Local<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), origin: Origin::here() }
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Takes the value. Only in the process that created it.
    pub(crate) fn into_inner(mut self) -> T {
        self.value.take().expect("taken by drop only")
    }
}

impl<T> Deref for Local<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken by drop only")
    }
}

impl<T> DerefMut for Local<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("taken by drop only")
    }
}

impl<T> Drop for Local<T> {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}

/// Makes blocked calls give up when none makes progress, so that the interpreter can join its
/// threads.
#[pyfunction]
#[pyo3(name = "_shut_down")]
pub(crate) fn shut_down(py: Python<'_>) {
    exit::begin_shutdown();
    // Children of `multiprocessing` run only the hooks of threads, not `finalize`.
    py.detach(reverb_log::wait_until_written);
}

/// Keeps daemon threads away from the interpreter while it is finalized.
#[pyfunction]
#[pyo3(name = "_finalize")]
fn finalize(py: Python<'_>) {
    py.detach(|| {
        reverb_log::flush();
        reverb_log::wait_until_written();
        exit::finalize();
    });
}

#[pyfunction]
#[pyo3(name = "_after_fork_in_child")]
fn after_fork_in_child() {
    reverb_base::process::after_fork_in_child();
    exit::reset_after_fork();
    leave_locks_to_parent();
    #[cfg(unix)]
    inherited_ports::leave_to_parent();
}

/// Registers our hooks for forks and for the interpreter's exit.
pub(crate) fn register_hooks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let os = py.import("os")?;
    if let Ok(register) = os.getattr("register_at_fork") {
        let kwargs = pyo3::types::PyDict::new(py);
        kwargs.set_item("after_in_child", wrap_pyfunction!(after_fork_in_child, module)?)?;
        register.call((), Some(&kwargs))?;
    }
    // Runs before the interpreter joins its threads. `atexit` would run after that, too late for a
    // blocked thread. The hook that was registered last runs first; executors join their threads by
    // the same hooks, so importing their module first makes theirs run after ours.
    py.import("concurrent.futures.thread")?;
    let atexit = py.import("atexit")?;
    let stop = wrap_pyfunction!(shut_down, module)?;
    let register = py.import("threading")?.getattr("_register_atexit");
    if register.and_then(|register| register.call1((&stop,))).is_err() {
        atexit.call_method1("register", (stop,))?;
    }
    atexit.call_method1("register", (wrap_pyfunction!(finalize, module)?,))?;
    Ok(())
}
