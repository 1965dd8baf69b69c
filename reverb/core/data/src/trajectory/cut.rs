// SPDX-License-Identifier: Apache-2.0
//! Cuts windows of steps out of trajectories, without reading a chunk.

use std::hint::black_box;
use std::ops::Range;

use super::builder::{no_column, no_slice, put_run};
use super::{Chunks, Run, Slice, Trajectory, TrajectoryBuilder};
use crate::proto_bytes::put_varint_over;
use crate::step_window::{ColumnSpan, StepWindow};
use reverb_base::error::{Error, Result};

/// Chunks of an item that a part of it needs.
#[derive(Debug, Default)]
pub(super) struct NeededChunks {
    /// Their positions in the item, in the order of first reference.
    positions: Vec<usize>,
    /// For each chunk of the item its number in `positions`, from 1 on; 0 if it is not needed.
    numbers: Vec<u32>,
}

impl NeededChunks {
    /// Number of a chunk in the part.
    #[inline]
    fn number(&mut self, trajectory: &Trajectory, position: usize) -> usize {
        let number = &mut self.numbers[position];
        if *number == 0 {
            // All chunks are fetched from memory at the same time, and referred to later.
            black_box(trajectory.chunks()[position].key());
            self.positions.push(position);
            *number = self.positions.len() as u32;
        }
        *number as usize - 1
    }

    /// Makes room for the chunks of an item.
    fn begin(&mut self, trajectory: &Trajectory) {
        let count = trajectory.chunks().len();
        if self.numbers.len() < count {
            self.numbers.resize(count, 0);
        }
    }

    /// The chunks; none are needed then.
    fn take(&mut self, trajectory: &Trajectory) -> Option<Chunks> {
        let chunk = |&position: &usize| trajectory.chunks()[position].clone();
        let chunks = match &self.positions[..] {
            [] => None,
            [position] => Some(Chunks::One(chunk(position))),
            positions => Some(Chunks::Many(positions.iter().map(chunk).collect())),
        };
        for position in self.positions.drain(..) {
            self.numbers[position] = 0;
        }
        chunks
    }
}

impl TrajectoryBuilder {
    /// A window of some columns of a stored item, with only the chunks that it needs. Steps before
    /// the first one and after the last one are one run of these. Columns that are a single value
    /// of the item stay whole.
    ///
    /// `start` is the first step of the window in the item; `columns` are all columns if empty;
    /// `spans` restrict some columns to a part of the window.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the item lacks a column, or if a span is about a single value.
    pub fn cut(
        &mut self,
        trajectory: &Trajectory,
        columns: &[u32],
        window: StepWindow,
        start: i32,
        spans: &[ColumnSpan],
    ) -> Result<Trajectory> {
        let anchor = i64::from(start) + i64::from(window.before);
        let steps_of = |at: u32, squeeze: bool| {
            let span = spans.binary_search_by_key(&at, |span| span.column).map(|at| &spans[at]);
            match span {
                Ok(_) if squeeze => Err(Error::invalid_argument(format!(
                    "window.spans: column {at} is a single value of the item, which has no steps."
                ))),
                Ok(span) => Ok(anchor + i64::from(span.start)..anchor + i64::from(span.stop)),
                Err(_) if squeeze => Ok(0..1),
                Err(_) => Ok(i64::from(start)..anchor + i64::from(window.length)),
            }
        };
        if let Some(&last) = columns.last()
            && last as usize >= trajectory.num_columns()
        {
            return Err(no_column(last, trajectory.num_columns()));
        }
        let mut wanted = columns.iter().copied().peekable();
        let mut is_wanted = |at: u32| columns.is_empty() || wanted.next_if_eq(&at).is_some();
        self.needed.begin(trajectory);
        let mut cut = || {
            if let Some(index) = trajectory.index() {
                for at in (0..trajectory.num_columns()).filter(|&at| is_wanted(at as u32)) {
                    let column = index.column(at);
                    let steps = steps_of(at as u32, column.squeeze)?;
                    let first = usize::try_from(steps.start).unwrap_or(0);
                    let (begin, mut slices) = column.slices_from(first);
                    self.cut_column(trajectory, begin, &mut slices, steps, column.squeeze);
                }
            } else {
                let mut reader = trajectory.runs();
                for at in 0..reader.num_columns as u32 {
                    let (squeeze, num_slices) = reader.column();
                    let mut slices = (0..num_slices).map(|_| reader.run().slice);
                    if is_wanted(at) {
                        let steps = steps_of(at, squeeze)?;
                        self.cut_column(trajectory, 0, &mut slices, steps, squeeze);
                    }
                    // The next column follows the last slice.
                    slices.for_each(drop);
                }
            }
            Ok(())
        };
        let cut = cut();
        let num_columns = self.num_columns;
        let chunks = self.needed.take(trajectory);
        let part = cut.and_then(|()| {
            let chunks = chunks.ok_or_else(no_slice)?;
            Ok(Trajectory::part(chunks, num_columns, &self.columns))
        });
        self.clear();
        part
    }

    /// Adds these steps of a column, some of which may lie before or after it. The slices begin at
    /// or before the steps, with step `begin`.
    #[inline]
    fn cut_column(
        &mut self,
        trajectory: &Trajectory,
        begin: usize,
        slices: &mut impl Iterator<Item = Slice>,
        steps: Range<i64>,
        squeeze: bool,
    ) {
        let head_at = self.columns.len();
        // The head of the column is known at its end.
        self.columns.push(0);
        let mut num_runs = 0;
        let mut put = |slice: Slice, offset: usize, length: i64, times: i64| {
            let chunk = self.needed.number(trajectory, slice.chunk);
            let slice = Slice { chunk, offset, length: length as usize, ..slice };
            put_run(&mut self.columns, Run { slice, times: times as usize });
            num_runs += 1;
        };
        let mut position = begin as i64;
        let mut next = steps.start;
        let mut last: Option<Slice> = None;
        while next < steps.end {
            let Some(slice) = slices.next() else { break };
            let end = position + slice.length as i64;
            if end <= next {
                (position, last) = (end, Some(slice));
                continue;
            }
            if position == 0 && next < 0.min(steps.end) {
                put(slice, slice.offset, 1, 0.min(steps.end) - next);
                next = 0.min(steps.end);
            }
            let stop = end.min(steps.end);
            if next < stop {
                put(slice, slice.offset + (next - position) as usize, stop - next, 1);
                next = stop;
            }
            position = end;
            last = Some(slice);
        }
        if let Some(slice) = last
            && next < steps.end
        {
            put(slice, slice.offset + slice.length - 1, 1, steps.end - next);
        }
        let head = num_runs << 1 | u64::from(squeeze);
        if head < 0x80 {
            self.columns[head_at] = head as u8;
        } else {
            put_varint_over::<1>(&mut self.columns, head_at, head);
        }
        self.num_columns += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::chunk::{Chunk, ChunkBuilder, SequenceRange};
    use crate::dtype::DType;
    use crate::tensor::{Shape, Tensor, TensorData};

    /// An item whose columns hold their step numbers, cut into slices of these lengths.
    fn item(lengths: &[usize], num_columns: usize) -> Trajectory {
        let mut builder = TrajectoryBuilder::new();
        for column in 0..num_columns {
            let mut first = 0u8;
            for (at, &length) in lengths.iter().enumerate() {
                // Steps before and after those of the slice must never be seen.
                let values: Vec<u8> =
                    [255].into_iter().chain(first..first + length as u8).chain([254]).collect();
                let mut chunk = ChunkBuilder::new(false);
                chunk.push(&Tensor {
                    dtype: DType::UInt8,
                    shape: Shape::from_slice(&[values.len()]),
                    data: TensorData::Bytes(values),
                });
                let key = (column * 100 + at) as u64;
                let chunk: Chunk = chunk.finish(key, SequenceRange::default());
                builder.slice(&chunk, 0, 1, length);
                first += length as u8;
            }
            builder.end_column(false);
        }
        builder.finish().unwrap()
    }

    fn values(trajectory: &Trajectory) -> Vec<Vec<u8>> {
        let bytes = |tensor: Tensor| match tensor.data {
            TensorData::Bytes(bytes) => bytes,
            TensorData::Strings(_) => unreachable!("no strings here"),
        };
        trajectory.decode().unwrap().into_iter().map(bytes).collect()
    }

    proptest! {
        #[test]
        fn a_window_has_the_steps_of_an_enumeration(
            lengths in prop::collection::vec(1usize..6, 1..6),
            (length, before) in (1u32..9, 0u32..5),
            at in 0.0f64..1.0,
            span in prop::option::of((0.0f64..1.0, 0.0f64..1.0)),
        ) {
            let steps = lengths.iter().sum::<usize>() as i32;
            let window = StepWindow { length, before, pads_left: true, pads_right: true };
            let start = (at * f64::from(steps)) as i32 - before as i32;
            let spans: Vec<ColumnSpan> = span
                .map(|(first, more)| {
                    let start = (first * f64::from(before + length)) as i32;
                    let rest = (before + length) as i32 - start - 1;
                    let stop = start + 1 + (more * f64::from(rest)) as i32;
                    let (start, stop) = (start - before as i32, stop - before as i32);
                    ColumnSpan { column: 1, start, stop }
                })
                .into_iter()
                .collect();
            ColumnSpan::validate(&spans, window).unwrap();
            let whole = item(&lengths, 2);
            let cut = TrajectoryBuilder::new().cut(&whole, &[], window, start, &spans).unwrap();
            let step = |step: i32| step.clamp(0, steps - 1) as u8;
            let all: Vec<u8> = (start..start + (before + length) as i32).map(step).collect();
            let anchor = start + before as i32;
            let part = spans.first().map_or(all.clone(), |span| {
                (anchor + span.start..anchor + span.stop).map(step).collect()
            });
            prop_assert_eq!(values(&cut), [all, part.clone()]);
            // Only chunks of the window, and of the chosen columns, are there.
            let one = TrajectoryBuilder::new().cut(&whole, &[1], window, start, &spans).unwrap();
            prop_assert_eq!(values(&one), [part.clone()]);
            let mut begin = 0;
            let needed = lengths.iter().filter(|&&length| {
                begin += length as u8;
                part.iter().any(|step| (begin - length as u8..begin).contains(step))
            });
            prop_assert_eq!(one.chunks().len(), needed.count());
        }
    }

    /// A column of single steps, each in a slice of its own, and one that is a single value.
    fn long_item(num_slices: u32, num_columns: usize) -> Trajectory {
        let mut chunk = ChunkBuilder::new(false);
        // Steps in reverse, so that no slice continues the one before.
        let values: Vec<u8> = (0..num_slices).rev().flat_map(u32::to_le_bytes).collect();
        chunk.push(&Tensor {
            dtype: DType::UInt32,
            shape: Shape::from_slice(&[num_slices as usize]),
            data: TensorData::Bytes(values),
        });
        let chunk = chunk.finish(5, SequenceRange::default());
        let mut builder = TrajectoryBuilder::new();
        for _ in 0..num_columns {
            for at in (0..num_slices as usize).rev() {
                builder.slice(&chunk, 0, at, 1);
            }
            builder.end_column(false);
        }
        builder.slice(&chunk, 0, 0, 1);
        builder.end_column(true);
        builder.finish().unwrap()
    }

    #[test]
    fn a_window_of_a_long_item_is_found_by_its_index() {
        for num_slices in [100, 130, 257, 1_000, 10_000] {
            let whole = long_item(num_slices, 2);
            assert_eq!(whole.index().is_some(), num_slices > 128);
            assert_eq!(whole.columns().count(), 3);
            let window = StepWindow { length: 5, before: 3, pads_left: true, pads_right: true };
            let mut builder = TrajectoryBuilder::new();
            let steps = num_slices as i32;
            let starts = (-3..steps.min(300)).chain(steps - 70..steps - 3);
            for start in starts.chain([steps / 2, steps / 3, 64, 63, 65]) {
                for columns in [&[][..], &[1], &[0, 2]] {
                    let cut = builder.cut(&whole, columns, window, start, &[]).unwrap();
                    assert!(cut.index().is_none());
                    let found: Vec<u32> = values(&cut)[0]
                        .chunks_exact(4)
                        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
                        .collect();
                    let expected = (start..start + 8).map(|step| step.clamp(0, steps - 1) as u32);
                    assert_eq!(found, expected.collect::<Vec<_>>(), "{num_slices} {start}");
                }
            }
        }
    }

    #[test]
    fn an_index_takes_little_and_changes_nothing_else() {
        let (short, long) = (long_item(40, 2), long_item(1_000, 2));
        assert!(short.index().is_none());
        let index = long.index().unwrap();
        let columns = long.stored_columns();
        assert_eq!(index.columns(), columns);
        assert!(long.bytes() < columns.len() as u64 * 105 / 100 + 200);
        let again = long.with_chunk(long.chunks()[0].clone());
        assert_eq!(again.stored_columns(), columns);
        assert_eq!(again.runs().num_columns, 3);
        long.validate().unwrap();
    }

    #[test]
    fn single_values_stay_whole_and_have_no_span() {
        let chunk = item(&[1], 1).chunks()[0].clone();
        let mut builder = TrajectoryBuilder::new();
        builder.slice(&chunk, 0, 1, 1);
        builder.end_column(true);
        let sequences = item(&[3], 2);
        builder.slice(&sequences.chunks()[1], 0, 1, 3);
        builder.end_column(false);
        let whole = builder.finish().unwrap();
        let window = StepWindow { length: 2, before: 0, pads_left: false, pads_right: false };
        let cut = builder.cut(&whole, &[], window, 1, &[]).unwrap();
        assert_eq!(values(&cut), [vec![0], vec![1, 2]]);
        let span = ColumnSpan { column: 0, start: 0, stop: 1 };
        let error = builder.cut(&whole, &[], window, 1, &[span]).unwrap_err();
        assert!(error.message().contains("column 0 is a single value"), "{error}");
        let error = builder.cut(&whole, &[0, 5], window, 1, &[]).unwrap_err();
        assert!(error.message().contains("columns has column 5"), "{error}");
        // A single value of an item that has an index.
        let span = ColumnSpan { column: 2, start: 0, stop: 1 };
        let error = builder.cut(&long_item(500, 2), &[], window, 0, &[span]).unwrap_err();
        assert!(error.message().contains("column 2 is a single value"), "{error}");
        // The builder is empty after an error.
        let cut = builder.cut(&whole, &[1], window, 0, &[]).unwrap();
        assert_eq!(values(&cut), [vec![0, 1]]);
    }
}
