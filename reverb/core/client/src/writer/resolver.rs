// SPDX-License-Identifier: Apache-2.0
//! The resolver: makes the trajectories of items whose blocks may not be encoded yet.

use std::sync::Arc;

use reverb_data::{OneChunkColumns, Result, Trajectory, TrajectoryBuilder};

use super::block::TensorPositions;
use super::item_kind::{ItemCells, ItemKind};

/// Makes trajectories one after another.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    /// Kept for its memory.
    builder: TrajectoryBuilder,
    latest: Option<Resolved>,
}

/// Where the columns of an item of one chunk are. Items of the same kind mostly have theirs at the
/// same places of their chunks.
#[derive(Debug)]
struct Resolved {
    kind: Arc<ItemKind>,
    first: u32,
    positions: TensorPositions,
    columns: OneChunkColumns,
}

impl Resolver {
    /// The trajectory of these cells of an item of this kind. Encodes their blocks if necessary.
    pub(super) fn trajectory(
        &mut self,
        kind: &Arc<ItemKind>,
        cells: &ItemCells,
        next_key: &mut dyn FnMut() -> u64,
    ) -> Result<Trajectory> {
        let [block] = &cells.blocks[..] else { return self.build(kind, cells, next_key) };
        let Some((chunk, positions)) = block.closed(next_key).only_chunk() else {
            return self.build(kind, cells, next_key);
        };
        let is_like = |it: &&Resolved| {
            Arc::ptr_eq(&it.kind, kind) && it.first == cells.first && it.positions == *positions
        };
        if let Some(like) = self.latest.as_ref().filter(is_like) {
            return Ok(like.columns.of(chunk.clone()));
        }
        let trajectory = self.build(kind, cells, next_key)?;
        self.latest = trajectory.one_chunk_columns().map(|columns| {
            let (kind, positions) = (Arc::clone(kind), positions.clone());
            Resolved { kind, first: cells.first, positions, columns }
        });
        Ok(trajectory)
    }

    fn build(
        &mut self,
        kind: &ItemKind,
        cells: &ItemCells,
        next_key: &mut dyn FnMut() -> u64,
    ) -> Result<Trajectory> {
        for (slices, squeeze) in kind.columns(cells) {
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
