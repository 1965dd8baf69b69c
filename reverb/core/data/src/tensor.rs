// SPDX-License-Identifier: Apache-2.0
//! A tensor in memory, decoded: row-major, little-endian.

use smallvec::SmallVec;

use crate::dtype::DType;

/// Sizes of the dimensions, outermost first.
pub type Shape = SmallVec<[usize; 4]>;

/// The elements of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorData {
    /// Elements of a fixed size, one after another.
    Bytes(Vec<u8>),
    /// Elements of dtype string, one byte string each.
    Strings(Vec<Vec<u8>>),
}

/// A tensor in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the dimensions.
    pub shape: Shape,
    /// The elements; their number is the product of `shape`.
    pub data: TensorData,
}

impl Tensor {
    /// Number of elements of a tensor of this shape, or `None` on overflow.
    pub fn num_elements(shape: &[usize]) -> Option<usize> {
        shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))
    }

    /// Bytes of a tensor of this dtype and shape, or `None` on overflow. Strings count 0.
    pub fn num_bytes(dtype: DType, shape: &[usize]) -> Option<usize> {
        Self::num_elements(shape)?.checked_mul(dtype.size())
    }
}

/// Maximum number of printed dimensions: a shape may come from another program.
const MAX_PRINTED_DIMS: usize = 32;

/// Prints a shape the way TensorFlow does: `[3,?]`.
pub fn shape_text<T: std::fmt::Display>(dims: impl IntoIterator<Item = T>) -> String {
    let mut dims = dims.into_iter();
    let mut parts: Vec<String> =
        dims.by_ref().take(MAX_PRINTED_DIMS).map(|dim| dim.to_string()).collect();
    let num_others = dims.count();
    if num_others > 0 {
        parts.push(format!("and {num_others} more"));
    }
    format!("[{}]", parts.join(","))
}
