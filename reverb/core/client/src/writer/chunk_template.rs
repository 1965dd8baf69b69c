// SPDX-License-Identifier: Apache-2.0
//! Templates: chunks that differ in nothing but their values are encoded by copying these.

use std::ops::Range;

use reverb_data::{Chunk, ChunkLayout};
use smallvec::SmallVec;

/// The payload of a chunk, and where the values of its tensors are.
///
/// It serves chunks of the same dtypes and shapes whose values are stored as they are; see
/// `is_never_compressed`.
#[derive(Debug)]
pub(super) struct ChunkTemplate {
    payload: Vec<u8>,
    places: SmallVec<[Range<usize>; 8]>,
}

impl ChunkTemplate {
    /// The template of chunks like this one, whose tensors have `num_rows` rows each.
    pub(super) fn new(chunk: &Chunk, num_tensors: usize, num_rows: usize) -> Option<Self> {
        let layout = ChunkLayout::new(chunk)?;
        let places: Option<_> =
            (0..num_tensors).map(|tensor| layout.rows(tensor, 0, num_rows)).collect();
        Some(Self { payload: chunk.data().to_vec(), places: places? })
    }

    /// The payload of a chunk whose tensors `copy` fills, by their position.
    pub(super) fn fill(&mut self, mut copy: impl FnMut(usize, &mut [u8])) -> &[u8] {
        for (tensor, place) in self.places.iter().enumerate() {
            copy(tensor, &mut self.payload[place.clone()]);
        }
        &self.payload
    }
}
