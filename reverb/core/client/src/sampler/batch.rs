// SPDX-License-Identifier: Apache-2.0
//! Stacks items into arrays: every column becomes `[B, T, ...]`, decoded in place.

use reverb_data::stacking::{different_columns, different_shapes};
use reverb_data::trajectory::Column;
use reverb_data::{DType, Error, Result, Sampled, Shape, Tensor, TensorData, Trajectory};

use crate::sampler::copy_plan::CopyPlans;
use crate::sampler::fetch_ahead::fetched_ahead;

/// One column of a batch, shape `[B, T, ...]`, or `[B, ...]` for squeezed columns.
pub type BatchColumn = Tensor;

/// Stacked items with their sample info.
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
    /// How many times each was sampled, `[B]`.
    pub times_sampled: Vec<i32>,
    /// The columns.
    pub columns: Vec<BatchColumn>,
}

impl Batch {
    /// Stacks `samples`; all must have the same columns with the same shapes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the column and both shapes where they differ; `DataLoss` for
    /// damaged chunks.
    pub fn assemble(samples: &[Sampled]) -> Result<Self> {
        BatchBuilder::new(samples.len()).finish(samples)
    }

    fn new(samples: &[Sampled], columns: Vec<ColumnBuffer>) -> Self {
        Self {
            keys: samples.iter().map(|s| s.key).collect(),
            probabilities: samples.iter().map(|s| s.probability).collect(),
            table_sizes: samples.iter().map(|s| s.table_size).collect(),
            priorities: samples.iter().map(|s| s.priority).collect(),
            times_sampled: samples.iter().map(|s| s.times_sampled).collect(),
            columns: columns.into_iter().map(|column| column.finish(samples.len())).collect(),
        }
    }
}

/// Stacks items that arrive in several parts, each part while the next is on its way.
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    /// Number of items that are wanted.
    batch_size: usize,
    /// Empty before the first item.
    columns: Vec<ColumnBuffer>,
    plans: CopyPlans,
    /// Number of items that are stacked.
    num_rows: usize,
    /// The first item that could not be stacked ends the batch.
    failure: Option<Error>,
}

/// Batches that would take more are not stacked before it is known how many items there are.
const MAX_EARLY_BYTES: usize = 64 << 20;

impl BatchBuilder {
    /// A builder for a batch of at most `batch_size` items.
    pub(crate) fn new(batch_size: usize) -> Self {
        let (columns, plans) = (Vec::new(), CopyPlans::default());
        Self { batch_size, columns, plans, num_rows: 0, failure: None }
    }

    /// Adds those of `samples` that were not added yet. An error comes with `finish`.
    pub(crate) fn add(&mut self, samples: &[Sampled]) {
        if self.failure.is_none() && self.is_small(samples) {
            self.failure = self.stack(samples, self.batch_size).err();
        }
    }

    /// The batch of all `samples`.
    ///
    /// # Errors
    ///
    /// Those of [`Batch::assemble`].
    pub(crate) fn finish(mut self, samples: &[Sampled]) -> Result<Batch> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        self.stack(samples, samples.len())?;
        Ok(Batch::new(samples, self.columns))
    }

    /// Whether there is room for the whole batch if all items are like the first.
    fn is_small(&self, samples: &[Sampled]) -> bool {
        if !self.columns.is_empty() {
            return true;
        }
        let Some(first) = samples.first() else { return false };
        let item_bytes = first.trajectory.columns().try_fold(0usize, |bytes, column| {
            bytes.checked_add(ColumnPlan::new(&first.trajectory, &column).ok()?.item_bytes)
        });
        item_bytes
            .and_then(|bytes| bytes.checked_mul(self.batch_size))
            .is_some_and(|bytes| bytes <= MAX_EARLY_BYTES)
    }

    /// Adds the rest of `samples`. The first ones make room for `capacity` items.
    fn stack(&mut self, samples: &[Sampled], capacity: usize) -> Result<()> {
        let Some(first) = samples.first() else { return Ok(()) };
        if self.columns.is_empty() {
            let mut columns = Vec::with_capacity(first.trajectory.num_columns());
            for column in first.trajectory.columns() {
                columns.push(ColumnBuffer::new(&first.trajectory, &column, capacity)?);
            }
            self.columns = columns;
        }
        let Self { columns, plans, num_rows, .. } = self;
        for sampled in fetched_ahead(&samples[*num_rows..]) {
            let (row, trajectory) = (*num_rows, &sampled.trajectory);
            *num_rows += 1;
            if plans.copy(trajectory, |i, at, values| columns[i].put_values(row, at, values)) {
                continue;
            }
            if trajectory.num_columns() != columns.len() {
                return Err(different_columns(columns.len(), trajectory.num_columns()));
            }
            for (i, (buffer, column)) in columns.iter_mut().zip(trajectory.columns()).enumerate() {
                buffer.put(i, trajectory, &column)?;
            }
            if row + 1 < capacity {
                plans.learn(trajectory);
            }
        }
        Ok(())
    }
}

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
    /// The plan for items of the same dtypes and shapes as this one.
    pub fn new(trajectory: &Trajectory, column: &Column<'_>) -> Result<Self> {
        let (dtype, item_shape) = trajectory.column_spec(column)?;
        let mut item_bytes = 0;
        if dtype != DType::String {
            for slice in column.slices() {
                let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
                item_bytes += tensor.plausible_bytes(slice.length)?;
            }
        }
        Ok(Self { dtype, item_shape, squeeze: column.squeeze, item_bytes })
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

    /// Appends the strings of one item's column. Returns whether the item has the planned shape; if
    /// not, nothing is appended.
    pub fn append_strings(
        &self,
        trajectory: &Trajectory,
        column: &Column<'_>,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<bool> {
        if !self.fits(trajectory, column)? {
            return Ok(false);
        }
        for slice in column.slices() {
            let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
            out.extend(tensor.string_rows(slice.offset, slice.length)?);
        }
        Ok(true)
    }

    /// The error for an item without the planned shape.
    pub fn mismatch(&self, index: usize, trajectory: &Trajectory, column: &Column<'_>) -> Error {
        match trajectory.column_spec(column) {
            Err(error) => error,
            Ok((dtype, shape)) => {
                different_shapes(index, (self.dtype, &self.item_shape), (dtype, &shape))
            }
        }
    }

    fn fits(&self, trajectory: &Trajectory, column: &Column<'_>) -> Result<bool> {
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

/// The rows of a column so far. They are appended, so that the memory is not cleared before.
#[derive(Debug)]
struct ColumnBuffer {
    plan: ColumnPlan,
    data: TensorData,
}

impl ColumnBuffer {
    /// An empty column with room for a batch of this size.
    fn new(trajectory: &Trajectory, column: &Column<'_>, batch_size: usize) -> Result<Self> {
        let plan = ColumnPlan::new(trajectory, column)?;
        let data = if plan.dtype == DType::String {
            TensorData::Strings(Vec::new())
        } else {
            let total = plan.item_bytes.checked_mul(batch_size).ok_or_else(|| {
                Error::resource_exhausted(format!(
                    "a batch of {batch_size} items does not fit into memory"
                ))
            })?;
            TensorData::Bytes(Vec::with_capacity(total))
        };
        Ok(Self { plan, data })
    }

    /// Appends an item.
    fn put(&mut self, index: usize, trajectory: &Trajectory, column: &Column<'_>) -> Result<()> {
        let plan = &self.plan;
        let fits = match &mut self.data {
            TensorData::Bytes(bytes) => {
                // Compressed values are decoded into memory that has to be initialised; a row at a
                // time, it is still in the cache then.
                let begin = bytes.len();
                bytes.resize(begin + plan.item_bytes, 0);
                plan.write(trajectory, column, &mut bytes[begin..])?
            }
            TensorData::Strings(strings) => plan.append_strings(trajectory, column, strings)?,
        };
        if fits { Ok(()) } else { Err(plan.mismatch(index, trajectory, column)) }
    }

    /// Appends the values of an item that has the planned shape, which begin at `at` in its row.
    #[inline]
    fn put_values(&mut self, row: usize, at: usize, values: &[u8]) {
        let TensorData::Bytes(bytes) = &mut self.data else {
            unreachable!("strings have no layout")
        };
        debug_assert_eq!(bytes.len(), row * self.plan.item_bytes + at, "values come in order");
        bytes.extend_from_slice(values);
    }

    fn finish(self, num_rows: usize) -> Tensor {
        Tensor { dtype: self.plan.dtype, shape: self.plan.batch_shape(num_rows), data: self.data }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reverb_data::{Chunk, ChunkBuilder, SequenceRange, TrajectoryBuilder};

    use super::*;
    use crate::sampler::testing;

    /// Bytes of a step of each of the two columns.
    const WIDTHS: [usize; 2] = [300, 7];

    /// A chunk of one step of both columns; its values are stored raw, or compressed.
    fn chunk(key: u64, is_compressible: bool) -> Chunk {
        let mut noise = key as u32 + 1;
        let mut value = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if is_compressible { key as u8 } else { (noise >> 24) as u8 }
        };
        let mut builder = ChunkBuilder::new(false);
        for width in WIDTHS {
            builder.push(&Tensor {
                dtype: DType::UInt8,
                shape: Shape::from_slice(&[1, width]),
                data: TensorData::Bytes((0..width).map(|_| value()).collect()),
            });
        }
        builder.finish(key, SequenceRange::default())
    }

    /// An item of consecutive chunks.
    fn sampled(key: u64, chunks: &[Chunk]) -> Sampled {
        let mut builder = TrajectoryBuilder::new();
        for tensor in 0..WIDTHS.len() {
            for chunk in chunks {
                builder.slice(chunk, tensor, 0, 1);
            }
            builder.end_column(false);
        }
        testing::sampled(key, builder.finish().unwrap())
    }

    fn bytes_of(tensor: Tensor) -> Vec<u8> {
        match tensor.data {
            TensorData::Bytes(bytes) => bytes,
            TensorData::Strings(_) => unreachable!(),
        }
    }

    proptest! {
        /// A batch is its items one after another, in however many parts they arrive, and whichever
        /// of them are copied by a plan.
        #[test]
        fn a_batch_is_its_items_in_order(
            compressible in prop::collection::vec(any::<bool>(), 3..12),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 1..30),
            num_steps in 1usize..3,
            // In how many parts they arrive, and how many do not.
            (parts, missing) in (0usize..5, prop::sample::select(vec![0, 7, 1 << 40])),
        ) {
            let history: Vec<Chunk> =
                compressible.iter().zip(0..).map(|(&it, key)| chunk(key, it)).collect();
            let windows: Vec<&[Chunk]> = history.windows(num_steps).collect();
            let samples: Vec<Sampled> =
                picks.iter().zip(0..).map(|(pick, key)| sampled(key, windows[pick.index(windows.len())])).collect();
            let mut builder = BatchBuilder::new(samples.len() + missing);
            for part in 1..=parts {
                builder.add(&samples[..samples.len() * part / parts]);
            }
            let batch = builder.finish(&samples).unwrap();
            prop_assert_eq!(&batch.keys, &(0..samples.len() as u64).collect::<Vec<_>>());
            for (i, column) in batch.columns.into_iter().enumerate() {
                prop_assert_eq!(&column.shape[..], &[samples.len(), num_steps, WIDTHS[i]]);
                let items = samples.iter().flat_map(|sampled| {
                    bytes_of(sampled.trajectory.decode().unwrap().swap_remove(i))
                });
                prop_assert_eq!(bytes_of(column), items.collect::<Vec<u8>>());
            }
        }
    }

    #[test]
    fn an_item_of_another_length_is_named() {
        let history = [chunk(1, false), chunk(2, false), chunk(3, true)];
        let samples = [sampled(1, &history[..2]), sampled(2, &history[..1])];
        let error = Batch::assemble(&samples).unwrap_err();
        assert!(error.to_string().contains("[2,300]"), "{error}");
        let mut builder = BatchBuilder::new(3);
        (1..3).for_each(|len| builder.add(&samples[..len]));
        builder.add(&[sampled(1, &history[..2]), sampled(2, &history[..1]), sampled(3, &history)]);
        assert_eq!(builder.finish(&samples).unwrap_err(), error, "the first one counts");
    }
}
