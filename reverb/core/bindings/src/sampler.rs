// SPDX-License-Identifier: Apache-2.0
//! `Client.sample` and `Client.scan` for Python: iterators of decoded items.

use std::sync::Arc;

use numpy::PyArray1;
use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};
use reverb_base::Error;
use reverb_client::{SampleCursor, ScanCursor};
use reverb_data::item_condition::seconds_of;
use reverb_data::{DType, Sampled, SampledWindow, Shape, StepWindow, Trajectory};
use smallvec::SmallVec;

use crate::array::{column_to_array, single_step_to_array};
use crate::batch_options::max_batch_bytes;
use crate::checkpoint::StoredCursor;
use crate::error::OrRaise;
use crate::locks::Visit;
use crate::process::Local;
use crate::wait::wait;

pub(crate) enum Cursor {
    Sample(SampleCursor),
    Scan(ScanCursor),
    Stored(StoredCursor),
}

impl Cursor {
    fn take_ready(&mut self) -> Option<Sampled> {
        match self {
            Self::Sample(cursor) => cursor.take_ready(),
            Self::Scan(cursor) => cursor.take_ready(),
            Self::Stored(cursor) => cursor.take_ready(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Sample(_) => "sample generator",
            Self::Scan(_) | Self::Stored(_) => "scan",
        }
    }

    /// A scan blocks no other call, so it continues.
    fn withdraw(&mut self) {
        if let Self::Sample(cursor) = self {
            cursor.withdraw();
        }
    }

    async fn next(&mut self) -> reverb_base::Result<Option<Sampled>> {
        match self {
            Self::Sample(cursor) => cursor.next().await,
            Self::Scan(cursor) => cursor.next().await,
            Self::Stored(cursor) => cursor.next().await,
        }
    }
}

/// The cursor of a sampler, taken for one call. Dropping it returns the cursor; if the call was
/// interrupted, its request for items is withdrawn.
pub(crate) struct Lease {
    cursor: Option<Cursor>,
    owner: Arc<Local<Mutex<Option<Cursor>>>>,
    is_waiting: bool,
}

impl Lease {
    /// An item that has arrived already.
    pub(crate) fn take_ready(&mut self) -> Option<Sampled> {
        self.cursor.as_mut()?.take_ready()
    }

    pub(crate) async fn next(&mut self) -> reverb_base::Result<Option<Sampled>> {
        let Some(cursor) = &mut self.cursor else { return Ok(None) };
        self.is_waiting = true;
        let next = cursor.next().await;
        self.is_waiting = false;
        next
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(mut cursor) = self.cursor.take() {
            if self.is_waiting {
                cursor.withdraw();
            }
            self.owner.visit(|owner| *owner = Some(cursor));
        }
    }
}

/// Yields samples, or lists of timesteps.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Sampler {
    /// `None` while another thread waits in `__next__`.
    cursor: Arc<Local<Mutex<Option<Cursor>>>>,
    name: &'static str,
    pub(crate) emit_timesteps: bool,
    /// True if each sample is paired with its time of insertion, in seconds since 1970.
    pub(crate) with_inserted_at: bool,
    /// Window that each sample is.
    pub(crate) window: Option<StepWindow>,
    unflatten: Option<Py<PyAny>>,
}

impl Sampler {
    pub(crate) fn new(cursor: Cursor, unflatten: Option<Py<PyAny>>) -> Self {
        Self {
            name: cursor.name(),
            cursor: Arc::new(Local::new(Mutex::new(Some(cursor)))),
            emit_timesteps: false,
            with_inserted_at: false,
            window: None,
            unflatten,
        }
    }

    fn take_cursor(&self) -> PyResult<Cursor> {
        self.cursor.origin().check(self.name).or_raise()?;
        let taken = self.cursor.visit(Option::take);
        taken.ok_or_else(|| {
            PyRuntimeError::new_err("another thread is waiting for a sample of this generator")
        })
    }

    /// The cursor, for a call that outlives this one.
    pub(crate) fn lease(&self) -> PyResult<Lease> {
        let cursor = Some(self.take_cursor()?);
        Ok(Lease { cursor, owner: Arc::clone(&self.cursor), is_waiting: false })
    }

    pub(crate) fn converted<'py>(
        &self,
        py: Python<'py>,
        sampled: &Sampled,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.convert(py, sampled).map_err(|error| self.keep(py, error, sampled))
    }

    fn fetch(&self, py: Python<'_>) -> PyResult<Option<Sampled>> {
        let mut cursor = self.take_cursor()?;
        let result = if let Some(sampled) = cursor.take_ready() {
            Ok(Some(sampled))
        } else {
            wait(py, cursor.next())
        };
        self.cursor.visit(|place| *place = Some(cursor));
        result
    }

    fn convert<'py>(&self, py: Python<'py>, sampled: &Sampled) -> PyResult<Bound<'py, PyAny>> {
        let info = self.info(py, sampled)?;
        let mut room = max_batch_bytes(None);
        if !self.emit_timesteps {
            let sample = self.sample(py, &info, columns(py, &sampled.trajectory, &mut room)?)?;
            if self.with_inserted_at {
                let inserted_at = seconds_of(sampled.inserted_at_ns);
                return Ok((inserted_at, sample).into_pyobject(py)?.into_any());
            }
            return Ok(sample);
        }
        let num_steps = timesteps(&sampled.trajectory).or_raise()?;
        let columns: PyResult<Vec<_>> = sampled
            .trajectory
            .columns()
            .map(|column| {
                let to_array = if num_steps == 1 { single_step_to_array } else { column_to_array };
                to_array(py, &sampled.trajectory, &column, &mut room)
            })
            .collect();
        let columns = columns?;
        let list = PyList::empty(py);
        if num_steps == 1 {
            list.append(self.sample(py, &info, columns)?)?;
            return Ok(list.into_any());
        }
        for step in 0..num_steps {
            // The ellipsis keeps arrays for rows of rank 0; the number alone would return NumPy
            // scalars.
            let rows: PyResult<Vec<_>> =
                columns.iter().map(|column| column.get_item((step, py.Ellipsis()))).collect();
            list.append(self.sample(py, &info, rows?)?)?;
        }
        Ok(list.into_any())
    }

    fn sample<'py>(
        &self,
        py: Python<'py>,
        info: &Bound<'py, PyAny>,
        columns: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let flat = PyList::new(py, columns)?.into_any();
        let data = match &self.unflatten {
            Some(unflatten) => unflatten.bind(py).call1((flat,))?,
            None => flat,
        };
        replay_sample(py, (info, data))
    }

    /// A `reverb.SampleInfo`, or a `reverb.WindowInfo`.
    fn info<'py>(&self, py: Python<'py>, sampled: &Sampled) -> PyResult<Bound<'py, PyAny>> {
        match self.window {
            Some(window) => window_info(py, sampled, window),
            None => sample_info(py, sampled),
        }
    }

    /// Attaches an item to the exception of its failed conversion.
    fn keep(&self, py: Python<'_>, error: PyErr, sampled: &Sampled) -> PyErr {
        let flat = || {
            let columns =
                PyList::new(py, columns(py, &sampled.trajectory, &mut max_batch_bytes(None))?)?;
            replay_sample(py, (self.info(py, sampled)?, columns))
        };
        match flat().and_then(|sample| error.value(py).setattr("samples", vec![sample])) {
            // An item that cannot be decoded is not attached.
            Ok(()) | Err(_) => error,
        }
    }
}

fn sample_info<'py>(py: Python<'py>, sampled: &Sampled) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    named_tuple(CLASS.import(py, "reverb.replay_sample", "SampleInfo")?, info(sampled))
}

fn window_info<'py>(
    py: Python<'py>,
    sampled: &Sampled,
    window: StepWindow,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (key, probability, table_size, priority, times_sampled) = info(sampled);
    let SampledWindow { start, count } = sampled.window;
    let mask = PyArray1::from_vec(py, window.mask(sampled.window).collect());
    let fields = (key, probability, table_size, priority, times_sampled, start, count, mask);
    named_tuple(CLASS.import(py, "reverb.replay_sample", "WindowInfo")?, fields)
}

fn replay_sample<'py>(
    py: Python<'py>,
    info_and_data: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    named_tuple(CLASS.import(py, "reverb.replay_sample", "ReplaySample")?, info_and_data)
}

/// A named tuple of all its fields. To call its class would run a function of Python.
fn named_tuple<'py>(
    class: &Bound<'py, PyType>,
    fields: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyAny>> {
    static NEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = class.py();
    let new = || py.get_type::<PyTuple>().getattr("__new__").map(Bound::unbind);
    NEW.get_or_try_init(py, new)?.bind(py).call1((class, fields.into_pyobject(py)?))
}

/// Attaches the samples taken before a failure to its exception, flat: they exist nowhere else any
/// more.
pub(crate) fn with_samples(py: Python<'_>, error: PyErr, taken: &[Sampled]) -> PyErr {
    // Samples that cannot be decoded are left out, and those that would take too much memory.
    let mut room = max_batch_bytes(None);
    let samples = taken.iter().filter_map(|sampled| flat_sample(py, sampled, &mut room).ok());
    let list = PyList::new(py, samples.collect::<Vec<_>>());
    match list.and_then(|list| error.value(py).setattr("samples", list)) {
        Ok(()) => error,
        Err(another) => another,
    }
}

/// The fields of `SampleInfo`, and the columns.
type FlatSample<'py> = ((u64, f64, i64, f64, i32), Vec<Bound<'py, PyAny>>);

/// An item as a flat tuple. It may take `room` bytes.
pub(crate) fn flat_sample<'py>(
    py: Python<'py>,
    sampled: &Sampled,
    room: &mut usize,
) -> PyResult<FlatSample<'py>> {
    Ok((info(sampled), columns(py, &sampled.trajectory, room)?))
}

fn info(sampled: &Sampled) -> (u64, f64, i64, f64, i32) {
    let Sampled { key, probability, table_size, priority, times_sampled, .. } = *sampled;
    (key, probability, table_size, priority, times_sampled)
}

fn columns<'py>(
    py: Python<'py>,
    trajectory: &Trajectory,
    room: &mut usize,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let columns = trajectory.columns();
    columns.map(|column| column_to_array(py, trajectory, &column, room)).collect()
}

/// Limit for steps without data. They cost a writer nothing, but as timesteps each costs a reader a
/// Python object.
const MAX_EMPTY_STEPS: usize = 1 << 20;

/// The number of timesteps of an item, if all its columns have the same number.
fn timesteps(trajectory: &Trajectory) -> reverb_base::Result<usize> {
    let mut specs: SmallVec<[(DType, Shape); 8]> = SmallVec::new();
    for (i, column) in trajectory.columns().enumerate() {
        let (dtype, mut shape) = trajectory.column_spec(&column)?;
        if column.squeeze {
            shape.remove(0);
            if shape.is_empty() {
                return Err(Error::invalid_argument(format!(
                    "Column {i} is a single value without a time dimension, so the item cannot be given as timesteps. \
                     Sample with emit_timesteps=False."
                )));
            }
        }
        specs.push((dtype, shape));
    }
    let count = specs.first().map_or(0, |(_, shape)| shape[0]);
    if let Some((i, (_, shape))) =
        specs.iter().enumerate().find(|(_, (_, shape))| shape[0] != count)
    {
        return Err(Error::invalid_argument(format!(
            "Can't split non timestep trajectory into timesteps: column 0 has {count} steps and column {i} has {}. \
             Sample with emit_timesteps=False.",
            shape[0]
        )));
    }
    if count > MAX_EMPTY_STEPS && specs.iter().all(|(_, shape)| shape.contains(&0)) {
        return Err(Error::resource_exhausted(format!(
            "The item has {count} steps without any data, which is more than the limit of {MAX_EMPTY_STEPS}. Sample \
             with emit_timesteps=False."
        )));
    }
    Ok(count)
}

#[pymethods]
impl Sampler {
    /// Number of fields of `SampleInfo`; programs for dm-reverb use it to skip to the data columns.
    #[classattr]
    const NUM_INFO_TENSORS: usize = 5;

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.fetch(py)?.map(|sampled| self.converted(py, &sampled)).transpose()
    }
}
