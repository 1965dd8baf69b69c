// SPDX-License-Identifier: Apache-2.0
//! Tensors whose headers were read, for slices that refer to the same ones again and again.

use smallvec::SmallVec;

use crate::chunk::Chunk;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Shape;
use crate::trajectory::Slice;

/// Tensors that are remembered: those of some writers whose items follow each other in turn. All
/// are looked at for every slice, so there are not many.
const REMEMBERED: usize = 32;

/// What slices are checked against. Chunks stay alive while it is in use.
#[derive(Debug, Default)]
pub struct TensorMemo {
    tensors: SmallVec<[KnownTensor; REMEMBERED]>,
    /// The one that was read first, once there are as many as are remembered.
    oldest: usize,
}

/// What the header of a tensor says.
#[derive(Debug)]
pub(crate) struct KnownTensor {
    chunk: usize,
    index: usize,
    /// Steps that it has, and that its content can hold.
    rows: usize,
    pub(crate) dtype: DType,
    pub(crate) row_shape: Shape,
}

impl TensorMemo {
    /// The tensor behind a slice, if it has the steps.
    pub(crate) fn check(&mut self, chunk: &Chunk, slice: Slice) -> Result<&KnownTensor> {
        let identity = chunk.identity();
        let is_it = |known: &KnownTensor| known.chunk == identity && known.index == slice.tensor;
        let at = match self.tensors.iter().rposition(is_it) {
            Some(at) => at,
            None => self.read(chunk, slice)?,
        };
        let end = slice.offset.checked_add(slice.length);
        if end.is_none_or(|end| end > self.tensors[at].rows) {
            // Says what is wrong, in the words that readers use.
            let tensor = chunk.tensor(slice.tensor)?;
            tensor.check_rows(slice.offset, slice.length)?;
            tensor.plausible_bytes(slice.length)?;
        }
        Ok(&self.tensors[at])
    }

    /// Reads a header in the place of the oldest one.
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
        if self.tensors.len() < REMEMBERED {
            self.tensors.push(known);
            return Ok(self.tensors.len() - 1);
        }
        let at = self.oldest;
        self.tensors[at] = known;
        self.oldest = (at + 1) % REMEMBERED;
        Ok(at)
    }
}
