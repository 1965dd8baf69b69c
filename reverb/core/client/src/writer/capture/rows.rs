// SPDX-License-Identifier: Apache-2.0
//! Encodes single steps as one chunk each, and sequences as a few, with their trajectories.

use std::ops::Range;

use reverb_base::Result;
use reverb_data::codec::{Compression, Encoding, put_string_tensor, put_tensor};
use reverb_data::{Chunk, ChunkMaker, SequenceRange, Shape, Trajectory, TrajectoryBuilder};

use super::cell::CellValue;
use super::chunk_template::ChunkTemplate;
use super::item::no_steps;

/// Encodes the rows of columns `[B, ...]`.
///
/// Rows that are stored uncompressed differ only in their bytes. Their first chunk is the template
/// of all others.
pub(in crate::writer) struct RowEncoder<'a> {
    columns: &'a [CellValue<'a>],
    num_rows: usize,
    compression: Compression,
    template: Option<ChunkTemplate>,
    trajectory: Option<Trajectory>,
}

impl<'a> RowEncoder<'a> {
    /// An encoder of `num_rows` rows; the first dimension of all columns has that size.
    pub(in crate::writer) fn new(
        columns: &'a [CellValue<'a>],
        num_rows: usize,
        compression: Compression,
    ) -> Self {
        Self { columns, num_rows, compression, template: None, trajectory: None }
    }

    /// The trajectory of one row: every column, with one step.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there are no columns.
    pub(in crate::writer) fn encode(
        &mut self,
        row: usize,
        key: u64,
        range: SequenceRange,
        maker: &mut ChunkMaker,
    ) -> Result<Trajectory> {
        let columns = self.columns;
        let chunk = if let Some(template) = &mut self.template {
            template.fill(key, range, |column, out| {
                let CellValue::Bytes { bytes, .. } = &columns[column] else {
                    unreachable!("strings have no layout")
                };
                let len = out.len();
                out.copy_from_slice(&bytes[row * len..(row + 1) * len]);
            })
        } else {
            let mut payload = Vec::new();
            for column in columns {
                let shape = &column.shape()[1..];
                let rows = row..row + 1;
                put_steps(&mut payload, column, shape, self.num_rows, rows, self.compression);
            }
            maker.make_of(key, range, false, payload)
        };
        if let Some(trajectory) = &self.trajectory {
            return Ok(trajectory.with_chunk(chunk));
        }
        if self.num_rows > 1 && self.are_stored_raw() {
            self.template = ChunkTemplate::new(&chunk, columns.len(), 1);
        }
        let trajectory = all_columns(&chunk, columns.len())?;
        self.trajectory = Some(trajectory.clone());
        Ok(trajectory)
    }

    /// True if the bytes of every row are stored uncompressed.
    fn are_stored_raw(&self) -> bool {
        let row_bytes = |column: &CellValue<'_>| match column {
            CellValue::Bytes { bytes, .. } => bytes.len() / self.num_rows,
            CellValue::Strings { .. } => usize::MAX,
        };
        self.columns.iter().all(|column| self.compression.leaves_raw(row_bytes(column)))
    }
}

/// The trajectory of one step.
///
/// # Errors
///
/// `InvalidArgument` if it has no columns.
pub(in crate::writer) fn encode_step(
    step: &[CellValue<'_>],
    key: u64,
    range: SequenceRange,
    maker: &mut ChunkMaker,
    compression: Compression,
) -> Result<Trajectory> {
    let mut payload = Vec::new();
    for cell in step {
        put_steps(&mut payload, cell, cell.shape(), 1, 0..1, compression);
    }
    all_columns(&maker.make_of(key, range, false, payload), step.len())
}

/// Size up to which the columns of one length share a chunk: each alone would have more overhead
/// than data.
const MAX_SHARED_BYTES: usize = 4096;
/// A chunk of a longer column ends at about this size: a window of the sequence is decoded with the
/// rest of its first and last chunks.
const MAX_CHUNK_BYTES: usize = 32 * 1024;
/// Number of steps that a chunk has at most, if they take more than `MAX_SHARED_BYTES`.
const MAX_CHUNK_STEPS: usize = 64;
/// A chunk of a column that no window cuts ends at about this size. With its header it is a little
/// below 256 KiB, above which an allocation takes a quarter more.
const MAX_WHOLE_CHUNK_BYTES: usize = 255 * 1024;

/// How columns are read, by which they are cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::writer) enum ReadAs {
    /// Windows of some steps may be read.
    Windows,
    /// Columns are always read as a whole.
    Whole,
}

impl ReadAs {
    /// Number of steps of this size in a chunk.
    fn steps_per_chunk(self, step_bytes: usize) -> usize {
        let bytes = match self {
            Self::Windows => {
                (MAX_CHUNK_STEPS * step_bytes).clamp(MAX_SHARED_BYTES, MAX_CHUNK_BYTES)
            }
            Self::Whole => MAX_WHOLE_CHUNK_BYTES,
        };
        (bytes / step_bytes).max(1)
    }
}

/// The trajectory of columns `[T, ...]`, each with at least one step. `range` is the first step.
///
/// # Errors
///
/// `InvalidArgument` if it has no columns.
pub(in crate::writer) fn encode_sequence(
    columns: &[CellValue<'_>],
    mut next_key: impl FnMut() -> u64,
    range: SequenceRange,
    maker: &mut ChunkMaker,
    (compression, read_as): (Compression, ReadAs),
) -> Result<Trajectory> {
    if columns.is_empty() {
        return Err(no_steps());
    }
    let mut make = |first: usize, num_steps: usize, payload: Vec<u8>| {
        let step = |at: usize| range.start.saturating_add(i32::try_from(at).unwrap_or(i32::MAX));
        let range = SequenceRange { start: step(first), end: step(first + num_steps - 1), ..range };
        maker.make_of(next_key(), range, false, payload)
    };
    // Short columns of the same length, by their length.
    let mut shared: Vec<(usize, Vec<usize>)> = Vec::new();
    for (i, column) in columns.iter().enumerate() {
        let num_steps = column.shape()[0];
        if column.num_bytes() > MAX_SHARED_BYTES {
            continue;
        }
        match shared.iter_mut().find(|(length, _)| *length == num_steps) {
            Some((_, members)) => members.push(i),
            None => shared.push((num_steps, vec![i])),
        }
    }
    // The chunk of each short column, and its place in it.
    let mut places: Vec<Option<(Chunk, usize)>> = vec![None; columns.len()];
    for (num_steps, members) in shared {
        let mut payload = Vec::new();
        for &i in &members {
            let shape = &columns[i].shape()[1..];
            put_steps(&mut payload, &columns[i], shape, num_steps, 0..num_steps, compression);
        }
        let chunk = make(0, num_steps, payload);
        for (tensor, i) in members.into_iter().enumerate() {
            places[i] = Some((chunk.clone(), tensor));
        }
    }
    let mut builder = TrajectoryBuilder::new();
    for (column, place) in columns.iter().zip(places) {
        let num_steps = column.shape()[0];
        if let Some((chunk, tensor)) = place {
            builder.slice(&chunk, tensor, 0, num_steps);
        } else {
            let step_bytes = (column.num_bytes() / num_steps).max(1);
            let steps_per_chunk = read_as.steps_per_chunk(step_bytes);
            let mut first = 0;
            while first < num_steps {
                let count = steps_per_chunk.min(num_steps - first);
                let mut payload = Vec::new();
                let steps = first..first + count;
                put_steps(
                    &mut payload,
                    column,
                    &column.shape()[1..],
                    num_steps,
                    steps,
                    compression,
                );
                builder.slice(&make(first, count, payload), 0, 0, count);
                first += count;
            }
        }
        builder.end_column(false);
    }
    builder.finish()
}

/// Appends some of the `num_steps` steps of a column, each of this shape.
fn put_steps(
    payload: &mut Vec<u8>,
    column: &CellValue<'_>,
    step_shape: &[usize],
    num_steps: usize,
    steps: Range<usize>,
    compression: Compression,
) {
    let shape: Shape = std::iter::once(steps.len()).chain(step_shape.iter().copied()).collect();
    match column {
        CellValue::Bytes { dtype, bytes, .. } => {
            let size = bytes.len() / num_steps;
            let bytes = &bytes[steps.start * size..steps.end * size];
            put_tensor(payload, *dtype, &shape, bytes, Encoding { delta: false, compression });
        }
        CellValue::Strings { strings, .. } => {
            let size = strings.len() / num_steps;
            put_string_tensor(payload, &shape, &strings[steps.start * size..steps.end * size]);
        }
    }
}

fn all_columns(chunk: &Chunk, num_columns: usize) -> Result<Trajectory> {
    if num_columns == 0 {
        return Err(no_steps());
    }
    let mut builder = TrajectoryBuilder::new();
    for tensor in 0..num_columns {
        builder.slice(chunk, tensor, 0, 1);
        builder.end_column(false);
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reverb_data::{DType, TensorData};

    use super::*;

    fn any_compression() -> impl Strategy<Value = Compression> {
        prop::sample::select(vec![Compression::Auto, Compression::None])
    }

    proptest! {
        /// A row has the same bytes with and without the template.
        #[test]
        fn a_row_has_the_bytes_of_a_step(
            widths in prop::collection::vec(0usize..140, 1..4),
            num_rows in 1usize..5,
            seed in any::<u8>(),
            with_strings in any::<bool>(),
            compression in any_compression(),
        ) {
            let data: Vec<Vec<u8>> = widths
                .iter()
                .map(|width| (0..width * num_rows).map(|i| (i * 89) as u8 ^ seed).collect())
                .collect();
            let shapes: Vec<[usize; 2]> = widths.iter().map(|&width| [num_rows, width]).collect();
            let mut columns: Vec<CellValue<'_>> = shapes
                .iter()
                .zip(&data)
                .map(|(shape, bytes)| CellValue::Bytes { dtype: DType::UInt8, shape, bytes })
                .collect();
            let strings_shape = [num_rows];
            if with_strings {
                let strings = (0..num_rows).map(|i| vec![b'x'; i]).collect();
                columns.push(CellValue::Strings { shape: &strings_shape, strings });
            }
            let mut maker = ChunkMaker::default();
            let mut encoder = RowEncoder::new(&columns, num_rows, compression);
            for row in 0..num_rows {
                let range = SequenceRange::default();
                let encoded = encoder.encode(row, 7, range, &mut maker).unwrap();
                let step: Vec<CellValue<'_>> =
                    columns.iter().map(|column| column.row(row, num_rows)).collect();
                let alone = encode_step(&step, 7, range, &mut ChunkMaker::default(), compression).unwrap();
                prop_assert_eq!(encoded.chunks()[0].payload(), alone.chunks()[0].payload());
                prop_assert_eq!(encoded.stored_columns(), alone.stored_columns());
                let decoded = encoded.decode().unwrap();
                for (i, width) in widths.iter().enumerate() {
                    let expected = data[i][row * width..(row + 1) * width].to_vec();
                    prop_assert_eq!(&decoded[i].data, &TensorData::Bytes(expected));
                    prop_assert_eq!(decoded[i].shape.as_slice(), [1, *width]);
                }
            }
        }

        /// A sequence has its values again, whatever its columns are cut into.
        #[test]
        fn a_sequence_has_its_values(
            columns in prop::collection::vec((1usize..40, 0usize..30_000), 1..5),
            num_strings in 0usize..3000,
            seed in any::<u8>(),
            compression in any_compression(),
            read_as in prop::sample::select(vec![ReadAs::Windows, ReadAs::Whole]),
        ) {
            let data: Vec<Vec<u8>> = columns
                .iter()
                .map(|(steps, width)| (0..steps * width).map(|i| (i * 89) as u8 ^ seed).collect())
                .collect();
            let shapes: Vec<[usize; 2]> = columns.iter().map(|&(steps, width)| [steps, width]).collect();
            let mut values: Vec<CellValue<'_>> = shapes
                .iter()
                .zip(&data)
                .map(|(shape, bytes)| CellValue::Bytes { dtype: DType::UInt8, shape, bytes })
                .collect();
            let strings: Vec<Vec<u8>> = (0..num_strings).map(|i| vec![b'x'; i % 700]).collect();
            let shape = [num_strings];
            if num_strings > 0 {
                values.push(CellValue::Strings { shape: &shape, strings: strings.clone() });
            }
            let mut keys = 0;
            let mut maker = ChunkMaker::default();
            let next_key = || { keys += 1; keys };
            let range = SequenceRange { episode_id: 3, start: 5, end: 5, sparse: false };
            let sequence = encode_sequence(&values, next_key, range, &mut maker, (compression, read_as)).unwrap();
            let decoded = sequence.decode().unwrap();
            for (i, shape) in shapes.iter().enumerate() {
                prop_assert_eq!(decoded[i].shape.as_slice(), shape);
                prop_assert_eq!(&decoded[i].data, &TensorData::Bytes(data[i].clone()));
            }
            if num_strings > 0 {
                let last = decoded.last().unwrap();
                prop_assert_eq!(&last.data, &TensorData::Strings(strings));
            }
            for chunk in sequence.chunks() {
                let range = chunk.range();
                prop_assert!(range.start >= 5 && range.end >= range.start && range.end < 5 + 3000);
            }
            let longest = columns.iter().map(|(steps, width)| steps * width).max().unwrap_or(0);
            let most = if read_as == ReadAs::Whole { MAX_WHOLE_CHUNK_BYTES } else { MAX_CHUNK_BYTES };
            prop_assert!(longest < 2 * most || sequence.chunks().len() > 1);
            if read_as == ReadAs::Whole && num_strings == 0 && longest > MAX_SHARED_BYTES {
                prop_assert!(sequence.chunks().len() <= columns.len() + longest / most * columns.len());
            }
        }
    }

    #[test]
    fn short_columns_of_one_length_share_a_chunk() {
        let bytes = vec![1; 6000];
        let column = |shape: &'static [usize; 2]| CellValue::Bytes {
            dtype: DType::UInt8,
            shape,
            bytes: &bytes[..shape[0] * shape[1]],
        };
        let columns = [column(&[10, 4]), column(&[10, 9]), column(&[7, 1]), column(&[10, 600])];
        let mut keys = 0;
        let next_key = || {
            keys += 1;
            keys
        };
        let range = SequenceRange::default();
        let maker = &mut ChunkMaker::default();
        let auto = Compression::Auto;
        let sequence =
            encode_sequence(&columns, next_key, range, maker, (auto, ReadAs::Windows)).unwrap();
        let tensors: Vec<usize> = sequence.chunks().iter().map(Chunk::num_tensors).collect();
        assert_eq!(tensors, [2, 1, 1]);
        let none = encode_sequence(&[], || 1, range, maker, (auto, ReadAs::Windows)).unwrap_err();
        assert_eq!(none.kind(), reverb_base::ErrorKind::InvalidArgument);
    }
}
