// SPDX-License-Identifier: Apache-2.0
//! The life of the process: its one runtime, what a fork does to it, and its end.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use reverb_data::{Error, Result};
use tokio::runtime::Runtime;

/// Counts forks: objects remember in which process they were made.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Set when the interpreter begins to end; every wait gives up then.
static SHUTTING_DOWN: AtomicBool = AtomicBool::new(false);
/// Never dropped: its threads end with the process. A forked child makes its own.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime of this process, started on first use.
pub(crate) fn runtime() -> &'static Runtime {
    let generation = GENERATION.load(Ordering::Acquire);
    let mut current = RUNTIME.lock();
    if let Some((of, runtime)) = *current
        && of == generation
    {
        return runtime;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("reverb")
        .build()
        .expect("the system gives us threads");
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *current = Some((generation, runtime));
    runtime
}

/// In which process an object was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin(u32);

impl Origin {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(GENERATION.load(Ordering::Acquire))
    }

    /// Whether the object was made in this process, and not before a fork.
    pub(crate) fn is_here(self) -> bool {
        self.0 == GENERATION.load(Ordering::Acquire)
    }

    /// Refuses to use an object on the wrong side of a fork, where none of its threads exist.
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

/// Whether the interpreter is ending.
pub(crate) fn is_shutting_down() -> bool {
    SHUTTING_DOWN.load(Ordering::Acquire)
}

/// Ends every wait, so that the interpreter can join its threads.
#[pyfunction]
#[pyo3(name = "_shut_down")]
pub(crate) fn shut_down() {
    SHUTTING_DOWN.store(true, Ordering::Release);
}

#[pyfunction]
#[pyo3(name = "_after_fork_in_child")]
fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Asks Python to tell us of forks and of its end.
pub(crate) fn register_hooks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let os = py.import("os")?;
    if let Ok(register) = os.getattr("register_at_fork") {
        let kwargs = pyo3::types::PyDict::new(py);
        kwargs.set_item("after_in_child", wrap_pyfunction!(after_fork_in_child, module)?)?;
        register.call((), Some(&kwargs))?;
    }
    // Before the interpreter joins its threads; `atexit` would come after that, too late for a thread that waits.
    let stop = wrap_pyfunction!(shut_down, module)?;
    match py.import("threading")?.getattr("_register_atexit") {
        Ok(register) => register.call1((stop,))?,
        Err(_) => py.import("atexit")?.call_method1("register", (stop,))?,
    };
    Ok(())
}
