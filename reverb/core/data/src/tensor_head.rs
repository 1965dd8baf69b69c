// SPDX-License-Identifier: Apache-2.0
//! Heads of tensors: what a chunk knows of a tensor without its values.

use crate::codec::{check_rows_of, num_rows_of};
use crate::dtype::DType;
use crate::tensor::Shape;
use reverb_base::error::Result;

/// Dtype and shape of a tensor in a chunk.
#[derive(Debug, Clone)]
pub struct TensorHead<'a> {
    /// Type of the elements.
    pub dtype: DType,
    shape: HeadShape<'a>,
}

#[derive(Debug, Clone)]
enum HeadShape<'a> {
    /// As it stands in the payload.
    Parsed(Shape),
    /// As it is known for many chunks.
    Known { num_rows: usize, row_shape: &'a [usize] },
}

impl<'a> TensorHead<'a> {
    /// The head of a tensor of this shape.
    #[inline]
    pub(crate) fn of_shape(dtype: DType, shape: Shape) -> Self {
        Self { dtype, shape: HeadShape::Parsed(shape) }
    }

    /// The head of a tensor with rows of this shape.
    #[inline]
    pub(crate) fn of_rows(dtype: DType, num_rows: usize, row_shape: &'a [usize]) -> Self {
        Self { dtype, shape: HeadShape::Known { num_rows, row_shape } }
    }

    /// Number of steps.
    ///
    /// # Errors
    ///
    /// `DataLoss` if the tensor has no dimensions.
    pub fn num_rows(&self) -> Result<usize> {
        match &self.shape {
            HeadShape::Parsed(shape) => num_rows_of(shape),
            HeadShape::Known { num_rows, .. } => Ok(*num_rows),
        }
    }

    /// Shape of one step.
    #[inline]
    pub fn row_shape(&self) -> &[usize] {
        match &self.shape {
            HeadShape::Parsed(shape) => shape.get(1..).unwrap_or_default(),
            HeadShape::Known { row_shape, .. } => row_shape,
        }
    }

    /// Checks that rows `[offset, offset + length)` exist.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if they do not, `DataLoss` if the tensor has no dimensions.
    pub fn check_rows(&self, offset: usize, length: usize) -> Result<()> {
        check_rows_of(self.num_rows()?, offset, length)
    }
}
