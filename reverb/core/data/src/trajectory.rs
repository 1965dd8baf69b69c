// SPDX-License-Identifier: Apache-2.0
//! Trajectories: the columns of an item, as slices of chunks.

mod builder;
mod cut;
mod decoded;
mod runs;
mod slice_index;

pub use builder::TrajectoryBuilder;
pub use decoded::CheckedColumn;
use runs::read_run;
pub use runs::{Column, Run, RunReader, Slice};
use slice_index::SliceIndex;

use std::fmt;

use reverb_base::memory::prefetch_from;
use triomphe::ThinArc;

use crate::account::allocated_bytes;
use crate::chunk::{ARC_BYTES, Chunk};
use crate::dtype::DType;
use crate::proto_bytes::Reader;
use crate::templates::columns::Columns;
use crate::tensor::Shape;
use reverb_base::error::{Error, Result};

/// The columns of an item. Cloning shares it; the chunks live as long as any trajectory refers to
/// them.
///
/// Layout: the chunks, each once, in the order of first reference, and a byte string of varints:
/// per column `number of runs << 1 | squeeze`, then per run `chunk ordinal, tensor << 1, offset,
/// length`, or `chunk ordinal, tensor << 1 | 1, offset, length, times`. Items of one chunk nearly
/// always have the same string, which is stored once; others take a few dozen bytes.
#[derive(Clone)]
pub struct Trajectory(TrajectoryContent);

/// Content of a trajectory, for callers that store millions.
#[derive(Debug, Clone)]
pub enum TrajectoryContent {
    /// One chunk and interned columns: by far the most common case, without memory of its own.
    OfOneChunk(Chunk, OneChunkColumns),
    /// Any other.
    Stored(StoredTrajectory),
}

/// A trajectory with memory of its own. Cloning shares it.
#[derive(Clone)]
pub struct StoredTrajectory(ThinArc<Header, u8>);

struct Header {
    chunks: Chunks,
    /// With `INDEXED` if there is an index behind the columns.
    num_columns: u32,
    /// Encoded bytes of all chunks, or the largest number if there are more.
    chunk_bytes: u32,
}

/// Bit of a number of columns that says that an index follows the columns.
const INDEXED: u32 = 1 << 31;

/// Most items refer to one chunk; that case needs no allocation of its own.
enum Chunks {
    One(Chunk),
    Many(Box<[Chunk]>),
}

/// The columns of an item of one chunk, without the chunk. Only interned columns have this; all but
/// very long ones are interned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneChunkColumns(u16);

impl OneChunkColumns {
    /// These columns of a chunk.
    #[inline]
    pub fn of(self, chunk: Chunk) -> Trajectory {
        Trajectory(TrajectoryContent::OfOneChunk(chunk, self))
    }

    #[inline]
    fn columns(self) -> &'static Columns {
        Columns::at(self.0)
    }
}

/// The columns of an item of several chunks, without the chunks.
#[derive(Debug)]
pub struct ManyChunkColumns {
    num_columns: u32,
    columns: Box<[u8]>,
}

impl ManyChunkColumns {
    /// These columns of other chunks: the same number, in the same order, all different.
    pub fn of(&self, chunks: Box<[Chunk]>) -> Trajectory {
        debug_assert!(
            chunks
                .iter()
                .enumerate()
                .all(|(at, chunk)| chunks[..at].iter().all(|o| o.key() != chunk.key())),
            "a chunk is there twice"
        );
        Trajectory::stored(Chunks::Many(chunks), self.num_columns, &self.columns)
    }
}

impl From<TrajectoryContent> for Trajectory {
    #[inline]
    fn from(content: TrajectoryContent) -> Self {
        Self(content)
    }
}

impl StoredTrajectory {
    fn new(chunks: Chunks, num_columns: u32, columns: &[u8]) -> Self {
        let mut header = Header { chunks, num_columns, chunk_bytes: 0 };
        let bytes = header.chunks().iter().map(Chunk::payload_len).sum::<usize>();
        header.chunk_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self(ThinArc::from_header_and_slice(header, columns))
    }

    /// With an index if it has many slices.
    fn indexed(chunks: Chunks, num_columns: u32, columns: &[u8]) -> Self {
        if slice_index::may_need(columns) {
            let mut columns = columns.to_vec();
            if slice_index::append(num_columns, &mut columns) {
                return Self::new(chunks, num_columns | INDEXED, &columns);
            }
        }
        Self::new(chunks, num_columns, columns)
    }

    #[inline]
    fn num_columns(&self) -> u32 {
        self.header().num_columns & !INDEXED
    }

    fn index(&self) -> Option<SliceIndex<'_>> {
        let is_indexed = self.header().num_columns & INDEXED != 0;
        is_indexed.then(|| SliceIndex::new(self.num_columns() as usize, &self.0.slice))
    }

    /// The encoded columns.
    #[inline]
    fn columns(&self) -> &[u8] {
        self.index().map_or(&self.0.slice, SliceIndex::columns)
    }

    #[inline]
    fn header(&self) -> &Header {
        &self.0.header.header
    }

    /// Starts to bring the numbers of this trajectory into the cache of the processor; does not
    /// wait for them.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_from(self.header(), size_of::<Header>());
    }
}

impl Header {
    #[inline]
    fn chunks(&self) -> &[Chunk] {
        match &self.chunks {
            Chunks::One(chunk) => std::slice::from_ref(chunk),
            Chunks::Many(chunks) => chunks,
        }
    }
}

impl Trajectory {
    /// The chunks, each once, in the order of first reference.
    #[inline]
    pub fn chunks(&self) -> &[Chunk] {
        match &self.0 {
            TrajectoryContent::OfOneChunk(chunk, _) => std::slice::from_ref(chunk),
            TrajectoryContent::Stored(stored) => stored.header().chunks(),
        }
    }

    /// Its chunk, if it has only one and no memory of its own.
    #[inline]
    pub(crate) fn only_chunk(&self) -> Option<&Chunk> {
        match &self.0 {
            TrajectoryContent::OfOneChunk(chunk, _) => Some(chunk),
            TrajectoryContent::Stored(_) => None,
        }
    }

    /// Converts it into its content.
    #[inline]
    pub fn into_content(self) -> TrajectoryContent {
        self.0
    }

    /// Its columns without its chunk, if it has only one.
    #[inline]
    pub fn one_chunk_columns(&self) -> Option<OneChunkColumns> {
        match self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => Some(columns),
            TrajectoryContent::Stored(_) => None,
        }
    }

    /// Its columns without its chunks, if it has several.
    pub fn many_chunk_columns(&self) -> Option<ManyChunkColumns> {
        match &self.0 {
            TrajectoryContent::Stored(stored) if self.chunks().len() > 1 => {
                let num_columns = stored.num_columns();
                let columns = stored.columns().into();
                Some(ManyChunkColumns { num_columns, columns })
            }
            _ => None,
        }
    }

    /// Number of columns; at least one.
    pub fn num_columns(&self) -> usize {
        let count = match &self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => columns.columns().len,
            TrajectoryContent::Stored(stored) => stored.num_columns(),
        };
        count as usize
    }

    /// The columns in order.
    pub fn columns(&self) -> impl Iterator<Item = Column<'_>> {
        let mut reader = self.runs().reader;
        (0..self.num_columns()).map(move |_| {
            let head = reader.varint().expect("the builder wrote this");
            let num_runs = (head >> 1) as usize;
            let column = Column { squeeze: head & 1 == 1, num_runs, reader: reader.clone() };
            for _ in 0..num_runs {
                read_run(&mut reader);
            }
            column
        })
    }

    /// Its columns and runs, each read once.
    #[inline]
    pub fn runs(&self) -> RunReader<'_> {
        let (num_columns, columns) = match &self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => {
                let columns = columns.columns();
                (columns.len, &*columns.encoded)
            }
            // An index behind the columns is never reached.
            TrajectoryContent::Stored(stored) => (stored.num_columns(), &stored.0.slice),
        };
        RunReader { num_columns: num_columns as usize, reader: Reader::new(columns) }
    }

    /// Columns in their stored form. Trajectories with equal ones have the same columns, of the
    /// same steps of the same tensors, each of its own chunks.
    pub fn stored_columns(&self) -> &[u8] {
        match &self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => &columns.columns().encoded,
            TrajectoryContent::Stored(stored) => stored.columns(),
        }
    }

    /// The same slices of another chunk.
    ///
    /// # Panics
    ///
    /// If this trajectory has several chunks.
    #[must_use]
    pub fn with_chunk(&self, chunk: Chunk) -> Self {
        assert_eq!(self.chunks().len(), 1, "only a single chunk can be replaced");
        match &self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => columns.of(chunk),
            TrajectoryContent::Stored(stored) => {
                Self::stored(Chunks::One(chunk), stored.num_columns(), stored.columns())
            }
        }
    }

    /// The same columns of other chunks, which are in the order of `chunks`.
    ///
    /// # Panics
    ///
    /// If this trajectory has another number of chunks.
    #[must_use]
    pub fn with_chunks(&self, mut chunks: Vec<Chunk>) -> Self {
        assert_eq!(self.chunks().len(), chunks.len(), "each chunk has to be replaced");
        let mut only = || chunks.pop().expect("its only chunk");
        match &self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => columns.of(only()),
            TrajectoryContent::Stored(stored) => {
                let Header { chunks: before, num_columns, .. } = stored.header();
                let chunks = match before {
                    Chunks::One(_) => Chunks::One(only()),
                    Chunks::Many(_) => Chunks::Many(chunks.into()),
                };
                // With its index, if it has one.
                let stored = StoredTrajectory::new(chunks, *num_columns, &stored.0.slice);
                Self(TrajectoryContent::Stored(stored))
            }
        }
    }

    /// Encoded bytes of all its chunks, up to 4 GiB.
    #[inline]
    pub fn chunk_bytes(&self) -> usize {
        match &self.0 {
            TrajectoryContent::OfOneChunk(chunk, _) => chunk.payload_len(),
            TrajectoryContent::Stored(stored) => stored.header().chunk_bytes as usize,
        }
    }

    /// Bytes of the trajectory itself, without its chunks.
    pub fn bytes(&self) -> u64 {
        let TrajectoryContent::Stored(stored) = &self.0 else { return 0 };
        let chunks = match &stored.header().chunks {
            Chunks::One(_) => 0,
            Chunks::Many(chunks) => allocated_bytes(size_of_val(&**chunks)),
        };
        let own = ARC_BYTES + size_of::<Header>() + stored.0.slice.len();
        (allocated_bytes(own) + chunks) as u64
    }

    /// Bytes of the trajectory with all its chunks.
    pub fn bytes_with_chunks(&self) -> u64 {
        self.bytes() + self.chunks().iter().map(Chunk::bytes).sum::<u64>()
    }

    /// Checks every slice against the tensor it refers to.
    pub fn validate(&self) -> Result<()> {
        for column in self.columns() {
            let mut step: Option<(DType, Shape)> = None;
            for Run { slice, times } in column.runs() {
                if times != 1 {
                    return Err(Error::invalid_argument(format!(
                        "A slice of an item cannot be repeated, `times` is {times}."
                    )));
                }
                if slice.length == 0 {
                    return Err(Error::invalid_argument(
                        "A slice of a chunk must have at least 1 step, its length is 0.",
                    ));
                }
                let Slice { chunk, tensor, offset, length } = slice;
                let head = self.chunks()[chunk].head_with_rows(tensor, offset, length)?;
                match &step {
                    None => step = Some((head.dtype, head.row_shape().into())),
                    Some((dtype, shape))
                        if *dtype == head.dtype && **shape == *head.row_shape() => {}
                    Some(_) => {
                        return Err(Error::invalid_argument(
                            "A column mixes chunks of different dtypes or shapes.",
                        ));
                    }
                }
            }
            if column.squeeze && column.num_steps() != 1 {
                return Err(Error::invalid_argument(format!(
                    "A squeezed column must have exactly 1 step, it has {}.",
                    column.num_steps()
                )));
            }
        }
        Ok(())
    }

    fn stored(chunks: Chunks, num_columns: u32, columns: &[u8]) -> Self {
        Self(TrajectoryContent::Stored(StoredTrajectory::indexed(chunks, num_columns, columns)))
    }

    /// A part of a trajectory, which is read once: without an index.
    fn part(chunks: Chunks, num_columns: u32, columns: &[u8]) -> Self {
        Self(TrajectoryContent::Stored(StoredTrajectory::new(chunks, num_columns, columns)))
    }

    fn index(&self) -> Option<SliceIndex<'_>> {
        match &self.0 {
            TrajectoryContent::OfOneChunk(..) => None,
            TrajectoryContent::Stored(stored) => stored.index(),
        }
    }
}

impl fmt::Debug for StoredTrajectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Trajectory(TrajectoryContent::Stored(self.clone())).fmt(f)
    }
}

impl fmt::Debug for Trajectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trajectory")
            .field("chunks", &self.chunks())
            .field("columns", &self.columns().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::builder::put_run;
    use super::*;
    use crate::chunk::{ChunkBuilder, SequenceRange};
    use crate::tensor::{Tensor, TensorData};

    /// Numbers that take one to five bytes.
    fn number() -> impl Strategy<Value = usize> {
        (0u32..32, any::<u32>()).prop_map(|(bits, number)| (number >> bits) as usize)
    }

    /// Numbers that mostly take one byte.
    fn small() -> impl Strategy<Value = usize> {
        prop_oneof![4 => 0usize..128, 1 => number()]
    }

    proptest! {
        #[test]
        fn runs_are_read_as_they_were_written(
            runs in prop::collection::vec(
                ((number(), small(), small(), small()), prop::option::weighted(0.2, 2usize..70_000)),
                1..20,
            ),
        ) {
            let runs = runs.into_iter().map(|((chunk, tensor, offset, length), times)| {
                Run { slice: Slice { chunk, tensor, offset, length }, times: times.unwrap_or(1) }
            });
            let runs: Vec<Run> = runs.collect();
            let mut columns = Vec::new();
            for &run in &runs {
                put_run(&mut columns, run);
            }
            let mut reader = Reader::new(&columns);
            for &run in &runs {
                prop_assert_eq!(read_run(&mut reader), run);
            }
            prop_assert!(reader.is_empty());
        }
    }

    fn chunk(key: u64, values: &[u8]) -> Chunk {
        let mut builder = ChunkBuilder::new(false);
        builder.push(&Tensor {
            dtype: DType::UInt8,
            shape: Shape::from_slice(&[values.len()]),
            data: TensorData::Bytes(values.to_vec()),
        });
        builder.finish(key, SequenceRange::default())
    }

    #[test]
    fn columns_of_several_chunks_are_those_of_others() {
        let (a, b) = (chunk(1, &[10, 11]), chunk(2, &[20, 21]));
        let (c, d) = (chunk(3, &[30, 31]), chunk(4, &[40, 41]));
        let of = |first: &Chunk, second: &Chunk| {
            let mut builder = TrajectoryBuilder::new();
            builder.slice(first, 0, 1, 1);
            builder.slice(second, 0, 0, 2);
            builder.end_column(false);
            builder.slice(second, 0, 1, 1);
            builder.end_column(true);
            builder.finish().unwrap()
        };
        let columns = of(&a, &b).many_chunk_columns().unwrap();
        let moved = columns.of([c.clone(), d.clone()].into());
        assert_eq!(moved.decode().unwrap(), of(&c, &d).decode().unwrap());
        assert_eq!(moved.chunk_bytes(), of(&c, &d).chunk_bytes());
        moved.validate().unwrap();
        let mut builder = TrajectoryBuilder::new();
        builder.slice(&a, 0, 0, 1);
        builder.end_column(false);
        assert!(builder.finish().unwrap().many_chunk_columns().is_none());
    }

    #[test]
    fn strided_permuted_and_repeated_references_come_back_as_written() {
        let (a, b) = (chunk(1, &[10, 11, 12, 13]), chunk(2, &[20, 21]));
        for order in [vec![(0, 3), (0, 0), (0, 1), (0, 3)], vec![(1, 1), (0, 0), (0, 2), (1, 0)]] {
            let mut builder = TrajectoryBuilder::new();
            for &(which, offset) in &order {
                builder.slice([&a, &b][which], 0, offset, 1);
            }
            builder.end_column(false);
            let expected = order
                .iter()
                .map(|&(which, at)| [[10, 11, 12, 13], [20, 21, 0, 0]][which][at])
                .collect();
            let trajectory = builder.finish().unwrap();
            trajectory.validate().unwrap();
            assert_eq!(trajectory.decode().unwrap()[0].data, TensorData::Bytes(expected));
        }
    }

    #[test]
    fn neighbours_are_merged_and_chunks_listed_once() {
        let a = chunk(1, &[1, 2, 3]);
        let mut builder = TrajectoryBuilder::new();
        (0..3).for_each(|i| builder.slice(&a, 0, i, 1));
        builder.end_column(false);
        builder.slice(&a, 0, 2, 1);
        builder.end_column(true);
        let trajectory = builder.finish().unwrap();
        assert_eq!(trajectory.chunks().len(), 1);
        let columns: Vec<_> = trajectory.columns().collect();
        assert_eq!(
            columns[0].slices().collect::<Vec<_>>(),
            [Slice { chunk: 0, tensor: 0, offset: 0, length: 3 }]
        );
        assert!(columns[1].squeeze);
        assert_eq!(trajectory.decode().unwrap()[1].shape.as_slice(), [] as [usize; 0]);
    }

    #[test]
    fn a_selection_has_its_columns_and_their_chunks_alone() {
        let (a, b) = (chunk(1, &[1, 2, 3]), chunk(2, &[4, 5]));
        let mut builder = TrajectoryBuilder::new();
        builder.slice(&a, 0, 0, 2);
        builder.end_column(false);
        builder.slice(&b, 0, 1, 1);
        builder.end_column(true);
        let whole = builder.finish().unwrap();
        let second = builder.select(&whole, &[1]).unwrap();
        assert_eq!(second.chunks().len(), 1);
        assert_eq!(second.decode().unwrap(), [whole.decode().unwrap().remove(1)]);
        let error = builder.select(&whole, &[0, 2]).unwrap_err();
        assert_eq!(error.message(), "columns has column 2, but an item has 2 columns.");
        assert_eq!(builder.select(&whole, &[0, 1]).unwrap().decode(), whole.decode());
    }

    #[test]
    fn repeated_slices_are_there_that_often_and_are_not_stored() {
        let a = chunk(1, &[1, 2, 3]);
        let mut builder = TrajectoryBuilder::new();
        let slice = Slice { chunk: 0, tensor: 0, offset: 1, length: 2 };
        builder.slice(&a, 0, 0, 1);
        builder.run(&a, Run { slice, times: 3 });
        builder.end_column(false);
        let trajectory = builder.finish().unwrap();
        let column = trajectory.columns().next().unwrap();
        assert_eq!((column.num_steps(), column.slices().count()), (7, 4));
        assert!(column.single_slice().is_none() && trajectory.one_chunk_columns().is_none());
        let decoded = trajectory.decode().unwrap().remove(0);
        assert_eq!(decoded.data, TensorData::Bytes(vec![1, 2, 3, 2, 3, 2, 3]));
        let error = trajectory.validate().unwrap_err();
        assert_eq!(error.message(), "A slice of an item cannot be repeated, `times` is 3.");
        // The builder forgets it.
        builder.slice(&a, 0, 0, 1);
        builder.end_column(false);
        assert!(builder.finish().unwrap().one_chunk_columns().is_some());
    }

    #[test]
    fn strings_of_repeated_slices_count_each_time() {
        let mut chunk = ChunkBuilder::new(false);
        let data = TensorData::Strings(vec![b"ab".to_vec(), b"c".to_vec()]);
        chunk.push(&Tensor { dtype: DType::String, shape: Shape::from_slice(&[2]), data });
        let chunk = chunk.finish(1, SequenceRange::default());
        let mut builder = TrajectoryBuilder::new();
        let slice = Slice { chunk: 0, tensor: 0, offset: 0, length: 2 };
        builder.run(&chunk, Run { slice, times: 3 });
        builder.end_column(false);
        let trajectory = builder.finish().unwrap();
        let column = trajectory.columns().next().unwrap();
        let mut room = 1_000;
        let decoded = trajectory.decode_column_within(&column, &mut room).unwrap();
        assert_eq!(decoded.shape[..], [6]);
        let once = 1_000 - room;
        assert_eq!(once % 3, 0);
        assert!(trajectory.decode_column_within(&column, &mut { once - 1 }).is_err());
        assert!(trajectory.decode_column_within(&column, &mut { once }).is_ok());
    }

    #[test]
    fn slices_outside_a_chunk_are_refused() {
        let a = chunk(1, &[1, 2, 3]);
        let mut builder = TrajectoryBuilder::new();
        builder.slice(&a, 0, 1, 3);
        builder.end_column(false);
        let error = builder.finish().unwrap().validate().unwrap_err();
        assert_eq!(error.message(), "Cannot slice steps [1, 1 + 3) from a chunk of 3 steps.");
        assert!(TrajectoryBuilder::new().finish().is_err());
    }

    #[test]
    fn slices_without_steps_are_refused_wherever_they_are() {
        let a = chunk(1, &[1, 2, 3]);
        for slices in [vec![(0, 0)], vec![(0, 3), (3, 0)], vec![(1, 0), (1, 2)]] {
            let mut builder = TrajectoryBuilder::new();
            for (offset, length) in slices {
                builder.slice(&a, 0, offset, length);
            }
            builder.end_column(false);
            let error = builder.finish().unwrap().validate().unwrap_err();
            let text = "A slice of a chunk must have at least 1 step, its length is 0.";
            assert_eq!(error.message(), text);
        }
    }

    #[test]
    fn all_chunks_can_be_replaced() {
        for (num_chunks, num_slices) in [(1, 1), (1, 200), (3, 5), (100, 200), (100, 600)] {
            let of = |seed: u8| {
                let chunks: Vec<Chunk> =
                    (0..num_chunks).map(|i| chunk(i, &[i as u8 ^ seed; 3])).collect();
                let mut builder = TrajectoryBuilder::new();
                for at in 0..num_slices {
                    builder.slice(&chunks[at % chunks.len()], 0, at % 3, 1);
                    builder.slice(&chunks[at % chunks.len()], 0, (at + 1) % 3, 1);
                }
                builder.end_column(false);
                builder.finish().unwrap()
            };
            let (one, another) = (of(0), of(99));
            let replaced = one.with_chunks(another.chunks().to_vec());
            assert_eq!(replaced.stored_columns(), one.stored_columns());
            assert_eq!(replaced.decode(), another.decode());
            assert_eq!(replaced.bytes(), one.bytes());
            assert_eq!(replaced.chunk_bytes(), one.chunk_bytes());
            assert_eq!(replaced.index().is_some(), num_slices >= 200);
        }
    }

    #[test]
    fn many_chunks_are_found_again() {
        let chunks: Vec<Chunk> = (0..100).map(|i| chunk(i, &[i as u8])).collect();
        let mut builder = TrajectoryBuilder::new();
        for chunk in chunks.iter().chain(&chunks) {
            builder.slice(chunk, 0, 0, 1);
        }
        builder.end_column(false);
        let trajectory = builder.finish().unwrap();
        assert_eq!(trajectory.chunks().len(), 100);
        assert_eq!(trajectory.decode().unwrap()[0].shape.as_slice(), [200]);
    }
}
