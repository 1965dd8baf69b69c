// SPDX-License-Identifier: Apache-2.0
//! A call that an event loop awaits.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use reverb_base::tasks::run_inline;
use reverb_base::{Error, Result};
use reverb_data::Sampled;
use tokio::task::AbortHandle;

use super::completions::Completions;
use crate::batch_options::max_batch_bytes;
use crate::error::OrRaise;
use crate::exit;
use crate::locks::Visit;
use crate::process::{Local, runtime};
use crate::sampler::flat_sample;

/// Creates the Python object, or the exception, that a call ends with.
pub(super) type Answer = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

struct State {
    number: u64,
    stage: Mutex<Stage>,
    completions: Arc<Completions>,
}

enum Stage {
    Running(Running),
    /// The event loop has not taken the answer yet.
    Answered(Answer),
    /// The answer was taken, or the call was cancelled.
    Over,
}

impl Stage {
    /// Polls the call. `Ready` when there is nothing more to do; true if it has an answer now.
    fn poll(&mut self, waker: &Waker) -> Poll<bool> {
        let Self::Running(running) = self else { return Poll::Ready(false) };
        let polled = running.as_mut().poll(&mut Context::from_waker(waker));
        polled.map(|answer| {
            *self = Self::Answered(answer);
            true
        })
    }
}

impl State {
    /// Polls the call. `Ready` when there is nothing more to do.
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker();
        let polled = self.stage.visit(|stage| stage.poll(waker));
        if let Poll::Ready(true) = polled {
            self.completions.push(self.number);
        }
        polled.map(drop)
    }

    /// Polls the call once without a task, for results that have already arrived.
    fn look(&self) {
        let _entered = runtime().enter();
        let _ = self.stage.visit(|stage| stage.poll(Waker::noop()));
    }

    fn end(&self) -> Stage {
        self.stage.visit(|stage| std::mem::replace(stage, Stage::Over))
    }
}

/// The end of a task. If the task has panicked, its call still gets an answer.
struct Task(Arc<State>);

impl Drop for Task {
    fn drop(&mut self) {
        let ended = self.0.stage.visit(|stage| {
            let Stage::Running(_) = stage else { return None };
            let error = Error::internal("The task of a call ended without an answer.");
            let answer = Stage::Answered(Box::new(|_| Err(error).or_raise()));
            Some(std::mem::replace(stage, answer))
        });
        if ended.is_some() {
            self.0.completions.push(self.0.number);
        }
    }
}

/// Samples that a call has received. If the call is cancelled, dropping this keeps them for the
/// canceller.
pub(super) struct Taken {
    pub(super) samples: Vec<Sampled>,
    kept: Kept,
}

/// Samples of a call that was cancelled.
pub(super) type Kept = Arc<Mutex<Vec<Sampled>>>;

impl Taken {
    pub(super) fn new(kept: &Kept) -> Self {
        Self { samples: Vec::new(), kept: Arc::clone(kept) }
    }

    /// Takes the samples, which the call returns.
    pub(super) fn take(mut self) -> Vec<Sampled> {
        std::mem::take(&mut self.samples)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.samples.is_empty() {
            self.kept.visit(|kept| kept.append(&mut self.samples));
        }
    }
}

/// A call that is not ready at once.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Call {
    parts: Local<Parts>,
    /// Future of the event loop; gets the result `None` when the call has an answer.
    #[pyo3(get)]
    future: Py<PyAny>,
}

struct Parts {
    state: Arc<State>,
    task: AbortHandle,
    kept: Kept,
}

/// Maximum number of polls in a row. A call whose parts wake each other, such as an insert into a
/// table of this process, is ready after the second one.
const MAX_POLLS: u32 = 4;

/// True if a call has been woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls a future without the GIL, in the thread of the event loop, as long as it wakes itself.
pub(super) fn poll_now(py: Python<'_>, running: &mut Running) -> Poll<Answer> {
    let waiting = exit::Waiting::begin();
    py.detach(|| {
        let _entered = runtime().enter();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut poll = || run_inline(|| running.as_mut().poll(&mut Context::from_waker(&waker)));
        let mut polled = poll();
        for _ in 1..MAX_POLLS {
            if polled.is_ready() || !woken.0.swap(false, Ordering::AcqRel) {
                break;
            }
            polled = poll();
        }
        waiting.park_if_finalizing();
        polled
    })
}

impl Call {
    /// Continues a future that was not ready in the runtime.
    pub(super) fn spawn(
        running: Running,
        number: u64,
        future: Py<PyAny>,
        completions: &Arc<Completions>,
        kept: Kept,
    ) -> Self {
        let stage = Mutex::new(Stage::Running(running));
        let state = Arc::new(State { number, stage, completions: Arc::clone(completions) });
        let task = Task(Arc::clone(&state));
        let task = runtime().spawn(async move {
            std::future::poll_fn(|context| task.0.poll(context)).await;
        });
        let parts = Parts { state, task: task.abort_handle(), kept };
        Self { parts: Local::new(parts), future }
    }

    pub(super) fn number(&self) -> u64 {
        self.parts.state.number
    }

    /// Ends the call, and returns the samples received so far, flat.
    pub(super) fn cancel<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        if !self.parts.origin().is_here() {
            return Ok(Vec::new());
        }
        self.end(py);
        let samples = self.parts.kept.visit(std::mem::take);
        // Samples that cannot be decoded are left out.
        let mut room = max_batch_bytes(None);
        let flat = samples.iter().filter_map(|sampled| flat_sample(py, sampled, &mut room).ok());
        flat.map(|sample| Ok(sample.into_pyobject(py)?.into_any())).collect()
    }

    /// Ends the call, and cancels the coroutine that awaits it if the event loop still runs.
    pub(super) fn abandon(&self, py: Python<'_>, loop_is_closed: bool) -> PyResult<()> {
        self.end(py);
        if !loop_is_closed {
            self.future.bind(py).call_method0(intern!(py, "cancel"))?;
        }
        Ok(())
    }

    /// Wakes the coroutine that awaits the call.
    pub(super) fn wake(&self, py: Python<'_>) -> PyResult<()> {
        let future = self.future.bind(py);
        // It may have been cancelled.
        if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
            future.call_method1(intern!(py, "set_result"), (py.None(),))?;
        }
        Ok(())
    }

    /// Ends the call after a last poll, so that results that have arrived are not lost. Waits until
    /// no thread works on it any more, which may include decoding those results.
    fn end(&self, py: Python<'_>) {
        let waiting = exit::Waiting::begin();
        let stage = py.detach(|| {
            self.parts.state.look();
            let stage = self.parts.state.end();
            self.parts.task.abort();
            waiting.park_if_finalizing();
            stage
        });
        drop(stage);
    }
}

#[pymethods]
impl Call {
    /// Result of the call, or its exception. To be taken once, when `future` is done.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.parts.origin().check("call").or_raise()?;
        match self.parts.state.end() {
            Stage::Answered(answer) => answer(py),
            _ => Err(Error::internal("The call has no answer.")).or_raise(),
        }
    }

    /// Returns true if the call has an answer that was not taken. Polls by itself, so it is up to
    /// date.
    fn is_answered(&self, py: Python<'_>) -> bool {
        if !self.parts.origin().is_here() {
            return false;
        }
        let waiting = exit::Waiting::begin();
        py.detach(|| {
            self.parts.state.look();
            waiting.park_if_finalizing();
        });
        self.parts.state.stage.visit(|stage| matches!(stage, Stage::Answered(_)))
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        drop(self.state.end());
        self.task.abort();
    }
}

/// A result whose error is raised by the event loop's thread.
pub(super) fn answer<T: Send + 'static>(
    result: Result<T>,
    convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> Answer {
    Box::new(move |py| convert(py, result.or_raise()?))
}
