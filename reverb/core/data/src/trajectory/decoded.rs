// SPDX-License-Identifier: Apache-2.0
//! Values of a trajectory: columns, decoded from slices of chunks.

use super::{Column, Trajectory};
use crate::codec::{no_memory, zeros};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Shape, Tensor, TensorData};

/// Type and size of a decoded column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSize {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape before squeezing, `[T, ...]`.
    pub shape: Shape,
    /// Bytes in memory; 0 for strings.
    pub num_bytes: usize,
}

impl Trajectory {
    /// Decodes all columns.
    pub fn decode(&self) -> Result<Vec<Tensor>> {
        self.columns().map(|column| self.decode_column(&column)).collect()
    }

    /// Decodes one column: the concatenation of its slices, squeezed if `squeeze` is set.
    pub fn decode_column(&self, column: &Column<'_>) -> Result<Tensor> {
        self.decode_column_within(column, &mut { usize::MAX })
    }

    /// Like `decode_column`. It may take `room` bytes, from which its bytes are subtracted.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if `room` or the memory is too small.
    pub fn decode_column_within(&self, column: &Column<'_>, room: &mut usize) -> Result<Tensor> {
        let ColumnSize { dtype, mut shape, num_bytes } = self.checked_column(column)?;
        let data = if dtype == DType::String {
            let mut strings = Vec::new();
            for slice in column.slices() {
                let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
                tensor.put_string_rows(slice.offset, slice.length, &mut strings, room)?;
            }
            TensorData::Strings(strings)
        } else {
            *room = room.checked_sub(num_bytes).ok_or_else(|| no_memory(num_bytes))?;
            let mut bytes = zeros(num_bytes)?;
            self.copy_column(column, &mut bytes)?;
            TensorData::Bytes(bytes)
        };
        if column.squeeze {
            shape.remove(0);
        }
        Ok(Tensor { dtype, shape, data })
    }

    /// Like `column_spec`, with a check of each slice: all must have steps of the same dtype and
    /// shape, and their chunks must have room for those. To be called before memory is allocated
    /// for a column: any number in it may be false.
    ///
    /// # Errors
    ///
    /// `DataLoss` or `InvalidArgument` that names the problem.
    pub fn checked_column(&self, column: &Column<'_>) -> Result<ColumnSize> {
        let (dtype, shape) = self.column_spec(column)?;
        let mut num_bytes = 0_usize;
        for slice in column.slices() {
            let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            if tensor.dtype != dtype || tensor.row_shape() != &shape[1..] {
                return Err(Error::data_loss(
                    "A column mixes chunks of different dtypes or shapes.",
                ));
            }
            tensor.check_rows(slice.offset, slice.length)?;
            let added = num_bytes.checked_add(tensor.plausible_bytes(slice.length)?);
            num_bytes = added.ok_or_else(|| no_memory(usize::MAX))?;
        }
        Ok(ColumnSize { dtype, shape, num_bytes })
    }

    /// Dtype and shape of a column before squeezing: `[T, ...]`.
    pub fn column_spec(&self, column: &Column<'_>) -> Result<(DType, Shape)> {
        let mut spec: Option<(DType, Shape)> = None;
        for slice in column.slices() {
            if let Some((_, shape)) = &mut spec {
                shape[0] = shape[0].saturating_add(slice.length);
                continue;
            }
            let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            let mut shape = tensor.shape.clone();
            if shape.is_empty() {
                return Err(Error::data_loss("A tensor in a chunk has no dimensions."));
            }
            shape[0] = slice.length;
            spec = Some((tensor.dtype, shape));
        }
        let (dtype, shape) =
            spec.ok_or_else(|| Error::invalid_argument("A column of the item has no slices."))?;
        if column.squeeze && shape[0] != 1 {
            return Err(Error::invalid_argument(format!(
                "A squeezed column must have exactly 1 step, it has {}.",
                shape[0]
            )));
        }
        Ok((dtype, shape))
    }

    /// Copies a column of fixed-size elements to `out`, which has exactly the length of the column.
    pub fn copy_column(&self, column: &Column<'_>, out: &mut [u8]) -> Result<()> {
        let mut rest = out;
        for slice in column.slices() {
            let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            let length = tensor.row_bytes()?.saturating_mul(slice.length);
            let (head, tail) = rest
                .split_at_mut_checked(length)
                .ok_or_else(|| Error::data_loss("A column mixes chunks of different shapes."))?;
            tensor.copy_rows(slice.offset, slice.length, head)?;
            rest = tail;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(Error::data_loss("A column mixes chunks of different shapes."))
        }
    }
}
