// SPDX-License-Identifier: Apache-2.0
//! Layouts of payloads: where the values are in payloads that differ in nothing but their values.

use std::ops::Range;

use crate::codec::{TensorView, tensors_of};
use crate::dtype::DType;
use crate::templates::byte_mask::ByteMask;
use crate::tensor::Shape;

/// A payload without its values: every other byte, and the positions of each tensor's values.
///
/// Comparing a payload with a layout costs a few words, parsing it costs a hundred times as much.
/// The comparison is exact: a payload that matches holds the same tensors, with the same dtypes,
/// shapes and positions. Only payloads whose tensors are neither compressed nor delta encoded have
/// a layout.
#[derive(Debug, Clone)]
pub(crate) struct PayloadLayout {
    pub(crate) delta: bool,
    mask: ByteMask,
    pub(crate) tensors: Box<[RawTensor]>,
}

/// A tensor that is not encoded.
#[derive(Debug, Clone)]
pub(crate) struct RawTensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) row_bytes: usize,
    pub(crate) values: Range<usize>,
}

impl PayloadLayout {
    /// The layout of a payload; `None` if it has none.
    pub(crate) fn new(payload: &[u8], delta: bool) -> Option<Self> {
        let tensors = tensors_of(payload, delta);
        let raw: Option<Box<[_]>> =
            tensors.map(|tensor| RawTensor::new(&tensor.ok()?, payload)).collect();
        let tensors = raw?;
        // Tensors come in the order of the payload.
        let values = tensors.iter().map(|tensor| tensor.values.clone());
        Some(Self { delta, mask: ByteMask::new(payload, values)?, tensors })
    }

    /// Returns true if a payload differs from the layout's only in its values.
    #[inline]
    pub(crate) fn matches(&self, payload: &[u8], delta: bool) -> bool {
        delta == self.delta && self.mask.matches(payload)
    }
}

impl RawTensor {
    fn new(tensor: &TensorView<'_>, payload: &[u8]) -> Option<Self> {
        let num_rows = tensor.num_rows().ok()?;
        let row_bytes = tensor.row_bytes().ok()?;
        let values = tensor.values_in_place()?;
        if values.is_empty() || Some(values.len()) != num_rows.checked_mul(row_bytes) {
            return None;
        }
        let begin = values.as_ptr().addr() - payload.as_ptr().addr();
        let values = begin..begin + values.len();
        Some(Self { dtype: tensor.dtype, shape: tensor.shape.clone(), row_bytes, values })
    }

    /// Range of rows `[offset, offset + length)` relative to the first value; `None` if there are
    /// no such rows.
    #[inline]
    pub(crate) fn rows(&self, offset: usize, length: usize) -> Option<Range<usize>> {
        if offset.checked_add(length)? > self.shape[0] {
            return None;
        }
        let begin = offset * self.row_bytes;
        Some(begin..begin + length * self.row_bytes)
    }
}
