// SPDX-License-Identifier: Apache-2.0
//! A writer that creates an item from every window of steps, for one environment or for several in
//! one call.

mod columns;
mod unwritten;

use std::sync::Arc;

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::{ItemPriority, is_priority};
use smallvec::SmallVec;
use tokio::runtime::Handle;

pub(crate) use self::columns::Column;
use super::capture::cell::CellValue;
use super::capture::column_orders::ColumnOrder;
use super::capture::history::History;
use super::capture::item::PendingItem;
use super::capture::signatures::unknown_table;
use super::send::send_queue::SendQueue;
use crate::client::Client;
use crate::session::Signatures;

/// Steps that become an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemSteps {
    /// The newest `length` steps: first when an episode has that many, then after every `stride`
    /// more steps.
    Sliding {
        /// Steps of an item, at least 1.
        length: usize,
        /// Number of steps from one item to the next, at least 1.
        stride: usize,
    },
    /// A whole episode, when it ends.
    Episode {
        /// Maximum number of steps of an episode that is written, at least 1.
        max_length: usize,
        /// Drops longer episodes without an error.
        drop_long: bool,
    },
}

/// Items that a sequence writer creates, and their tables.
#[derive(Debug, Clone)]
pub struct SequenceOptions {
    /// Every item goes to each of these tables.
    pub tables: Vec<String>,
    /// Steps that become an item.
    pub item_steps: ItemSteps,
    /// Number of environments; `None` for one whose values have no batch dimension.
    pub batch_size: Option<usize>,
}

/// One value for each row of a batch.
#[derive(Debug, Clone, Copy)]
pub enum PerRow<'a, T> {
    /// The same for all.
    All(T),
    /// One each.
    Each(&'a [T]),
}

/// A step of all environments.
#[derive(Debug)]
pub struct Step<'a> {
    /// Paths of the columns; `None` if they are known to equal those of the first step.
    pub labels: Option<&'a [String]>,
    /// One value for each column: `[...]`, or `[B, ...]` with a batch size.
    pub values: SmallVec<[CellValue<'a>; 8]>,
    /// True if the row's episode ends with the step.
    pub is_last: PerRow<'a, bool>,
    /// Priority of the row's items.
    pub priorities: PerRow<'a, f64>,
    /// Removal priority of the row's items, used by removers instead of `priorities`.
    pub removal_priorities: Option<PerRow<'a, f64>>,
}

/// The priority of a row's items.
fn priority_of(
    row: usize,
    priorities: PerRow<'_, f64>,
    removal_priorities: Option<PerRow<'_, f64>>,
) -> ItemPriority {
    let removal = removal_priorities.map(|priorities| priorities.get(row));
    ItemPriority { value: priorities.get(row), removal }
}

/// Writes sequences of steps.
#[derive(Debug)]
pub struct SequenceWriter {
    state: Mutex<State>,
    queue: Arc<SendQueue>,
    tables: Vec<Arc<str>>,
    signatures: Arc<Signatures>,
    item_steps: ItemSteps,
    batch_size: Option<usize>,
    runtime: Handle,
}

/// Columns of the first step, and their order in each table's signature.
type FirstStep = (Vec<Column>, Vec<Option<ColumnOrder>>);

#[derive(Debug)]
struct State {
    /// Columns of a step; empty before the first step, which defines them.
    columns: Vec<Column>,
    /// Order of the columns in each table's signature.
    orders: Vec<Option<ColumnOrder>>,
    rows: Vec<Row>,
    num_dropped_episodes: u64,
    /// Number of appended steps, over all rows.
    num_steps: u64,
    /// True once an item was made.
    has_items: bool,
    /// True once the log has counted the steps that are in no item.
    has_reported: bool,
}

/// State of one environment.
#[derive(Debug)]
struct Row {
    history: History,
    /// Number of steps of the episode so far, including dropped ones.
    steps: usize,
    /// True if the episode was too long: the rest of it is dropped.
    is_skipping: bool,
}

impl SequenceWriter {
    /// Makes a writer that checks its items against the `signatures` of the server's tables.
    ///
    /// # Errors
    ///
    /// `TableNotFound` if the server lacks one of the tables.
    pub fn new(
        client: &Client,
        options: SequenceOptions,
        signatures: Arc<Signatures>,
    ) -> Result<Self> {
        let SequenceOptions { tables, item_steps, batch_size } = options;
        if let Some(unknown) = tables.iter().find(|table| !signatures.contains_key(*table)) {
            unknown_table(unknown, client.session(), &signatures)?;
        }
        let keep = match item_steps {
            ItemSteps::Sliding { length, .. } => length,
            ItemSteps::Episode { max_length, .. } => max_length,
        };
        let history = || History::new(keep).with_compression(client.compression());
        let row = |_| Row { history: history(), steps: 0, is_skipping: false };
        let rows = (0..batch_size.unwrap_or(1)).map(row).collect();
        Ok(Self {
            state: Mutex::new(State {
                columns: Vec::new(),
                orders: Vec::new(),
                rows,
                num_dropped_episodes: 0,
                num_steps: 0,
                has_items: false,
                has_reported: false,
            }),
            queue: SendQueue::start(client.session(), 1),
            tables: tables.into_iter().map(Arc::from).collect(),
            signatures,
            item_steps,
            batch_size,
            runtime: client.runtime().clone(),
        })
    }

    /// The items in flight.
    pub fn queue(&self) -> &Arc<SendQueue> {
        &self.queue
    }

    /// Runtime of the writer's tasks.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Number of environments; `None` for one whose values have no batch dimension.
    pub fn batch_size(&self) -> Option<usize> {
        self.batch_size
    }

    /// The columns of every step; empty before the first.
    pub fn columns(&self) -> Vec<Column> {
        self.state.lock().columns.clone()
    }

    /// Name of a column in error texts, of a step with these labels or else of the first step.
    pub fn name_of(&self, labels: Option<&[String]>, column: usize) -> String {
        let label = match labels {
            Some(labels) => labels[column].clone(),
            None => self.state.lock().columns[column].label.clone(),
        };
        Column::shown(&label).to_owned()
    }

    /// Number of steps of the current episode, per row.
    pub fn episode_steps(&self) -> Vec<usize> {
        self.state.lock().rows.iter().map(|row| row.steps).collect()
    }

    /// Number of episodes that were dropped because they were too long.
    pub fn num_dropped_episodes(&self) -> u64 {
        self.state.lock().num_dropped_episodes
    }

    /// Appends a step and creates the items that it completes; returns their number. Never waits;
    /// see `SendQueue::is_over_limit`.
    ///
    /// # Errors
    ///
    /// An error for a step that does not match the first, and `InvalidArgument` for a priority that
    /// is NaN; then nothing was appended. `InvalidArgument` if an episode became too long; then the
    /// other rows were appended. The error that ended the insert stream for good.
    pub fn append(&self, step: Step<'_>) -> Result<usize> {
        let mut state = self.state.lock();
        self.queue.check()?;
        let first = self.check(&state, &step)?;
        if let Some((columns, orders)) = first {
            state.begin(columns, orders);
        }
        let (items, too_long) = self.store(&mut state, step)?;
        let created = items.len();
        // Still under the lock, so that the items of several threads are queued in the order of
        // their steps.
        self.queue.push_all(items)?;
        drop(state);
        match self.item_steps {
            ItemSteps::Episode { max_length, drop_long: false } if !too_long.is_empty() => {
                Err(self.too_long(&too_long, max_length))
            }
            _ => Ok(created),
        }
    }

    /// Drops the current episodes of the selected rows, and starts new ones.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the selection does not have one value per row; an error if the writer
    /// is closed.
    pub fn end_episode(&self, selected: PerRow<'_, bool>) -> Result<()> {
        let mut state = self.state.lock();
        self.queue.check()?;
        selected.check_len("where", state.rows.len())?;
        for (i, row) in state.rows.iter_mut().enumerate() {
            if selected.get(i) {
                row.begin_episode();
            }
        }
        self.queue.episode_ended();
        Ok(())
    }

    /// Closes the writer when the program has deleted it: the log counts what is lost.
    pub fn delete(&self) {
        if !self.queue.is_closed() {
            self.report_unwritten();
        }
        self.queue.delete();
    }

    /// Checks a whole step; returns the columns and their orders if it is the first.
    fn check(&self, state: &State, step: &Step<'_>) -> Result<Option<FirstStep>> {
        let Step { labels, values, is_last, priorities, removal_priorities } = step;
        let first = if state.columns.is_empty() {
            let columns = columns::of_first_step(labels.unwrap_or(&[]), values, self.batch_size)?;
            let length = match self.item_steps {
                ItemSteps::Sliding { length, .. } => Some(length),
                ItemSteps::Episode { .. } => None,
            };
            let orders = self.orders(&columns)?;
            self.check_signatures(&columns, &orders, length)?;
            Some((columns, orders))
        } else {
            columns::check(&state.columns, *labels, values, self.batch_size)?;
            None
        };
        is_last.check_len("is_last", state.rows.len())?;
        priorities.check_len("priorities", state.rows.len())?;
        if let Some(priorities) = removal_priorities {
            priorities.check_len("removal_priorities", state.rows.len())?;
        }
        for (i, row) in state.rows.iter().enumerate() {
            if !priority_of(i, *priorities, *removal_priorities).is_valid() {
                let is_removal = is_priority(priorities.get(i));
                let argument = if is_removal { "removal_priorities" } else { "priorities" };
                return Err(Error::invalid_argument(format!(
                    "{argument} must be numbers, got NaN{}. Nothing was appended.",
                    self.for_row(i)
                )));
            }
            let length = row.steps + 1;
            if let ItemSteps::Episode { max_length, .. } = self.item_steps
                && is_last.get(i)
                && length <= max_length
            {
                let (columns, orders) = match &first {
                    Some((columns, orders)) => (columns, orders),
                    None => (&state.columns, &state.orders),
                };
                self.check_signatures(columns, orders, Some(length)).map_err(|error| {
                    let text = format!(
                        "An episode of {length} step(s) does not fit{}. Nothing was appended, and end_episode forgets \
                         the episode. The reason",
                        self.for_row(i)
                    );
                    error.context(&text)
                })?;
            }
        }
        Ok(first)
    }

    /// Order of these columns in each table's signature.
    fn orders(&self, columns: &[Column]) -> Result<Vec<Option<ColumnOrder>>> {
        let names = columns::names(columns);
        let of_table = |table: &Arc<str>| match self.signatures.get(&**table) {
            Some(Some(signature)) => Ok(names.by_name(table, signature)?.map(ColumnOrder::from)),
            _ => Ok(None),
        };
        self.tables.iter().map(of_table).collect()
    }

    fn check_signatures(
        &self,
        columns: &[Column],
        orders: &[Option<ColumnOrder>],
        length: Option<usize>,
    ) -> Result<()> {
        for (table, order) in self.tables.iter().zip(orders) {
            if let Some(Some(signature)) = self.signatures.get(&**table) {
                let columns = columns::in_order(columns, order.as_deref());
                columns::check_signature(&columns, table, signature, length)?;
            }
        }
        Ok(())
    }

    /// Stores a valid step; returns the completed items, and the rows whose episode became too
    /// long.
    fn store(&self, state: &mut State, step: Step<'_>) -> Result<(Vec<PendingItem>, Vec<usize>)> {
        let mut items = Vec::new();
        let mut too_long = Vec::new();
        let Step { values, is_last: ends, priorities, removal_priorities, .. } = step;
        let (mut single, batch) = match self.batch_size {
            None => (values, SmallVec::new()),
            Some(_) => (SmallVec::new(), values),
        };
        let num_rows = state.rows.len();
        for (i, row) in state.rows.iter_mut().enumerate() {
            let is_last = ends.get(i);
            row.steps += 1;
            if self.item_steps.is_exceeded(row) {
                row.skip();
                too_long.push(i);
            }
            if !row.is_skipping {
                match self.batch_size {
                    None => row.append(single.drain(..))?,
                    Some(_) => row.append(batch.iter().map(|value| value.row(i, num_rows)))?,
                }
                if self.item_steps.is_complete(row.steps, is_last) {
                    let priority = priority_of(i, priorities, removal_priorities);
                    self.create_items(&row.history, &state.orders, priority, &mut items)?;
                }
            }
            if is_last {
                row.begin_episode();
                self.queue.episode_ended();
            }
        }
        state.num_dropped_episodes += too_long.len() as u64;
        state.num_steps += num_rows as u64;
        state.has_items |= !items.is_empty();
        Ok((items, too_long))
    }

    /// One item per table over the whole history of a history, which is never longer than an item.
    fn create_items(
        &self,
        history: &History,
        orders: &[Option<ColumnOrder>],
        priority: ItemPriority,
        items: &mut Vec<PendingItem>,
    ) -> Result<()> {
        let first = items.len();
        for (at, table) in self.tables.iter().enumerate() {
            let item = if at > 0 && orders[at] == orders[0] {
                items[first].for_table(Arc::clone(table))
            } else {
                PendingItem::over_history(
                    Arc::clone(table),
                    priority,
                    history,
                    orders[at].as_deref(),
                )?
            };
            items.push(item);
        }
        Ok(())
    }

    fn too_long(&self, rows: &[usize], max_length: usize) -> Error {
        let subject = match (self.batch_size, rows) {
            (None, _) => "The episode is".to_owned(),
            (Some(_), [row]) => format!("The episode of row {row} is"),
            (Some(_), rows) => {
                let rows: Vec<String> = rows.iter().map(usize::to_string).collect();
                format!("The episodes of rows {} are", rows.join(", "))
            }
        };
        let others = if self.batch_size.is_some() { "; the other rows were appended" } else { "" };
        Error::invalid_argument(format!(
            "{subject} longer than max_sequence_length = {max_length} steps. Nothing of it is written, and its steps are \
             ignored until one with is_last{others}. Raise max_sequence_length, or leave such episodes out without an \
             error by drop_long_episodes=True."
        ))
    }

    fn for_row(&self, row: usize) -> String {
        self.batch_size.map_or_else(String::new, |_| format!(" for row {row}"))
    }
}

impl Drop for SequenceWriter {
    fn drop(&mut self) {
        self.delete();
    }
}

impl ItemSteps {
    /// True if the newest step makes the episode longer than allowed.
    fn is_exceeded(self, row: &Row) -> bool {
        match self {
            Self::Sliding { .. } => false,
            Self::Episode { max_length, .. } => !row.is_skipping && row.steps > max_length,
        }
    }

    /// True if step number `steps` of an episode completes an item.
    fn is_complete(self, steps: usize, is_last: bool) -> bool {
        match self {
            Self::Sliding { length, stride } => {
                steps >= length && (steps - length).is_multiple_of(stride)
            }
            Self::Episode { .. } => is_last,
        }
    }
}

impl State {
    fn begin(&mut self, columns: Vec<Column>, orders: Vec<Option<ColumnOrder>>) {
        for row in &mut self.rows {
            for column in &columns {
                row.history.add_column(Column::shown(&column.label), None);
            }
        }
        (self.columns, self.orders) = (columns, orders);
    }
}

impl Row {
    fn append<'v>(&mut self, values: impl Iterator<Item = CellValue<'v>>) -> Result<()> {
        let mut cells: SmallVec<[(usize, CellValue<'v>); 8]> = values.enumerate().collect();
        self.history.append(&mut cells, false)?;
        Ok(())
    }

    fn begin_episode(&mut self) {
        self.history.end_episode(true);
        self.steps = 0;
        self.is_skipping = false;
    }

    fn skip(&mut self) {
        self.history.end_episode(true);
        self.is_skipping = true;
    }
}

impl<T: Copy> PerRow<'_, T> {
    fn get(&self, row: usize) -> T {
        match self {
            Self::All(value) => *value,
            Self::Each(values) => values[row],
        }
    }

    fn check_len(&self, argument: &str, rows: usize) -> Result<()> {
        match self {
            Self::Each(values) if values.len() != rows => Err(Error::invalid_argument(format!(
                "{argument} must have shape [{rows}], one value for each row of the batch, got shape [{}]",
                values.len()
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
