// SPDX-License-Identifier: Apache-2.0
//! Encodes single steps as one chunk each, with their trajectories.

use reverb_data::codec::{is_never_compressed, put_string_tensor, put_tensor};
use reverb_data::{Chunk, ChunkMaker, Result, SequenceRange, Shape, Trajectory, TrajectoryBuilder};

use super::cell::CellValue;
use super::chunk_template::ChunkTemplate;
use super::item::no_steps;

/// Encodes the rows of columns `[B, ...]`.
///
/// Rows that are stored uncompressed differ only in their bytes. Their first chunk is the template
/// of all others.
pub(super) struct RowEncoder<'a> {
    columns: &'a [CellValue<'a>],
    num_rows: usize,
    template: Option<ChunkTemplate>,
    trajectory: Option<Trajectory>,
}

impl<'a> RowEncoder<'a> {
    /// An encoder of `num_rows` rows; the first dimension of all columns has that size.
    pub(super) fn new(columns: &'a [CellValue<'a>], num_rows: usize) -> Self {
        Self { columns, num_rows, template: None, trajectory: None }
    }

    /// The trajectory of one row: every column, with one step.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there are no columns.
    pub(super) fn encode(
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
                put_step(&mut payload, &column.row(row, self.num_rows));
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
        self.columns.iter().all(|column| is_never_compressed(row_bytes(column)))
    }
}

/// The trajectory of one step.
///
/// # Errors
///
/// `InvalidArgument` if it has no columns.
pub(super) fn encode_step(
    step: &[CellValue<'_>],
    key: u64,
    range: SequenceRange,
    maker: &mut ChunkMaker,
) -> Result<Trajectory> {
    let mut payload = Vec::new();
    for cell in step {
        put_step(&mut payload, cell);
    }
    all_columns(&maker.make_of(key, range, false, payload), step.len())
}

fn put_step(payload: &mut Vec<u8>, cell: &CellValue<'_>) {
    let shape: Shape = std::iter::once(1).chain(cell.shape().iter().copied()).collect();
    match cell {
        CellValue::Bytes { dtype, bytes, .. } => put_tensor(payload, *dtype, &shape, bytes, false),
        CellValue::Strings { strings, .. } => put_string_tensor(payload, &shape, strings),
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

    proptest! {
        /// A row has the same bytes with and without the template.
        #[test]
        fn a_row_has_the_bytes_of_a_step(
            widths in prop::collection::vec(0usize..140, 1..4),
            num_rows in 1usize..5,
            seed in any::<u8>(),
            with_strings in any::<bool>(),
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
            let mut encoder = RowEncoder::new(&columns, num_rows);
            for row in 0..num_rows {
                let range = SequenceRange::default();
                let encoded = encoder.encode(row, 7, range, &mut maker).unwrap();
                let step: Vec<CellValue<'_>> =
                    columns.iter().map(|column| column.row(row, num_rows)).collect();
                let alone = encode_step(&step, 7, range, &mut ChunkMaker::default()).unwrap();
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
    }
}
