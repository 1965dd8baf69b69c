// SPDX-License-Identifier: Apache-2.0
//! Batches of items of different lengths: padded to the longest, or one after another.

use std::sync::Arc;

use reverb_data::stacking::different_columns;
use reverb_data::tensor::shape_text;
use reverb_data::trajectory::Column;
use reverb_data::{Chunk, ChunkLayout, DType, Error, Result, Sampled, Shape, Tensor, Trajectory};
use smallvec::SmallVec;

use crate::sampler::batch_column::{BatchColumn, GivenColumn, Target, check_num_given};
use crate::sampler::fetch_ahead::fetched_ahead;

/// What becomes of items of different lengths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RaggedForm {
    /// An error.
    #[default]
    Refuse,
    /// `[B, T, ...]`, `T` the length of the longest, rounded up to a multiple of this number, at
    /// least 1. What an item does not fill is zero.
    Padded(usize),
    /// `[sum of the lengths, ...]`.
    Packed,
}

/// Larger batches are checked chunk by chunk before there is memory for them: a damaged item may
/// claim any length.
const MAX_UNCHECKED_BYTES: usize = 64 << 20;

/// The columns of a batch.
///
/// # Errors
///
/// `InvalidArgument` that names the column and both shapes where items differ in more than their
/// lengths, or where the memory of the caller does not fit; `DataLoss` for damaged chunks.
pub(crate) fn assemble(
    samples: &[Sampled],
    batch_size: usize,
    form: RaggedForm,
    given: Option<Vec<GivenColumn<'_>>>,
) -> Result<Vec<BatchColumn>> {
    let Some(first) = samples.first() else { return Ok(Vec::new()) };
    let mut columns = Vec::with_capacity(first.trajectory.num_columns());
    for column in first.trajectory.columns() {
        columns.push(RaggedColumn::like(&first.trajectory, &column)?);
    }
    measure(samples, &mut columns)?;
    if let Some(given) = &given {
        check_num_given(given, columns.len())?;
    }
    let mut given = given.into_iter().flatten();
    for (i, column) in columns.iter_mut().enumerate() {
        column.make_room(i, samples, batch_size, form, given.next())?;
    }
    let mut layouts = Layouts::default();
    for sampled in fetched_ahead(samples) {
        let trajectory = &sampled.trajectory;
        layouts.find(trajectory.chunks());
        for (i, (ragged, column)) in columns.iter_mut().zip(trajectory.columns()).enumerate() {
            ragged.put(i, trajectory, &column, &mut layouts)?;
        }
    }
    Ok(finish(columns))
}

/// Finds the lengths of all items.
fn measure(samples: &[Sampled], columns: &mut [RaggedColumn<'_>]) -> Result<()> {
    for column in columns.iter_mut() {
        column.lengths.reserve(samples.len());
    }
    for sampled in samples {
        let trajectory = &sampled.trajectory;
        if trajectory.num_columns() != columns.len() {
            return Err(different_columns(columns.len(), trajectory.num_columns()));
        }
        for (ragged, column) in columns.iter_mut().zip(trajectory.columns()) {
            let length = column.slices().try_fold(0usize, |sum, it| sum.checked_add(it.length));
            let length = length
                .and_then(|it| i32::try_from(it).ok())
                .ok_or_else(|| Error::data_loss("An item has more steps than can be counted."))?;
            if column.squeeze && length != 1 {
                return Err(Error::data_loss("A single step of an item has another length."));
            }
            ragged.lengths.push(length);
        }
    }
    Ok(())
}

fn finish(columns: Vec<RaggedColumn<'_>>) -> Vec<BatchColumn> {
    let mut groups: SmallVec<[Arc<[i32]>; 4]> = SmallVec::new();
    let columns = columns.into_iter().map(|column| {
        let shape = column.shape();
        let lengths = (!column.squeeze).then(|| {
            if let Some(same) = groups.iter().find(|group| group[..] == column.lengths[..]) {
                return Arc::clone(same);
            }
            groups.push(column.lengths.into());
            Arc::clone(&groups[groups.len() - 1])
        });
        BatchColumn { dtype: column.dtype, shape, data: column.target.finish(), lengths }
    });
    columns.collect()
}

/// A column of items of different lengths.
#[derive(Debug)]
struct RaggedColumn<'m> {
    dtype: DType,
    /// Shape of one step.
    step_shape: Shape,
    step_bytes: usize,
    squeeze: bool,
    /// Of each item.
    lengths: Vec<i32>,
    /// Steps that each item takes, if they are padded.
    padded_to: Option<usize>,
    target: Target<'m>,
    num_rows: usize,
    /// Where the next item begins.
    at: usize,
}

impl RaggedColumn<'_> {
    /// The column of a batch of items like this one.
    fn like(trajectory: &Trajectory, column: &Column<'_>) -> Result<Self> {
        let (dtype, shape) = trajectory.column_spec(column)?;
        let step_shape = Shape::from_slice(&shape[1..]);
        let step_bytes = Tensor::num_bytes(dtype, &step_shape)
            .ok_or_else(|| Error::data_loss("The shape of a step overflows."))?;
        Ok(Self {
            dtype,
            step_shape,
            step_bytes,
            squeeze: column.squeeze,
            lengths: Vec::new(),
            padded_to: None,
            target: Target::Strings(Vec::new()),
            num_rows: 0,
            at: 0,
        })
    }

    fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0) as usize
    }

    /// Number of steps that the whole column takes, padding included.
    fn num_steps(&self) -> usize {
        match self.padded_to {
            Some(length) => length.saturating_mul(self.lengths.len()),
            None => self.lengths.iter().map(|&length| length as usize).sum(),
        }
    }

    fn shape(&self) -> Shape {
        let mut shape = Shape::new();
        match (self.squeeze, self.padded_to) {
            (true, _) => shape.push(self.lengths.len()),
            (false, Some(length)) => shape.extend([self.lengths.len(), length]),
            (false, None) => shape.push(self.num_steps()),
        }
        shape.extend_from_slice(&self.step_shape);
        shape
    }
}

impl<'m> RaggedColumn<'m> {
    /// Takes memory for all items, or that of the caller.
    fn make_room(
        &mut self,
        index: usize,
        samples: &[Sampled],
        batch_size: usize,
        form: RaggedForm,
        given: Option<GivenColumn<'m>>,
    ) -> Result<()> {
        let mut length = self.longest();
        if let (RaggedForm::Padded(multiple), false) = (form, self.squeeze) {
            length = length.checked_next_multiple_of(multiple.max(1)).unwrap_or(usize::MAX);
            if let Some(given) = &given
                && let [_, steps, ..] = given.shape[..]
                && steps > length
            {
                // Memory for longer items is padded further.
                length = steps;
            }
            self.padded_to = Some(length);
        }
        let num_bytes = self.num_steps().checked_mul(self.step_bytes).ok_or_else(|| {
            Error::resource_exhausted(format!(
                "a batch of {} items does not fit into memory",
                samples.len()
            ))
        })?;
        self.check_plausible(index, samples, num_bytes)?;
        self.target = match given {
            None => Target::new(self.dtype, num_bytes),
            Some(given) => {
                let mut shape = self.shape();
                shape[0] = batch_size;
                given.check(self.dtype, &shape)?;
                Target::Given(given.bytes)
            }
        };
        Ok(())
    }

    fn check_plausible(&self, index: usize, samples: &[Sampled], num_bytes: usize) -> Result<()> {
        if num_bytes <= MAX_UNCHECKED_BYTES && self.num_steps() <= MAX_UNCHECKED_BYTES {
            return Ok(());
        }
        for Sampled { trajectory, .. } in samples {
            let Some(column) = trajectory.columns().nth(index) else { continue };
            for slice in column.slices() {
                let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
                tensor.check_rows(slice.offset, slice.length)?;
                tensor.plausible_bytes(slice.length)?;
            }
        }
        Ok(())
    }

    /// Adds an item.
    fn put(
        &mut self,
        index: usize,
        trajectory: &Trajectory,
        column: &Column<'_>,
        layouts: &mut Layouts,
    ) -> Result<()> {
        let length = self.lengths[self.num_rows] as usize;
        self.num_rows += 1;
        if let Target::Strings(_) = self.target {
            return self.put_strings(index, trajectory, column, length);
        }
        let num_bytes = length * self.step_bytes;
        let end = self.at + self.padded_to.unwrap_or(length) * self.step_bytes;
        let out = &mut self.target.bytes_mut(end)[self.at..];
        let (values, padding) = out.split_at_mut(num_bytes);
        padding.fill(0);
        self.at = end;
        let step = Step { dtype: self.dtype, shape: &self.step_shape, bytes: self.step_bytes };
        if column.squeeze == self.squeeze && layouts.copy(index, trajectory, column, &step, values)
        {
            return Ok(());
        }
        if column.squeeze == self.squeeze && copy_parsed(trajectory, column, &step, values)? {
            return Ok(());
        }
        // Says what is different.
        check(index, (self.squeeze, &step), trajectory, column)?;
        Err(Error::data_loss("A column mixes chunks of different dtypes or shapes."))
    }

    fn put_strings(
        &mut self,
        index: usize,
        trajectory: &Trajectory,
        column: &Column<'_>,
        length: usize,
    ) -> Result<()> {
        let step = Step { dtype: self.dtype, shape: &self.step_shape, bytes: self.step_bytes };
        check(index, (self.squeeze, &step), trajectory, column)?;
        let Target::Strings(strings) = &mut self.target else { return Ok(()) };
        for slice in column.slices() {
            let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
            strings.extend(tensor.string_rows(slice.offset, slice.length)?);
        }
        let missing = self.padded_to.map_or(0, |padded_to| padded_to - length);
        let per_step: usize = self.step_shape.iter().product();
        strings.resize(strings.len() + missing * per_step, Vec::new());
        Ok(())
    }
}

/// One step of a column.
struct Step<'a> {
    dtype: DType,
    shape: &'a Shape,
    bytes: usize,
}

/// Copies a column; `false` if its steps are of another kind. Parses each chunk once.
fn copy_parsed(
    trajectory: &Trajectory,
    column: &Column<'_>,
    step: &Step<'_>,
    mut out: &mut [u8],
) -> Result<bool> {
    for slice in column.slices() {
        let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
        if tensor.dtype != step.dtype || tensor.row_shape() != &step.shape[..] {
            return Ok(false);
        }
        let Some((head, tail)) = out.split_at_mut_checked(slice.length * step.bytes) else {
            return Ok(false);
        };
        tensor.copy_rows(slice.offset, slice.length, head)?;
        out = tail;
    }
    Ok(out.is_empty())
}

/// Checks that the steps of an item are like those of the others.
fn check(
    index: usize,
    (squeeze, step): (bool, &Step<'_>),
    trajectory: &Trajectory,
    column: &Column<'_>,
) -> Result<()> {
    let (dtype, shape) = trajectory.column_spec(column)?;
    if dtype == step.dtype && shape[1..] == step.shape[..] && column.squeeze == squeeze {
        return Ok(());
    }
    let kind = |squeeze| if squeeze { "single " } else { "" };
    Err(Error::invalid_argument(format!(
        "The items of a batch may differ in their lengths and in nothing else, but a {}step of \
         column {index} is {} {} in one and a {}step {} {} in another.",
        kind(squeeze),
        step.dtype.name(),
        shape_text(step.shape),
        kind(column.squeeze),
        dtype.name(),
        shape_text(&shape[1..]),
    )))
}

/// The layouts of chunks that were seen, for copies without parsing.
#[derive(Debug, Default)]
struct Layouts {
    known: SmallVec<[KnownChunks; 4]>,
    /// That of each chunk of the item, if it is known.
    of_chunks: SmallVec<[Option<usize>; 8]>,
    attempts: usize,
}

/// Chunks of one layout.
#[derive(Debug)]
struct KnownChunks {
    layout: ChunkLayout,
    /// Columns, and the tensors in which they are stored, whose steps are those of the batch.
    checked: SmallVec<[(usize, usize); 8]>,
}

/// How many layouts a batch remembers, and tries to. Chunks of many lengths have many: then parsing
/// a chunk takes less time than comparing it with all of them.
const MAX_LAYOUTS: usize = 4;

impl Layouts {
    /// Looks up the chunks of an item.
    fn find(&mut self, chunks: &[Chunk]) {
        self.of_chunks.clear();
        for chunk in chunks {
            let mut at = self.known.iter().position(|known| known.layout.matches(chunk));
            if at.is_none() && self.attempts < MAX_LAYOUTS {
                self.attempts += 1;
                if let Some(layout) = ChunkLayout::new(chunk) {
                    self.known.push(KnownChunks { layout, checked: SmallVec::new() });
                    at = Some(self.known.len() - 1);
                }
            }
            self.of_chunks.push(at);
        }
    }

    /// Copies a column of the item that was looked up; `false` if that cannot be done without
    /// parsing its chunks.
    #[inline]
    fn copy(
        &mut self,
        index: usize,
        trajectory: &Trajectory,
        column: &Column<'_>,
        step: &Step<'_>,
        mut out: &mut [u8],
    ) -> bool {
        for slice in column.slices() {
            let Some(at) = self.of_chunks[slice.chunk] else { return false };
            let (known, chunk) = (&mut self.known[at], &trajectory.chunks()[slice.chunk]);
            if !known.checked.contains(&(index, slice.tensor)) {
                let Ok(tensor) = chunk.tensor(slice.tensor) else { return false };
                if tensor.dtype != step.dtype || tensor.row_shape() != &step.shape[..] {
                    return false;
                }
                known.checked.push((index, slice.tensor));
            }
            let Some(place) = known.layout.rows(slice.tensor, slice.offset, slice.length) else {
                return false;
            };
            let Some((head, tail)) = out.split_at_mut_checked(place.len()) else { return false };
            head.copy_from_slice(&chunk.stored()[place]);
            out = tail;
        }
        out.is_empty()
    }
}

#[cfg(test)]
mod tests;
