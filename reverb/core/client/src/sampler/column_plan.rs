// SPDX-License-Identifier: Apache-2.0
//! What the rows of a column of a batch have in common.

use reverb_data::stacking::{ColumnSpec, different_columns, different_shapes};
use reverb_data::trajectory::{CheckedColumn, Column};
use reverb_data::{DType, Error, Result, Shape, Trajectory};

/// The common properties of one column's rows in a batch; writes a row to its position.
#[derive(Debug, Clone)]
pub struct ColumnPlan {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape of one item's column before squeezing, `[T, ...]`.
    pub item_shape: Shape,
    /// Whether the time dimension, which is 1, is left out.
    pub squeeze: bool,
    /// Bytes of one item's column; 0 for strings.
    pub item_bytes: usize,
}

impl ColumnPlan {
    /// A batch that takes more than this takes it for items that were checked, all of them.
    pub const MAX_UNCHECKED_BYTES: usize = 64 << 20;

    /// The plan for items of the same dtypes and shapes as this one.
    ///
    /// # Errors
    ///
    /// `DataLoss` or `InvalidArgument` if the chunks of the column are not what they claim to be.
    pub fn new(trajectory: &Trajectory, column: &Column<'_>) -> Result<Self> {
        let CheckedColumn { dtype, shape, num_bytes, .. } = trajectory.checked_column(column)?;
        Ok(Self { dtype, item_shape: shape, squeeze: column.squeeze, item_bytes: num_bytes })
    }

    /// Checks an item before there is memory for it, with the plans of all columns.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it has not the planned shapes; `DataLoss` if its chunks are not what
    /// they claim to be.
    pub fn check_item(plans: &[Self], trajectory: &Trajectory) -> Result<()> {
        if trajectory.num_columns() != plans.len() {
            return Err(different_columns(plans.len(), trajectory.num_columns()));
        }
        let mut columns = plans.iter().zip(trajectory.columns()).enumerate();
        columns.try_for_each(|(i, (plan, column))| plan.check(i, trajectory, &column))
    }

    fn check(&self, index: usize, trajectory: &Trajectory, column: &Column<'_>) -> Result<()> {
        if self.fits(trajectory, column)? {
            trajectory.checked_column(column).map(drop)
        } else {
            Err(self.mismatch(index, trajectory, column))
        }
    }

    /// Shape of the column in a batch: `[B, T, ...]`, or `[B, ...]` if it is squeezed.
    pub fn batch_shape(&self, batch_size: usize) -> Shape {
        let mut shape = Shape::with_capacity(self.item_shape.len() + 1);
        shape.push(batch_size);
        shape.extend_from_slice(&self.item_shape[usize::from(self.squeeze)..]);
        shape
    }

    /// Writes the elements of one item's column, `item_bytes` in all. Returns whether the item has
    /// the planned shape; if not, nothing is written.
    pub fn write(
        &self,
        trajectory: &Trajectory,
        column: &Column<'_>,
        out: &mut [u8],
    ) -> Result<bool> {
        if self.write_single_slice(trajectory, column, out)? {
            return Ok(true);
        }
        if !self.fits(trajectory, column)? {
            return Ok(false);
        }
        trajectory.copy_column(column, out)?;
        Ok(true)
    }

    /// Appends the strings of one item's column, which may take `room` bytes. Returns whether the
    /// item has the planned shape; if not, nothing is appended.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if there is not so much room, or no memory.
    pub fn append_strings(
        &self,
        trajectory: &Trajectory,
        column: &Column<'_>,
        out: &mut Vec<Vec<u8>>,
        room: &mut usize,
    ) -> Result<bool> {
        if !self.fits(trajectory, column)? {
            return Ok(false);
        }
        for slice in column.slices() {
            let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
            tensor.put_string_rows(slice.offset, slice.length, out, room)?;
        }
        Ok(true)
    }

    /// The error for an item without the planned shape.
    pub fn mismatch(&self, index: usize, trajectory: &Trajectory, column: &Column<'_>) -> Error {
        match trajectory.column_spec(column) {
            Err(error) => error,
            Ok((dtype, shape)) => {
                let Self { item_shape, squeeze, .. } = self;
                let planned =
                    ColumnSpec { dtype: self.dtype, shape: item_shape.clone(), squeeze: *squeeze };
                let found = ColumnSpec { dtype, shape, squeeze: column.squeeze };
                different_shapes(index, &planned, &found)
            }
        }
    }

    /// Whether an item has the planned shape.
    pub(crate) fn fits(&self, trajectory: &Trajectory, column: &Column<'_>) -> Result<bool> {
        let (dtype, shape) = trajectory.column_spec(column)?;
        Ok(dtype == self.dtype && shape == self.item_shape && column.squeeze == self.squeeze)
    }

    /// Fast path for a single slice of fixed-size elements, with one chunk lookup. Returns whether
    /// it applied.
    fn write_single_slice(
        &self,
        trajectory: &Trajectory,
        column: &Column<'_>,
        out: &mut [u8],
    ) -> Result<bool> {
        let Some(slice) = column.single_slice() else { return Ok(false) };
        let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
        if tensor.dtype != self.dtype
            || column.squeeze != self.squeeze
            || slice.length != self.item_shape[0]
            || tensor.row_shape() != &self.item_shape[1..]
        {
            return Ok(false);
        }
        tensor.copy_rows(slice.offset, slice.length, out)?;
        Ok(true)
    }
}
