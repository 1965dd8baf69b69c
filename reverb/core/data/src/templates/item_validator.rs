// SPDX-License-Identifier: Apache-2.0
//! Checks items that nearly always look like an earlier one.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::disk::heads::Heads;
use crate::templates::chunk_layout::ChunkLayout;
use crate::templates::recent_cache::RecentCache;
use crate::trajectory::{OneChunkColumns, Trajectory};
use reverb_base::error::Result;

/// Validates items one after another. The result for one item holds for each item with the same
/// columns of a chunk that has the same tensors, because it depends on nothing else.
#[derive(Debug, Default)]
pub struct ItemValidator {
    valid: RecentCache<(OneChunkColumns, Tensors)>,
}

/// What chunks with equal tensors have in common.
#[derive(Debug)]
enum Tensors {
    Plain(ChunkLayout),
    Disk(Arc<Heads>, u32),
}

impl Tensors {
    fn of(chunk: &Chunk) -> Option<Self> {
        match chunk.disk() {
            None => ChunkLayout::new(chunk).map(Self::Plain),
            Some(payload) => {
                let (heads, num_rows) = payload.heads();
                Some(Self::Disk(Arc::clone(heads), num_rows))
            }
        }
    }

    #[inline]
    fn match_those_of(&self, chunk: &Chunk) -> bool {
        match (self, chunk.disk()) {
            (Self::Plain(layout), None) => layout.matches(chunk),
            (Self::Disk(heads, num_rows), Some(payload)) => payload.heads() == (heads, *num_rows),
            _ => false,
        }
    }
}

impl ItemValidator {
    /// Like [`Trajectory::validate`], with the same errors.
    #[inline]
    pub fn validate(&mut self, trajectory: &Trajectory) -> Result<()> {
        let Some(columns) = trajectory.one_chunk_columns() else { return trajectory.validate() };
        let chunk = &trajectory.chunks()[0];
        let is_known =
            self.valid.find(|(known, tensors)| *known == columns && tensors.match_those_of(chunk));
        if is_known.is_none() {
            trajectory.validate()?;
            self.valid.learn(|| Some((columns, Tensors::of(chunk)?)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::TrajectoryBuilder;
    use crate::{Chunk, ChunkBuilder, DType, SequenceRange, Shape, Tensor, TensorData};

    fn payload(widths: [usize; 2], delta: bool) -> Vec<u8> {
        let mut builder = ChunkBuilder::new(delta);
        for width in widths {
            builder.push(&Tensor {
                dtype: DType::UInt8,
                shape: Shape::from_slice(&[2, width]),
                data: TensorData::Bytes((0..2 * width).map(|i| (i * 89) as u8).collect()),
            });
        }
        builder.finish(1, SequenceRange::default()).payload().into_owned()
    }

    proptest! {
        /// Items with a few different layouts, some of them damaged.
        #[test]
        fn items_are_valid_if_they_are_alone(
            items in prop::collection::vec((
                (0usize..3, 0usize..3, any::<bool>()),
                prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>())),
                (0usize..3, 0usize..3, 0usize..4, any::<bool>()),
            ), 1..60),
        ) {
            let mut validator = ItemValidator::default();
            for ((a, b, delta), damage, (tensor, offset, length, squeeze)) in items {
                let mut payload = payload([a, b], delta);
                if let Some((at, byte)) = damage {
                    let at = at.index(payload.len());
                    payload[at] = byte;
                }
                let chunk = Chunk::from_slice(1, SequenceRange::default(), delta, &payload);
                let mut builder = TrajectoryBuilder::new();
                for tensor in [tensor, 0] {
                    builder.slice(&chunk, tensor, offset, length);
                    builder.end_column(squeeze);
                }
                let item = builder.finish().unwrap();
                prop_assert_eq!(validator.validate(&item), item.validate());
            }
        }
    }
}
