// SPDX-License-Identifier: Apache-2.0
//! The calls of a client, for one event loop.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use numpy::{PyArray1, PyReadonlyArray1};
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use reverb_base::{Error, Result};
use reverb_client::BatchedWriter;
use reverb_wire::generated::reverb::HoldRateLimiterRequest;

use super::call::{Answer, Call, Kept, Taken, answer, poll_now};
use super::completions::Completions;
use super::insertion::Insertion;
use crate::batch::Lent;
use crate::batch_options::BatchOptions;
use crate::batched_writer::BatchedTrajectoryWriter;
use crate::batches_ahead::BatchesAhead;
use crate::client::{Client, decoded, matching};
use crate::error::OrRaise;
use crate::flat_nest::ColumnNames;
use crate::limiter_hold::RateLimiterHold;
use crate::locks::Visit;
use crate::new_items::{
    InsertOptions, ItemChanges, add_item, add_rows, item_priorities, row_priorities, send_changes,
};
use crate::priority_updates::{parse_mutation, parse_row_updates};
use crate::process::{Local, Origin};
use crate::queued_writer::QueuedWriter;
use crate::sampler::{Sampler, with_samples};
use crate::sequence_writer::{SequenceArguments, SequenceWriter};
use crate::shard_row::ShardRow;
use crate::trajectory_writer::TrajectoryWriter;
use crate::wait::timeout_ms as timeout;

/// The event loop runs after calls that were ready at once have taken this long together...
const MAX_READY_TIME: Duration = Duration::from_millis(1);
/// ... or after so many of them.
const MAX_READY_CALLS: u32 = 32;

/// Makes the calls of a client for one event loop, in the loop's thread.
///
/// Every call returns its result if it is ready at once, and otherwise a [`Call`] to be awaited.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct AsyncClient {
    client: Py<Client>,
    event_loop: Py<PyAny>,
    origin: Origin,
    completions: Local<Arc<Completions>>,
    next_number: AtomicU64,
    /// Waiting calls, by number; `None` after `close`.
    waiting: Mutex<Option<HashMap<u64, Py<Call>>>>,
    ready: Mutex<Ready>,
}

/// Calls that were ready at once since the event loop last ran.
#[derive(Default)]
struct Ready {
    calls: u32,
    time: Duration,
}

impl AsyncClient {
    fn check(&self) -> PyResult<()> {
        self.origin.check("reverb.aio.Client with this event loop").or_raise()
    }

    /// Takes a call out of those that wait.
    fn forget(&self, number: u64) -> Option<Py<Call>> {
        self.waiting.visit(|waiting| waiting.as_mut()?.remove(&number))
    }

    /// Starts a call whose result is converted by the thread of the event loop.
    fn start<T, F, C>(&self, py: Python<'_>, future: F, convert: C) -> PyResult<Py<PyAny>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
        C: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    {
        let answered = async move { answer(future.await, convert) };
        self.start_sampling(py, answered, Kept::default())
    }

    /// Starts a call that puts samples into `kept` when it is cancelled.
    fn start_sampling<F>(&self, py: Python<'_>, future: F, kept: Kept) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        self.check()?;
        if self.waiting.visit(|waiting| waiting.is_none()) {
            return Err(Error::failed_precondition("This reverb.aio.Client is closed.")).or_raise();
        }
        let began = Instant::now();
        let mut running = Box::pin(future) as _;
        if let Poll::Ready(answer) = poll_now(py, &mut running) {
            let result = answer(py);
            self.ready.visit(|ready| {
                ready.calls += 1;
                ready.time += began.elapsed();
            });
            return result;
        }
        self.ready.visit(|ready| *ready = Ready::default());
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let future = self.event_loop.bind(py).call_method0(intern!(py, "create_future"))?;
        // No thread of the runtime has the GIL, so the call is in the table before it is taken out.
        let call = Call::spawn(running, number, future.unbind(), &self.completions, kept);
        let call = Py::new(py, call)?;
        let kept = call.clone_ref(py);
        self.waiting.visit(|waiting| waiting.as_mut().map(|waiting| waiting.insert(number, kept)));
        Ok(call.into_any())
    }
}

#[allow(clippy::unnecessary_wraps, reason = "a conversion of a call")]
fn none(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

#[pymethods]
impl AsyncClient {
    #[new]
    fn new(client: Py<Client>, event_loop: Py<PyAny>) -> PyResult<Self> {
        Ok(Self {
            client,
            event_loop,
            origin: Origin::here(),
            completions: Local::new(Arc::new(Completions::new()?)),
            next_number: AtomicU64::new(0),
            waiting: Mutex::new(Some(HashMap::new())),
            ready: Mutex::default(),
        })
    }

    /// File descriptor for the event loop to watch; -1 after `close`.
    fn fileno(&self) -> RawFd {
        self.completions.fileno()
    }

    /// Wakes the coroutines whose calls have ended. Called by the event loop.
    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        if !self.origin.is_here() {
            return Ok(());
        }
        self.ready.visit(|ready| *ready = Ready::default());
        for number in self.completions.take() {
            if let Some(call) = self.forget(number) {
                call.get().wake(py)?;
            }
        }
        Ok(())
    }

    /// Returns true if so many calls were ready at once that the event loop should run.
    fn should_yield(&self) -> bool {
        self.ready.visit(|ready| {
            let is_enough = ready.calls >= MAX_READY_CALLS || ready.time >= MAX_READY_TIME;
            if is_enough {
                *ready = Ready::default();
            }
            is_enough
        })
    }

    /// Number of waiting calls.
    fn num_waiting(&self) -> usize {
        self.waiting.visit(|waiting| waiting.as_ref().map_or(0, HashMap::len))
    }

    /// Ends a call that is no longer awaited; returns the samples received, flat.
    fn cancel<'py>(
        &self,
        py: Python<'py>,
        call: &Bound<'py, Call>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        drop(self.forget(call.get().number()));
        call.get().cancel(py)
    }

    /// Ends all calls, cancels the coroutines that await them, and closes the file descriptors.
    fn close(&self, py: Python<'_>) {
        let Some(waiting) = self.waiting.visit(Option::take) else { return };
        if !self.origin.is_here() {
            return;
        }
        self.completions.close();
        let is_closed = self.event_loop.bind(py).call_method0(intern!(py, "is_closed"));
        let is_closed = is_closed.and_then(|answer| answer.is_truthy()).unwrap_or(true);
        for call in waiting.into_values() {
            if let Err(error) = call.get().abandon(py, is_closed) {
                error.write_unraisable(py, None);
            }
        }
    }

    /// Makes a call with one request and one answer, like `Client.call`.
    #[pyo3(signature = (name, request, timeout_s=None))]
    fn call(
        &self,
        py: Python<'_>,
        name: &str,
        request: &[u8],
        timeout_s: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (_, asked) = self.client.get().small_call(name, request, timeout_s)?;
        self.start(py, asked, |py, answer| Ok(PyBytes::new(py, &answer).into_any().unbind()))
    }

    #[pyo3(signature = (table, updates, deletes))]
    fn mutate_priorities(
        &self,
        py: Python<'_>,
        table: String,
        updates: Option<&Bound<'_, PyAny>>,
        deletes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (updates, deletes) = parse_mutation(updates, deletes)?;
        let core = self.client.get().core()?;
        let call = async move { core.mutate_priorities(&table, &updates, &deletes).await };
        self.start(py, call, none)
    }

    fn update_priorities(
        &self,
        py: Python<'_>,
        table: String,
        keys: PyReadonlyArray1<'_, u64>,
        priorities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<Py<PyAny>> {
        let updates = parse_row_updates(&keys, &priorities)?;
        let core = self.client.get().core()?;
        let call = async move { core.mutate_priorities(&table, &updates, &[]).await };
        self.start(py, call, none)
    }

    fn hold_rate_limiter(&self, py: Python<'_>, table: String, count: bool) -> PyResult<Py<PyAny>> {
        let core = self.client.get().core()?;
        let request = HoldRateLimiterRequest { table, count };
        self.start(py, async move { core.hold_rate_limiter(request).await }, |py, hold| {
            Ok(Py::new(py, RateLimiterHold::new(hold))?.into_any())
        })
    }

    fn release_rate_limiter(
        &self,
        py: Python<'_>,
        hold: &Bound<'_, RateLimiterHold>,
    ) -> PyResult<Py<PyAny>> {
        let Some(mut hold) = hold.get().take() else { return Ok(py.None()) };
        self.start(py, async move { hold.release().await }, none)
    }

    fn shard_info(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let group = self.client.get().group("shard_info").or_raise()?;
        self.start(py, async move { group.shard_info().await }, |py, rows| {
            let rows: Vec<_> = rows.into_iter().map(|row| ShardRow::new(py, row)).collect();
            Ok(rows.into_pyobject(py)?.unbind())
        })
    }

    fn start_insert(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let core = self.client.get().core()?;
        self.start(py, async move { core.start_insert().await }, |py, insertion| {
            Ok(Py::new(py, Insertion::new(insertion))?.into_any())
        })
    }

    /// One item for each table; of a sequence, its columns are `[T, ...]`, which may differ in `T`.
    #[pyo3(signature = (insertion, leaves, names, priorities, removal_priorities, is_sequence = false, options = None))]
    #[allow(clippy::too_many_arguments, reason = "arguments of Python")]
    fn insert(
        &self,
        py: Python<'_>,
        insertion: &Bound<'_, Insertion>,
        leaves: Vec<Bound<'_, PyAny>>,
        names: &Bound<'_, ColumnNames>,
        priorities: &Bound<'_, PyDict>,
        removal_priorities: Option<&Bound<'_, PyDict>>,
        is_sequence: bool,
        options: Option<InsertOptions<'_>>,
    ) -> PyResult<Py<PyAny>> {
        let priorities = item_priorities(priorities, removal_priorities)?;
        let mut insertion = insertion.get().take().or_raise()?;
        options.map_or(Ok(()), |it| it.set(&mut insertion))?;
        add_item(&mut insertion, &leaves, names, &priorities, is_sequence)?;
        self.start(py, insertion.finish(), none)
    }

    #[pyo3(signature = (insertion, leaves, names, priorities, removal_priorities, options = None))]
    #[allow(clippy::too_many_arguments, reason = "arguments of Python")]
    fn insert_batch(
        &self,
        py: Python<'_>,
        insertion: &Bound<'_, Insertion>,
        leaves: Vec<Bound<'_, PyAny>>,
        names: &Bound<'_, ColumnNames>,
        priorities: &Bound<'_, PyDict>,
        removal_priorities: Option<&Bound<'_, PyDict>>,
        options: Option<InsertOptions<'_>>,
    ) -> PyResult<Py<PyAny>> {
        let tables = row_priorities(priorities, removal_priorities)?;
        let mut insertion = insertion.get().take().or_raise()?;
        options.map_or(Ok(()), |it| it.set(&mut insertion))?;
        let keys = add_rows(&mut insertion, &leaves, names, &tables)?;
        self.start(py, insertion.finish(), |py, ()| {
            Ok(PyArray1::from_vec(py, keys).into_any().unbind())
        })
    }

    #[pyo3(signature = (insertion, changes))]
    fn change_items<'py>(
        &self,
        py: Python<'py>,
        insertion: &Bound<'py, Insertion>,
        changes: ItemChanges<'py>,
    ) -> PyResult<Py<PyAny>> {
        let mut insertion = insertion.get().take().or_raise()?;
        changes.add_to(&mut insertion)?;
        let limit = changes.limit();
        self.start(py, send_changes(insertion, limit), |py, refused| {
            let refused = refused.iter().map(|it| PyBytes::new(py, it));
            Ok(PyList::new(py, refused)?.into_any().unbind())
        })
    }

    #[pyo3(signature = (request, number))]
    fn take(&self, py: Python<'_>, request: &[u8], number: u64) -> PyResult<Py<PyAny>> {
        let request = decoded(request)?;
        let core = self.client.get().core()?;
        let taking = async move { core.take(request, number).await };
        self.start(py, taking, |py, answer| Ok(PyBytes::new(py, &answer).into_any().unbind()))
    }

    #[pyo3(signature = (request))]
    fn sample_batch(&self, py: Python<'_>, request: BatchOptions) -> PyResult<Py<PyAny>> {
        let core = self.client.get().core()?;
        let kept = Kept::default();
        let mut taken = Taken::new(&kept);
        let sampling = async move {
            let sampled = async {
                let lent = request.lend()?;
                let given = lent.as_ref().map(Lent::columns);
                core.sample_batch(&request.request(), given, &mut taken.samples).await
            };
            let batch = sampled.await;
            // The arrays of the program go to the event loop's thread with the rest.
            Box::new(move |py: Python<'_>| {
                let taken = taken.take();
                let batch = batch.or_raise().map_err(|error| with_samples(py, error, &taken))?;
                Ok(Py::new(py, request.answer(py, &taken, batch)?)?.into_any())
            }) as Answer
        };
        self.start_sampling(py, sampling, kept)
    }

    /// Waits until `next` of these batches would return or raise at once.
    fn batch_arrival(
        &self,
        py: Python<'_>,
        ahead: &Bound<'_, BatchesAhead>,
    ) -> PyResult<Py<PyAny>> {
        let core = ahead.get().core()?;
        let arrival = async move {
            core.arrival().await;
            Ok(())
        };
        self.start(py, arrival, none)
    }

    #[pyo3(signature = (request, keys))]
    fn fetch(
        &self,
        py: Python<'_>,
        request: BatchOptions,
        keys: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<Py<PyAny>> {
        let core = self.client.get().core()?;
        let keys = keys.as_array().to_vec();
        let fetching = async move {
            let (items, batch) = core.fetch(&request.request(), &keys).await?;
            Ok((request, items, batch))
        };
        self.start(py, fetching, |py, (request, items, batch)| {
            Ok(Py::new(py, request.answer(py, &items, batch)?)?.into_any())
        })
    }

    /// Next item of `Client.sampler` or `Client.scanner`, `None` after the last.
    fn next_sample(&self, py: Python<'_>, sampler: Bound<'_, Sampler>) -> PyResult<Py<PyAny>> {
        let mut lease = sampler.get().lease()?;
        if let Some(sampled) = lease.take_ready() {
            self.ready.visit(|ready| ready.calls += 1);
            drop(lease);
            return Ok(sampler.get().converted(py, &sampled)?.unbind());
        }
        let sampler = sampler.unbind();
        let next = async move {
            let next = lease.next().await;
            Ok((next?, sampler))
        };
        self.start(py, next, |py, (sampled, sampler)| match sampled {
            Some(sampled) => Ok(sampler.get().converted(py, &sampled)?.unbind()),
            None => Ok(py.None()),
        })
    }

    /// Creates a writer whose calls never block; see `throttle`.
    fn trajectory_writer(
        &self,
        py: Python<'_>,
        num_keep_alive_refs: usize,
        validate_items: bool,
        match_names: bool,
        compresses: bool,
    ) -> PyResult<Py<PyAny>> {
        let core = self.client.get().core_of_writer(compresses)?;
        let matching = matching(match_names);
        let made = async move {
            let signatures = if validate_items { Some(core.signatures().await?) } else { None };
            let refs = num_keep_alive_refs;
            Ok(reverb_client::TrajectoryWriter::new(&core, refs, signatures, matching))
        };
        self.start(py, made, |py, writer| {
            writer.queue().leave_throttling_to_caller();
            Ok(TrajectoryWriter::wrap(py, writer)?.into_any())
        })
    }

    /// Like `trajectory_writer`.
    fn batched_trajectory_writer(
        &self,
        py: Python<'_>,
        batch_size: usize,
        num_keep_alive_refs: usize,
        validate_items: bool,
        compresses: bool,
    ) -> PyResult<Py<PyAny>> {
        let core = self.client.get().core_of_writer(compresses)?;
        let made = async move {
            let signatures = if validate_items { Some(core.signatures().await?) } else { None };
            Ok(BatchedWriter::new(&core, batch_size, num_keep_alive_refs, signatures))
        };
        self.start(py, made, |py, writer| {
            writer.queue().leave_throttling_to_caller();
            Ok(BatchedTrajectoryWriter::wrap(py, writer)?.into_any())
        })
    }

    /// Like `trajectory_writer`.
    fn sequence_writer(
        &self,
        py: Python<'_>,
        options: SequenceArguments,
        compresses: bool,
    ) -> PyResult<Py<PyAny>> {
        let core = self.client.get().core_of_writer(compresses)?;
        let made = async move {
            let signatures = core.signatures().await?;
            reverb_client::SequenceWriter::new(&core, options.into(), signatures)
        };
        self.start(py, made, |py, writer| {
            writer.queue().leave_throttling_to_caller();
            Ok(SequenceWriter::wrap(py, writer)?.into_any())
        })
    }

    #[pyo3(signature = (writer, block_until_num_items, timeout_ms))]
    fn flush(
        &self,
        py: Python<'_>,
        writer: &Bound<'_, QueuedWriter>,
        block_until_num_items: usize,
        timeout_ms: Option<i64>,
    ) -> PyResult<Py<PyAny>> {
        let queue = writer.get().queue().or_raise()?;
        let limit = timeout(timeout_ms);
        self.start(py, async move { queue.flush(block_until_num_items, limit).await }, none)
    }

    #[pyo3(signature = (writer, clear_buffers, timeout_ms))]
    fn end_episode(
        &self,
        py: Python<'_>,
        writer: &Bound<'_, TrajectoryWriter>,
        clear_buffers: bool,
        timeout_ms: Option<i64>,
    ) -> PyResult<Py<PyAny>> {
        let core = writer.get().core()?;
        let limit = timeout(timeout_ms);
        self.start(py, async move { core.end_episode(clear_buffers, limit).await }, none)
    }

    /// Waits while a writer is faster than its connection.
    fn throttle(&self, py: Python<'_>, writer: &Bound<'_, QueuedWriter>) -> PyResult<Py<PyAny>> {
        let queue = writer.get().queue().or_raise()?;
        self.start(py, async move { queue.throttle().await }, none)
    }
}
