// SPDX-License-Identifier: Apache-2.0
//! The sequence writer for Python: one native call appends a step of all environments and creates
//! its items.

use std::sync::{Arc, OnceLock};

use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat};
use reverb_client::SequenceWriter as Core;
use reverb_client::{ItemSteps, PerRow, SequenceOptions, Step};
use smallvec::SmallVec;

use crate::array::Leaf;
use crate::error::{OrRaise, in_column};
use crate::flat_nest::structure_of;
use crate::nest::Known;
use crate::process::Local;
use crate::queued_writer::QueuedWriter;
use crate::wait::throttle;

/// Items that a writer creates: the attributes of Python's `SequenceOptions`.
#[derive(FromPyObject)]
pub(crate) struct SequenceArguments {
    tables: Vec<String>,
    batch_size: Option<usize>,
    /// `None` if items are episodes.
    sequence_length: Option<usize>,
    stride_length: usize,
    max_sequence_length: usize,
    drop_long_episodes: bool,
}

impl From<SequenceArguments> for SequenceOptions {
    fn from(arguments: SequenceArguments) -> Self {
        let item_steps = match arguments.sequence_length {
            Some(length) => ItemSteps::Sliding { length, stride: arguments.stride_length },
            None => ItemSteps::Episode {
                max_length: arguments.max_sequence_length,
                drop_long: arguments.drop_long_episodes,
            },
        };
        Self { tables: arguments.tables, item_steps, batch_size: arguments.batch_size }
    }
}

/// Writes every window of steps. Dropping it closes it and abandons items that were not flushed.
#[pyclass(frozen, extends = QueuedWriter, module = "reverb.core._native")]
pub(crate) struct SequenceWriter {
    core: Local<Arc<Core>>,
    steps: Known<()>,
    /// Handle in TensorFlow's ops, if they use it.
    handle: OnceLock<i64>,
}

/// One value for each row, as Python passed it.
enum Rows<'py, T: Element> {
    All(T),
    Each(PyReadonlyArray1<'py, T>),
}

impl<T: Element + Copy> Rows<'_, T> {
    fn per_row(&self) -> PyResult<PerRow<'_, T>> {
        Ok(match self {
            Self::All(value) => PerRow::All(*value),
            Self::Each(array) => PerRow::Each(array.as_slice()?),
        })
    }
}

fn parse_mask<'py>(value: &Bound<'py, PyAny>) -> PyResult<Rows<'py, bool>> {
    match value.cast_exact::<PyBool>() {
        Ok(value) => Ok(Rows::All(value.is_true())),
        Err(_) => Ok(Rows::Each(value.extract()?)),
    }
}

fn parse_priorities<'py>(value: &Bound<'py, PyAny>) -> PyResult<Rows<'py, f64>> {
    match value.cast_exact::<PyFloat>() {
        Ok(value) => Ok(Rows::All(value.value())),
        Err(_) => Ok(Rows::Each(value.extract()?)),
    }
}

impl SequenceWriter {
    pub(crate) fn wrap(py: Python<'_>, core: Core) -> PyResult<Py<Self>> {
        let queue = Arc::clone(core.queue());
        let core = Local::new(Arc::new(core));
        let writer = Self { core, steps: Known::new(), handle: OnceLock::new() };
        QueuedWriter::create(py, queue, writer)
    }

    fn check(&self) -> PyResult<()> {
        self.core.origin().check(Self::NAME).or_raise()
    }

    fn store(
        &self,
        py: Python<'_>,
        labels: Option<&[String]>,
        leaves: &[Bound<'_, PyAny>],
        is_last: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
        removal_priorities: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        self.core.queue().check().or_raise()?;
        let label = |i: usize| self.core.name_of(labels, i);
        let is_last = parse_mask(is_last)?;
        let priorities = parse_priorities(priorities)?;
        let removal = removal_priorities.map(parse_priorities).transpose()?;
        let mut parsed: SmallVec<[Leaf<'_>; 8]> = SmallVec::with_capacity(leaves.len());
        for (i, leaf) in leaves.iter().enumerate() {
            parsed.push(Leaf::new(leaf).map_err(|error| in_column(py, label(i), error))?);
        }
        let mut values = SmallVec::with_capacity(leaves.len());
        for (i, leaf) in parsed.iter_mut().enumerate() {
            let Some(value) = leaf.value() else {
                return Err(PyTypeError::new_err(format!(
                    "Column {}: None cannot be stored; every step needs a value for every column",
                    label(i)
                )));
            };
            values.push(value);
        }
        let step = Step {
            labels,
            values,
            is_last: is_last.per_row()?,
            priorities: priorities.per_row()?,
            removal_priorities: removal.as_ref().map(Rows::per_row).transpose()?,
        };
        let created = self.core.append(step).or_raise()?;
        throttle(py, self.core.queue())?;
        Ok(created)
    }
}

#[pymethods]
impl SequenceWriter {
    /// Logs the steps that are in no item, if any.
    fn report_unwritten(&self) {
        if self.core.origin().is_here() {
            self.core.report_unwritten();
        }
    }

    #[getter]
    fn episode_steps<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let steps = self.core.episode_steps().into_iter().map(|steps| steps as i64).collect();
        PyArray1::from_vec(py, steps)
    }

    #[getter]
    fn num_dropped_episodes(&self) -> u64 {
        self.core.num_dropped_episodes()
    }

    #[pyo3(signature = (data, is_last, priorities, removal_priorities))]
    fn append(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        is_last: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
        removal_priorities: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<usize>> {
        self.check()?;
        let Some((leaves, _)) = self.steps.flatten(data)? else { return Ok(None) };
        self.store(py, None, &leaves, is_last, priorities, removal_priorities).map(Some)
    }

    #[pyo3(signature = (labels, leaves, is_last, priorities, removal_priorities))]
    fn append_flat(
        &self,
        py: Python<'_>,
        labels: Vec<String>,
        leaves: Vec<Bound<'_, PyAny>>,
        is_last: &Bound<'_, PyAny>,
        priorities: &Bound<'_, PyAny>,
        removal_priorities: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        self.check()?;
        if labels.len() != leaves.len() {
            return Err(reverb_base::Error::internal(
                "labels and leaves must be of the same length",
            ))
            .or_raise();
        }
        self.store(py, Some(&labels), &leaves, is_last, priorities, removal_priorities)
    }

    #[pyo3(signature = (data, leaves))]
    fn remember_structure(
        &self,
        data: &Bound<'_, PyAny>,
        leaves: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if let Some(structure) = structure_of(data, &leaves)? {
            self.steps.remember(structure, ());
        }
        Ok(())
    }

    fn columns(&self) -> Vec<(String, i32, Vec<usize>)> {
        let columns = self.core.columns().into_iter();
        columns
            .map(|column| (column.label, column.spec.dtype.number(), column.spec.shape.to_vec()))
            .collect()
    }

    #[pyo3(signature = (r#where))]
    fn end_episode(&self, r#where: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check()?;
        let selected = parse_mask(r#where)?;
        self.core.end_episode(selected.per_row()?).or_raise()
    }

    fn tensorflow_handle(&self) -> PyResult<i64> {
        self.check()?;
        Ok(*self.handle.get_or_init(|| reverb_tf::register_writer(&self.core)))
    }
}

impl Drop for SequenceWriter {
    fn drop(&mut self) {
        // A graph of TensorFlow may still have it.
        if self.core.origin().is_here() {
            self.core.delete();
        }
        if let Some(handle) = self.handle.get() {
            reverb_tf::unregister_writer(*handle);
        }
    }
}
