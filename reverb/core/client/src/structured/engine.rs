// SPDX-License-Identifier: Apache-2.0
//! Pattern engine: applies patterns to a history, step by step, without a server.

use reverb_base::{Error, Result};
use reverb_data::ItemPriority;
use reverb_data::codec::Compression;
use smallvec::SmallVec;

use super::condition::{Condition, Inputs};
use super::config::{Config, Configs};
use super::number::{Number, NumberHistory};
use super::priority::{Priority, check_td_error_column, td_error};
use crate::writer::capture::cell::{CellRef, CellValue};
use crate::writer::capture::history::History;
use crate::writer::capture::item::ColumnRefs;

/// An item that a pattern creates.
#[derive(Debug)]
pub struct PatternItem<'a> {
    /// Index of the pattern's config.
    pub config: usize,
    /// Table of the item.
    pub table: &'a str,
    /// Priority of the item.
    pub priority: ItemPriority,
    /// Columns of the item, each with at least one cell.
    pub columns: &'a [ColumnRefs<'a>],
}

/// Takes each item when it is complete. An error stops the search; the pattern counts as not
/// applied.
pub(crate) type TakeItem<'f> = &'f mut dyn FnMut(&PatternItem<'_>) -> Result<()>;

/// The history of one environment and the patterns that create items from it.
#[derive(Debug)]
pub struct PatternEngine {
    rules: Vec<Rule>,
    /// The leaves of a step that are kept, ascending. Column `i` of the history is leaf
    /// `leaves[i]`.
    leaves: Vec<usize>,
    /// Paths of the leaves for error texts, if known.
    paths: Vec<String>,
    /// Number of leaves of every step, set by the first step.
    num_leaves: Option<usize>,
    history: History,
    watched: Vec<Option<Watched>>,
    current: Step,
    /// Empty between steps; kept to reuse its memory.
    cells: Vec<CellRef>,
}

/// The step at which patterns end.
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    /// Number of the step over all episodes, from 1; 0 before the first step.
    serial: u64,
    /// Index in its episode.
    index: u64,
}

/// A pattern, with the step of its last application.
#[derive(Debug)]
struct Rule {
    config: Config,
    steps_since_applied: u64,
    /// Serial of the last step that `steps_since_applied` includes.
    counted_at: u64,
    /// Serial of the last step at which the pattern created an item.
    applied_at: u64,
}

/// The values of a column that conditions or priorities read.
#[derive(Debug)]
struct Watched {
    numbers: NumberHistory,
    /// True if a condition reads the column, and no warning about its values was logged yet.
    warn: bool,
}

impl PatternEngine {
    /// An engine with an empty history.
    pub fn new(configs: Configs) -> Self {
        let history = usize::try_from(configs.history()).unwrap_or(usize::MAX);
        let Configs { configs, leaves } = configs;
        let watched = (0..leaves.len()).map(|column| Watched::new(column, &configs, history));
        Self {
            watched: watched.collect(),
            leaves,
            rules: configs.into_iter().map(Rule::new).collect(),
            paths: Vec::new(),
            num_leaves: None,
            history: History::new(history),
            current: Step::default(),
            cells: Vec::new(),
        }
    }

    /// The same engine, before its first step, whose chunks are compressed like this.
    #[must_use]
    pub fn with_compression(mut self, compression: Compression) -> Self {
        self.history = self.history.with_compression(compression);
        self
    }

    /// Sets the paths of the leaves for error texts. Has no effect after the first step.
    pub fn set_paths(&mut self, paths: Vec<String>) {
        self.paths = paths;
    }

    /// True if the last append left its step open.
    pub fn step_is_open(&self) -> bool {
        self.history.step_is_open()
    }

    /// Appends the values of a step, or of a part of one, and passes the items that are complete
    /// now to `take`.
    ///
    /// `cells[i]` is the value of leaf `i`. Leaves that no pattern or condition reads are dropped.
    ///
    /// # Errors
    ///
    /// Before anything is stored: `InvalidArgument` if the number of leaves changed,
    /// `SignatureMismatch` if a value differs in dtype or shape from the first value of its leaf,
    /// `FailedPrecondition` if a leaf already has a value in the open step. After that:
    /// `InvalidArgument` if a priority cannot be computed from the errors, and the errors of
    /// `take`.
    pub fn append(
        &mut self,
        mut cells: Vec<Option<CellValue<'_>>>,
        partial_step: bool,
        take: TakeItem<'_>,
    ) -> Result<()> {
        self.check_num_leaves(cells.len())?;
        self.add_columns();
        let mut row: SmallVec<[(usize, CellValue<'_>); 8]> = SmallVec::new();
        for (column, &leaf) in self.leaves.iter().enumerate() {
            if let Some(value) = cells.get_mut(leaf).and_then(Option::take) {
                row.push((column, value));
            }
        }
        let begins = (!self.history.step_is_open()).then(|| self.history.episode_steps());
        // No column has a fixed chunk length, so no item waits for its chunk.
        self.history.append(&mut row, partial_step)?;
        if let Some(index) = begins {
            self.current = Step { serial: self.current.serial + 1, index };
        }
        self.remember_numbers(&row);
        if self.num_leaves.is_none() {
            self.num_leaves = Some(cells.len());
            self.warn_of_missing_leaves(cells.len());
        }
        self.apply(false, take)
    }

    /// Passes the items that the end of the episode completes to `take`. Call it before
    /// `end_episode`; a second call finds nothing new.
    ///
    /// # Errors
    ///
    /// Those of `append` after the step is stored.
    pub fn apply_at_end(&mut self, take: TakeItem<'_>) -> Result<()> {
        self.apply(true, take)
    }

    /// Starts a new episode, closing an open step. With `clear_buffers` the history is emptied;
    /// without it, patterns may reach back into the last episode.
    pub fn end_episode(&mut self, clear_buffers: bool) {
        self.history.end_episode(clear_buffers);
        if clear_buffers {
            self.watched.iter_mut().flatten().for_each(|watched| watched.numbers.clear());
        }
    }

    fn check_num_leaves(&self, got: usize) -> Result<()> {
        match self.num_leaves {
            Some(wanted) if wanted != got => Err(Error::invalid_argument(format!(
                "Flattened data has an unexpected length, got {got} but wanted {wanted}."
            ))),
            _ => Ok(()),
        }
    }

    fn add_columns(&mut self) {
        for column in self.history.num_columns()..self.leaves.len() {
            self.history.add_column(self.label(column), None);
        }
    }

    fn label(&self, column: usize) -> String {
        let leaf = self.leaves[column];
        match self.paths.get(leaf) {
            Some(path) => format!("{leaf} (path={path})"),
            None => leaf.to_string(),
        }
    }

    fn warn_of_missing_leaves(&self, num_leaves: usize) {
        for (i, rule) in self.rules.iter().enumerate() {
            let leaves = rule.config.nodes.iter().map(|node| self.leaves[node.column]);
            if let Some(leaf) = leaves.max().filter(|&leaf| leaf >= num_leaves) {
                tracing::warn!(
                    table = %rule.config.table,
                    "The pattern of config {i} reads leaf {leaf} but the steps have {num_leaves} leaves: it will \
                     never make an item.",
                );
            }
        }
    }

    fn remember_numbers(&mut self, row: &[(usize, CellValue<'_>)]) {
        let step = self.history.num_steps() - 1;
        for (column, value) in row {
            let Some(watched) = &mut self.watched[*column] else { continue };
            let number = Number::from_value(value);
            if let Some(number) = number {
                watched.numbers.push(step, number);
            }
            if watched.warn && number.and_then(Number::as_condition_value).is_none() {
                watched.warn = false;
                tracing::error!(
                    "A condition looks at column {}, which has dtype {} and shape {}. It needs exactly one element of \
                     an integer type or bool and is false until then.",
                    self.label(*column),
                    value.dtype().name(),
                    reverb_data::tensor::shape_text(value.shape()),
                );
            }
        }
    }

    /// Applies all patterns at the newest step, unless it has no value at all.
    fn apply(&mut self, is_end_episode: bool, take: TakeItem<'_>) -> Result<()> {
        let Some(newest) = self.history.num_steps().checked_sub(1) else { return Ok(()) };
        if (0..self.history.num_columns()).all(|column| self.history.cell(column, newest).is_none())
        {
            return Ok(());
        }
        for i in 0..self.rules.len() {
            if self.rules[i].begin(self.current, &self.history, &self.watched, is_end_episode) {
                let taken = self.make_item(i, take);
                // The cells would keep chunks in memory.
                self.cells.clear();
                if taken? {
                    self.rules[i].applied_at = self.current.serial;
                    self.rules[i].steps_since_applied = 0;
                }
            }
        }
        Ok(())
    }

    /// Collects the cells of a pattern and passes the item on; `false` if a cell is absent.
    fn make_item(&mut self, i: usize, take: TakeItem<'_>) -> Result<bool> {
        let config = &self.rules[i].config;
        let history_len = self.history.num_steps();
        let mut ends: SmallVec<[usize; 8]> = SmallVec::new();
        for node in &config.nodes {
            let Some(steps) = node.steps(history_len) else { return Ok(false) };
            for step in steps {
                let Some(cell) = self.history.cell(node.column, step) else { return Ok(false) };
                self.cells.push(cell.to_ref());
            }
            ends.push(self.cells.len());
        }
        let mut columns: SmallVec<[ColumnRefs<'_>; 8]> = SmallVec::new();
        let mut first = 0;
        for (node, &end) in config.nodes.iter().zip(&ends) {
            columns.push(ColumnRefs { cells: &self.cells[first..end], squeeze: node.squeeze });
            first = end;
        }
        let value = self.priority(config, config.priority, &columns)?;
        let removal = config.removal_priority.map(|rule| self.priority(config, rule, &columns));
        let priority = ItemPriority { value, removal: removal.transpose()? };
        take(&PatternItem { config: i, table: &config.table, priority, columns: &columns })?;
        Ok(true)
    }

    fn priority(
        &self,
        config: &Config,
        priority: Priority,
        columns: &[ColumnRefs<'_>],
    ) -> Result<f64> {
        let (weight, node) = match priority {
            Priority::Constant(priority) => return Ok(priority),
            Priority::TdError { weight, node } => (weight, node),
        };
        let column = config.nodes[node].column;
        check_td_error_column(columns[node].cells[0].spec(), || self.label(column))?;
        let numbers = self.watched[column].as_ref().map(|watched| &watched.numbers);
        let steps = config.nodes[node].steps(self.history.num_steps()).into_iter().flatten();
        let errors = steps.filter_map(|step| numbers.and_then(|numbers| numbers.get(step)));
        Ok(td_error(weight, errors.map(Number::as_f64)))
    }
}

impl Rule {
    fn new(config: Config) -> Self {
        Self { config, steps_since_applied: 0, counted_at: 0, applied_at: 0 }
    }

    /// Counts the step once; returns true if the pattern applies to it.
    fn begin(
        &mut self,
        current: Step,
        history: &History,
        watched: &[Option<Watched>],
        is_end_episode: bool,
    ) -> bool {
        if self.applied_at == current.serial {
            return false;
        }
        if self.counted_at != current.serial {
            self.counted_at = current.serial;
            self.steps_since_applied += 1;
        }
        let inputs = Inputs {
            step_index: current.index,
            steps_since_applied: self.steps_since_applied,
            buffer_length: history.num_steps(),
            is_end_episode,
        };
        let newest = inputs.buffer_length - 1;
        let data = |column: usize| -> Option<i32> {
            watched[column].as_ref()?.numbers.get(newest)?.as_condition_value()
        };
        self.config.conditions.iter().all(|condition| condition.holds(&inputs, data))
    }
}

impl Watched {
    /// Number of values of a column to keep: none, the newest, or as many as the patterns span.
    fn new(column: usize, configs: &[Config], history: usize) -> Option<Self> {
        let mut conditions = configs.iter().flat_map(|config| &config.conditions);
        let by_condition = conditions.any(|c: &Condition| c.data_column() == Some(column));
        let by_priority = configs.iter().any(|config| {
            let mut priorities = std::iter::once(config.priority).chain(config.removal_priority);
            priorities.any(|priority| {
                matches!(priority, Priority::TdError { node, .. } if config.nodes[node].column == column)
            })
        });
        if !by_condition && !by_priority {
            return None;
        }
        let keep = if by_priority { history } else { 1 };
        Some(Self { numbers: NumberHistory::new(keep), warn: by_condition })
    }
}

#[cfg(test)]
mod tests;
