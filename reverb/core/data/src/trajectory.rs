// SPDX-License-Identifier: Apache-2.0
//! Trajectories: the columns of an item, as slices of chunks.

use std::collections::HashMap;
use std::fmt;

use smallvec::SmallVec;
use triomphe::ThinArc;

use crate::account::allocated_bytes;
use crate::chunk::{ARC_BYTES, Chunk};
use crate::codec::{no_memory, zeros};
use crate::columns::Columns;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::proto_bytes::{Reader, put_varint, put_varint_before};
use crate::tensor::{Shape, Tensor, TensorData};
use crate::tensor_memo::TensorMemo;

/// The columns of an item. Cloning shares it; the chunks live as long as any trajectory refers to
/// them.
///
/// Layout: the chunks, each once, in the order of first reference, and a byte string of varints:
/// per column `number of slices << 1 | squeeze`, then per slice `chunk ordinal, tensor, offset,
/// length`. Items of one chunk nearly always have the same string, which is kept once; others take
/// a few dozen bytes.
#[derive(Clone)]
pub struct Trajectory(TrajectoryContent);

/// What a trajectory consists of, for those who store millions.
#[derive(Debug, Clone)]
pub enum TrajectoryContent {
    /// The most common case by far takes no memory of its own.
    OfOneChunk(Chunk, OneChunkColumns),
    /// Any other.
    Stored(StoredTrajectory),
}

/// A trajectory with memory of its own. Cloning shares it.
#[derive(Clone)]
pub struct StoredTrajectory(ThinArc<Header, u8>);

struct Header {
    chunks: Chunks,
    num_columns: u32,
    /// Encoded bytes of all chunks, or the largest number if there are more.
    chunk_bytes: u32,
}

/// Most items refer to one chunk; that case needs no allocation of its own.
enum Chunks {
    One(Chunk),
    Many(Box<[Chunk]>),
}

/// The columns of an item of one chunk, without the chunk. Only columns that are kept once have
/// this; all but very long ones are.
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
    /// These columns of other chunks: as many as there were, in the same order, all different.
    pub fn of(&self, chunks: Box<[Chunk]>) -> Trajectory {
        debug_assert!(
            chunks
                .iter()
                .enumerate()
                .all(|(at, it)| chunks[..at].iter().all(|o| o.key() != it.key())),
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

    #[inline]
    fn header(&self) -> &Header {
        &self.0.header.header
    }

    /// The first chunk.
    #[inline]
    pub fn first_chunk(&self) -> Option<&Chunk> {
        self.header().chunks().first()
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

/// What a column takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSize {
    /// Type of the elements.
    pub dtype: DType,
    /// Its shape before squeezing, `[T, ...]`.
    pub shape: Shape,
    /// Bytes in memory; 0 for strings.
    pub num_bytes: usize,
}

/// A run of consecutive steps of one tensor of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Position of the chunk in `Trajectory::chunks`.
    pub chunk: usize,
    /// Position of the tensor in the chunk.
    pub tensor: usize,
    /// First step.
    pub offset: usize,
    /// Number of steps.
    pub length: usize,
}

/// One column. Its content is its slices, concatenated along the steps.
#[derive(Debug, Clone)]
pub struct Column<'a> {
    /// Whether the column is a single step without the leading dimension.
    pub squeeze: bool,
    num_slices: usize,
    reader: Reader<'a>,
}

impl Column<'_> {
    /// The slices in order.
    pub fn slices(&self) -> impl Iterator<Item = Slice> + use<'_> {
        let mut reader = self.reader.clone();
        (0..self.num_slices).map(move |_| read_slice(&mut reader))
    }

    /// The only slice of the column, if it has just one. That is the common case.
    pub fn single_slice(&self) -> Option<Slice> {
        (self.num_slices == 1).then(|| read_slice(&mut self.reader.clone()))
    }

    /// Number of slices.
    pub fn num_slices(&self) -> usize {
        self.num_slices
    }

    /// Number of steps.
    pub fn num_steps(&self) -> usize {
        self.slices().map(|slice| slice.length).sum()
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "a few instructions, called for every column of an item")]
fn read_slice(reader: &mut Reader<'_>) -> Slice {
    if let [chunk, tensor, offset, length, rest @ ..] = reader.rest()
        && (chunk | tensor | offset | length) & 0x80 == 0
    {
        *reader = Reader::new(rest);
        let [chunk, tensor, offset, length] =
            [chunk, tensor, offset, length].map(|&it| usize::from(it));
        return Slice { chunk, tensor, offset, length };
    }
    let mut next = || reader.varint().expect("the builder wrote this") as usize;
    Slice { chunk: next(), tensor: next(), offset: next(), length: next() }
}

/// Reads the slices of a trajectory one after another: of each of its columns, `column` and then
/// `slice` as often as that says.
#[derive(Debug)]
pub struct SliceReader<'a> {
    /// Number of columns, those that were read included.
    pub num_columns: usize,
    reader: Reader<'a>,
}

impl SliceReader<'_> {
    /// Whether the next column is squeezed, and how many slices it has.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[inline]
    pub fn column(&mut self) -> (bool, usize) {
        let head = self.reader.varint().expect("the builder wrote this");
        (head & 1 == 1, (head >> 1) as usize)
    }

    /// The next slice of the column.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[inline]
    pub fn slice(&mut self) -> Slice {
        read_slice(&mut self.reader)
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

    /// What it consists of.
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
                let (num_columns, columns) = (stored.header().num_columns, &stored.0.slice);
                Some(ManyChunkColumns { num_columns, columns: columns.into() })
            }
            _ => None,
        }
    }

    /// Number of columns; at least one.
    pub fn num_columns(&self) -> usize {
        let count = match &self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => columns.columns().len,
            TrajectoryContent::Stored(stored) => stored.header().num_columns,
        };
        count as usize
    }

    /// The columns in order.
    pub fn columns(&self) -> impl Iterator<Item = Column<'_>> {
        let mut reader = Reader::new(self.stored_columns());
        (0..self.num_columns()).map(move |_| {
            let head = reader.varint().expect("the builder wrote this");
            let num_slices = (head >> 1) as usize;
            let column = Column { squeeze: head & 1 == 1, num_slices, reader: reader.clone() };
            for _ in 0..num_slices {
                read_slice(&mut reader);
            }
            column
        })
    }

    /// Its columns and slices, each read once.
    #[inline]
    pub fn slices(&self) -> SliceReader<'_> {
        let (num_columns, columns) = match &self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => {
                let columns = columns.columns();
                (columns.len, &*columns.encoded)
            }
            TrajectoryContent::Stored(stored) => (stored.header().num_columns, &stored.0.slice),
        };
        SliceReader { num_columns: num_columns as usize, reader: Reader::new(columns) }
    }

    /// Its columns as they are stored. Trajectories with equal ones have the same columns, of the
    /// same steps of the same tensors, each of its own chunks.
    pub fn stored_columns(&self) -> &[u8] {
        match &self.0 {
            TrajectoryContent::OfOneChunk(_, columns) => &columns.columns().encoded,
            TrajectoryContent::Stored(stored) => &stored.0.slice,
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
                let num_columns = stored.header().num_columns;
                Self::stored(Chunks::One(chunk), num_columns, &stored.0.slice)
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

    /// Bytes that it takes itself, without its chunks.
    pub fn bytes(&self) -> u64 {
        let TrajectoryContent::Stored(stored) = &self.0 else { return 0 };
        let chunks = match &stored.header().chunks {
            Chunks::One(_) => 0,
            Chunks::Many(chunks) => allocated_bytes(size_of_val(&**chunks)),
        };
        let own = ARC_BYTES + size_of::<Header>() + stored.0.slice.len();
        (allocated_bytes(own) + chunks) as u64
    }

    /// Bytes that it takes with all its chunks.
    pub fn bytes_with_chunks(&self) -> u64 {
        self.bytes() + self.chunks().iter().map(Chunk::bytes).sum::<u64>()
    }

    /// Checks every slice against the tensor it refers to.
    pub fn validate(&self) -> Result<()> {
        self.validate_with(&mut TensorMemo::default())
    }

    /// Like [`Trajectory::validate`], for many trajectories one after another. The chunks of all of
    /// them must stay alive meanwhile.
    pub fn validate_with(&self, memo: &mut TensorMemo) -> Result<()> {
        for column in self.columns() {
            let mut kind: Option<(DType, Shape)> = None;
            for slice in column.slices() {
                if slice.length == 0 {
                    return Err(Error::invalid_argument(
                        "A slice of a chunk must have at least 1 step, its length is 0.",
                    ));
                }
                let tensor = memo.check(&self.chunks()[slice.chunk], slice)?;
                match &kind {
                    None => kind = Some((tensor.dtype, tensor.row_shape.clone())),
                    Some((dtype, shape))
                        if *dtype == tensor.dtype && *shape == tensor.row_shape => {}
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

    /// Decodes all columns.
    pub fn decode(&self) -> Result<Vec<Tensor>> {
        self.columns().map(|column| self.decode_column(&column)).collect()
    }

    /// Decodes one column: the concatenation of its slices, squeezed if `squeeze` is set.
    pub fn decode_column(&self, column: &Column<'_>) -> Result<Tensor> {
        self.decode_column_within(column, &mut { usize::MAX })
    }

    /// As `decode_column`. It may take `room` bytes, and what it takes is subtracted from it.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if there is not so much room, or no memory.
    pub fn decode_column_within(&self, column: &Column<'_>, room: &mut usize) -> Result<Tensor> {
        let ColumnSize { dtype, mut shape, num_bytes } = self.checked_column(column)?;
        let data = if dtype == DType::String {
            let mut strings = Vec::new();
            for slice in column.slices() {
                let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
                tensor.put_string_rows(slice.offset, slice.length, &mut strings, room)?;
            }
            TensorData::Strings(strings)
        } else {
            *room = room.checked_sub(num_bytes).ok_or_else(|| no_memory(num_bytes))?;
            let mut bytes = zeros(num_bytes)?;
            self.copy_column(column, &mut bytes)?;
            TensorData::Bytes(bytes)
        };
        if column.squeeze {
            shape.remove(0);
        }
        Ok(Tensor { dtype, shape, data })
    }

    /// As `column_spec`, after a look at each slice: all must have the same kind of steps, and
    /// their chunks must have room for those. To be called before memory is taken for a column:
    /// any number in it may be false.
    ///
    /// # Errors
    ///
    /// `DataLoss` or `InvalidArgument` that says what is wrong.
    pub fn checked_column(&self, column: &Column<'_>) -> Result<ColumnSize> {
        let (dtype, shape) = self.column_spec(column)?;
        let mut num_bytes = 0_usize;
        for slice in column.slices() {
            let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            if tensor.dtype != dtype || tensor.row_shape() != &shape[1..] {
                return Err(Error::data_loss(
                    "A column mixes chunks of different dtypes or shapes.",
                ));
            }
            tensor.check_rows(slice.offset, slice.length)?;
            let added = num_bytes.checked_add(tensor.plausible_bytes(slice.length)?);
            num_bytes = added.ok_or_else(|| no_memory(usize::MAX))?;
        }
        Ok(ColumnSize { dtype, shape, num_bytes })
    }

    /// Dtype and shape of a column before squeezing: `[T, ...]`.
    pub fn column_spec(&self, column: &Column<'_>) -> Result<(DType, Shape)> {
        let mut spec: Option<(DType, Shape)> = None;
        for slice in column.slices() {
            if let Some((_, shape)) = &mut spec {
                shape[0] = shape[0].saturating_add(slice.length);
                continue;
            }
            let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            let mut shape = tensor.shape.clone();
            if shape.is_empty() {
                return Err(Error::data_loss("A tensor in a chunk has no dimensions."));
            }
            shape[0] = slice.length;
            spec = Some((tensor.dtype, shape));
        }
        let (dtype, shape) =
            spec.ok_or_else(|| Error::invalid_argument("A column of the item has no slices."))?;
        if column.squeeze && shape[0] != 1 {
            return Err(Error::invalid_argument(format!(
                "A squeezed column must have exactly 1 step, it has {}.",
                shape[0]
            )));
        }
        Ok((dtype, shape))
    }

    /// Copies a column of fixed-size elements to `out`, which is exactly as long as the column.
    pub fn copy_column(&self, column: &Column<'_>, out: &mut [u8]) -> Result<()> {
        let mut rest = out;
        for slice in column.slices() {
            let tensor = self.chunks()[slice.chunk].tensor(slice.tensor)?;
            let length = tensor.row_bytes()?.saturating_mul(slice.length);
            let (head, tail) = rest
                .split_at_mut_checked(length)
                .ok_or_else(|| Error::data_loss("A column mixes chunks of different shapes."))?;
            tensor.copy_rows(slice.offset, slice.length, head)?;
            rest = tail;
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(Error::data_loss("A column mixes chunks of different shapes."))
        }
    }

    fn stored(chunks: Chunks, num_columns: u32, columns: &[u8]) -> Self {
        Self(TrajectoryContent::Stored(StoredTrajectory::new(chunks, num_columns, columns)))
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

/// Collects columns and slices. A slice that continues the previous one is merged with it, unless
/// one of them has no steps: `validate` has to find those. No other slices are merged.
#[derive(Debug, Default)]
pub struct TrajectoryBuilder {
    chunks: Vec<Chunk>,
    /// Filled only once there are enough chunks for a linear search to be slow.
    ordinals: HashMap<u64, usize>,
    columns: Vec<u8>,
    num_columns: u32,
    /// The column that is being built.
    open: OpenColumn,
    /// Those of the last trajectory of one chunk; nearly always the next one has the same.
    latest: Option<OneChunkColumns>,
}

/// A column that is being built. Its slices are written as they come, for there may be millions;
/// the last one is not, because it may grow.
#[derive(Debug, Default)]
struct OpenColumn {
    last: Option<Slice>,
    num_slices: usize,
    /// Where the column begins, once it has a written slice.
    begin: usize,
}

const MAX_LINEAR_SEARCH: usize = 16;

impl TrajectoryBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `length` steps from `offset` of a chunk's tensor to the column that is being built.
    pub fn slice(&mut self, chunk: &Chunk, tensor: usize, offset: usize, length: usize) {
        if let Some(last) = &mut self.open.last
            && last.tensor == tensor
            && last.offset + last.length == offset
            && last.length > 0
            && length > 0
            && self.chunks[last.chunk].key() == chunk.key()
        {
            last.length += length;
            return;
        }
        let chunk = self.ordinal(chunk);
        self.write_slice();
        self.open.last = Some(Slice { chunk, tensor, offset, length });
    }

    /// Ends the column that is being built.
    pub fn end_column(&mut self, squeeze: bool) {
        self.write_slice();
        let OpenColumn { num_slices, begin, .. } = std::mem::take(&mut self.open);
        let head = (num_slices as u64) << 1 | u64::from(squeeze);
        if num_slices == 0 {
            put_varint(&mut self.columns, head);
        } else {
            put_varint_before(&mut self.columns, begin, head);
        }
        self.num_columns += 1;
    }

    /// Writes the last slice, if there is one.
    fn write_slice(&mut self) {
        let Some(slice) = self.open.last.take() else { return };
        if self.open.num_slices == 0 {
            self.open.begin = self.columns.len();
            // The head of the column is known at its end.
            self.columns.push(0);
        }
        self.open.num_slices += 1;
        for number in [slice.chunk, slice.tensor, slice.offset, slice.length] {
            put_varint(&mut self.columns, number as u64);
        }
    }

    /// A trajectory of these columns of another one, and of no chunk that they do not need.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it has no such column.
    pub fn select(&mut self, trajectory: &Trajectory, columns: &[u32]) -> Result<Trajectory> {
        let all: SmallVec<[Column<'_>; 8]> = trajectory.columns().collect();
        for &at in columns {
            let Some(column) = all.get(at as usize) else {
                self.clear();
                return Err(Error::invalid_argument(format!(
                    "columns has column {at}, but an item has {} columns.",
                    all.len()
                )));
            };
            for Slice { chunk, tensor, offset, length } in column.slices() {
                self.slice(&trajectory.chunks()[chunk], tensor, offset, length);
            }
            self.end_column(column.squeeze);
        }
        self.finish()
    }

    /// Forgets what was added.
    fn clear(&mut self) {
        self.chunks.clear();
        self.ordinals.clear();
        self.columns.clear();
        self.open = OpenColumn::default();
        self.num_columns = 0;
    }

    /// The trajectory. The builder is empty then, and keeps its memory for the next one.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no column or no slice at all.
    pub fn finish(&mut self) -> Result<Trajectory> {
        let num_columns = std::mem::take(&mut self.num_columns);
        self.ordinals.clear();
        let trajectory = match self.chunks.len() {
            0 => Err(Error::invalid_argument("Item trajectory must not be empty.")),
            1 => {
                let chunk = self.chunks.swap_remove(0);
                let is_it = |latest: &OneChunkColumns| {
                    let columns = latest.columns();
                    columns.len == num_columns && *columns.encoded == *self.columns
                };
                if !self.latest.as_ref().is_some_and(is_it) {
                    let columns = Columns::intern(num_columns, &self.columns);
                    self.latest = columns.map(|columns| OneChunkColumns(columns.place));
                }
                Ok(match self.latest {
                    Some(columns) => columns.of(chunk),
                    None => Trajectory::stored(Chunks::One(chunk), num_columns, &self.columns),
                })
            }
            _ => {
                let chunks = Chunks::Many(self.chunks.drain(..).collect());
                Ok(Trajectory::stored(chunks, num_columns, &self.columns))
            }
        };
        self.columns.clear();
        trajectory
    }

    fn ordinal(&mut self, chunk: &Chunk) -> usize {
        let key = chunk.key();
        if self.chunks.len() <= MAX_LINEAR_SEARCH {
            if let Some(at) = self.chunks.iter().rposition(|known| known.key() == key) {
                return at;
            }
        } else {
            if self.ordinals.is_empty() {
                self.ordinals = self.chunks.iter().enumerate().map(|(i, c)| (c.key(), i)).collect();
            }
            if let Some(&at) = self.ordinals.get(&key) {
                return at;
            }
        }
        self.chunks.push(chunk.clone());
        if !self.ordinals.is_empty() {
            self.ordinals.insert(key, self.chunks.len() - 1);
        }
        self.chunks.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkBuilder, SequenceRange};

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
