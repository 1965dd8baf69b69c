// SPDX-License-Identifier: Apache-2.0
//! A writer for environments that are stepped together: one history per environment, one insert
//! stream for all.

use std::sync::Arc;

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::{DType, ItemPriority, Shape};
use smallvec::SmallVec;

use super::capture::block::{BlockRef, StepBlock};
use super::capture::cell::{Cell, CellRef, CellValue};
use super::capture::column_orders::Matching;
use super::capture::constants::{BatchedConstant, ConstantCells, Constants};
use super::capture::history::{ColumnOptions, History};
use super::capture::item::PendingItem;
use super::capture::item_maker::ItemMaker;
use super::send::send_queue::SendQueue;
use crate::client::Client;
use crate::session::Signatures;

/// Steps of a column's history that an item contains, as in Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepIndex {
    /// One step, without a leading dimension. Negative counts from the end.
    At(i64),
    /// A slice.
    Range {
        /// First step; `None` for the oldest.
        start: Option<i64>,
        /// The step after the last; `None` for the end.
        stop: Option<i64>,
        /// Stride, at least 1.
        step: i64,
    },
    /// Any steps in any order, with repeats allowed. Negative counts from the end.
    Steps(Arc<[i64]>),
    /// No step of the history: the constant with this number in [`NewItems`], without a leading
    /// dimension.
    Constant(usize),
}

/// One column of new items.
#[derive(Debug, Clone)]
pub struct BatchedColumn {
    /// Column of the history.
    pub column: usize,
    /// Selected steps.
    pub index: StepIndex,
    /// True if steps before the start of the history are filled with its first step.
    pub pads_with_first: bool,
}

/// One column's values for all environments, `[B, ...]`.
#[derive(Debug)]
pub struct BatchedValue<'a> {
    /// The column.
    pub column: usize,
    /// The values; the first dimension is the environment.
    pub value: CellValue<'a>,
}

/// One item for each of some environments.
#[derive(Debug)]
pub struct NewItems {
    /// The columns of an item.
    pub columns: Vec<BatchedColumn>,
    /// Values of columns that are in no history.
    pub constants: Vec<BatchedConstant>,
    /// The priority of each environment's item.
    pub priorities: Vec<f64>,
    /// Removal priorities, used by removers instead of `priorities`.
    pub removal_priorities: Option<Vec<f64>>,
    /// Selected environments; `None`: those whose episode has the requested steps.
    pub selected: Option<Vec<bool>>,
}

/// Writes steps of `B` environments.
#[derive(Debug)]
pub struct BatchedWriter {
    histories: Mutex<Vec<History>>,
    /// Constants of the items of each environment.
    constants: Mutex<Vec<Constants>>,
    items: ItemMaker,
    queue: Arc<SendQueue>,
}

impl BatchedWriter {
    /// A writer for `batch_size` environments. It keeps the last `num_keep_alive_refs` values of
    /// each column of each environment.
    pub fn new(
        client: &Client,
        batch_size: usize,
        num_keep_alive_refs: usize,
        signatures: Option<Arc<Signatures>>,
    ) -> Self {
        let compression = client.compression();
        let history = |_| History::new(num_keep_alive_refs).with_compression(compression);
        let histories = (0..batch_size).map(history).collect();
        let constants = std::iter::repeat_with(Constants::default).take(batch_size).collect();
        let session = client.session();
        Self {
            histories: Mutex::new(histories),
            constants: Mutex::new(constants),
            items: ItemMaker::new(session, signatures, Matching::ByName),
            queue: SendQueue::start(session, batch_size),
        }
    }

    /// The items in flight.
    pub fn queue(&self) -> &Arc<SendQueue> {
        &self.queue
    }

    /// The rules for its items.
    pub fn items(&self) -> &ItemMaker {
        &self.items
    }

    /// Adds a column to all histories; returns its index.
    pub fn add_column(&self, label: &str) -> usize {
        let mut histories = self.histories.lock();
        histories.iter_mut().map(|history| history.add_column(label, None)).last().unwrap_or(0)
    }

    /// A column's name in error texts.
    pub fn label(&self, column: usize) -> String {
        label(&self.histories.lock(), column).to_owned()
    }

    /// Number of environments.
    pub fn batch_size(&self) -> usize {
        self.histories.lock().len()
    }

    /// Changes storage and chunking of a column, for all environments.
    pub fn configure(&self, column: usize, options: ColumnOptions) -> Result<()> {
        self.histories.lock().iter_mut().try_for_each(|history| history.configure(column, options))
    }

    /// The cells that an index selects in each environment; `None` where a cell does not exist.
    pub fn select(&self, column: &BatchedColumn) -> Vec<Option<Vec<CellRef>>> {
        let select = |history: &History| {
            let mut cells = Vec::new();
            let is_complete = collect(history, column, &[], &mut cells);
            is_complete.then(|| cells.into_iter().map(Cell::to_ref).collect())
        };
        self.histories.lock().iter().map(select).collect()
    }

    /// Number of closed steps of the current episode, per environment.
    pub fn episode_steps(&self) -> Vec<u64> {
        self.histories.lock().iter().map(History::episode_steps).collect()
    }

    /// Number of steps in the history, per environment.
    pub fn history_len(&self) -> Vec<u64> {
        self.histories.lock().iter().map(History::num_steps).collect()
    }

    /// Shape `[B, T, ...]` of a column's history, with the steps of the environment that has the
    /// most; `None` before its first value.
    pub fn history_shape(&self, column: usize) -> Option<Shape> {
        let histories = self.histories.lock();
        let spec = histories.iter().find_map(|history| history.spec(column))?;
        let steps = histories.iter().map(History::num_steps).max().unwrap_or(0);
        let sizes = [histories.len(), steps as usize];
        Some(sizes.into_iter().chain(spec.shape.iter().copied()).collect())
    }

    /// Type of a column's values; `None` before its first value.
    pub fn dtype(&self, column: usize) -> Option<DType> {
        self.histories.lock().iter().find_map(|history| history.spec(column)).map(|spec| spec.dtype)
    }

    /// Appends one step of every selected environment; `None` selects all. The values have a row
    /// for each environment, selected or not. Never waits.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if a value's first dimension is not the number of environments; the errors
    /// of `History::append`.
    pub fn append(
        &self,
        values: &[BatchedValue<'_>],
        partial_step: bool,
        selected: Option<&[bool]>,
    ) -> Result<()> {
        let is_selected = |i: usize| selected.is_none_or(|selected| selected[i]);
        let mut histories = self.histories.lock();
        let batch_size = histories.len();
        for value in values {
            if value.value.shape().first() != Some(&batch_size) {
                return Err(Error::invalid_argument(format!(
                    "The first dimension of column {} must be batch_size={batch_size}, got shape {}",
                    label(&histories, value.column),
                    reverb_data::tensor::shape_text(value.value.shape()),
                )));
            }
        }
        // All environments are checked before any stores its row, because their episodes and open
        // steps may differ.
        for (i, history) in histories.iter().enumerate().filter(|(i, _)| is_selected(*i)) {
            let is_set = |value: &&BatchedValue<'_>| history.is_set_in_open_step(value.column);
            if let Some(value) = values.iter().find(is_set) {
                return Err(Error::invalid_argument(format!(
                    "Field {} has already been set in the active step of environment {i} by previous (partial) append \
                     call and thus must be omitted or set to None",
                    history.label(value.column),
                )));
            }
        }
        // Same order as the columns of the histories, for any order in the program.
        let mut values: SmallVec<[&BatchedValue<'_>; 8]> = values.iter().collect();
        values.sort_by_key(|value| value.column);
        if !partial_step && selected.is_none() && append_together(&mut histories, &values) {
            return Ok(());
        }
        let mut row: Vec<(usize, CellValue<'_>)> = Vec::with_capacity(values.len());
        // The last history that accepted the values as a row.
        let mut checked = None;
        let mut completed = false;
        for i in (0..batch_size).filter(|&i| is_selected(i)) {
            row.clear();
            row.extend(values.iter().map(|value| (value.column, value.value.row(i, batch_size))));
            let (before, history) = histories.split_at_mut(i);
            let known = checked.map(|at: usize| &before[at]);
            if !partial_step && history[0].append_row(known, &row) {
                checked = Some(i);
            } else {
                completed |= history[0].append_like(before.first(), &mut row, partial_step)?;
            }
        }
        if completed {
            self.queue.blocks_completed();
        }
        Ok(())
    }

    /// Creates one item per selected environment. Never waits.
    ///
    /// Returns the number of items.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if a selected environment lacks a step; errors of
    /// `ItemQueue::create_item`. No item is created then.
    ///
    /// # Panics
    ///
    /// If there are fewer priorities than environments.
    pub fn create_items(&self, table: &str, new: &[NewItems]) -> Result<usize> {
        let (created, is_due) = self.queue_items(table, new)?;
        if is_due {
            self.queue.wake();
        }
        Ok(created)
    }

    /// Like `create_items`, but wakes no thread: the items are sent with those of a later call, or
    /// by a flush.
    ///
    /// # Errors
    ///
    /// Those of `create_items`.
    pub fn keep_items(&self, table: &str, new: &[NewItems]) -> Result<usize> {
        self.queue_items(table, new).map(|(created, _)| created)
    }

    /// Returns the number of items, and whether the task is to be woken.
    fn queue_items(&self, table: &str, new: &[NewItems]) -> Result<(usize, bool)> {
        let histories = self.histories.lock();
        // All or none: the caller could not know which items were created before an error.
        let mut items = Vec::with_capacity(histories.len());
        for new in new {
            self.make_items(&histories, table, new, &mut items)?;
        }
        let created = items.len();
        Ok((created, self.queue.keep_all(items)?))
    }

    fn make_items(
        &self,
        histories: &[History],
        table: &str,
        new: &NewItems,
        items: &mut Vec<PendingItem>,
    ) -> Result<()> {
        let NewItems { columns, priorities, removal_priorities, selected, .. } = new;
        let is_selected =
            |(i, _): &(usize, &History)| selected.as_ref().is_none_or(|chosen| chosen[*i]);
        let selected_histories = histories.iter().enumerate().filter(is_selected);
        let all: SmallVec<[usize; 8]> = (0..columns.len()).collect();
        let distinct =
            distinct_columns(columns, selected_histories.clone().map(|(_, history)| history));
        let constants = self.constant_cells(histories, new)?;
        let constants_of = |i: usize| constants.get(i).map_or(&[][..], |cells| cells);
        let mut cells = Cells::default();
        let mut maker = self.items.of_table(table);
        for (i, history) in selected_histories {
            let priority = ItemPriority {
                value: priorities[i],
                removal: removal_priorities.as_ref().map(|priorities| priorities[i]),
            };
            if !cells.collect(history, columns, constants_of(i), &distinct) {
                if selected.is_some() {
                    return Err(Error::invalid_argument(format!(
                        "Environment {i} was selected by `where`, but its history of {} steps lacks a step that the \
                         item needs",
                        history.num_steps()
                    )));
                }
                continue;
            }
            if let Some(item) = maker.make_alike(priority, &cells.of(columns, &distinct))? {
                items.push(item);
                continue;
            }
            cells.collect(history, columns, constants_of(i), &all);
            let all = cells.of(columns, &all).map(|(_, cells, squeeze)| (cells, squeeze));
            items.push(maker.make(priority, all)?);
        }
        Ok(())
    }

    /// The cells of the constants for each environment; empty if there are none.
    fn constant_cells(&self, histories: &[History], new: &NewItems) -> Result<Vec<ConstantCells>> {
        if new.constants.is_empty() {
            return Ok(Vec::new());
        }
        let mut known = self.constants.lock();
        let mut cells = vec![ConstantCells::new(); histories.len()];
        for (i, history) in histories.iter().enumerate() {
            if new.selected.as_ref().is_none_or(|selected| selected[i]) {
                let mut values: SmallVec<[CellValue<'_>; 4]> = SmallVec::new();
                values.extend(
                    new.constants.iter().map(|constant| constant.of_row(i, histories.len())),
                );
                cells[i] = known[i].cells(history, &mut values)?;
            }
        }
        Ok(cells)
    }

    /// Ends the episode of the selected environments. With `clear_buffers` it also empties their
    /// histories. Never waits.
    pub fn end_episode(&self, selected: Option<&[bool]>, clear_buffers: bool) {
        let mut histories = self.histories.lock();
        let mut completed = false;
        for (i, history) in histories.iter_mut().enumerate() {
            if selected.is_none_or(|selected| selected[i]) {
                completed |= history.end_episode(clear_buffers);
            }
        }
        self.queue.episode_ended();
        if completed {
            self.queue.blocks_completed();
        }
    }
}

impl Drop for BatchedWriter {
    fn drop(&mut self) {
        self.queue.delete();
    }
}

/// Appends a step of all environments in one block; false, and nothing is done, if their histories
/// keep more than one step in a block, or differ.
fn append_together(histories: &mut [History], values: &[&BatchedValue<'_>]) -> bool {
    let Some((first, others)) = histories.split_first() else { return false };
    let mut row: SmallVec<[(usize, CellValue<'_>); 8]> = SmallVec::new();
    row.extend(values.iter().map(|value| (value.column, value.value.row(0, histories.len()))));
    let Some(columns) = first.step_columns(first, &row) else { return false };
    if !columns.are_of(row.iter().map(|(_, value)| value))
        || !others.iter().all(|history| history.step_columns(first, &row).is_some())
    {
        return false;
    }
    let origin = |history: &History| (history.episode_id(), history.episode_steps() as i32);
    let values = values.iter().map(|value| &value.value);
    let Some(block) = StepBlock::new(columns, values, histories.iter().map(origin)) else {
        return false;
    };
    for (row, history) in (0..).zip(histories) {
        history.append_step(BlockRef::Row(Arc::clone(&block), row));
    }
    true
}

fn label(histories: &[History], column: usize) -> &str {
    histories.first().map_or("", |history| history.label(column))
}

/// Columns whose cells determine the cells of all columns.
///
/// Small columns mostly have values in the same steps. Columns with the same index then have their
/// cells in the same rows, and one of them is enough.
fn distinct_columns<'a>(
    columns: &[BatchedColumn],
    mut histories: impl Iterator<Item = &'a History> + Clone,
) -> SmallVec<[usize; 8]> {
    let first = histories.clone().next();
    let Some(first) = first.filter(|first| histories.all(|history| history.has_rows_like(first)))
    else {
        return (0..columns.len()).collect();
    };
    let is_like = |column: &BatchedColumn, other: &BatchedColumn| {
        let is_constant = matches!(column.index, StepIndex::Constant(_));
        let has_same_index =
            (&column.index, column.pads_with_first) == (&other.index, other.pads_with_first);
        has_same_index
            && !is_constant
            && first.is_small(column.column)
            && first.is_small(other.column)
    };
    let is_first = |i: &usize| !columns[..*i].iter().any(|other| is_like(&columns[*i], other));
    (0..columns.len()).filter(is_first).collect()
}

/// The cells of some columns of an item.
#[derive(Default)]
struct Cells<'a> {
    cells: Vec<Cell<'a>>,
    /// End of each column's cells.
    ends: SmallVec<[usize; 8]>,
}

impl<'a> Cells<'a> {
    /// Replaces the cells by those of the chosen columns; `false` if a cell does not exist.
    fn collect(
        &mut self,
        history: &'a History,
        columns: &[BatchedColumn],
        constants: &'a [CellRef],
        chosen: &[usize],
    ) -> bool {
        self.cells.clear();
        self.ends.clear();
        chosen.iter().all(|&i| {
            let is_complete = collect(history, &columns[i], constants, &mut self.cells);
            self.ends.push(self.cells.len());
            is_complete
        })
    }

    /// The chosen columns: index, cells, and a flag for squeezed ones.
    fn of(
        &self,
        columns: &[BatchedColumn],
        chosen: &[usize],
    ) -> impl Iterator<Item = (usize, impl ExactSizeIterator<Item = Cell<'a>> + Clone, bool)> + Clone
    {
        let begins = std::iter::once(&0).chain(&self.ends);
        chosen.iter().zip(begins.zip(&self.ends)).map(|(&i, (&begin, &end))| {
            let squeeze = matches!(columns[i].index, StepIndex::At(_) | StepIndex::Constant(_));
            (i, self.cells[begin..end].iter().copied(), squeeze)
        })
    }
}

/// Adds the cells that an index selects; `false` if a cell does not exist.
fn collect<'a>(
    history: &'a History,
    column: &BatchedColumn,
    constants: &'a [CellRef],
    cells: &mut Vec<Cell<'a>>,
) -> bool {
    let len = history.num_steps() as i64;
    let absolute = |at: i64| if at < 0 { at + len } else { at };
    let mut push = |step: i64| {
        let step = if column.pads_with_first { step.max(0) } else { step };
        let cell = u64::try_from(step).ok().and_then(|step| history.cell(column.column, step));
        cells.extend(cell);
        cell.is_some()
    };
    match column.index {
        StepIndex::Constant(at) => {
            cells.push(constants[at].as_cell());
            true
        }
        StepIndex::At(at) => push(absolute(at)),
        StepIndex::Steps(ref steps) => steps.iter().all(|&at| push(absolute(at))),
        StepIndex::Range { start, stop, step } => {
            // A start before the beginning is an error instead of fewer steps, unless steps are
            // padded.
            let start = match (start, stop) {
                (Some(start), _) => absolute(start),
                (None, None) => 0,
                // `history[:k]` starts at the oldest step that is kept, as in the trajectory
                // writer.
                (None, Some(_)) => {
                    history.cells(column.column).next().map_or(0, |(step, _)| step as i64)
                }
            };
            let stop = stop.map_or(len, absolute).min(len);
            (start >= 0 || column.pads_with_first)
                && start < stop
                && (start..stop).step_by(step.max(1) as usize).all(&mut push)
        }
    }
}
