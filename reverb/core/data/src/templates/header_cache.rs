// SPDX-License-Identifier: Apache-2.0
//! A cache of tensor headers, for slices that refer to the same tensors again and again.

use smallvec::SmallVec;

use crate::chunk::Chunk;
use crate::dtype::DType;
use crate::tensor::Shape;
use crate::trajectory::Slice;
use reverb_base::error::Result;

/// Number of cached headers: enough for a few writers whose items are interleaved. Every lookup
/// searches all of them, so the number is small.
const CAPACITY: usize = 32;

/// Headers for checking slices. The chunks must stay alive while it is in use.
#[derive(Debug, Default)]
pub struct HeaderCache {
    tensors: SmallVec<[KnownTensor; CAPACITY]>,
    /// Index of the oldest entry, once the cache is full.
    oldest: usize,
}

#[derive(Debug)]
pub(crate) struct KnownTensor {
    chunk: usize,
    index: usize,
    /// Number of steps, if the content is long enough for all of them, else 0.
    rows: usize,
    pub(crate) dtype: DType,
    pub(crate) row_shape: Shape,
}

impl HeaderCache {
    /// Checks that the tensor of a slice has the slice's steps, and returns its header.
    pub(crate) fn check(&mut self, chunk: &Chunk, slice: Slice) -> Result<&KnownTensor> {
        let identity = chunk.identity();
        let is_it = |known: &KnownTensor| known.chunk == identity && known.index == slice.tensor;
        let at = match self.tensors.iter().rposition(is_it) {
            Some(at) => at,
            None => self.read(chunk, slice)?,
        };
        let end = slice.offset.checked_add(slice.length);
        if end.is_none_or(|end| end > self.tensors[at].rows) {
            // These calls return the same errors that readers of the chunk get.
            let tensor = chunk.tensor(slice.tensor)?;
            tensor.check_rows(slice.offset, slice.length)?;
            tensor.plausible_bytes(slice.length)?;
        }
        Ok(&self.tensors[at])
    }

    /// Reads a header, which replaces the oldest one if the cache is full.
    fn read(&mut self, chunk: &Chunk, slice: Slice) -> Result<usize> {
        let tensor = chunk.tensor(slice.tensor)?;
        let rows = tensor.num_rows()?;
        let known = KnownTensor {
            chunk: chunk.identity(),
            index: slice.tensor,
            // A tensor that cannot hold all its steps is checked again for each slice.
            rows: if tensor.plausible_bytes(rows).is_ok() { rows } else { 0 },
            dtype: tensor.dtype,
            row_shape: Shape::from_slice(tensor.row_shape()),
        };
        if self.tensors.len() < CAPACITY {
            self.tensors.push(known);
            return Ok(self.tensors.len() - 1);
        }
        let at = self.oldest;
        self.tensors[at] = known;
        self.oldest = (at + 1) % CAPACITY;
        Ok(at)
    }
}
