// SPDX-License-Identifier: Apache-2.0
//! The history of one environment: its columns, the steps that items may still refer to, and the
//! open blocks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use reverb_data::{DType, Error, KeyGenerator, Result};
use smallvec::SmallVec;

use super::block::{Appended, Block, BlockColumns};
use super::cell::{CellRef, CellSpec, CellValue};

/// Columns with cells up to this size share one block: the overhead of separate chunks would exceed
/// the data.
const MAX_GROUPED_CELL_BYTES: usize = 256;
/// An automatic block ends at about this size. A reader fetches and decodes a chunk as a whole:
/// longer chunks have less overhead, but every sample costs more.
const MAX_BLOCK_BYTES: usize = 4096;

/// How a column is kept and chunked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnOptions {
    /// How many of the last values items may refer to.
    pub num_keep_alive_refs: usize,
    /// Fixed chunk length, or `None` to let the writer choose.
    pub max_chunk_length: Option<usize>,
}

#[derive(Debug)]
struct Column {
    /// The column's name in error texts.
    label: String,
    options: ColumnOptions,
    spec: Option<Arc<CellSpec>>,
    referenced: Arc<AtomicBool>,
    /// What its own blocks have in common.
    own: Option<Arc<BlockColumns>>,
    /// The last values, each with its step of the history.
    history: VecDeque<(u64, CellRef)>,
    next_block: NextBlock,
}

/// The block that takes a column's next cell.
#[derive(Debug)]
enum NextBlock {
    /// The group's block, at this position.
    Group(usize),
    /// A block of its own.
    Own(Option<Arc<Block>>),
}

/// Small columns that share their chunks.
#[derive(Debug, Default)]
struct Group {
    members: Vec<usize>,
    /// What its blocks have in common; made for the first block of these members.
    columns: Option<Arc<BlockColumns>>,
    block: Option<Arc<Block>>,
    bytes_per_step: usize,
}

/// The history of one environment.
#[derive(Debug)]
pub struct Lane {
    columns: Vec<Column>,
    group: Group,
    defaults: ColumnOptions,
    keys: KeyGenerator,
    episode_id: u64,
    /// Closed steps of the episode.
    episode_steps: u64,
    /// Closed steps of the history, which may span episodes.
    history_steps: u64,
    /// Columns that have a value in the open step; `None` while no step is open.
    open: Option<Vec<bool>>,
}

impl Lane {
    /// An empty history whose columns keep `num_keep_alive_refs` values unless configured
    /// otherwise.
    pub fn new(num_keep_alive_refs: usize) -> Self {
        let mut keys = KeyGenerator::new();
        let episode_id = keys.next_key();
        Self {
            columns: Vec::new(),
            group: Group::default(),
            defaults: ColumnOptions { num_keep_alive_refs, max_chunk_length: None },
            keys,
            episode_id,
            episode_steps: 0,
            history_steps: 0,
            open: None,
        }
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

    /// Whether the last append left its step open.
    pub fn step_is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a column has a value in the open step.
    pub fn is_set_in_open_step(&self, column: usize) -> bool {
        self.open.as_ref().and_then(|set| set.get(column)).copied().unwrap_or(false)
    }

    /// Steps of the history, the open one included.
    pub fn history_len(&self) -> u64 {
        self.history_steps + u64::from(self.open.is_some())
    }

    /// The value of a column at a step of the history; `None` if it has none there or it has
    /// expired.
    pub fn cell(&self, column: usize, step: u64) -> Option<&CellRef> {
        let history = &self.columns[column].history;
        let &(front, _) = history.front()?;
        // Usually every step has a value; then the position is the distance.
        let guess = usize::try_from(step.checked_sub(front)?).ok()?;
        match history.get(guess) {
            Some((at, cell)) if *at == step => Some(cell),
            _ => {
                let found = history.binary_search_by_key(&step, |(at, _)| *at).ok()?;
                history.get(found).map(|(_, cell)| cell)
            }
        }
    }

    /// The values of a column that items can still refer to, oldest first, with their steps of the
    /// history.
    pub fn cells(&self, column: usize) -> impl ExactSizeIterator<Item = (u64, &CellRef)> + Clone {
        self.columns[column].history.iter().map(|(step, cell)| (*step, cell))
    }

    /// How many values of a column are kept.
    pub fn num_keep_alive_refs(&self, column: usize) -> usize {
        self.columns[column].options.num_keep_alive_refs
    }

    /// Appends `(column, value)` pairs as a step, or a part of one. Each column at most once.
    ///
    /// All values are checked before any is stored. Returns whether a block of fixed length was
    /// completed, so that waiting items may be ready.
    pub fn append(
        &mut self,
        cells: &mut [(usize, CellValue<'_>)],
        partial_step: bool,
    ) -> Result<bool> {
        self.append_like(None, cells, partial_step)
    }

    /// Like `append`; what `other` knows of the same columns is shared if it fits: their specs, and
    /// how their blocks are encoded.
    pub(super) fn append_like(
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
                let shared = other.and_then(|other| other.columns[*column].spec.clone());
                let shared = shared.filter(|spec| value.has(spec));
                self.set_spec(*column, shared.unwrap_or_else(|| Arc::new(value.spec())));
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

    fn close_step(&mut self) {
        self.open = None;
        self.history_steps += 1;
    }

    fn set_spec(&mut self, column: usize, spec: Arc<CellSpec>) {
        let grouped = self.columns[column].options.max_chunk_length.is_none()
            && spec.dtype != DType::String
            && spec.num_bytes() <= MAX_GROUPED_CELL_BYTES;
        let bytes = spec.num_bytes();
        self.columns[column].spec = Some(spec);
        if grouped {
            self.group.end_block();
            self.group.columns = None;
            self.columns[column].next_block = NextBlock::Group(self.group.members.len());
            self.group.members.push(column);
            self.group.bytes_per_step += bytes;
        }
    }

    fn store(&mut self, other: Option<&Self>, cells: &mut [(usize, CellValue<'_>)]) -> bool {
        let step = self.episode_steps as i32;
        let at = self.history_steps;
        let mut completed = false;
        let mut grouped = false;
        for (column, value) in &mut *cells {
            match self.columns[*column].next_block {
                NextBlock::Group(_) => grouped = true,
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
                    Arc::new(BlockColumns::new([member], false).encoded_like(like))
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
            let cell = CellRef { block: Arc::clone(block), position: 0, index };
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
        let Self { columns, group, .. } = self;
        let limit = auto_length(self.defaults.num_keep_alive_refs, group.bytes_per_step);
        let is_row = cells.iter().map(|(column, _)| column).eq(&group.members);
        loop {
            let Group { members, columns: shared, block, .. } = &mut *group;
            let block = &*block.get_or_insert_with(|| {
                let shared = shared.get_or_insert_with(|| {
                    let member = |&member: &usize| {
                        let column = &columns[member];
                        let spec = column.spec.as_ref().expect("members have a spec");
                        (Arc::clone(spec), Arc::clone(&column.referenced))
                    };
                    let like = other.and_then(|other| other.group.columns.as_deref());
                    let new = BlockColumns::new(members.iter().map(member), false);
                    Arc::new(new.encoded_like(like))
                });
                Block::new(shared, self.episode_id, false)
            });
            let place = |columns: &mut [Column], position: usize, index| {
                let cell = CellRef { block: Arc::clone(block), position: position as u16, index };
                columns[members[position]].remember(at, cell);
            };
            let mut appended = Appended::Nothing;
            if is_row {
                let values = cells.iter().map(|(_, value)| value);
                let index;
                (appended, index) = block.append_row(step, values, limit);
                if appended != Appended::Nothing {
                    (0..members.len()).for_each(|position| place(columns, position, index));
                }
            }
            if appended == Appended::Nothing {
                let mut cells = members_of(cells, columns);
                let place = |position, index| place(columns, position, index);
                appended = block.append(step, &mut cells, limit, place);
            }
            match appended {
                Appended::AndOpen => return,
                Appended::AndFroze => {
                    group.block = None;
                    return;
                }
                // The send task may have frozen the block meanwhile; then a new one is started.
                Appended::Nothing => group.block = None,
            }
        }
    }

    /// Changes how a column is kept and chunked.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if cells of the column are in an unfinished chunk.
    pub fn configure(&mut self, column: usize, options: ColumnOptions) -> Result<()> {
        let waiting = match &self.columns[column].next_block {
            NextBlock::Own(current) => current.as_ref().map_or(0, |block| block.open_len(0)),
            NextBlock::Group(position) => {
                self.group.block.as_ref().map_or(0, |block| block.open_len(*position))
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
        let NextBlock::Group(position) = self.columns[column].next_block else { return };
        self.group.end_block();
        self.group.columns = None;
        self.group.members.remove(position);
        self.columns[column].next_block = NextBlock::Own(None);
        self.group.bytes_per_step = 0;
        for (position, &member) in self.group.members.iter().enumerate() {
            self.columns[member].next_block = NextBlock::Group(position);
            self.group.bytes_per_step +=
                self.columns[member].spec.as_ref().map_or(0, |spec| spec.num_bytes());
        }
    }

    /// Freezes all unfinished blocks.
    pub fn end_blocks(&mut self) {
        self.group.end_block();
        for column in &mut self.columns {
            if let NextBlock::Own(current) = &mut column.next_block
                && let Some(block) = current.take()
            {
                block.freeze();
            }
        }
    }

    /// Starts a new episode. With `clear_buffers` the history is emptied and its references expire.
    pub fn end_episode(&mut self, clear_buffers: bool) {
        self.end_blocks();
        if self.open.is_some() {
            self.close_step();
        }
        if clear_buffers {
            for column in &mut self.columns {
                column.clear();
            }
            self.history_steps = 0;
        }
        self.episode_id = self.keys.next_key();
        self.episode_steps = 0;
    }
}

impl Group {
    fn end_block(&mut self) {
        if let Some(block) = self.block.take() {
            block.freeze();
        }
    }
}

/// The cells of the group's columns, by their position in its blocks.
fn members_of<'a, 'b>(
    cells: &'a mut [(usize, CellValue<'b>)],
    columns: &[Column],
) -> SmallVec<[(usize, &'a mut CellValue<'b>); 8]> {
    let member = |(column, value): &'a mut (usize, CellValue<'b>)| match columns[*column].next_block
    {
        NextBlock::Group(position) => Some((position, value)),
        NextBlock::Own(_) => None,
    };
    cells.iter_mut().filter_map(member).collect()
}

impl Column {
    fn remember(&mut self, step: u64, cell: CellRef) {
        self.history.push_back((step, cell));
        self.trim();
    }

    fn trim(&mut self) {
        while self.history.len() > self.options.num_keep_alive_refs {
            if let Some((_, cell)) = self.history.pop_front() {
                cell.expire();
            }
        }
    }

    fn clear(&mut self) {
        for (_, cell) in self.history.drain(..) {
            cell.expire();
        }
    }
}

/// Steps in an automatic block.
fn auto_length(num_keep_alive_refs: usize, bytes_per_step: usize) -> usize {
    (MAX_BLOCK_BYTES / bytes_per_step.max(1)).clamp(1, num_keep_alive_refs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(bytes: &[u8]) -> CellValue<'_> {
        CellValue::Bytes { dtype: DType::Int32, shape: &[], bytes }
    }

    fn lane(columns: usize, keep: usize) -> Lane {
        let mut lane = Lane::new(keep);
        (0..columns).for_each(|i| {
            lane.add_column(i, None);
        });
        lane
    }

    fn value(cell: &CellRef) -> i32 {
        let reverb_data::TensorData::Bytes(bytes) = cell.read().unwrap().data else { panic!() };
        i32::from_le_bytes(bytes.try_into().unwrap())
    }

    #[test]
    fn cells_are_found_by_step_and_expire() {
        let mut lane = lane(2, 2);
        for i in 0..5i32 {
            let bytes = i.to_le_bytes();
            let mut cells = vec![(0, int(&bytes))];
            if i % 2 == 0 {
                cells.push((1, int(&bytes)));
            }
            lane.append(&mut cells, false).unwrap();
        }
        assert_eq!(lane.history_len(), 5);
        assert_eq!(value(lane.cell(0, 4).unwrap()), 4);
        assert!(lane.cell(0, 2).is_none(), "only the last 2 values are kept");
        assert_eq!(value(lane.cell(1, 2).unwrap()), 2);
        assert!(lane.cell(1, 3).is_none(), "absent in that step");
        let kept = lane.cell(0, 4).unwrap().clone();
        lane.end_episode(true);
        assert!(kept.is_expired());
        assert_eq!((lane.history_len(), lane.episode_steps()), (0, 0));
    }

    #[test]
    fn a_failed_append_changes_nothing() {
        let mut lane = lane(2, 4);
        let one = 1i32.to_le_bytes();
        lane.append(&mut [(0, int(&one)), (1, int(&one))], false).unwrap();
        let wrong = CellValue::Bytes { dtype: DType::Float32, shape: &[], bytes: &one };
        let error = lane.append(&mut [(0, int(&one)), (1, wrong)], false).unwrap_err();
        assert_eq!(
            error.message(),
            "Tensor of wrong dtype provided for column 1. Got float but expected int32."
        );
        assert_eq!((lane.history_len(), lane.cells(0).len()), (1, 1));
        lane.append(&mut [(0, int(&one)), (1, int(&one))], false).unwrap();
        assert_eq!(lane.history_len(), 2);
    }

    #[test]
    fn partial_steps_share_one_step() {
        let mut lane = lane(2, 4);
        let one = 1i32.to_le_bytes();
        lane.append(&mut [(0, int(&one))], true).unwrap();
        assert_eq!((lane.history_len(), lane.episode_steps()), (1, 0));
        assert!(lane.append(&mut [(0, int(&one))], true).is_err());
        lane.append(&mut [(1, int(&one))], false).unwrap();
        assert_eq!((lane.history_len(), lane.episode_steps()), (1, 1));
        assert!(lane.cell(0, 0).is_some() && lane.cell(1, 0).is_some());
    }

    #[test]
    fn small_columns_of_the_same_steps_share_a_chunk() {
        let mut lane = lane(3, 8);
        for i in 0..3i32 {
            let bytes = i.to_le_bytes();
            lane.append(&mut [(0, int(&bytes)), (1, int(&bytes)), (2, int(&bytes))], false)
                .unwrap();
        }
        let mut keys = KeyGenerator::new();
        let mut next = || keys.next_key();
        let cells: Vec<CellRef> = (0..3).map(|c| lane.cell(c, 2).unwrap().clone()).collect();
        cells[0].mark_referenced();
        cells[2].mark_referenced();
        let (a, at_a) = cells[0].block.closed(&mut next).chunk_and_tensor(0);
        let (b, at_b) = cells[1].block.closed(&mut next).chunk_and_tensor(1);
        let (c, at_c) = cells[2].block.closed(&mut next).chunk_and_tensor(2);
        assert!(a.is_same(c) && !a.is_same(b), "a column that no item refers to is not sent");
        assert_eq!((at_a, at_b, at_c), (0, 0, 1));
        assert_eq!(value(&cells[1]), 2);
    }
}
