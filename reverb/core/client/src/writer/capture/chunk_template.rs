// SPDX-License-Identifier: Apache-2.0
//! Chunk templates: chunks that differ only in their values are encoded by copying a template.

use std::ops::Range;

use reverb_data::{Chunk, ChunkLayout, SequenceRange};
use smallvec::SmallVec;

/// Contents of a chunk, and the positions of its tensors' values.
///
/// Fits chunks of the same dtypes and shapes whose values are stored uncompressed; see
/// `is_never_compressed`.
#[derive(Debug)]
pub(super) struct ChunkTemplate {
    layout: ChunkLayout,
    stored: Vec<u8>,
    places: SmallVec<[Range<usize>; 8]>,
    /// True if the chunk stores nothing but values, one tensor after another.
    is_values_alone: bool,
}

impl ChunkTemplate {
    /// The template of chunks like this one, whose tensors have `num_rows` rows each.
    pub(super) fn new(chunk: &Chunk, num_tensors: usize, num_rows: usize) -> Option<Self> {
        let layout = ChunkLayout::for_more(chunk)?;
        let places: Option<SmallVec<[Range<usize>; 8]>> =
            (0..num_tensors).map(|tensor| layout.rows(tensor, 0, num_rows)).collect();
        let (places, stored) = (places?, layout.blank(chunk));
        let mut end = 0;
        let follow =
            places.iter().all(|place| std::mem::replace(&mut end, place.end) == place.start);
        let is_values_alone = follow && end == stored.len();
        Some(Self { layout, stored, places, is_values_alone })
    }

    /// True if the chunk stores nothing but values, one tensor after another.
    pub(super) fn is_values_alone(&self) -> bool {
        self.is_values_alone
    }

    /// A chunk that stores only these values.
    pub(super) fn of_values(&self, key: u64, range: SequenceRange, values: &[u8]) -> Chunk {
        self.layout.chunk(key, range, values)
    }

    /// A chunk whose tensors are filled by `copy`, which receives their positions.
    pub(super) fn fill(
        &mut self,
        key: u64,
        range: SequenceRange,
        mut copy: impl FnMut(usize, &mut [u8]),
    ) -> Chunk {
        for (tensor, place) in self.places.iter().enumerate() {
            copy(tensor, &mut self.stored[place.clone()]);
        }
        self.layout.chunk(key, range, &self.stored)
    }
}
