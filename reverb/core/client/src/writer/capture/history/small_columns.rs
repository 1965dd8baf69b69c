// SPDX-License-Identifier: Apache-2.0
//! Small columns of a history, which share their chunks and mostly their steps.

use std::collections::VecDeque;
use std::sync::Arc;

use reverb_data::codec::Encoding;
use smallvec::SmallVec;

use super::{Column, NextBlock};
use crate::writer::capture::block::{Appended, Block, BlockColumns, BlockRef};
use crate::writer::capture::cell::{Cell, CellRef, CellValue};

/// Small columns that share their chunks.
#[derive(Debug)]
pub(super) struct SmallColumns {
    pub(super) members: Vec<usize>,
    /// Common properties of its blocks; made for the first block of these members.
    pub(super) columns: Option<Arc<BlockColumns>>,
    pub(super) block: Option<Arc<Block>>,
    pub(super) bytes_per_step: usize,
    /// The last steps, if every member has a value in all of them: one entry per step instead of
    /// one in each column's history.
    pub(super) rows: VecDeque<(u64, Row)>,
    /// True if no member has values in its own history.
    has_rows_alone: bool,
    /// Number of values of every member that are kept; `None` if members differ.
    num_keep_alive_refs: Option<usize>,
}

/// The values of all members in one step.
#[derive(Debug)]
pub(super) struct Row {
    block: BlockRef,
    /// Index of the cells in their columns of the block.
    index: u32,
}

impl Default for SmallColumns {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            columns: None,
            block: None,
            bytes_per_step: 0,
            rows: VecDeque::new(),
            has_rows_alone: true,
            num_keep_alive_refs: None,
        }
    }
}

impl SmallColumns {
    /// Adds a column with a known spec.
    pub(super) fn add(&mut self, column: usize, columns: &mut [Column]) {
        if !self.rows.is_empty() {
            self.split_rows(columns);
        }
        self.members.push(column);
        self.members_changed(columns);
    }

    /// Removes the column at a position. Its next values go to separate blocks.
    pub(super) fn remove(&mut self, position: usize, columns: &mut [Column]) {
        if !self.rows.is_empty() {
            self.split_rows(columns);
        }
        let column = self.members.remove(position);
        columns[column].next_block = NextBlock::Own(None);
        self.members_changed(columns);
    }

    fn members_changed(&mut self, columns: &mut [Column]) {
        self.end_block();
        self.columns = None;
        self.bytes_per_step = 0;
        for (position, &member) in self.members.iter().enumerate() {
            let column = &mut columns[member];
            column.next_block = NextBlock::Small(position);
            self.bytes_per_step += column.spec.as_ref().map_or(0, |spec| spec.num_bytes());
        }
        let mut kept =
            self.members.iter().map(|&member| columns[member].options.num_keep_alive_refs);
        let first = kept.next();
        self.num_keep_alive_refs = first.filter(|first| kept.all(|other| other == *first));
    }

    /// Makes a block for the next cells if there is none. Shares the encoders of `like`, if that
    /// has the same columns.
    pub(super) fn open_block(
        &mut self,
        columns: &[Column],
        episode_id: u64,
        encoding: Encoding,
        like: Option<&BlockColumns>,
    ) {
        let Self { members, columns: shared, block, .. } = self;
        block.get_or_insert_with(|| {
            let shared = shared.get_or_insert_with(|| {
                let member = |&member: &usize| {
                    let column = &columns[member];
                    let spec = column.spec.as_ref().expect("members have a spec");
                    (Arc::clone(spec), Arc::clone(&column.referenced))
                };
                let new = BlockColumns::new(members.iter().map(member), encoding);
                Arc::new(new.encoded_like(like))
            });
            Block::new(shared, episode_id, false)
        });
    }

    /// Ends the open block, if there is one.
    pub(super) fn end_block(&mut self) {
        if let Some(block) = self.block.take() {
            block.freeze();
        }
    }

    /// True if all values are in rows so far, and their blocks are known.
    pub(super) fn keeps_rows(&self) -> bool {
        self.columns.as_ref().is_some_and(|columns| columns.are_kept_in_rows())
            && self.has_rows_alone
            && self.num_keep_alive_refs.is_some()
    }

    /// True if these values, one for each member, have the members' specs. Compares with `checked`
    /// first, whose specs may be shared.
    pub(super) fn are_of<'v>(
        &self,
        values: impl ExactSizeIterator<Item = &'v CellValue<'v>>,
        checked: Option<&BlockColumns>,
    ) -> bool {
        let Some(columns) = &self.columns else { return false };
        checked.is_some_and(|checked| columns.are_encoded_like(checked)) || columns.are_of(values)
    }

    /// Appends a value of each member to the open block, if it is still open. For the arguments see
    /// `append`.
    pub(super) fn append_row<'v>(
        &mut self,
        columns: &mut [Column],
        values: impl Iterator<Item = &'v CellValue<'v>>,
        step: i32,
        at: u64,
        limit: usize,
    ) -> Appended {
        let Some(block) = &self.block else { return Appended::Nothing };
        let (appended, index) = block.append_row(step, values, limit);
        if appended != Appended::Nothing {
            let block = BlockRef::Own(Arc::clone(block));
            self.remember_row(columns, at, Row { block, index });
        }
        appended
    }

    /// Appends the members among these cells, of one step, to the open block, if it is still open.
    ///
    /// `at` is the step of the history, `step` that of the episode. The block is frozen if a column
    /// then has `limit` cells.
    pub(super) fn append(
        &mut self,
        columns: &mut [Column],
        cells: &mut [(usize, CellValue<'_>)],
        step: i32,
        at: u64,
        limit: usize,
    ) -> Appended {
        let Some(block) = &self.block else { return Appended::Nothing };
        let values = cells.iter().filter(|(column, _)| columns[*column].is_small());
        if values.clone().map(|(column, _)| column).eq(&self.members) {
            let (appended, index) = block.append_row(step, values.map(|(_, value)| value), limit);
            if appended != Appended::Nothing {
                let block = BlockRef::Own(Arc::clone(block));
                self.remember_row(columns, at, Row { block, index });
                return appended;
            }
        }
        let mut values: SmallVec<[(usize, &mut CellValue<'_>); 8]> = SmallVec::new();
        for (column, value) in cells {
            if let NextBlock::Small(position) = columns[*column].next_block {
                values.push((position, value));
            }
        }
        let mut placed: SmallVec<[(usize, u32); 8]> = SmallVec::new();
        let appended = block
            .append(step, &mut values, limit, |position, index| placed.push((position, index)));
        if appended != Appended::Nothing {
            let block = BlockRef::Own(Arc::clone(block));
            self.split_rows(columns);
            for (position, index) in placed {
                let block = block.clone();
                let cell = CellRef { block, position: position as u16, index };
                columns[self.members[position]].remember(at, cell);
            }
        }
        appended
    }

    /// Remembers a step that is a row of a step block.
    pub(super) fn remember_step(&mut self, columns: &mut [Column], at: u64, block: BlockRef) {
        self.remember_row(columns, at, Row { block, index: 0 });
    }

    fn remember_row(&mut self, columns: &mut [Column], at: u64, row: Row) {
        match self.num_keep_alive_refs {
            Some(num_rows) if self.has_rows_alone => {
                self.rows.push_back((at, row));
                while self.rows.len() > num_rows {
                    if let Some((_, row)) = self.rows.pop_front() {
                        row.expire();
                    }
                }
            }
            _ => {
                self.has_rows_alone = false;
                for (position, &member) in self.members.iter().enumerate() {
                    columns[member].remember(at, row.cell(position).to_ref());
                }
            }
        }
    }

    /// Moves the values of the rows into the histories of the members, where later values go too.
    fn split_rows(&mut self, columns: &mut [Column]) {
        self.has_rows_alone = false;
        for (at, row) in self.rows.drain(..) {
            for (position, &member) in self.members.iter().enumerate() {
                columns[member].remember(at, row.cell(position).to_ref());
            }
        }
    }

    /// Empties the history, and makes references to its cells expire.
    pub(super) fn clear(&mut self) {
        self.rows.drain(..).for_each(|(_, row)| row.expire());
        self.has_rows_alone = true;
    }
}

impl Row {
    /// The cell of the column at a position.
    pub(super) fn cell(&self, position: usize) -> Cell<'_> {
        Cell { block: &self.block, position: position as u16, index: self.index }
    }

    fn expire(&self) {
        self.block.expire_rows_below(self.index + 1);
    }
}
