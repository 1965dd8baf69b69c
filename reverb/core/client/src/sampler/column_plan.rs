// SPDX-License-Identifier: Apache-2.0
//! Plan of a batch's column: the common properties of its rows.

use reverb_base::{Error, Result};
use reverb_data::stacking::{ColumnSpec, different_columns, different_shapes};
use reverb_data::trajectory::{CheckedColumn, Column};
use reverb_data::{DType, Shape, Trajectory};

/// Common properties of one column's rows, used to write each row to its position.
#[derive(Debug, Clone)]
pub struct ColumnPlan {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape of one item's column before squeezing, `[T, ...]`.
    pub item_shape: Shape,
    /// True if the time dimension, which is 1, is left out.
    pub squeeze: bool,
    /// True if it is left out of the batch of items that have it, too.
    pub is_squeezed: bool,
    /// Bytes of one item's column; 0 for strings.
    pub item_bytes: usize,
}

impl ColumnPlan {
    /// Size above which a batch is allocated only after all of its items are checked.
    pub const MAX_UNCHECKED_BYTES: usize = 64 << 20;

    /// The plan for items of the same dtypes and shapes as this one.
    ///
    /// # Errors
    ///
    /// `DataLoss` or `InvalidArgument` if the chunks of the column contradict their headers.
    pub fn new(trajectory: &Trajectory, column: &Column<'_>) -> Result<Self> {
        let CheckedColumn { dtype, shape, num_bytes, .. } = trajectory.checked_column(column)?;
        let squeeze = column.squeeze;
        let item_shape = shape;
        let item_bytes = num_bytes;
        Ok(Self { dtype, item_shape, squeeze, is_squeezed: squeeze, item_bytes })
    }

    /// The same plan for a batch without a time dimension.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the column has several steps.
    pub fn squeezed(mut self) -> Result<Self> {
        if self.item_shape.first() != Some(&1) {
            return Err(Error::invalid_argument("squeeze=True is for items of one step"));
        }
        self.is_squeezed = true;
        Ok(self)
    }

    /// Checks an item with the plans of all columns before memory is allocated.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for other shapes than planned; `DataLoss` if chunks contradict their
    /// headers.
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
        shape.extend_from_slice(&self.item_shape[usize::from(self.is_squeezed)..]);
        shape
    }

    /// Writes the elements of one item's column, `item_bytes` in all. Returns false, and writes
    /// nothing, if the item does not have the planned shape.
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

    /// Appends the strings of one item's column, at most `room` bytes. Returns false, and appends
    /// nothing, if the item does not have the planned shape.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if the strings exceed `room` or the memory.
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
        trajectory.put_strings(column, out, room)?;
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

    /// True if an item has the planned shape.
    pub(crate) fn fits(&self, trajectory: &Trajectory, column: &Column<'_>) -> Result<bool> {
        let (dtype, shape) = trajectory.column_spec(column)?;
        Ok(dtype == self.dtype && shape == self.item_shape && column.squeeze == self.squeeze)
    }

    /// Fast path for a single slice of fixed-size elements, with one chunk lookup. Returns true if
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
