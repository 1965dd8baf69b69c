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
}

/// Columns of an item whose blocks have one chunk each. Items of the same template mostly have them
/// at the same positions.
#[derive(Debug)]
struct Encoded {
    template: Arc<ItemTemplate>,
    first: u32,
    /// Positions in each block.
    positions: SmallVec<[TensorPositions; 2]>,
    columns: Columns,
}

#[derive(Debug)]
enum Columns {
    OfOne(OneChunkColumns),
    OfMany(ManyChunkColumns),
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
        // An item may have a block twice where another item of the same template has two. The
        // builder then finds its chunk once.
        if !are_few_and_different(&cells.blocks) {
            return self.build(template, cells, next_key);
        }
        let mut positions: SmallVec<[&TensorPositions; 2]> = SmallVec::new();
        let mut chunks: SmallVec<[&Chunk; 2]> = SmallVec::new();
        for block in &cells.blocks {
            let Some((chunk, at)) = block.closed(next_key).only_chunk() else {
                return self.build(template, cells, next_key);
            };
            chunks.push(chunk);
            positions.push(at);
        }
        let is_like = |latest: &&Encoded| {
            Arc::ptr_eq(&latest.template, template)
                && latest.first == cells.first
                && latest.positions.iter().eq(positions.iter().copied())
        };
        match self.latest.as_ref().filter(is_like).map(|latest| &latest.columns) {
            Some(Columns::OfOne(columns)) => return Ok(columns.of(chunks[0].clone())),
            Some(Columns::OfMany(columns)) => {
                let mut own = Vec::with_capacity(chunks.len());
                own.extend(chunks.into_iter().cloned());
                return Ok(columns.of(own.into_boxed_slice()));
            }
            None => {}
        }
        let trajectory = self.build(template, cells, next_key)?;
        // The builder has the chunks in the order of their first use, like the blocks of the item.
        let same_order =
            trajectory.chunks().iter().map(Chunk::key).eq(chunks.iter().map(|chunk| chunk.key()));
        let of_one = trajectory.one_chunk_columns().map(Columns::OfOne);
        let columns = of_one.or_else(|| trajectory.many_chunk_columns().map(Columns::OfMany));
        self.latest = columns.filter(|_| same_order).map(|columns| Encoded {
            template: Arc::clone(template),
            first: cells.first,
            positions: positions.into_iter().cloned().collect(),
            columns,
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
                let (chunk, tensor) = slice.block.closed(next_key).chunk_and_tensor(slice.position);
                self.builder.slice(chunk, tensor, slice.start as usize, slice.length as usize);
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
