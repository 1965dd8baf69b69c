// SPDX-License-Identifier: Apache-2.0
//! Known chunks of a column: steps of any of them are copied without parsing it again.

use std::hint::black_box;

use reverb_data::trajectory::{Column, Run};
use reverb_data::{Chunk, ChunkLayout, DType, Trajectory};
use smallvec::SmallVec;

use crate::sampler::large_values::{self, are_large};

/// Number of layouts of a column. Most chunks of a table have one, and the last ones of episodes
/// others.
const MAX_LAYOUTS: usize = 4;
/// Number of slices from which a column tries to learn a layout. After that, its chunks are
/// compressed, or of too many layouts.
const MAX_ATTEMPTS: usize = 8;

/// Layouts of the chunks of one column of a batch. Unlike a copy plan, they serve items whose
/// steps are anywhere in their chunks, such as windows of episodes.
#[derive(Debug, Default)]
pub(crate) struct KnownChunks {
    /// Each with the tensor of the column.
    layouts: SmallVec<[(ChunkLayout, usize); 1]>,
    attempts: usize,
}

impl KnownChunks {
    /// Adds the copies of a column of an item with `num_bytes` in all. Returns false, and adds
    /// nothing, if its chunks are not all known, or if it has another length.
    #[inline]
    pub(crate) fn find<'t>(
        &self,
        trajectory: &'t Trajectory,
        column: &Column<'_>,
        num_bytes: usize,
        number: usize,
        row: usize,
        copies: &mut KnownCopies<'t>,
    ) -> bool {
        if self.layouts.is_empty() || num_bytes == 0 {
            return false;
        }
        let before = copies.0.len();
        let mut at = 0;
        for Run { slice, times } in column.runs() {
            let chunk = &trajectory.chunks()[slice.chunk];
            let place = self
                .layout(chunk, slice.tensor)
                .and_then(|layout| layout.rows(slice.tensor, slice.offset, slice.length));
            let Some(place) = place else {
                at = usize::MAX;
                break;
            };
            let values = &chunk.stored()[place];
            black_box(values.first());
            copies.0.push(KnownCopy { column: number, row, at, values, times });
            at = at.saturating_add(values.len().saturating_mul(times));
        }
        if at != num_bytes {
            copies.0.truncate(before);
        }
        at == num_bytes
    }

    #[inline]
    fn layout(&self, chunk: &Chunk, tensor: usize) -> Option<&ChunkLayout> {
        let mut known = self.layouts.iter();
        known.find(|(layout, at)| *at == tensor && layout.matches(chunk)).map(|(layout, _)| layout)
    }

    /// Learns the layouts of the chunks of an item that fits into the batch. Its steps have this
    /// dtype and shape.
    pub(crate) fn learn(
        &mut self,
        trajectory: &Trajectory,
        column: &Column<'_>,
        dtype: DType,
        row_shape: &[usize],
    ) {
        for Run { slice, .. } in column.runs() {
            if self.attempts == MAX_ATTEMPTS || self.layouts.len() == MAX_LAYOUTS {
                return;
            }
            let chunk = &trajectory.chunks()[slice.chunk];
            if self.layout(chunk, slice.tensor).is_some() {
                continue;
            }
            self.attempts += 1;
            if let Some(layout) = ChunkLayout::new(chunk)
                && let Ok(tensor) = chunk.tensor(slice.tensor)
                && tensor.dtype == dtype
                && tensor.row_shape() == row_shape
            {
                self.layouts.push((layout, slice.tensor));
            }
        }
    }
}

/// Number of copies that are collected before they are made.
const MAX_COPIES: usize = 64;

/// Copies that are found and not made yet. The first byte of all values is read before the values
/// of one are copied, so they come from memory at the same time, and not one after another.
#[derive(Debug, Default)]
pub(crate) struct KnownCopies<'t>(Vec<KnownCopy<'t>>);

/// Values in a row of a column of a batch.
#[derive(Debug)]
struct KnownCopy<'t> {
    column: usize,
    row: usize,
    /// Position of the first byte in the row.
    at: usize,
    values: &'t [u8],
    /// Number of copies, one after another.
    times: usize,
}

impl KnownCopies<'_> {
    /// True if it is time to make them.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        self.0.len() >= MAX_COPIES
    }

    /// Passes all to `write`: the column, the row, the position of the first byte in it, and the
    /// bytes.
    #[inline]
    pub(crate) fn make(&mut self, mut write: impl FnMut(usize, usize, usize, &[u8])) {
        for (i, &KnownCopy { column, row, at, values, times }) in self.0.iter().enumerate() {
            if times > 1 {
                (0..times).for_each(|time| write(column, row, at + time * values.len(), values));
            } else if are_large(values.len()) {
                let mut following = self.0[i + 1..].iter().map(|copy| copy.values);
                let following =
                    following.find(|values| are_large(values.len())).unwrap_or_default();
                large_values::write(values, following, |piece_at, piece| {
                    write(column, row, at + piece_at, piece);
                });
            } else {
                write(column, row, at, values);
            }
        }
        self.0.clear();
    }
}
