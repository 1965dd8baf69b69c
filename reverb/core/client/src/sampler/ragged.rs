// SPDX-License-Identifier: Apache-2.0
//! Ragged batches: items of different lengths, padded to the longest or packed one after another.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::stacking::different_columns;
use reverb_data::tensor::shape_text;
use reverb_data::trajectory::{CheckedColumn, Column, Run};
use reverb_data::{DType, Sampled, Shape, SpareLists, StepHeader, Tensor, Trajectory};
use smallvec::SmallVec;

use crate::sampler::batch_column::{BatchColumn, GivenColumn, Lengths, Target, check_num_given};
use crate::sampler::batch_size::{self, BatchBounds, STRING_BYTES, TakenBytes, no_room};
use crate::sampler::fetch_ahead::fetched_ahead;
use crate::sampler::odd_item::naming_odd_item;

/// Treatment of items of different lengths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RaggedForm {
    /// Items of different lengths are an error.
    #[default]
    Refuse,
    /// `[B, ...]`: every column of every item has one step, and no time dimension.
    Squeezed,
    /// `[B, T, ...]` with the length `T` of the longest item, rounded up to a multiple of this
    /// number, which is at least 1. Padding is zero.
    Padded(usize),
    /// `[sum of the lengths, ...]`.
    Packed,
}

impl RaggedForm {
    /// True if all items must have the same shapes.
    pub(crate) fn is_stacked(self) -> bool {
        matches!(self, Self::Refuse | Self::Squeezed)
    }
}

/// The columns of a batch.
///
/// All values are found before any is copied, because the size of the batch is the sum of the
/// items' lengths. This also checks that the values exist: any number in an item may be false.
///
/// # Errors
///
/// `InvalidArgument` with the column and both shapes if items differ in more than their lengths, or
/// if the caller's memory does not fit; `DataLoss` for damaged chunks; `ResourceExhausted` with the
/// longest item if the batch exceeds its limit or the available memory.
pub(crate) fn assemble(
    samples: &[Sampled],
    bounds: BatchBounds,
    form: RaggedForm,
    given: Option<Vec<GivenColumn<'_>>>,
) -> Result<Vec<BatchColumn>> {
    let Some(first) = samples.first() else { return Ok(Vec::new()) };
    let mut columns = Vec::with_capacity(first.trajectory.num_columns());
    for column in first.trajectory.columns() {
        columns.push(RaggedColumn::like(&first.trajectory, &column)?);
    }
    let filled = fill(&mut columns, samples, bounds, form, given);
    batch_size::explain(filled, bounds, form, || taken_bytes(&columns, samples))
        .map_err(|error| naming_odd_item(error, samples, true))?;
    Ok(finish(columns))
}

fn fill<'m>(
    columns: &mut [RaggedColumn<'m>],
    samples: &[Sampled],
    bounds: BatchBounds,
    form: RaggedForm,
    given: Option<Vec<GivenColumn<'m>>>,
) -> Result<()> {
    let mut pieces = spare_pieces();
    pieces.reserve(samples.len() * columns.len());
    for sampled in fetched_ahead(samples) {
        measure(&sampled.trajectory, columns, &mut pieces)?;
    }
    if let Some(given) = &given {
        check_num_given(given, columns.len())?;
    }
    let mut room = bounds.max_bytes;
    let mut all_given = given.into_iter().flatten();
    let mut targets: SmallVec<[Option<GivenColumn<'m>>; 8]> = SmallVec::new();
    for column in columns.iter_mut() {
        let given = all_given.next();
        let num_bytes = column.set_size(form, given.as_ref());
        if given.is_none() {
            room =
                num_bytes.and_then(|num_bytes| room.checked_sub(num_bytes)).ok_or_else(no_room)?;
        }
        targets.push(given);
    }
    for (column, given) in columns.iter_mut().zip(targets) {
        column.take_memory(bounds.batch_size, given)?;
    }
    let mut found = pieces.iter();
    for (row, sampled) in samples.iter().enumerate() {
        for (i, column) in columns.iter_mut().enumerate() {
            column.put(i, row, &sampled.trajectory, &mut found, &mut room)?;
        }
    }
    keep_pieces(pieces);
    Ok(())
}

/// Sizes for the error of a batch without memory.
fn taken_bytes(columns: &[RaggedColumn<'_>], samples: &[Sampled]) -> TakenBytes {
    let bytes = |column: &RaggedColumn<'_>| column.num_bytes().unwrap_or(usize::MAX);
    let largest = columns.iter().max_by_key(|column| bytes(column));
    let lengths = largest.map_or(&[][..], |column| &column.lengths);
    let (row, length) = (0..).zip(lengths).max_by_key(|(_, length)| **length).unwrap_or((0, &0));
    TakenBytes {
        num_items: samples.len(),
        longest: (samples[row].key, *length as usize),
        num_bytes: Some(columns.iter().map(bytes).fold(0, usize::saturating_add)),
        may_grow: false,
    }
}

/// Values of all columns of all items, in order. A value that must be parsed or decoded is an empty
/// piece.
type Pieces<'s> = Vec<&'s [u8]>;

const NOT_FOUND: &[u8] = &[];

thread_local! {
    static SPARE_PIECES: SpareLists<&'static [u8]> = const { SpareLists::new() };
}

fn spare_pieces<'s>() -> Pieces<'s> {
    SPARE_PIECES.try_with(SpareLists::take).unwrap_or_default()
}

fn keep_pieces(mut pieces: Pieces<'_>) {
    pieces.clear();
    // Collecting into the same memory changes the lifetime of the empty list.
    let pieces = pieces.into_iter().map(|_| NOT_FOUND).collect();
    // Nothing is kept if the thread is ending.
    let _ = SPARE_PIECES.try_with(|spare| spare.keep(pieces));
}

/// Finds the lengths of an item and the positions of its values. For compressed values, checks that
/// their chunks are large enough.
#[inline]
fn measure<'s>(
    trajectory: &'s Trajectory,
    columns: &mut [RaggedColumn<'_>],
    pieces: &mut Pieces<'s>,
) -> Result<()> {
    let chunks = trajectory.chunks();
    let mut runs = trajectory.runs();
    if runs.num_columns != columns.len() {
        return Err(different_columns(columns.len(), runs.num_columns));
    }
    for (index, ragged) in columns.iter_mut().enumerate() {
        let (squeeze, num_runs) = runs.column();
        let begin = pieces.len();
        let mut length = Some(0_usize);
        let mut is_found = squeeze == ragged.squeeze;
        for _ in 0..num_runs {
            let Run { slice, times } = runs.run();
            let steps = slice.length.checked_mul(times);
            length = length.zip(steps).and_then(|(sum, it)| sum.checked_add(it));
            // A piece is copied once.
            is_found = is_found
                && times == 1
                && ragged
                    .step
                    .find(&chunks[slice.chunk], slice.tensor, slice.offset, slice.length)
                    .map(|piece| pieces.push(piece))
                    .is_some();
        }
        if !is_found || num_runs == 0 {
            pieces.truncate(begin);
            pieces.push(NOT_FOUND);
            check(index, ragged.squeeze, &ragged.step, trajectory)?;
        }
        let length = length
            .and_then(|length| i32::try_from(length).ok())
            .ok_or_else(|| Error::data_loss("An item has more steps than can be counted."))?;
        if squeeze && length != 1 {
            return Err(Error::data_loss("A single step of an item has another length."));
        }
        ragged.lengths.push(length);
    }
    Ok(())
}

fn finish(columns: Vec<RaggedColumn<'_>>) -> Vec<BatchColumn> {
    let mut groups: SmallVec<[Arc<Lengths>; 4]> = SmallVec::new();
    let columns = columns.into_iter().map(|column| {
        let shape = column.shape();
        let lengths = (!column.squeeze).then(|| {
            if let Some(same) = groups.iter().find(|group| ***group == column.lengths) {
                return Arc::clone(same);
            }
            groups.push(Arc::new(column.lengths));
            Arc::clone(&groups[groups.len() - 1])
        });
        BatchColumn { dtype: column.step.dtype, shape, data: column.target.finish(), lengths }
    });
    columns.collect()
}

/// A column of items of different lengths.
#[derive(Debug)]
struct RaggedColumn<'m> {
    step: StepHeader,
    squeeze: bool,
    /// Lengths of the items.
    lengths: Lengths,
    /// Number of steps of each padded item.
    padded_to: Option<usize>,
    target: Target<'m>,
    /// Position of the next item.
    at: usize,
}

impl RaggedColumn<'_> {
    /// The column for items like this one.
    fn like(trajectory: &Trajectory, column: &Column<'_>) -> Result<Self> {
        let CheckedColumn { dtype, shape, .. } = trajectory.checked_column(column)?;
        let step = StepHeader::new(dtype, &shape[1..])
            .ok_or_else(|| Error::data_loss("The shape of a step overflows."))?;
        Ok(Self {
            step,
            squeeze: column.squeeze,
            lengths: Lengths::new(),
            padded_to: None,
            target: Target::Strings(Vec::new()),
            at: 0,
        })
    }

    fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0) as usize
    }

    /// Number of steps of the whole column, with padding.
    fn num_steps(&self) -> usize {
        match self.padded_to {
            Some(length) => length.saturating_mul(self.lengths.len()),
            None => self.lengths.iter().map(|&length| length as usize).sum(),
        }
    }

    /// Bytes of the whole column, without strings that are not read yet; `None` if they overflow.
    fn num_bytes(&self) -> Option<usize> {
        let of_step = match self.step.dtype {
            DType::String => Tensor::num_elements(&self.step.shape)?.checked_mul(STRING_BYTES)?,
            _ => self.step.num_bytes,
        };
        self.num_steps().checked_mul(of_step)
    }

    fn shape(&self) -> Shape {
        let mut shape = Shape::new();
        match (self.squeeze, self.padded_to) {
            (true, _) => shape.push(self.lengths.len()),
            (false, Some(length)) => shape.extend([self.lengths.len(), length]),
            (false, None) => shape.push(self.num_steps()),
        }
        shape.extend_from_slice(&self.step.shape);
        shape
    }
}

impl<'m> RaggedColumn<'m> {
    /// Sets the number of steps of each item, and returns their total.
    fn set_size(&mut self, form: RaggedForm, given: Option<&GivenColumn<'m>>) -> Option<usize> {
        if let (RaggedForm::Padded(multiple), false) = (form, self.squeeze) {
            let longest = self.longest();
            let mut length = longest.checked_next_multiple_of(multiple.max(1))?;
            if let Some(given) = given
                && let [_, steps, ..] = given.shape[..]
                && steps > length
            {
                // The caller's memory may be for longer items.
                length = steps;
            }
            self.padded_to = Some(length);
        }
        self.num_bytes()
    }

    /// Allocates memory for all items, or uses the caller's.
    fn take_memory(&mut self, batch_size: usize, given: Option<GivenColumn<'m>>) -> Result<()> {
        self.target = match given {
            None => Target::new(self.step.dtype, self.num_bytes().ok_or_else(no_room)?)?,
            Some(given) => {
                let mut shape = self.shape();
                shape[0] = batch_size;
                given.check(self.step.dtype, &shape)?;
                Target::Given(given.bytes)
            }
        };
        Ok(())
    }

    /// Adds item `row`, whose values are the next pieces. Strings may use `room` bytes.
    #[inline]
    fn put<'p>(
        &mut self,
        index: usize,
        row: usize,
        trajectory: &Trajectory,
        pieces: &mut impl Iterator<Item = &'p &'p [u8]>,
        room: &mut usize,
    ) -> Result<()> {
        let length = self.lengths[row] as usize;
        let piece = pieces.next().copied().unwrap_or_default();
        if let Target::Strings(_) = self.target {
            return self.put_strings(index, trajectory, length, room);
        }
        let num_bytes = length * self.step.num_bytes;
        let end = self.at + self.padded_to.unwrap_or(length) * self.step.num_bytes;
        let out = &mut self.target.bytes_mut(end)[self.at..];
        let (mut values, padding) = out.split_at_mut(num_bytes);
        if !padding.is_empty() {
            padding.fill(0);
        }
        self.at = end;
        if piece.is_empty() {
            return copy_parsed(index, trajectory, values);
        }
        let mut piece = piece;
        loop {
            let (head, tail) = values.split_at_mut(piece.len());
            head.copy_from_slice(piece);
            if tail.is_empty() {
                return Ok(());
            }
            values = tail;
            piece = pieces.next().copied().unwrap_or_default();
        }
    }

    fn put_strings(
        &mut self,
        index: usize,
        trajectory: &Trajectory,
        length: usize,
        room: &mut usize,
    ) -> Result<()> {
        let Target::Strings(strings) = &mut self.target else { return Ok(()) };
        let before = strings.len();
        // The contents of the strings are counted separately.
        let per_step: usize = self.step.shape.iter().product();
        *room = room.saturating_add(length * per_step * STRING_BYTES);
        trajectory.put_strings(&column_at(index, trajectory)?, strings, room)?;
        strings.resize(before + self.padded_to.unwrap_or(length) * per_step, Vec::new());
        Ok(())
    }
}

fn column_at(index: usize, trajectory: &Trajectory) -> Result<Column<'_>> {
    let column = trajectory.columns().nth(index);
    column.ok_or_else(|| different_columns(index + 1, trajectory.num_columns()))
}

/// Copies a column that was checked, and parses its chunks.
#[cold]
fn copy_parsed(index: usize, trajectory: &Trajectory, out: &mut [u8]) -> Result<()> {
    trajectory.copy_column(&column_at(index, trajectory)?, out)
}

/// Checks that the steps of an item match those of other items, and that its chunks contain them.
#[cold]
fn check(index: usize, squeeze: bool, step: &StepHeader, trajectory: &Trajectory) -> Result<()> {
    let column = column_at(index, trajectory)?;
    let CheckedColumn { dtype, shape, .. } = trajectory.checked_column(&column)?;
    if dtype == step.dtype && shape[1..] == step.shape[..] && column.squeeze == squeeze {
        return Ok(());
    }
    let kind = |squeeze| if squeeze { "single " } else { "" };
    let before = format!(
        "The items of a batch may differ in their lengths and in nothing else, but a {}step of \
         column ",
        kind(squeeze)
    );
    let after = format!(
        " is {} {} in one and a {}step {} {} in another.",
        step.dtype.name(),
        shape_text(&step.shape),
        kind(column.squeeze),
        dtype.name(),
        shape_text(&shape[1..]),
    );
    Err(Error::invalid_column(&before, index, &after))
}

#[cfg(test)]
mod tests;
