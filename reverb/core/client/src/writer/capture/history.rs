// SPDX-License-Identifier: Apache-2.0
//! History: the history of one environment, with its columns, the steps that items may still refer
//! to, and the open blocks.

mod column;
mod small_columns;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::codec::{Compression, Encoding};
use reverb_data::{DType, KeyGenerator};

pub use self::column::ColumnOptions;
use self::column::{Column, NextBlock};
use self::small_columns::SmallColumns;
use super::block::{Appended, Block, BlockColumns, BlockRef};
use super::cell::{Cell, CellRef, CellSpec, CellValue};

/// Size of cells up to which columns share one block: separate chunks would have more overhead than
/// data.
const MAX_SMALL_CELL_BYTES: usize = 256;
/// An automatic block ends at about this size. A reader fetches and decodes a chunk as a whole:
/// longer chunks have less overhead, but every sample costs more.
const MAX_BLOCK_BYTES: usize = 4096;

/// The history of one environment.
#[derive(Debug)]
pub struct History {
    columns: Vec<Column>,
    small: SmallColumns,
    defaults: ColumnOptions,
    encoding: Encoding,
    keys: KeyGenerator,
    episode_id: u64,
    /// Closed steps of the episode.
    episode_steps: u64,
    /// Closed steps of the history, which may span episodes.
    closed_steps: u64,
    /// Columns that have a value in the open step; `None` while no step is open.
    open: Option<Vec<bool>>,
}

impl History {
    /// An empty history whose columns keep `num_keep_alive_refs` values unless configured
    /// otherwise.
    pub fn new(num_keep_alive_refs: usize) -> Self {
        let mut keys = KeyGenerator::new();
        let episode_id = keys.next_key();
        Self {
            columns: Vec::new(),
            small: SmallColumns::default(),
            defaults: ColumnOptions { num_keep_alive_refs, max_chunk_length: None },
            encoding: Encoding::default(),
            keys,
            episode_id,
            episode_steps: 0,
            closed_steps: 0,
            open: None,
        }
    }

    /// The same history, before its first step, whose chunks are compressed like this.
    #[must_use]
    pub fn with_compression(mut self, compression: Compression) -> Self {
        self.encoding.compression = compression;
        self
    }

    /// Encoding of its chunks.
    pub(in crate::writer) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Type and shape of a column's cells; `None` before its first one.
    pub fn spec(&self, column: usize) -> Option<&CellSpec> {
        self.columns[column].spec.as_deref()
    }

    /// Number of known columns.
    pub fn num_columns(&self) -> usize {
        self.columns.len()
    }

    /// Adds a column; `label` is its name in error texts. Returns its index.
    pub fn add_column(
        &mut self,
        label: impl fmt::Display,
        options: Option<ColumnOptions>,
    ) -> usize {
        self.columns.push(Column {
            label: label.to_string(),
            options: options.unwrap_or(self.defaults),
            spec: None,
            referenced: Arc::default(),
            own: None,
            history: VecDeque::new(),
            next_block: NextBlock::Own(None),
        });
        self.columns.len() - 1
    }

    /// A column's name in error texts.
    pub fn label(&self, column: usize) -> &str {
        &self.columns[column].label
    }

    /// Closed steps since the last end of an episode.
    pub fn episode_steps(&self) -> u64 {
        self.episode_steps
    }

    /// Identifier of the current episode, in the chunks of its steps.
    pub(in crate::writer) fn episode_id(&self) -> u64 {
        self.episode_id
    }

    /// True if the last append left its step open.
    pub fn step_is_open(&self) -> bool {
        self.open.is_some()
    }

    /// True if a column has a value in the open step.
    pub fn is_set_in_open_step(&self, column: usize) -> bool {
        self.open.as_ref().and_then(|set| set.get(column)).copied().unwrap_or(false)
    }

    /// Number of steps of the history, including the open one.
    pub fn num_steps(&self) -> u64 {
        self.closed_steps + u64::from(self.open.is_some())
    }

    /// The value of a column at a step of the history; `None` if there is none or it has expired.
    pub fn cell(&self, column: usize, step: u64) -> Option<Cell<'_>> {
        match self.position_in_rows(column) {
            Some(position) => Some(at_step(&self.small.rows, step)?.cell(position)),
            None => Some(at_step(&self.columns[column].history, step)?.as_cell()),
        }
    }

    /// The values of a column that items can still refer to, oldest first, with their steps of the
    /// history.
    pub fn cells(&self, column: usize) -> impl ExactSizeIterator<Item = (u64, Cell<'_>)> + Clone {
        let rows = &self.small.rows;
        let own = &self.columns[column].history;
        let position = self.position_in_rows(column);
        let len = if position.is_some() { rows.len() } else { own.len() };
        (0..len).map(move |i| match position {
            Some(position) => (rows[i].0, rows[i].1.cell(position)),
            None => (own[i].0, own[i].1.as_cell()),
        })
    }

    /// A column's position in the rows of the small columns; `None` if its values are in its own
    /// history.
    fn position_in_rows(&self, column: usize) -> Option<usize> {
        match self.columns[column].next_block {
            NextBlock::Small(position) if !self.small.rows.is_empty() => Some(position),
            _ => None,
        }
    }

    /// True for a small column, which mostly has values in the same steps as other small ones.
    pub(in crate::writer) fn is_small(&self, column: usize) -> bool {
        self.columns[column].is_small()
    }

    /// True if both histories have their small columns in rows, with the same columns at the same
    /// positions.
    pub(in crate::writer) fn has_rows_like(&self, other: &Self) -> bool {
        let one = &self.small;
        let two = &other.small;
        !one.rows.is_empty()
            && !two.rows.is_empty()
            && match (&one.columns, &two.columns) {
                (Some(one), Some(two)) => one.are_encoded_like(two),
                _ => false,
            }
    }

    /// Number of values of a column that are kept.
    pub fn num_keep_alive_refs(&self, column: usize) -> usize {
        self.columns[column].options.num_keep_alive_refs
    }

    /// Appends `(column, value)` pairs as a step, or a part of one. Each column at most once.
    ///
    /// All values are checked before any is stored. Returns true if a block of fixed length was
    /// completed, so that waiting items may be ready.
    pub fn append(
        &mut self,
        cells: &mut [(usize, CellValue<'_>)],
        partial_step: bool,
    ) -> Result<bool> {
        self.append_like(None, cells, partial_step)
    }

    /// Like `append`; shares specs and encoders of the same columns with `other`.
    pub(in crate::writer) fn append_like(
        &mut self,
        other: Option<&Self>,
        cells: &mut [(usize, CellValue<'_>)],
        partial_step: bool,
    ) -> Result<bool> {
        for (i, (column, value)) in cells.iter().enumerate() {
            let known = &self.columns[*column];
            if self.is_set_in_open_step(*column)
                || cells[..i].iter().any(|(other, _)| other == column)
            {
                return Err(Error::failed_precondition(format!(
                    "Column {} has already been set in the open step",
                    known.label
                )));
            }
            if let Some(spec) = &known.spec {
                value.check(spec, &known.label)?;
            }
        }
        for (column, value) in &*cells {
            if self.columns[*column].spec.is_none() {
                let like = other.map(|other| &other.columns[*column]);
                self.set_spec(*column, value, like);
            }
        }
        let completed = self.store(other, cells);
        if partial_step || self.open.is_some() {
            let set = self.open.get_or_insert_default();
            set.resize(self.columns.len(), false);
            for (column, _) in &*cells {
                set[*column] = true;
            }
        }
        if !partial_step {
            self.close_step();
            self.episode_steps += 1;
        }
        Ok(completed)
    }

    /// Fast form of `append` for steps of many environments: the step has a value of every column,
    /// and all are kept in rows. Returns false, and does nothing, otherwise. `other` is a history
    /// for which the same values were already checked.
    pub(in crate::writer) fn append_row(
        &mut self,
        other: Option<&Self>,
        cells: &[(usize, CellValue<'_>)],
    ) -> bool {
        let checked = other.and_then(|other| other.small.columns.as_deref());
        let values = cells.iter().map(|(_, value)| value);
        if !self.takes_row(cells) || !self.small.are_of(values, checked) {
            return false;
        }
        let limit = self.row_limit();
        let Self { columns, small, .. } = self;
        let step = self.episode_steps as i32;
        let at = self.closed_steps;
        loop {
            small.open_block(columns, self.episode_id, self.encoding, None);
            let values = cells.iter().map(|(_, value)| value);
            let appended = small.append_row(columns, values, step, at, limit);
            if appended == Appended::AndOpen {
                break;
            }
            small.end_block();
            // The send task may have frozen the block meanwhile; then a new one is started.
            if appended == Appended::AndFroze {
                break;
            }
        }
        self.close_step();
        self.episode_steps += 1;
        true
    }

    /// The columns of a step block that may take the next step of both histories: a block would
    /// have one step, and its columns are those of `other`. Else `None`.
    ///
    /// `cells` is a step, as for `append_row`.
    pub(in crate::writer) fn step_columns(
        &self,
        other: &Self,
        cells: &[(usize, CellValue<'_>)],
    ) -> Option<&Arc<BlockColumns>> {
        let own = self.small.columns.as_ref()?;
        let others = other.small.columns.as_ref()?;
        (self.takes_row(cells) && self.row_limit() == 1 && own.are_encoded_like(others))
            .then_some(own)
    }

    /// Appends a step that is a row of a step block. `step_columns` must have allowed it.
    pub(in crate::writer) fn append_step(&mut self, block: BlockRef) {
        let Self { columns, small, .. } = self;
        small.remember_step(columns, self.closed_steps, block);
        self.close_step();
        self.episode_steps += 1;
    }

    /// True if the step has a value of every column, and all are kept in rows.
    fn takes_row(&self, cells: &[(usize, CellValue<'_>)]) -> bool {
        self.open.is_none()
            && self.columns.len() == cells.len()
            && self.small.keeps_rows()
            && cells.iter().map(|(column, _)| column).eq(&self.small.members)
    }

    /// Number of steps in a block of small columns.
    fn row_limit(&self) -> usize {
        auto_length(self.defaults.num_keep_alive_refs, self.small.bytes_per_step)
    }

    fn close_step(&mut self) {
        self.open = None;
        self.closed_steps += 1;
    }

    /// Sets the spec of a column, sharing common properties with `like`.
    fn set_spec(&mut self, column: usize, value: &CellValue<'_>, like: Option<&Column>) {
        let Self { columns, small, .. } = self;
        let it = &mut columns[column];
        let shared = like.and_then(|like| Some((like.spec.as_ref()?, &like.referenced)));
        let spec = match shared.filter(|(spec, _)| value.has(spec)) {
            Some((spec, referenced)) => {
                it.referenced = Arc::clone(referenced);
                Arc::clone(spec)
            }
            None => Arc::new(value.spec()),
        };
        let is_small = it.options.max_chunk_length.is_none()
            && spec.dtype != DType::String
            && spec.num_bytes() <= MAX_SMALL_CELL_BYTES;
        it.spec = Some(spec);
        if is_small {
            small.add(column, columns);
        }
    }

    fn store(&mut self, other: Option<&Self>, cells: &mut [(usize, CellValue<'_>)]) -> bool {
        let step = self.episode_steps as i32;
        let at = self.closed_steps;
        let mut completed = false;
        let mut grouped = false;
        for (column, value) in &mut *cells {
            match self.columns[*column].next_block {
                NextBlock::Small(_) => grouped = true,
                NextBlock::Own(_) => completed |= self.store_own(other, *column, step, at, value),
            }
        }
        if grouped {
            self.store_group(other, cells, step, at);
        }
        completed
    }

    fn store_own(
        &mut self,
        other: Option<&Self>,
        column: usize,
        step: i32,
        at: u64,
        value: &mut CellValue<'_>,
    ) -> bool {
        let episode_id = self.episode_id;
        let encoding = self.encoding;
        let like = other.and_then(|other| other.columns[column].own.as_deref());
        let column = &mut self.columns[column];
        let spec = column.spec.as_ref().expect("set before the first cell is stored");
        let gated = column.options.max_chunk_length.is_some();
        let limit = column
            .options
            .max_chunk_length
            .unwrap_or_else(|| auto_length(column.options.num_keep_alive_refs, spec.num_bytes()));
        let NextBlock::Own(current) = &mut column.next_block else {
            unreachable!("the caller looked")
        };
        loop {
            let block = current.get_or_insert_with(|| {
                let columns = column.own.get_or_insert_with(|| {
                    let member = (Arc::clone(spec), Arc::clone(&column.referenced));
                    Arc::new(BlockColumns::new([member], encoding).encoded_like(like))
                });
                Block::new(columns, episode_id, gated)
            });
            let mut index = 0;
            let cells = &mut [(0, &mut *value)];
            let appended = block.append(step, cells, limit, |_, i| index = i);
            // The send task may have frozen the block meanwhile; then a new one is started.
            if appended == Appended::Nothing {
                *current = None;
                continue;
            }
            let cell = CellRef { block: BlockRef::Own(Arc::clone(block)), position: 0, index };
            let full = appended == Appended::AndFroze;
            if full {
                *current = None;
            }
            column.remember(at, cell);
            return full && gated;
        }
    }

    fn store_group(
        &mut self,
        other: Option<&Self>,
        cells: &mut [(usize, CellValue<'_>)],
        step: i32,
        at: u64,
    ) {
        let limit = self.row_limit();
        let Self { columns, small, .. } = self;
        let like = other.and_then(|other| other.small.columns.as_deref());
        loop {
            small.open_block(columns, self.episode_id, self.encoding, like);
            match small.append(columns, cells, step, at, limit) {
                Appended::AndOpen => return,
                Appended::AndFroze => {
                    small.block = None;
                    return;
                }
                // The send task may have frozen the block meanwhile; then a new one is started.
                Appended::Nothing => small.block = None,
            }
        }
    }

    /// Changes storage and chunking of a column.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if cells of the column are in an unfinished chunk.
    pub fn configure(&mut self, column: usize, options: ColumnOptions) -> Result<()> {
        let waiting = match &self.columns[column].next_block {
            NextBlock::Own(current) => current.as_ref().map_or(0, |block| block.open_len(0)),
            NextBlock::Small(position) => {
                self.small.block.as_ref().map_or(0, |block| block.open_len(*position))
            }
        };
        if waiting > 0 {
            return Err(Error::failed_precondition(format!(
                "Column {} cannot be configured while {waiting} of its steps wait in an unfinished chunk. \
                 Configure it before its first append, or after flush or end_episode.",
                self.columns[column].label
            )));
        }
        self.leave_group(column);
        let column = &mut self.columns[column];
        column.options = options;
        column.trim();
        Ok(())
    }

    fn leave_group(&mut self, column: usize) {
        if let NextBlock::Small(position) = self.columns[column].next_block {
            self.small.remove(position, &mut self.columns);
        }
    }

    /// Freezes all unfinished blocks. Returns true if one was of fixed length, so that waiting
    /// items may be ready.
    pub fn end_blocks(&mut self) -> bool {
        let mut completed = false;
        self.small.end_block();
        for column in &mut self.columns {
            if let NextBlock::Own(current) = &mut column.next_block
                && let Some(block) = current.take()
            {
                completed |= block.freeze() && block.is_gated();
            }
        }
        completed
    }

    /// Starts a new episode. With `clear_buffers` the history is emptied and its references expire.
    /// Returns true if waiting items may be ready.
    pub fn end_episode(&mut self, clear_buffers: bool) -> bool {
        let completed = self.end_blocks();
        if self.open.is_some() {
            self.close_step();
        }
        if clear_buffers {
            self.small.clear();
            for column in &mut self.columns {
                column.clear();
            }
            self.closed_steps = 0;
        }
        self.episode_id = self.keys.next_key();
        self.episode_steps = 0;
        completed
    }
}

/// The entry of a step; `None` if there is none.
fn at_step<T>(entries: &VecDeque<(u64, T)>, step: u64) -> Option<&T> {
    let &(front, _) = entries.front()?;
    // Usually every step has an entry; then the position is the distance.
    let guess = usize::try_from(step.checked_sub(front)?).ok()?;
    match entries.get(guess) {
        Some((at, entry)) if *at == step => Some(entry),
        _ => {
            let found = entries.binary_search_by_key(&step, |(at, _)| *at).ok()?;
            entries.get(found).map(|(_, entry)| entry)
        }
    }
}

/// Number of steps in an automatic block.
fn auto_length(num_keep_alive_refs: usize, bytes_per_step: usize) -> usize {
    (MAX_BLOCK_BYTES / bytes_per_step.max(1)).clamp(1, num_keep_alive_refs)
}

#[cfg(test)]
mod tests;
