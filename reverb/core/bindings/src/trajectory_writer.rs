// SPDX-License-Identifier: Apache-2.0
//! The trajectory writer for Python: one native call per append and per item.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::PyClass;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use reverb_base::Error;
use reverb_client::{CellValue, ColumnOptions, ColumnRefs, TrajectoryWriter as Core};
use reverb_data::ItemPriority;
use reverb_data::column_names::ColumnNames;
use smallvec::SmallVec;

use crate::array::Leaf;
use crate::column::{ColumnHistory, TrajectoryColumn};
use crate::constant::read_constant;
use crate::error::{OrRaise, in_column};
use crate::flat_nest::{ColumnNames as FlatNames, structure_of};
use crate::locks::Visit;
use crate::nest::{Known, Leaves, Structure};
use crate::process::Local;
use crate::queued_writer::QueuedWriter;
use crate::wait::{throttle, timeout_ms as timeout, wait};

/// Writes steps and items over them. Dropping it closes it and abandons items that were not
/// flushed.
#[pyclass(frozen, extends = QueuedWriter, module = "reverb.core._native")]
pub(crate) struct TrajectoryWriter {
    core: Arc<Local<Core>>,
    state: Mutex<State>,
    /// Known structures of `append`, with the columns of their leaves.
    steps: Known<Vec<usize>>,
    /// Known structures of `create_item`, with the names of their columns.
    trajectories: Known<Arc<ColumnNames>>,
}

#[derive(Default)]
struct State {
    /// Labels of the columns: their paths as text.
    labels: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Options of columns that have no value yet.
    options: HashMap<String, ColumnOptions>,
}

impl TrajectoryWriter {
    pub(crate) fn wrap(py: Python<'_>, core: Core) -> PyResult<Py<Self>> {
        let queue = Arc::clone(core.queue());
        let writer = Self {
            core: Arc::new(Local::new(core)),
            state: Mutex::default(),
            steps: Known::new(),
            trajectories: Known::new(),
        };
        QueuedWriter::create(py, queue, writer)
    }

    /// The writer, for a call that outlives this one.
    pub(crate) fn core(&self) -> PyResult<Arc<Local<Core>>> {
        self.check()?;
        Ok(Arc::clone(&self.core))
    }

    fn check(&self) -> PyResult<()> {
        self.core.origin().check(Self::NAME).or_raise()
    }

    fn label(&self, column: usize) -> String {
        self.core.history().visit(|history| history.label(column).to_owned())
    }

    /// The number of a column, which is added if it is new.
    fn number(&self, label: String) -> usize {
        let history = self.core.history();
        self.state.visit(|State { labels, numbers, options }| {
            *numbers.entry(label).or_insert_with_key(|label| {
                labels.push(label.clone());
                history.visit(|history| history.add_column(label, options.remove(label)))
            })
        })
    }

    /// Rejects values for columns that already have one in the open step.
    fn check_unset(&self, columns: &[usize], leaves: &[Bound<'_, PyAny>]) -> PyResult<()> {
        if !self.core.history().visit(|history| history.step_is_open()) {
            return Ok(());
        }
        let mut values = columns.iter().zip(leaves).filter(|(_, leaf)| !leaf.is_none());
        let is_set =
            |column| self.core.history().visit(|history| history.is_set_in_open_step(column));
        let Some((&column, leaf)) = values.find(|(column, _)| is_set(**column)) else {
            return Ok(());
        };
        let label = self.label(column);
        Err(Error::invalid_argument(format!(
            "Field {label} has already been set in the active step by previous (partial) append call and thus must be \
             omitted or set to None but got: {leaf}"
        )))
        .or_raise()
    }

    fn store(
        &self,
        columns: &[usize],
        leaves: &[Bound<'_, PyAny>],
        partial_step: bool,
    ) -> PyResult<()> {
        self.core.queue().check().or_raise()?;
        let mut parsed: SmallVec<[Leaf<'_>; 8]> = SmallVec::with_capacity(leaves.len());
        for (leaf, &column) in leaves.iter().zip(columns) {
            let in_column = |error| in_column(leaf.py(), self.label(column), error);
            parsed.push(Leaf::new(leaf).map_err(in_column)?);
        }
        let mut cells: SmallVec<[(usize, CellValue<'_>); 8]> =
            SmallVec::with_capacity(leaves.len());
        for (leaf, &column) in parsed.iter_mut().zip(columns) {
            if let Some(value) = leaf.value() {
                cells.push((column, value));
            }
        }
        self.check_unset(columns, leaves)?;
        let completed =
            self.core.history().visit(|history| history.append(&mut cells, partial_step));
        if completed.or_raise()? {
            self.core.queue().blocks_completed();
        }
        Ok(())
    }

    fn create(
        &self,
        py: Python<'_>,
        table: &str,
        priority: ItemPriority,
        leaves: &[Bound<'_, PyAny>],
        names: &Arc<ColumnNames>,
    ) -> PyResult<()> {
        let order = self.core.items().order_of(table, names).or_raise()?;
        let place = |at: usize| order.as_ref().map_or(at, |order| order[at]);
        let is_column = |leaf: &Bound<'_, PyAny>| leaf.is_exact_instance_of::<TrajectoryColumn>();
        let mut constants: SmallVec<[Leaf<'_>; 2]> = SmallVec::new();
        for at in (0..leaves.len()).filter(|&at| !is_column(&leaves[place(at)])) {
            let wanted = self.core.items().signature_dtype(table, at);
            let label = || names.0.get(place(at)).map_or_else(String::new, ToString::to_string);
            constants.push(read_constant(&leaves[place(at)], wanted, label)?);
        }
        let mut values: SmallVec<[CellValue<'_>; 2]> =
            constants.iter_mut().filter_map(Leaf::value).collect();
        let constants = self.core.constants(&mut values).or_raise()?;
        let mut constants = constants.chunks(1);
        let mut columns: SmallVec<[ColumnRefs<'_>; 8]> = SmallVec::with_capacity(leaves.len());
        for at in 0..leaves.len() {
            let column = leaves[place(at)].cast_exact::<TrajectoryColumn>();
            columns.push(if let Ok(column) = &column {
                let TrajectoryColumn { cells, squeeze } = column.get();
                ColumnRefs { cells, squeeze: *squeeze }
            } else {
                let cells = constants.next().ok_or_else(|| Error::internal("a leaf is None"));
                ColumnRefs { cells: cells.or_raise()?, squeeze: true }
            });
        }
        let created = self.core.create_item(table, priority, &columns);
        let named =
            |error: Error| error.with_column(|index| names.in_order(order.as_deref()).label(index));
        created.map_err(named).or_raise()?;
        throttle(py, self.core.queue())
    }
}

/// Key of a path: the text of a tuple of strings and ints, which is unique.
pub(crate) fn label(path: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(path.repr()?.to_string())
}

impl Drop for TrajectoryWriter {
    fn drop(&mut self) {
        // A history that the program keeps has the core, too.
        if self.core.origin().is_here() {
            self.core.queue().delete();
        }
    }
}

#[pymethods]
impl TrajectoryWriter {
    #[getter]
    fn episode_steps(&self) -> u64 {
        self.core.history().visit(|history| history.episode_steps())
    }

    #[pyo3(signature = (data, partial_step))]
    fn append(&self, data: &Bound<'_, PyAny>, partial_step: bool) -> PyResult<bool> {
        self.check()?;
        let Some((leaves, known)) = self.steps.flatten(data)? else { return Ok(false) };
        self.store(&known.1, &leaves, partial_step)?;
        Ok(true)
    }

    #[pyo3(signature = (columns, leaves, partial_step))]
    fn append_flat(
        &self,
        columns: Vec<usize>,
        leaves: Vec<Bound<'_, PyAny>>,
        partial_step: bool,
    ) -> PyResult<()> {
        self.check()?;
        let known = self.core.history().visit(|history| history.num_columns());
        if columns.len() != leaves.len() || columns.iter().any(|&column| column >= known) {
            return Err(Error::internal("columns and leaves do not match")).or_raise();
        }
        self.store(&columns, &leaves, partial_step)
    }

    #[pyo3(signature = (paths))]
    fn register_columns(&self, paths: Vec<Bound<'_, PyTuple>>) -> PyResult<Vec<usize>> {
        // All labels first: a `__repr__` that raises adds no column.
        let labels: Vec<String> = paths.iter().map(|path| label(path)).collect::<PyResult<_>>()?;
        Ok(labels.into_iter().map(|label| self.number(label)).collect())
    }

    #[pyo3(signature = (column))]
    fn column_history(&self, column: usize) -> PyResult<ColumnHistory> {
        let label = self.state.visit(|state| state.labels.get(column).cloned());
        let label = label
            .ok_or_else(|| Error::invalid_argument(format!("No column {column}")))
            .or_raise()?;
        Ok(ColumnHistory { writer: Arc::clone(&self.core), column, label })
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

    #[pyo3(signature = (table, priority, trajectory, removal_priority))]
    fn create_item(
        &self,
        table: &str,
        priority: f64,
        trajectory: &Bound<'_, PyAny>,
        removal_priority: Option<f64>,
    ) -> PyResult<bool> {
        self.check()?;
        let (leaves, known) = if let Some(known) = self.trajectories.flatten(trajectory)? {
            known
        } else {
            let is_column =
                |value: &Bound<'_, PyAny>| value.is_exact_instance_of::<TrajectoryColumn>();
            let Some(structure) = Structure::from_nest(trajectory, &is_column)? else {
                return Ok(false);
            };
            let mut leaves = Leaves::new();
            structure.flatten(trajectory, &mut leaves)?;
            let names = structure.labels(trajectory.py())?;
            let names = Arc::new(ColumnNames::from_labels(&names));
            (leaves, self.trajectories.remember(structure, names))
        };
        let priority = ItemPriority { value: priority, removal: removal_priority };
        self.create(trajectory.py(), table, priority, &leaves, &known.1)?;
        Ok(true)
    }

    #[pyo3(signature = (table, priority, columns, names, removal_priority))]
    fn create_item_flat(
        &self,
        table: &str,
        priority: f64,
        columns: &Bound<'_, PyAny>,
        names: &Bound<'_, FlatNames>,
        removal_priority: Option<f64>,
    ) -> PyResult<()> {
        self.check()?;
        let leaves: PyResult<Leaves<'_>> = columns.try_iter()?.collect();
        let priority = ItemPriority { value: priority, removal: removal_priority };
        self.create(columns.py(), table, priority, &leaves?, &names.get().0)
    }

    #[pyo3(signature = (clear_buffers, timeout_ms))]
    fn end_episode(
        &self,
        py: Python<'_>,
        clear_buffers: bool,
        timeout_ms: Option<i64>,
    ) -> PyResult<()> {
        self.check()?;
        wait(py, self.core.end_episode(clear_buffers, timeout(timeout_ms)))
    }

    #[pyo3(signature = (path, num_keep_alive_refs, max_chunk_length))]
    fn configure(
        &self,
        path: &Bound<'_, PyTuple>,
        num_keep_alive_refs: usize,
        max_chunk_length: Option<usize>,
    ) -> PyResult<()> {
        let options = ColumnOptions { num_keep_alive_refs, max_chunk_length };
        let label = label(path)?;
        let history = self.core.history();
        let configured = self.state.visit(|state| {
            if let Some(&column) = state.numbers.get(&label) {
                return history.visit(|history| history.configure(column, options));
            }
            state.options.insert(label, options);
            Ok(())
        });
        configured.or_raise()
    }
}
