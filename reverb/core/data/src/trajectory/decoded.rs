// SPDX-License-Identifier: Apache-2.0
//! Values of a trajectory: columns, decoded from slices of chunks.

use super::{Column, Run, Trajectory};
use crate::codec::{TensorView, no_memory, zeros};
use crate::dtype::DType;
use crate::tensor::{Shape, Tensor, TensorData};
use reverb_base::error::{Error, Result};

/// A column whose slices fit together and into their chunks; see [`Trajectory::checked_column`].
#[derive(Debug, Clone)]
pub struct CheckedColumn<'a> {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape before squeezing, `[T, ...]`.
    pub shape: Shape,
    /// Bytes in memory; 0 for strings.
    pub num_bytes: usize,
    /// The tensor and its rows, if one slice is the whole column: it is looked up once.
    only: Option<(TensorView<'a>, usize, usize)>,
}

/// Bytes of a run of this tensor.
fn bytes_of(tensor: &TensorView<'_>, run: Run) -> Result<usize> {
    let once = tensor.plausible_bytes(run.slice.length)?;
    once.checked_mul(run.times).ok_or_else(|| no_memory(usize::MAX))
}

/// The first run of a column, and the number of rows of all runs.
fn first_run(column: &Column<'_>) -> Result<(Run, usize)> {
    let mut runs = column.runs();
    let first = runs.next();
    let first =
        first.ok_or_else(|| Error::invalid_argument("A column of the item has no slices."))?;
    Ok((first, runs.fold(first.num_steps(), |sum, run| sum.saturating_add(run.num_steps()))))
}

/// Shape of a column before squeezing.
fn column_shape(column: &Column<'_>, num_rows: usize, row_shape: &[usize]) -> Result<Shape> {
    if column.squeeze && num_rows != 1 {
        return Err(Error::invalid_argument(format!(
            "A squeezed column must have exactly 1 step, it has {num_rows}."
        )));
    }
    let mut shape = Shape::with_capacity(1 + row_shape.len());
    shape.push(num_rows);
    shape.extend_from_slice(row_shape);
    Ok(shape)
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
        let checked = self.checked_column(column)?;
        let dtype = checked.dtype;
        let num_bytes = checked.num_bytes;
        let data = if dtype == DType::String {
            let mut strings = Vec::new();
            self.put_strings(column, &mut strings, room)?;
            TensorData::Strings(strings)
        } else {
            *room = room.checked_sub(num_bytes).ok_or_else(|| no_memory(num_bytes))?;
            let mut bytes = zeros(num_bytes)?;
            self.copy_checked(column, &checked, &mut bytes)?;
            TensorData::Bytes(bytes)
        };
        let mut shape = checked.shape;
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
    pub fn checked_column(&self, column: &Column<'_>) -> Result<CheckedColumn<'_>> {
        let (first, num_rows) = first_run(column)?;
        let tensor = self.chunks()[first.slice.chunk].tensor(first.slice.tensor)?;
        let dtype = tensor.dtype;
        let shape = column_shape(column, num_rows, tensor.row_shape())?;
        tensor.check_rows(first.slice.offset, first.slice.length)?;
        let mut num_bytes = bytes_of(&tensor, first)?;
        let mut more = column.runs().skip(1).peekable();
        if more.peek().is_none() && first.times == 1 {
            let only = Some((tensor, first.slice.offset, first.slice.length));
            return Ok(CheckedColumn { dtype, shape, num_bytes, only });
        }
        for run in more {
            let slice = run.slice;
            let next = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            if next.dtype != dtype || next.row_shape() != &shape[1..] {
                return Err(Error::data_loss(
                    "A column mixes chunks of different dtypes or shapes.",
                ));
            }
            next.check_rows(slice.offset, slice.length)?;
            let added = num_bytes.checked_add(bytes_of(&next, run)?);
            num_bytes = added.ok_or_else(|| no_memory(usize::MAX))?;
        }
        Ok(CheckedColumn { dtype, shape, num_bytes, only: None })
    }

    /// Dtype and shape of a column before squeezing: `[T, ...]`. Reads no values.
    pub fn column_spec(&self, column: &Column<'_>) -> Result<(DType, Shape)> {
        let (first, num_rows) = first_run(column)?;
        let head = self.chunks()[first.slice.chunk].head(first.slice.tensor)?;
        head.num_rows()?;
        Ok((head.dtype, column_shape(column, num_rows, head.row_shape())?))
    }

    /// Appends the strings of a column. They may take `room` bytes, from which their bytes are
    /// subtracted.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if `room` or the memory is too small; `DataLoss` for damaged chunks.
    pub fn put_strings(
        &self,
        column: &Column<'_>,
        out: &mut Vec<Vec<u8>>,
        room: &mut usize,
    ) -> Result<()> {
        for Run { slice, times } in column.runs() {
            let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            let begin = out.len();
            let room_before = *room;
            tensor.put_string_rows(slice.offset, slice.length, out, room)?;
            let end = out.len();
            let taken = room_before - *room;
            let again = taken.checked_mul(times - 1).and_then(|more| room.checked_sub(more));
            *room = again.ok_or_else(|| no_memory(taken))?;
            // A peer may repeat steps without strings very often.
            for _ in (1..times).take_while(|_| begin < end) {
                out.extend_from_within(begin..end);
            }
        }
        Ok(())
    }

    /// As `copy_column`, for a column that `checked_column` has returned.
    pub fn copy_checked(
        &self,
        column: &Column<'_>,
        checked: &CheckedColumn<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        match &checked.only {
            Some((tensor, offset, length)) => tensor.copy_rows(*offset, *length, out),
            None => self.copy_column(column, out),
        }
    }

    /// Copies a column of fixed-size elements to `out`, which has exactly the length of the column.
    pub fn copy_column(&self, column: &Column<'_>, out: &mut [u8]) -> Result<()> {
        let mut rest = out;
        for Run { slice, times } in column.runs() {
            let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            let length = tensor.row_bytes()?.saturating_mul(slice.length);
            let (head, tail) = rest
                .split_at_mut_checked(length.saturating_mul(times))
                .ok_or_else(|| Error::data_loss("A column mixes chunks of different shapes."))?;
            let (once, again) = head.split_at_mut(length);
            tensor.copy_rows(slice.offset, slice.length, once)?;
            if !again.is_empty() {
                again.chunks_exact_mut(length).for_each(|copy| copy.copy_from_slice(once));
            }
            rest = tail;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(Error::data_loss("A column mixes chunks of different shapes."))
        }
    }
}
