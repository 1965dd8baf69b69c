// SPDX-License-Identifier: Apache-2.0
//! Step blocks: one step of many histories.
//!
//! A history that keeps one step has a block for each of them. Those of all histories are made
//! together here: one allocation and one copy a column. Every row still becomes a chunk of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use reverb_data::{Chunk, SequenceRange, TensorData};

use super::{Block, BlockColumn, BlockColumns, ClosedRef, TensorPositions};
use crate::writer::capture::cell::CellValue;

/// Largest number of columns: each has a bit in a row's marks.
const MAX_COLUMNS: usize = u32::BITS as usize;

/// One step of many histories. Its rows do not change, and never expire.
#[derive(Debug)]
pub struct StepBlock {
    columns: Arc<BlockColumns>,
    /// The cells of all rows, a column after another.
    cells: Box<[u8]>,
    rows: Box<[Row]>,
    closed: OnceLock<ClosedRows>,
}

/// The row of one history.
#[derive(Debug)]
struct Row {
    episode_id: u64,
    step: i32,
    /// Bits of the columns whose cell is counted in the waiting bytes of a send queue.
    queued: AtomicU32,
}

/// The chunks of all rows.
#[derive(Debug)]
enum ClosedRows {
    /// One chunk a row, with the columns at these positions.
    Alike(Box<[Chunk]>, TensorPositions),
    /// Blocks of one row.
    Blocks(Box<[Arc<Block>]>),
}

impl StepBlock {
    /// A block of the columns `[B, ...]`, which must have the specs of `columns` in that order.
    /// `origins` has the episode of each row, and the step in it. `None` for columns of strings,
    /// and for too many columns.
    pub(in crate::writer) fn new<'v>(
        columns: &Arc<BlockColumns>,
        values: impl Iterator<Item = &'v CellValue<'v>>,
        origins: impl ExactSizeIterator<Item = (u64, i32)>,
    ) -> Option<Arc<Self>> {
        if !columns.are_kept_in_rows() || columns.as_slice().len() > MAX_COLUMNS {
            return None;
        }
        let mut cells = Vec::with_capacity(columns.row_bytes * origins.len());
        for value in values {
            let CellValue::Bytes { bytes, .. } = value else { return None };
            cells.extend_from_slice(bytes);
        }
        let row = |(episode_id, step)| Row { episode_id, step, queued: AtomicU32::new(0) };
        Some(Arc::new(Self {
            columns: Arc::clone(columns),
            cells: cells.into_boxed_slice(),
            rows: origins.map(row).collect(),
            closed: OnceLock::new(),
        }))
    }

    /// Columns of the block.
    pub(super) fn columns(&self) -> &[BlockColumn] {
        self.columns.as_slice()
    }

    /// The bytes of a cell.
    fn cell_bytes(&self, row: usize, position: usize) -> &[u8] {
        let place = self.columns.place_in_row(position);
        let start = self.rows.len() * place.start + row * place.len();
        &self.cells[start..start + place.len()]
    }

    /// The values of a cell.
    pub(super) fn cell(&self, row: usize, position: usize) -> TensorData {
        TensorData::Bytes(self.cell_bytes(row, position).to_vec())
    }

    /// Records that a cell is queued; returns false if it was before.
    pub(super) fn mark_queued(&self, row: usize, position: usize) -> bool {
        let queued = &self.rows[row].queued;
        let bit = 1 << position;
        let before = queued.load(Ordering::Relaxed);
        // Callers hold the lock of the histories; an atomic addition is much slower.
        queued.store(before | bit, Ordering::Relaxed);
        before & bit == 0
    }

    /// Positions of a row's cells in its chunks. Encodes all rows if necessary.
    pub(super) fn closed(&self, row: usize, next_key: &mut dyn FnMut() -> u64) -> ClosedRef<'_> {
        let closed = self.closed.get_or_init(|| self.encode(next_key));
        closed.of(row).expect("the blocks of rows are closed")
    }

    /// The chunks of a row, if it is encoded.
    pub(super) fn chunks(&self, row: usize) -> &[Chunk] {
        self.closed.get().and_then(|closed| closed.of(row)).map_or(&[], |closed| closed.chunks)
    }

    fn encode(&self, next_key: &mut dyn FnMut() -> u64) -> ClosedRows {
        if let Some(chunks) = self.encode_by_template(next_key) {
            let positions = (0..self.columns().len()).map(|tensor| (0, tensor as u16)).collect();
            return ClosedRows::Alike(chunks, positions);
        }
        let block = |(row, at): (usize, &Row)| {
            let block = Block::new(&self.columns, at.episode_id, false);
            let cell = |position: usize| {
                let spec = &self.columns()[position].spec;
                let bytes = self.cell_bytes(row, position);
                CellValue::Bytes { dtype: spec.dtype, shape: &spec.shape, bytes }
            };
            let cells: Vec<CellValue<'_>> = (0..self.columns().len()).map(cell).collect();
            block.append_row(at.step, cells.iter(), 1);
            block.closed(next_key);
            block
        };
        ClosedRows::Blocks(self.rows.iter().enumerate().map(block).collect())
    }

    /// Encodes the rows by the template of an earlier one; `None` if there is none, or if items
    /// refer to some of the columns only.
    fn encode_by_template(&self, next_key: &mut dyn FnMut() -> u64) -> Option<Box<[Chunk]>> {
        if !self.columns.are_referenced_alike() {
            return None;
        }
        let mut templates = self.columns.encoders.templates.lock();
        let template = &mut templates.find(|known| known.num_rows == 1)?.template;
        let chunk = |(row, at): (usize, &Row)| {
            let Row { episode_id, step, .. } = *at;
            let range = SequenceRange { episode_id, start: step, end: step, sparse: false };
            template.fill(next_key(), range, |position, out| {
                out.copy_from_slice(self.cell_bytes(row, position));
            })
        };
        Some(self.rows.iter().enumerate().map(chunk).collect())
    }
}

impl ClosedRows {
    fn of(&self, row: usize) -> Option<ClosedRef<'_>> {
        match self {
            Self::Alike(chunks, positions) => {
                Some(ClosedRef { chunks: std::slice::from_ref(&chunks[row]), positions })
            }
            Self::Blocks(blocks) => blocks[row].closed.get().map(super::Closed::as_ref),
        }
    }
}
