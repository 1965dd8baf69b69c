// SPDX-License-Identifier: Apache-2.0
//! Stacks items into arrays: every column becomes `[B, T, ...]`, decoded straight into its place.

use reverb_data::tensor::shape_text;
use reverb_data::{DType, Error, Result, Sampled, Shape, Tensor, TensorData};

/// One column of a batch, shape `[B, T, ...]`, or `[B, ...]` for squeezed columns.
pub type BatchColumn = Tensor;

/// Stacked items with what is known of each.
#[derive(Debug, Default)]
pub struct Batch {
    /// Keys, `[B]`.
    pub keys: Vec<u64>,
    /// Probabilities, `[B]`.
    pub probabilities: Vec<f64>,
    /// Table sizes, `[B]`.
    pub table_sizes: Vec<i64>,
    /// Priorities, `[B]`.
    pub priorities: Vec<f64>,
    /// Times each was sampled, `[B]`.
    pub times_sampled: Vec<i32>,
    /// The columns.
    pub columns: Vec<BatchColumn>,
}

impl Batch {
    /// Stacks `samples`; all must have the same columns with the same shapes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the column and both shapes where they differ; `DataLoss` for damaged chunks.
    pub fn assemble(samples: &[Sampled]) -> Result<Self> {
        let Some(first) = samples.first() else { return Ok(Self::default()) };
        let mut columns = Vec::with_capacity(first.trajectory.num_columns());
        for column in first.trajectory.columns() {
            columns.push(ColumnBuffer::new(&first.trajectory, &column, samples.len())?);
        }
        for (row, sampled) in samples.iter().enumerate() {
            let trajectory = &sampled.trajectory;
            if trajectory.num_columns() != columns.len() {
                return Err(Error::invalid_argument(format!(
                    "The items of a batch must have the same columns, but one has {} and another {}.",
                    columns.len(),
                    trajectory.num_columns(),
                )));
            }
            for (i, (buffer, column)) in columns.iter_mut().zip(trajectory.columns()).enumerate() {
                buffer.put(i, row, trajectory, &column)?;
            }
        }
        Ok(Self {
            keys: samples.iter().map(|s| s.key).collect(),
            probabilities: samples.iter().map(|s| s.probability).collect(),
            table_sizes: samples.iter().map(|s| s.table_size).collect(),
            priorities: samples.iter().map(|s| s.priority).collect(),
            times_sampled: samples.iter().map(|s| s.times_sampled).collect(),
            columns: columns.into_iter().map(ColumnBuffer::finish).collect(),
        })
    }
}

struct ColumnBuffer {
    dtype: DType,
    /// Of one item, before squeezing.
    item_shape: Shape,
    squeeze: bool,
    batch_size: usize,
    item_bytes: usize,
    data: TensorData,
}

impl ColumnBuffer {
    fn new(
        trajectory: &reverb_data::Trajectory,
        column: &reverb_data::trajectory::Column<'_>,
        batch_size: usize,
    ) -> Result<Self> {
        let (dtype, item_shape) = trajectory.column_spec(column)?;
        let (item_bytes, data) = if dtype == DType::String {
            (0, TensorData::Strings(Vec::new()))
        } else {
            let mut item_bytes = 0;
            for slice in column.slices() {
                let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
                item_bytes += tensor.plausible_bytes(slice.length)?;
            }
            let total = item_bytes.checked_mul(batch_size).ok_or_else(|| {
                Error::resource_exhausted(format!(
                    "a batch of {batch_size} items does not fit into memory"
                ))
            })?;
            (item_bytes, TensorData::Bytes(vec![0; total]))
        };
        Ok(Self { dtype, item_shape, squeeze: column.squeeze, batch_size, item_bytes, data })
    }

    fn put(
        &mut self,
        index: usize,
        row: usize,
        trajectory: &reverb_data::Trajectory,
        column: &reverb_data::trajectory::Column<'_>,
    ) -> Result<()> {
        if self.put_single_slice(row, trajectory, column)? {
            return Ok(());
        }
        let (dtype, shape) = trajectory.column_spec(column)?;
        if dtype != self.dtype || shape != self.item_shape || column.squeeze != self.squeeze {
            return Err(Error::invalid_argument(format!(
                "The items of a batch must have the same shapes, but column {index} is {} {} in one and {} {} in \
                 another. Sample such tables item by item, or store sequences of equal length.",
                self.dtype.name(),
                shape_text(&self.item_shape),
                dtype.name(),
                shape_text(&shape),
            )));
        }
        match &mut self.data {
            TensorData::Bytes(bytes) => {
                let place = row * self.item_bytes..(row + 1) * self.item_bytes;
                trajectory.copy_column(column, &mut bytes[place])
            }
            TensorData::Strings(strings) => {
                for slice in column.slices() {
                    let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
                    strings.extend(tensor.string_rows(slice.offset, slice.length)?);
                }
                Ok(())
            }
        }
    }

    /// The common case, with one look at the chunk: one slice of fixed-size elements. Says whether it applied.
    fn put_single_slice(
        &mut self,
        row: usize,
        trajectory: &reverb_data::Trajectory,
        column: &reverb_data::trajectory::Column<'_>,
    ) -> Result<bool> {
        let TensorData::Bytes(bytes) = &mut self.data else { return Ok(false) };
        let Some(slice) = column.single_slice() else { return Ok(false) };
        let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
        if tensor.dtype != self.dtype
            || column.squeeze != self.squeeze
            || slice.length != self.item_shape[0]
            || tensor.row_shape() != &self.item_shape[1..]
        {
            return Ok(false);
        }
        let place = row * self.item_bytes..(row + 1) * self.item_bytes;
        tensor.copy_rows(slice.offset, slice.length, &mut bytes[place])?;
        Ok(true)
    }

    fn finish(self) -> Tensor {
        let mut shape = Shape::with_capacity(self.item_shape.len() + 1);
        shape.push(self.batch_size);
        shape.extend_from_slice(&self.item_shape[usize::from(self.squeeze)..]);
        Tensor { dtype: self.dtype, shape, data: self.data }
    }
}
