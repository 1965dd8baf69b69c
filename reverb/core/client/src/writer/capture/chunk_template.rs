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
}

impl ChunkTemplate {
    /// The template of chunks like this one, whose tensors have `num_rows` rows each.
    pub(super) fn new(chunk: &Chunk, num_tensors: usize, num_rows: usize) -> Option<Self> {
        let layout = ChunkLayout::for_more(chunk)?;
        let places: Option<SmallVec<[Range<usize>; 8]>> =
            (0..num_tensors).map(|tensor| layout.rows(tensor, 0, num_rows)).collect();
        Some(Self { stored: layout.blank(chunk), places: places?, layout })
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
