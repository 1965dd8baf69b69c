// SPDX-License-Identifier: Apache-2.0
//! Item encoder: makes trajectories of items, and encodes their blocks if necessary.

use std::sync::Arc;

use reverb_base::Result;
use reverb_data::{Chunk, ManyChunkColumns, OneChunkColumns, Trajectory, TrajectoryBuilder};
use smallvec::SmallVec;

use super::block::{BlockRef, TensorPositions};
use super::item_template::{ItemCells, ItemTemplate};

/// Number of an item's blocks up to which its columns are remembered.
const MAX_KEPT_BLOCKS: usize = 16;

/// Makes trajectories one after another.
#[derive(Debug, Default)]
pub(in crate::writer) struct ItemEncoder {
    /// Reused for its memory.
    builder: TrajectoryBuilder,
    latest: Option<Encoded>,
    /// The latest trajectory of several chunks.
    latest_of_many: Option<EncodedMany>,
}

/// Columns of an item of one chunk. Items of the same template mostly have them at the same
/// positions.
#[derive(Debug)]
struct Encoded {
    template: Arc<ItemTemplate>,
    first: u32,
    positions: TensorPositions,
    columns: OneChunkColumns,
}

/// Columns of an item of several blocks with one chunk each.
#[derive(Debug)]
struct EncodedMany {
    template: Arc<ItemTemplate>,
    first: u32,
    /// Positions in each block.
    positions: SmallVec<[TensorPositions; 2]>,
    columns: ManyChunkColumns,
}

impl ItemEncoder {
    /// Makes the trajectory of these cells of an item of this template. Encodes their blocks if
    /// necessary.
    pub(super) fn trajectory(
        &mut self,
        template: &Arc<ItemTemplate>,
        cells: &ItemCells,
        next_key: &mut dyn FnMut() -> u64,
    ) -> Result<Trajectory> {
        let [block] = &cells.blocks[..] else {
            return self.trajectory_of_many(template, cells, next_key);
        };
        let Some((chunk, positions)) = block.closed(next_key).only_chunk() else {
            return self.build(template, cells, next_key);
        };
        let is_like = |it: &&Encoded| {
            Arc::ptr_eq(&it.template, template)
                && it.first == cells.first
                && it.positions == *positions
        };
        if let Some(like) = self.latest.as_ref().filter(is_like) {
            return Ok(like.columns.of(chunk.clone()));
        }
        let trajectory = self.build(template, cells, next_key)?;
        self.latest = trajectory.one_chunk_columns().map(|columns| {
            let (template, positions) = (Arc::clone(template), positions.clone());
            Encoded { template, first: cells.first, positions, columns }
        });
        Ok(trajectory)
    }

    /// Makes a trajectory of several blocks. Two steps mostly have two, because each step is sent
    /// at once.
    fn trajectory_of_many(
        &mut self,
        template: &Arc<ItemTemplate>,
        cells: &ItemCells,
        next_key: &mut dyn FnMut() -> u64,
    ) -> Result<Trajectory> {
        // An item may have a block twice where another item of the same template has two. The
        // builder then finds its chunk once.
        if !are_few_and_different(&cells.blocks) {
            return self.build(template, cells, next_key);
        }
        let mut positions: SmallVec<[&TensorPositions; 2]> = SmallVec::new();
        let mut chunks = Vec::with_capacity(cells.blocks.len());
        for block in &cells.blocks {
            let Some((chunk, at)) = block.closed(next_key).only_chunk() else {
                return self.build(template, cells, next_key);
            };
            chunks.push(chunk.clone());
            positions.push(at);
        }
        let chunks = chunks.into_boxed_slice();
        let is_like = |it: &&EncodedMany| {
            Arc::ptr_eq(&it.template, template)
                && it.first == cells.first
                && it.positions.iter().eq(positions.iter().copied())
        };
        if let Some(like) = self.latest_of_many.as_ref().filter(is_like) {
            return Ok(like.columns.of(chunks));
        }
        let positions = positions.into_iter().cloned().collect();
        let trajectory = self.build(template, cells, next_key)?;
        // The builder has the chunks in the order of their first use, like the blocks of the item.
        let same_order =
            trajectory.chunks().iter().map(Chunk::key).eq(chunks.iter().map(Chunk::key));
        self.latest_of_many =
            trajectory.many_chunk_columns().filter(|_| same_order).map(|columns| {
                let (template, first) = (Arc::clone(template), cells.first);
                EncodedMany { template, first, positions, columns }
            });
        Ok(trajectory)
    }

    fn build(
        &mut self,
        template: &ItemTemplate,
        cells: &ItemCells,
        next_key: &mut dyn FnMut() -> u64,
    ) -> Result<Trajectory> {
        for (slices, squeeze) in template.columns(cells) {
            for slice in slices {
                let closed = slice.block.closed(next_key);
                let (chunk, tensor) = closed.chunk_and_tensor(slice.position);
                let (start, length) = (slice.start as usize, slice.length as usize);
                self.builder.slice(chunk, tensor, start, length);
            }
            self.builder.end_column(squeeze);
        }
        self.builder.finish()
    }
}

/// True if there are so few blocks that a comparison of all pairs is quick, and no block is there
/// twice.
fn are_few_and_different(blocks: &[BlockRef]) -> bool {
    let is_new = |(at, block)| !blocks[..at].iter().any(|other| other.is_same(block));
    blocks.len() <= MAX_KEPT_BLOCKS && blocks.iter().enumerate().all(is_new)
}
