// SPDX-License-Identifier: Apache-2.0
//! Columns of blocks: what all blocks of the same columns have in common.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use reverb_data::codec::Encoding;
use reverb_data::{ChunkMaker, RecentCache};
use smallvec::SmallVec;

use crate::writer::capture::cell::{CellSpec, CellValue};
use crate::writer::capture::chunk_template::ChunkTemplate;

/// Size of rows of several columns up to which they are copied once more for encoding.
const MAX_ROW_BYTES: usize = 4096;
/// Size of cells from which they are encoded without a copy, unless they are compressed.
pub(super) const LARGE_CELL_BYTES: usize = 16 * 1024;
/// Largest head of an encoded tensor without its dimensions: tags and lengths.
const MAX_HEAD_BYTES: usize = 64;
/// Largest part of the head for one dimension: its tag and size.
const MAX_HEAD_BYTES_OF_DIM: usize = 16;

/// Common properties of all blocks of a column or of a group of columns.
#[derive(Debug)]
pub struct BlockColumns {
    columns: SmallVec<[BlockColumn; 4]>,
    pub(super) encoding: Encoding,
    /// End of each column's bytes in a row.
    ends: SmallVec<[usize; 4]>,
    /// Bytes of a cell of every column.
    pub(super) row_bytes: usize,
    /// True if cells are kept row by row: they are small, or of one column.
    by_row: bool,
    pub(super) encoders: Arc<Encoders>,
}

/// Encoders of blocks that repeat earlier ones. Histories of the same columns share them, so that a
/// step of many environments reads less memory.
#[derive(Debug, Default)]
pub(super) struct Encoders {
    pub(super) templates: Mutex<RecentCache<BlockTemplate>>,
    /// Encoder of blocks without a template.
    pub(super) chunk_maker: Mutex<ChunkMaker>,
}

/// Encoder of a block of this many full rows.
#[derive(Debug)]
pub(super) struct BlockTemplate {
    pub(super) num_rows: usize,
    pub(super) template: ChunkTemplate,
}

/// One column of a block.
#[derive(Debug)]
pub struct BlockColumn {
    /// Type and shape of the cells.
    pub(in crate::writer) spec: Arc<CellSpec>,
    /// Set if an item refers to the column. Consecutive blocks share the flag.
    referenced: Arc<AtomicBool>,
}

impl BlockColumn {
    /// Records that an item refers to the column.
    pub(in crate::writer) fn mark_referenced(&self) {
        if !self.is_referenced() {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_referenced(&self) -> bool {
        self.referenced.load(Ordering::Relaxed)
    }
}

impl BlockColumns {
    /// Properties of the given columns.
    pub fn new(
        columns: impl IntoIterator<Item = (Arc<CellSpec>, Arc<AtomicBool>)>,
        encoding: Encoding,
    ) -> Self {
        let columns: SmallVec<[BlockColumn; 4]> = columns
            .into_iter()
            .map(|(spec, referenced)| BlockColumn { spec, referenced })
            .collect();
        let sizes = columns.iter().map(|column| column.spec.num_bytes());
        let mut row_bytes = 0;
        let add = |size: usize| {
            row_bytes += size;
            row_bytes
        };
        let ends = sizes.clone().map(add).collect();
        // Strings have no size.
        let by_row = sizes.clone().all(|size| size > 0)
            && (columns.len() == 1 || row_bytes <= MAX_ROW_BYTES);
        Self { columns, encoding, ends, row_bytes, by_row, encoders: Arc::default() }
    }

    /// Shares the encoders of `other`, if the specs are equal.
    #[must_use]
    pub(in crate::writer) fn encoded_like(mut self, other: Option<&Self>) -> Self {
        let own = self.columns.iter().map(|column| Arc::as_ptr(&column.spec));
        let is_like = |other: &&Self| {
            let specs = other.columns.iter().map(|column| Arc::as_ptr(&column.spec));
            own.eq(specs) && other.encoding == self.encoding
        };
        if let Some(other) = other.filter(is_like) {
            self.encoders = Arc::clone(&other.encoders);
        }
        self
    }

    /// True if both share their encoders, and so have the same columns at the same positions.
    pub(in crate::writer) fn are_encoded_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.encoders, &other.encoders)
    }

    /// True if the cells of full steps are kept row by row.
    pub(in crate::writer) fn are_kept_in_rows(&self) -> bool {
        self.by_row
    }

    /// True if these values have the specs of these columns.
    pub(in crate::writer) fn are_of<'v>(
        &self,
        mut cells: impl ExactSizeIterator<Item = &'v CellValue<'v>>,
    ) -> bool {
        cells.len() == self.columns.len()
            && self
                .columns
                .iter()
                .all(|column| cells.next().is_some_and(|cell| cell.has(&column.spec)))
    }

    /// True if items refer to all columns, or to none.
    pub(super) fn are_referenced_alike(&self) -> bool {
        let mut referenced = self.columns.iter().map(BlockColumn::is_referenced);
        referenced.next().is_none_or(|first| referenced.all(|other| other == first))
    }

    /// Columns by position.
    pub(super) fn as_slice(&self) -> &[BlockColumn] {
        &self.columns
    }

    /// Space before large cells for the head of their tensor.
    pub(super) fn room_for_head(&self) -> usize {
        if self.columns.len() == 1 && self.row_bytes >= LARGE_CELL_BYTES && !self.encoding.delta {
            MAX_HEAD_BYTES + MAX_HEAD_BYTES_OF_DIM * (1 + self.columns[0].spec.shape.len())
        } else {
            0
        }
    }

    /// Range of a column's bytes in a row.
    pub(super) fn place_in_row(&self, position: usize) -> Range<usize> {
        let start = position.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[position]
    }

    /// True if this many rows are always stored without compression.
    pub(super) fn are_stored_raw(&self, num_rows: usize) -> bool {
        let Encoding { delta, compression } = self.encoding;
        let is_raw =
            |column: &BlockColumn| compression.leaves_raw(column.spec.num_bytes() * num_rows);
        !delta && self.columns.iter().all(is_raw)
    }
}
