// SPDX-License-Identifier: Apache-2.0
//! A column of a history: its last values, and the block of the next one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::writer::capture::block::{Block, BlockColumns};
use crate::writer::capture::cell::{CellRef, CellSpec};

/// Storage and chunking of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnOptions {
    /// Number of last values that items may refer to.
    pub num_keep_alive_refs: usize,
    /// Fixed chunk length, or `None` to let the writer choose.
    pub max_chunk_length: Option<usize>,
}

/// A column of one environment.
#[derive(Debug)]
pub(super) struct Column {
    /// The column's name in error texts.
    pub(super) label: String,
    pub(super) options: ColumnOptions,
    pub(super) spec: Option<Arc<CellSpec>>,
    pub(super) referenced: Arc<AtomicBool>,
    /// Common properties of its separate blocks.
    pub(super) own: Option<Arc<BlockColumns>>,
    /// The last values, each with its step of the history. Empty while the rows of the small
    /// columns hold the column.
    pub(super) history: VecDeque<(u64, CellRef)>,
    pub(super) next_block: NextBlock,
}

/// Block for a column's next cell.
#[derive(Debug)]
pub(super) enum NextBlock {
    /// The block of the small columns; the column has this position in it.
    Small(usize),
    /// A separate block.
    Own(Option<Arc<Block>>),
}

impl Column {
    /// True if its cells share a block with those of other columns.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        matches!(self.next_block, NextBlock::Small(_))
    }

    #[inline]
    pub(super) fn remember(&mut self, step: u64, cell: CellRef) {
        self.history.push_back((step, cell));
        self.trim();
    }

    #[inline]
    pub(super) fn trim(&mut self) {
        while self.history.len() > self.options.num_keep_alive_refs {
            if let Some((_, cell)) = self.history.pop_front() {
                cell.expire();
            }
        }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        for (_, cell) in self.history.drain(..) {
            cell.expire();
        }
    }
}
