// SPDX-License-Identifier: Apache-2.0
//! References to blocks: to a block of one history, or to the row of one history in a step of many.

use std::sync::{Arc, Weak};

use reverb_base::Result;
use reverb_data::{Chunk, TensorData};

use super::{Block, BlockColumn, ClosedRef, StepBlock};

/// A block as its history sees it.
#[derive(Debug, Clone)]
pub enum BlockRef {
    /// A block of one history.
    Own(Arc<Block>),
    /// A row of a step, which has one cell in every column.
    Row(Arc<StepBlock>, u32),
}

/// A `BlockRef` that does not keep its block in memory.
#[derive(Debug)]
pub(in crate::writer) enum WeakBlockRef {
    Own(Weak<Block>),
    Row(Weak<StepBlock>, u32),
    /// The block is not known any more.
    Unknown,
}

impl BlockRef {
    /// True if both are the same block.
    pub(in crate::writer) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own(one), Self::Own(other)) => Arc::ptr_eq(one, other),
            (Self::Row(one, row), Self::Row(other, other_row)) => {
                row == other_row && Arc::ptr_eq(one, other)
            }
            _ => false,
        }
    }

    pub(in crate::writer) fn downgrade(&self) -> WeakBlockRef {
        match self {
            Self::Own(block) => WeakBlockRef::Own(Arc::downgrade(block)),
            Self::Row(step, row) => WeakBlockRef::Row(Arc::downgrade(step), *row),
        }
    }

    /// Columns of the block.
    pub(in crate::writer) fn columns(&self) -> &[BlockColumn] {
        match self {
            Self::Own(block) => block.columns(),
            Self::Row(step, _) => step.columns(),
        }
    }

    /// The values of a cell.
    pub(in crate::writer) fn cell(&self, position: usize, index: usize) -> Result<TensorData> {
        match self {
            Self::Own(block) => block.cell(position, index),
            Self::Row(step, row) => Ok(step.cell(*row as usize, position)),
        }
    }

    /// True if a cell has left the history.
    pub(in crate::writer) fn is_expired(&self, position: usize, index: u32) -> bool {
        match self {
            Self::Own(block) => block.is_expired(position, index),
            Self::Row(..) => false,
        }
    }

    /// See `Block::expire_rows_below`.
    pub(in crate::writer) fn expire_rows_below(&self, index: u32) {
        if let Self::Own(block) = self {
            block.expire_rows_below(index);
        }
    }

    /// See `Block::expire_below`.
    pub(in crate::writer) fn expire_below(&self, position: usize, index: u32) {
        if let Self::Own(block) = self {
            block.expire_below(position, index);
        }
    }

    /// See `Block::mark_queued`.
    pub(in crate::writer) fn mark_queued(&self, position: usize, below: u32) -> u32 {
        match self {
            Self::Own(block) => block.mark_queued(position, below),
            Self::Row(step, row) => u32::from(step.mark_queued(*row as usize, position)),
        }
    }

    /// True if items that refer to this block may be sent now.
    pub(in crate::writer) fn is_ready(&self) -> bool {
        match self {
            Self::Own(block) => block.is_ready(),
            Self::Row(..) => true,
        }
    }

    /// See `Block::freeze`.
    pub(in crate::writer) fn freeze(&self) {
        if let Self::Own(block) = self {
            block.freeze();
        }
    }

    /// See `Block::closed`.
    pub(in crate::writer) fn closed(&self, next_key: &mut dyn FnMut() -> u64) -> ClosedRef<'_> {
        match self {
            Self::Own(block) => block.closed(next_key),
            Self::Row(step, row) => step.closed(*row as usize, next_key),
        }
    }

    /// True if `chunk` came from this block.
    pub(in crate::writer) fn holds(&self, chunk: &Chunk) -> bool {
        let chunks = match self {
            Self::Own(block) => block.closed.get().map_or(&[][..], |closed| &closed.chunks),
            Self::Row(step, row) => step.chunks(*row as usize),
        };
        chunks.iter().any(|own| own.is_same(chunk))
    }
}

impl WeakBlockRef {
    /// True while the block is in memory.
    pub(in crate::writer) fn is_alive(&self) -> bool {
        match self {
            Self::Own(block) => block.strong_count() > 0,
            Self::Row(step, _) => step.strong_count() > 0,
            Self::Unknown => false,
        }
    }

    /// True if it refers to this block.
    pub(in crate::writer) fn is_of(&self, block: &BlockRef) -> bool {
        match (self, block) {
            (Self::Own(one), BlockRef::Own(other)) => {
                std::ptr::eq(one.as_ptr(), Arc::as_ptr(other))
            }
            (Self::Row(one, row), BlockRef::Row(other, other_row)) => {
                row == other_row && std::ptr::eq(one.as_ptr(), Arc::as_ptr(other))
            }
            _ => false,
        }
    }
}
