// SPDX-License-Identifier: Apache-2.0
//! Column of a batch, with its memory.

use std::ops::Deref;
use std::sync::Arc;

use reverb_base::memory::Memory;
use reverb_base::{Error, Result};
use reverb_data::trajectory::Column;
use reverb_data::{DType, Shape, SpareLists, Tensor, Trajectory};

use crate::sampler::batch_size::{STRING_BYTES, no_room};
use crate::sampler::column_plan::ColumnPlan;
use crate::sampler::known_chunks::{KnownChunks, KnownCopies};

/// A column of a batch.
#[derive(Debug)]
pub struct BatchColumn {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the dimensions.
    pub shape: Shape,
    /// Elements of the column.
    pub data: ColumnData,
    /// Number of steps of each item, for columns with steps of different numbers. Columns with the
    /// same numbers share the list.
    pub lengths: Option<Arc<Lengths>>,
}

thread_local! {
    static SPARE_LENGTHS: SpareLists<i32> = const { SpareLists::new() };
}

/// Number of steps of each item. The memory of the list is used again.
#[derive(Debug, PartialEq, Eq)]
pub struct Lengths(Vec<i32>);

impl Lengths {
    /// An empty list. It grows while items are read, because a hostile message may claim many.
    pub(crate) fn new() -> Self {
        Self(SPARE_LENGTHS.try_with(SpareLists::take).unwrap_or_default())
    }

    #[inline]
    pub(crate) fn push(&mut self, length: i32) {
        self.0.push(length);
    }
}

impl Deref for Lengths {
    type Target = [i32];

    fn deref(&self) -> &[i32] {
        &self.0
    }
}

impl Drop for Lengths {
    fn drop(&mut self) {
        let list = std::mem::take(&mut self.0);
        // Nothing is kept if the thread is ending.
        let _ = SPARE_LENGTHS.try_with(|spare| spare.keep(list));
    }
}

/// Elements of a column.
#[derive(Debug)]
pub enum ColumnData {
    /// Elements of a fixed size, from the beginning of this memory.
    Memory(Memory),
    /// Strings.
    Strings(Vec<Vec<u8>>),
    /// Elements in the caller's memory.
    Given,
}

/// Memory of the caller for a column: row-major, `[B, T, ...]`.
#[derive(Debug)]
pub struct GivenColumn<'m> {
    /// Name in errors, such as `out["obs"]`.
    pub name: &'m str,
    /// NumPy dtype of the elements.
    pub dtype: &'m str,
    /// Sizes of the dimensions.
    pub shape: Shape,
    /// Bytes of the elements.
    pub bytes: &'m mut [u8],
}

impl GivenColumn<'_> {
    /// Checks that a column has this dtype and shape.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with the name, the required value and the given one.
    pub(crate) fn check(&self, dtype: DType, shape: &[usize]) -> Result<()> {
        let num_bytes = Tensor::num_bytes(dtype, shape);
        let fits = self.dtype == dtype.numpy_name() && self.shape[..] == *shape;
        if dtype != DType::String && fits && num_bytes == Some(self.bytes.len()) {
            return Ok(());
        }
        if dtype == DType::String {
            return Err(Error::invalid_argument(format!(
                "{} is for a column of strings, which cannot be written into given memory; leave \
                 it out of `columns`",
                self.name
            )));
        }
        Err(Error::invalid_argument(format!(
            "{} must be {} {:?}, C-contiguous and writable; got {} {:?}",
            self.name,
            dtype.numpy_name(),
            shape,
            self.dtype,
            &self.shape[..],
        )))
    }
}

/// Error for a number of given columns that differs from the items' columns.
pub(crate) fn check_num_given(given: &[GivenColumn<'_>], num_columns: usize) -> Result<()> {
    if given.len() == num_columns {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "out must have an array for each column of the items: they have {num_columns}, and out has \
         {}",
        given.len()
    )))
}

/// Destination of a column's rows.
#[derive(Debug)]
pub(crate) enum Target<'m> {
    Memory(Memory),
    Given(&'m mut [u8]),
    Strings(Vec<Vec<u8>>),
}

impl Target<'_> {
    /// Allocates this many bytes.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` without memory.
    pub(crate) fn new(dtype: DType, num_bytes: usize) -> Result<Self> {
        match dtype {
            DType::String => {
                let mut strings = Vec::new();
                let count = num_bytes / STRING_BYTES;
                strings.try_reserve_exact(count).map_err(|_| no_room())?;
                Ok(Self::Strings(strings))
            }
            _ => Memory::take(num_bytes).map(Self::Memory).ok_or_else(no_room),
        }
    }

    /// The first `len` bytes.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        match self {
            Self::Memory(memory) => memory.bytes_mut(len),
            Self::Given(bytes) => &mut bytes[..len],
            Self::Strings(_) => unreachable!("strings have no bytes"),
        }
    }

    pub(crate) fn finish(self) -> ColumnData {
        match self {
            Self::Memory(memory) => ColumnData::Memory(memory),
            Self::Given(_) => ColumnData::Given,
            Self::Strings(strings) => ColumnData::Strings(strings),
        }
    }
}

/// The rows of a column so far, all of the same shape.
#[derive(Debug)]
pub(crate) struct ColumnRows<'m> {
    plan: ColumnPlan,
    target: Target<'m>,
    known: KnownChunks,
}

impl<'m> ColumnRows<'m> {
    /// An empty column for at most `batch_size` rows. Allocates `num_bytes`, unless there is memory
    /// of the caller.
    pub(crate) fn new(
        plan: ColumnPlan,
        batch_size: usize,
        num_bytes: usize,
        given: Option<GivenColumn<'m>>,
    ) -> Result<Self> {
        let target = if let Some(given) = given {
            given.check(plan.dtype, &plan.batch_shape(batch_size))?;
            Target::Given(given.bytes)
        } else {
            Target::new(plan.dtype, num_bytes)?
        };
        Ok(Self { plan, target, known: KnownChunks::default() })
    }

    /// Adds an item, and subtracts the bytes of its strings from `room`.
    pub(crate) fn put(
        &mut self,
        index: usize,
        row: usize,
        trajectory: &Trajectory,
        column: &Column<'_>,
        room: &mut usize,
    ) -> Result<()> {
        let Self { plan, target, .. } = self;
        let begin = row * plan.item_bytes;
        let fits = match target {
            Target::Strings(strings) => plan.append_strings(trajectory, column, strings, room)?,
            target => {
                let end = begin + plan.item_bytes;
                plan.write(trajectory, column, &mut target.bytes_mut(end)[begin..])?
            }
        };
        if fits { Ok(()) } else { Err(plan.mismatch(index, trajectory, column)) }
    }

    /// Adds the copies of an item whose chunks are known; returns false if they are not.
    #[inline]
    pub(crate) fn find_known<'t>(
        &self,
        index: usize,
        row: usize,
        trajectory: &'t Trajectory,
        column: &Column<'_>,
        copies: &mut KnownCopies<'t>,
    ) -> bool {
        let Self { plan, known, .. } = self;
        column.squeeze == plan.squeeze
            && known.find(trajectory, column, plan.item_bytes, index, row, copies)
    }

    /// Learns the layouts of the chunks of an item that was added.
    pub(crate) fn learn(&mut self, trajectory: &Trajectory, column: &Column<'_>) {
        let ColumnPlan { dtype, item_shape, .. } = &self.plan;
        self.known.learn(trajectory, column, *dtype, &item_shape[1..]);
    }

    /// Adds the values of an item with the planned shape; `at` is their position in its row.
    #[inline]
    pub(crate) fn put_values(&mut self, row: usize, at: usize, values: &[u8]) {
        let begin = row * self.plan.item_bytes + at;
        let end = begin + values.len();
        self.target.bytes_mut(end)[begin..].copy_from_slice(values);
    }

    pub(crate) fn finish(self, num_rows: usize) -> BatchColumn {
        BatchColumn {
            dtype: self.plan.dtype,
            shape: self.plan.batch_shape(num_rows),
            data: self.target.finish(),
            lengths: None,
        }
    }
}
