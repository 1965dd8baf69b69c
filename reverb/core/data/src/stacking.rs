// SPDX-License-Identifier: Apache-2.0
//! Stacking of items into one batch: their columns must have the same dtypes and shapes.

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::tensor::{Shape, shape_text};
use crate::trajectory::Trajectory;
use reverb_base::error::{Error, Result};

/// Batches into which a reader groups the items that it samples.
///
/// A server that removes sampled items checks the items of one batch before it counts any of them
/// as sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stacking {
    /// Items of one batch, at least 1.
    pub batch_size: usize,
    /// Position of the next item in its batch, below `batch_size`.
    pub position: usize,
}

impl Stacking {
    /// Batches of `batch_size` items, starting with the first item.
    pub fn new(batch_size: usize) -> Self {
        Self { batch_size, position: 0 }
    }

    /// The position after `count` more items.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        // A peer can send numbers so large that their sum would overflow.
        let count = count % self.batch_size;
        let missing = self.missing();
        let position = if count < missing { self.position + count } else { count - missing };
        Self { position, ..self }
    }

    /// The position `count` items before.
    #[must_use]
    pub fn before(self, count: usize) -> Self {
        self.after(self.batch_size - count % self.batch_size)
    }

    /// Number of items that are missing from the current batch.
    pub fn missing(self) -> usize {
        self.batch_size - self.position
    }
}

/// Dtypes and shapes of the columns of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemSpec {
    columns: SmallVec<[ColumnSpec; 4]>,
    /// True if items of other lengths fit, because windows of one length are cut out of them.
    of_windows: bool,
}

/// Dtype and shape of one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Type of the elements.
    pub dtype: DType,
    /// Before squeezing, `[T, ...]`.
    pub shape: Shape,
    /// True if the time dimension, which is 1, is left out.
    pub squeeze: bool,
}

impl ItemSpec {
    /// Reads the column types of an item from the headers of its chunks; decodes nothing.
    ///
    /// # Errors
    ///
    /// `DataLoss` if a chunk is damaged.
    pub fn from_trajectory(trajectory: &Trajectory) -> Result<Self> {
        let columns = trajectory.columns().map(|column| {
            let (dtype, shape) = trajectory.column_spec(&column)?;
            Ok(ColumnSpec { dtype, shape, squeeze: column.squeeze })
        });
        Ok(Self { columns: columns.collect::<Result<_>>()?, of_windows: false })
    }

    /// The column types of windows that are cut out of items like this one: the number of steps
    /// does not matter.
    #[must_use]
    pub fn of_windows(self) -> Self {
        Self { of_windows: true, ..self }
    }

    /// Checks that an item can be in one batch with items of these column types.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the column and both shapes; `DataLoss` if a chunk is damaged.
    pub fn check(&self, trajectory: &Trajectory) -> Result<()> {
        if self.fits(trajectory)? {
            return Ok(());
        }
        let other = Self::from_trajectory(trajectory)?.columns;
        if self.columns.len() != other.len() {
            return Err(different_columns(self.columns.len(), other.len()));
        }
        let differs = |one: &ColumnSpec, another: &ColumnSpec| {
            let is_same = one.dtype == another.dtype
                && one.squeeze == another.squeeze
                && self.have_same_shape(&one.shape, &another.shape);
            !is_same
        };
        let mut pairs = self.columns.iter().zip(&other).enumerate();
        match pairs.find(|(_, (one, another))| differs(one, another)) {
            None => Ok(()),
            Some((i, (one, another))) => Err(different_shapes(i, one, another)),
        }
    }

    /// Compares the shapes of two columns, `[T, ...]`.
    fn have_same_shape(&self, one: &[usize], another: &[usize]) -> bool {
        let first = usize::from(self.of_windows);
        one.get(first..) == another.get(first..)
    }

    /// Returns true if an item has these column types. This is the fast path for nearly all items.
    fn fits(&self, trajectory: &Trajectory) -> Result<bool> {
        if trajectory.num_columns() != self.columns.len() {
            return Ok(false);
        }
        for (known, column) in self.columns.iter().zip(trajectory.columns()) {
            let fits = if let Some(slice) = column.single_slice() {
                let head = trajectory.chunks()[slice.chunk].head(slice.tensor)?;
                head.dtype == known.dtype
                    && (slice.length == known.shape[0] || self.of_windows)
                    && head.row_shape() == &known.shape[1..]
            } else {
                let (dtype, shape) = trajectory.column_spec(&column)?;
                dtype == known.dtype && self.have_same_shape(&shape, &known.shape)
            };
            if !fits || column.squeeze != known.squeeze {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Error for two items of a batch with different numbers of columns.
pub fn different_columns(one: usize, another: usize) -> Error {
    Error::invalid_argument(format!(
        "The items of a batch must have the same columns, but one has {one} and another {another}."
    ))
}

/// Error for a column whose dtype or shape differs between two items of a batch, or which is a
/// single step in one and a sequence in the other.
pub fn different_shapes(column: usize, one: &ColumnSpec, another: &ColumnSpec) -> Error {
    let mut this = one.description();
    let mut that = another.description();
    if this == that {
        this.push_str(one.kind());
        that.push_str(another.kind());
    }
    Error::invalid_column(
        "The items of a batch must have the same shapes, but column ",
        column,
        &format!(" is {this} in one and {that} in another. {}", one.remedy(another)),
    )
}

impl ColumnSpec {
    /// Dtype and shape of the column in an item that is sampled alone.
    pub fn description(&self) -> String {
        let shape = &self.shape[usize::from(self.squeeze)..];
        format!("{} {}", self.dtype.name(), shape_text(shape))
    }

    /// Remedy for a column that differs in another item of the batch.
    fn remedy(&self, another: &Self) -> &'static str {
        let differ_in_length = self.dtype == another.dtype
            && self.squeeze == another.squeeze
            && self.shape.get(1..) == another.shape.get(1..);
        if differ_in_length {
            "Sample such tables with ragged=\"pad\" or \"packed\", item by item, or store sequences \
             of equal length."
        } else {
            "Sample such tables item by item, or give them a signature, so that other items are \
             refused when they are written."
        }
    }

    fn kind(&self) -> &'static str {
        if self.squeeze { " (one step)" } else { " (a sequence of steps)" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkBuilder, SequenceRange};
    use crate::tensor::{Tensor, TensorData};
    use crate::trajectory::TrajectoryBuilder;

    /// An item of steps of `width` numbers in two chunks.
    fn wide_item(length: usize, width: usize) -> Trajectory {
        let mut builder = TrajectoryBuilder::new();
        for (key, steps) in [(1, 1), (2, length - 1)] {
            let mut chunk = ChunkBuilder::new(false);
            chunk.push(&Tensor {
                dtype: DType::Int32,
                shape: Shape::from_slice(&[steps, width]),
                data: TensorData::Bytes(vec![0; steps * width * 4]),
            });
            builder.slice(&chunk.finish(key, SequenceRange::default()), 0, 0, steps);
        }
        builder.end_column(false);
        builder.finish().unwrap()
    }

    fn item(dtype: DType, length: usize, squeeze: bool) -> Trajectory {
        let mut chunk = ChunkBuilder::new(false);
        chunk.push(&Tensor {
            dtype,
            shape: Shape::from_slice(&[length, 2]),
            data: TensorData::Bytes(vec![0; length * 2 * dtype.size()]),
        });
        let mut builder = TrajectoryBuilder::new();
        builder.slice(&chunk.finish(1, SequenceRange::default()), 0, 0, length);
        builder.end_column(squeeze);
        builder.finish().unwrap()
    }

    #[test]
    fn only_items_of_one_layout_can_be_stacked() {
        let spec = ItemSpec::from_trajectory(&item(DType::Int32, 3, false)).unwrap();
        assert_eq!(spec.check(&item(DType::Int32, 3, false)), Ok(()));
        let longer = spec.check(&item(DType::Int32, 4, false)).unwrap_err();
        assert!(
            longer.message().contains("column 0 is int32 [3,2] in one and int32 [4,2] in another"),
            "{longer}"
        );
        let floats = spec.check(&item(DType::Float32, 3, false)).unwrap_err();
        assert!(floats.message().contains("float [3,2] in another"), "{floats}");
        let single = ItemSpec::from_trajectory(&item(DType::Int32, 1, false)).unwrap();
        let step = single.check(&item(DType::Int32, 1, true)).unwrap_err();
        assert!(
            step.message().contains("is int32 [1,2] in one and int32 [2] in another"),
            "{step}"
        );
    }

    #[test]
    fn windows_can_be_cut_out_of_items_of_any_length() {
        let of = |item: &Trajectory| ItemSpec::from_trajectory(item).unwrap().of_windows();
        let spec = of(&item(DType::Int32, 3, false));
        assert_eq!(spec.check(&item(DType::Int32, 4, false)), Ok(()));
        assert!(spec.check(&item(DType::Int64, 3, false)).is_err());
        assert!(spec.check(&item(DType::Int32, 1, true)).is_err());
        for steps in [3, 5] {
            let error = spec.check(&wide_item(steps, 4)).unwrap_err();
            let text = format!("is int32 [3,2] in one and int32 [{steps},4] in another");
            assert!(error.message().contains(&text), "{error}");
        }
    }

    #[test]
    fn two_texts_of_different_columns_differ() {
        let spec = |dims: &[usize], squeeze| ColumnSpec {
            dtype: DType::Int32,
            shape: Shape::from_slice(dims),
            squeeze,
        };
        let error = different_shapes(2, &spec(&[3, 2], false), &spec(&[1, 3, 2], true));
        let text =
            "column 2 is int32 [3,2] (a sequence of steps) in one and int32 [3,2] (one step)";
        assert!(error.message().contains(text), "{error}");
    }

    #[test]
    fn ragged_is_advised_only_where_lengths_differ() {
        let spec = |dtype, dims: &[usize]| ColumnSpec {
            dtype,
            shape: Shape::from_slice(dims),
            squeeze: false,
        };
        let one = spec(DType::Int32, &[3, 2]);
        let others = [(DType::Int32, [5, 2]), (DType::Int64, [3, 2]), (DType::Int32, [3, 4])];
        let advised = others.map(|(dtype, dims)| {
            different_shapes(0, &one, &spec(dtype, &dims)).message().contains("ragged=")
        });
        assert_eq!(advised, [true, false, false]);
    }

    #[test]
    fn positions_wrap_around() {
        let stacking = Stacking::new(4).after(3);
        assert_eq!((stacking.position, stacking.missing()), (3, 1));
        assert_eq!(stacking.after(1), Stacking::new(4));
        assert_eq!(stacking.after(10).position, 1);
        assert_eq!(stacking.after(10).before(10), stacking);
        assert_eq!(stacking.before(4), stacking);
        let huge = Stacking { batch_size: usize::MAX, position: usize::MAX - 1 };
        assert_eq!(huge.after(usize::MAX - 1).position, usize::MAX - 2);
        assert_eq!(huge.after(1), Stacking::new(usize::MAX));
    }
}
