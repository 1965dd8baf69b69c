// SPDX-License-Identifier: Apache-2.0
//! The writer for environments that are stepped together, for Python.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use numpy::{Element, PyArray1, PyReadonlyArray1};
use parking_lot::Mutex;
use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use reverb_base::Error;
use reverb_client::{
    BatchedColumn, BatchedConstant, BatchedValue, BatchedWriter as Core, NewItems, StepIndex,
};
use reverb_data::DType;
use reverb_data::tensor::shape_text;
use smallvec::SmallVec;

use crate::array::Leaf;
use crate::batched_column::{BatchedColumnHistory, BatchedTrajectoryColumn};
use crate::constant::{owned, read_constant};
use crate::error::{OrRaise, in_column};
use crate::flat_nest::{ColumnNames, structure_of};
use crate::locks::Visit;
use crate::nest::Known;
use crate::process::Local;
use crate::queued_writer::QueuedWriter;
use crate::trajectory_writer::label;
use crate::wait::{throttle, wait};

/// Columns and constants, priorities, removal priorities, and a mask.
type BatchedItems<'py> = (
    Vec<Bound<'py, PyAny>>,
    PyReadonlyArray1<'py, f64>,
    Option<PyReadonlyArray1<'py, f64>>,
    Option<PyReadonlyArray1<'py, bool>>,
);

/// `B` histories stepped by one call.
#[pyclass(frozen, extends = QueuedWriter, module = "reverb.core._native")]
pub(crate) struct BatchedTrajectoryWriter {
    core: Arc<Local<Core>>,
    numbers: Mutex<HashMap<String, usize>>,
    steps: Known<Vec<usize>>,
}

impl BatchedTrajectoryWriter {
    pub(crate) fn wrap(py: Python<'_>, core: Core) -> PyResult<Py<Self>> {
        let queue = Arc::clone(core.queue());
        let core = Arc::new(Local::new(core));
        let writer = Self { core, numbers: Mutex::default(), steps: Known::new() };
        QueuedWriter::create(py, queue, writer)
    }

    fn check(&self) -> PyResult<()> {
        self.core.origin().check(Self::NAME).or_raise()
    }

    /// The number of a column, which is added if it is new.
    fn number(&self, label: String) -> usize {
        let add = |label: &String| self.core.add_column(label);
        self.numbers.visit(|numbers| *numbers.entry(label).or_insert_with_key(add))
    }

    fn store(
        &self,
        columns: &[usize],
        leaves: &[Bound<'_, PyAny>],
        partial_step: bool,
        mask: Option<PyReadonlyArray1<'_, bool>>,
    ) -> PyResult<()> {
        self.core.queue().check().or_raise()?;
        // A step of all environments is stored at once.
        let mask = self.check_mask(mask)?.filter(|mask| mask.contains(&false));
        let mut parsed: SmallVec<[Leaf<'_>; 8]> = SmallVec::with_capacity(leaves.len());
        for (leaf, &column) in leaves.iter().zip(columns) {
            let in_column = |error| in_column(leaf.py(), self.core.label(column), error);
            parsed.push(Leaf::new(leaf).map_err(in_column)?);
        }
        let mut values = Vec::with_capacity(leaves.len());
        for (leaf, &column) in parsed.iter_mut().zip(columns) {
            if let Some(value) = leaf.value() {
                values.push(BatchedValue { column, value });
            }
        }
        self.core.append(&values, partial_step, mask.as_deref()).or_raise()
    }

    fn per_environment<T: Element + Copy>(
        &self,
        argument: &str,
        values: &PyReadonlyArray1<'_, T>,
    ) -> PyResult<Vec<T>> {
        let values = values.as_array().to_vec();
        let batch_size = self.core.batch_size();
        if values.len() != batch_size {
            return Err(Error::invalid_argument(format!(
                "{argument} must have shape [{batch_size}], one entry per environment, got [{}]",
                values.len()
            )))
            .or_raise();
        }
        Ok(values)
    }

    /// Reads a constant: one value for all environments, or an array with a row for each.
    fn constant(
        &self,
        value: &Bound<'_, PyAny>,
        wanted: Option<DType>,
        label: impl Fn() -> String,
    ) -> PyResult<BatchedConstant> {
        let mut leaf = read_constant(value, wanted, &label)?;
        let value = owned(&mut leaf).ok_or_else(|| Error::internal("a leaf is None")).or_raise()?;
        match value.shape.first() {
            None => Ok(BatchedConstant::ForAll(value)),
            Some(&rows) if rows == self.core.batch_size() => Ok(BatchedConstant::Rows(value)),
            Some(_) => Err(Error::invalid_argument(format!(
                "column {} must be one value for all environments, or have a row for each, [{}, ...], got shape {}",
                label(),
                self.core.batch_size(),
                shape_text(&value.shape),
            )))
            .or_raise(),
        }
    }

    fn check_mask(&self, mask: Option<PyReadonlyArray1<'_, bool>>) -> PyResult<Option<Vec<bool>>> {
        mask.map(|mask| self.per_environment("where", &mask)).transpose()
    }
}

impl Drop for BatchedTrajectoryWriter {
    fn drop(&mut self) {
        // A history that the program keeps has the core, too.
        if self.core.origin().is_here() {
            self.core.queue().delete();
        }
    }
}

#[pymethods]
impl BatchedTrajectoryWriter {
    #[getter]
    fn episode_steps<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let steps = self.core.episode_steps().into_iter().map(|steps| steps as i64).collect();
        PyArray1::from_vec(py, steps)
    }

    #[pyo3(signature = (data, partial_step, r#where = None))]
    fn append(
        &self,
        data: &Bound<'_, PyAny>,
        partial_step: bool,
        r#where: Option<PyReadonlyArray1<'_, bool>>,
    ) -> PyResult<bool> {
        self.check()?;
        let Some((leaves, known)) = self.steps.flatten(data)? else { return Ok(false) };
        self.store(&known.1, &leaves, partial_step, r#where)?;
        Ok(true)
    }

    #[pyo3(signature = (columns, leaves, partial_step, r#where = None))]
    fn append_flat(
        &self,
        columns: Vec<usize>,
        leaves: Vec<Bound<'_, PyAny>>,
        partial_step: bool,
        r#where: Option<PyReadonlyArray1<'_, bool>>,
    ) -> PyResult<()> {
        self.check()?;
        self.store(&columns, &leaves, partial_step, r#where)
    }

    #[pyo3(signature = (paths))]
    fn register_columns(&self, paths: Vec<Bound<'_, PyTuple>>) -> PyResult<Vec<usize>> {
        // All labels first: a `__repr__` that raises adds no column.
        let labels: Vec<String> = paths.iter().map(|path| label(path)).collect::<PyResult<_>>()?;
        Ok(labels.into_iter().map(|label| self.number(label)).collect())
    }

    #[pyo3(signature = (column))]
    fn column_history(&self, column: usize) -> BatchedColumnHistory {
        BatchedColumnHistory { writer: Arc::clone(&self.core), column }
    }

    #[pyo3(signature = (data, columns, leaves))]
    fn remember_structure(
        &self,
        data: &Bound<'_, PyAny>,
        columns: Vec<usize>,
        leaves: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if let Some(structure) = structure_of(data, &leaves)? {
            self.steps.remember(structure, columns);
        }
        Ok(())
    }

    #[pyo3(signature = (table, items, names, keep = false))]
    fn create_all_items(
        &self,
        py: Python<'_>,
        table: &str,
        items: Vec<BatchedItems<'_>>,
        names: Option<&Bound<'_, ColumnNames>>,
        keep: bool,
    ) -> PyResult<usize> {
        self.check()?;
        let order = match names {
            Some(names) => self.core.items().order_of(table, &names.get().0).or_raise()?,
            None => None,
        };
        let items: PyResult<Vec<NewItems>> = items
            .into_iter()
            .map(|(leaves, priorities, removal_priorities, r#where)| {
                let removal = |numbers| self.per_environment("removal_priorities", &numbers);
                let mut constants = Vec::new();
                let mut columns = Vec::with_capacity(leaves.len());
                for at in 0..leaves.len() {
                    let place = order.as_ref().map_or(at, |order| order[at]);
                    if let Ok(column) = leaves[place].cast_exact::<BatchedTrajectoryColumn>() {
                        columns.push(column.get().core.clone());
                        continue;
                    }
                    let wanted = self.core.items().signature_dtype(table, at);
                    let index = StepIndex::Constant(constants.len());
                    columns.push(BatchedColumn { column: 0, index, pads_with_first: false });
                    let label = || {
                        let name = names.and_then(|names| names.get().0.0.get(place));
                        name.map_or_else(|| place.to_string(), ToString::to_string)
                    };
                    constants.push(self.constant(&leaves[place], wanted, label)?);
                }
                Ok(NewItems {
                    columns,
                    constants,
                    priorities: self.per_environment("priorities", &priorities)?,
                    removal_priorities: removal_priorities.map(removal).transpose()?,
                    selected: self.check_mask(r#where)?,
                })
            })
            .collect();
        let items = items?;
        let created = py.detach(|| {
            if keep {
                self.core.keep_items(table, &items)
            } else {
                self.core.create_items(table, &items)
            }
        });
        let created = created.map_err(|error| match names {
            Some(names) => {
                error.with_column(|index| names.get().0.in_order(order.as_deref()).label(index))
            }
            None => error,
        });
        let created = created.or_raise()?;
        throttle(py, self.core.queue())?;
        Ok(created)
    }

    /// Like `flush`, but returns false after the timeout.
    #[pyo3(signature = (block_until_num_items, timeout_ms))]
    fn is_confirmed_within(
        &self,
        py: Python<'_>,
        block_until_num_items: usize,
        timeout_ms: u64,
    ) -> PyResult<bool> {
        self.check()?;
        let timeout = Duration::from_millis(timeout_ms);
        wait(py, self.core.queue().is_confirmed_within(block_until_num_items, timeout))
    }

    #[pyo3(signature = (r#where, clear_buffers))]
    fn end_episode(
        &self,
        r#where: Option<PyReadonlyArray1<'_, bool>>,
        clear_buffers: bool,
    ) -> PyResult<()> {
        self.check()?;
        self.core.queue().check().or_raise()?;
        let mask = self.check_mask(r#where)?;
        self.core.end_episode(mask.as_deref(), clear_buffers);
        Ok(())
    }

    #[pyo3(signature = (path, num_keep_alive_refs, max_chunk_length))]
    fn configure(
        &self,
        path: &Bound<'_, PyTuple>,
        num_keep_alive_refs: usize,
        max_chunk_length: Option<usize>,
    ) -> PyResult<()> {
        let options = reverb_client::ColumnOptions { num_keep_alive_refs, max_chunk_length };
        self.core.configure(self.number(label(path)?), options).or_raise()
    }
}
