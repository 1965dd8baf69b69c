// SPDX-License-Identifier: Apache-2.0
//! Blocks: cells that become a chunk.
//!
//! Cells are appended to the plain buffers of an open block. A frozen block does not change any
//! more. Closing encodes it, in the task of the send queue, and large blocks outside the lock, so
//! that `append` never waits for compression.

mod block_ref;
mod buffers;
mod columns;
mod step_block;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use reverb_base::Result;
use reverb_data::codec::{put_compressed_tensor, put_string_tensor, put_tensor};
use reverb_data::{Chunk, SequenceRange, TensorData};
use smallvec::{SmallVec, smallvec};

pub(in crate::writer) use self::block_ref::{BlockRef, WeakBlockRef};
use self::buffers::{Buffers, Raw, Rows};
use self::columns::BlockTemplate;
pub(in crate::writer) use self::columns::{BlockColumn, BlockColumns};
pub(in crate::writer) use self::step_block::StepBlock;
use super::cell::CellValue;
use super::chunk_template::ChunkTemplate;

/// Number of columns whose state is kept inside a block.
const FEW_COLUMNS: usize = 8;
/// Size of blocks from which they are encoded outside the lock.
const MAX_LOCKED_BYTES: usize = 4096;

/// The state of a block's column that is accessible without the lock.
#[derive(Debug, Default)]
struct Marks {
    /// Cells below this index have left the history.
    expired_below: AtomicU32,
    /// Cells below this index are counted in the waiting bytes of a send queue.
    queued_below: AtomicU32,
}

#[derive(Debug)]
enum State {
    Open(Buffers),
    Frozen(Buffers),
    /// Frozen, and being encoded by a thread.
    Encoding(Arc<Buffers>),
    Closed,
}

impl State {
    /// Freezes an open block if `is_due`.
    fn freeze_if(&mut self, is_due: bool) -> Appended {
        match self {
            State::Open(buffers) if is_due => {
                *self = State::Frozen(buffers.take());
                Appended::AndFroze
            }
            _ => Appended::AndOpen,
        }
    }
}

/// Result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Not appended: the block accepts no more cells.
    Nothing,
    /// Appended, and the block accepts more cells.
    AndOpen,
    /// Appended, and the block accepts no more cells.
    AndFroze,
}

/// Index of the chunk, and of the tensor in the chunk, for each column of a closed block.
pub(in crate::writer) type TensorPositions = SmallVec<[(u16, u16); FEW_COLUMNS]>;

/// Chunks of a closed block, with the positions of its columns.
#[derive(Debug)]
struct Closed {
    chunks: SmallVec<[Chunk; 1]>,
    positions: TensorPositions,
}

/// An unfinished chunk of one column, or of several small ones.
#[derive(Debug)]
pub struct Block {
    columns: Arc<BlockColumns>,
    marks: SmallVec<[Marks; FEW_COLUMNS]>,
    /// Cells below this index have left the history, in every column.
    rows_expired_below: AtomicU32,
    episode_id: u64,
    /// True if items wait until the owner freezes the block (fixed chunk lengths).
    gated: bool,
    state: Mutex<State>,
    /// Set, under the lock, when the block is encoded.
    closed: OnceLock<Closed>,
}

impl Block {
    /// An open block of the given columns.
    pub fn new(columns: &Arc<BlockColumns>, episode_id: u64, gated: bool) -> Arc<Self> {
        let marks = match columns.as_slice().len() {
            len @ ..=FEW_COLUMNS => SmallVec::from_buf_and_len(Default::default(), len),
            len => std::iter::repeat_with(Marks::default).take(len).collect(),
        };
        let state = Mutex::new(State::Open(Buffers::new(columns)));
        let columns = Arc::clone(columns);
        let closed = OnceLock::new();
        let rows_expired_below = AtomicU32::new(0);
        Arc::new(Self { columns, marks, rows_expired_below, episode_id, gated, state, closed })
    }

    /// Columns of the block.
    pub fn columns(&self) -> &[BlockColumn] {
        self.columns.as_slice()
    }

    /// Appends cells `(position of the column, value)` of one step, which must fit the specs.
    /// Freezes the block if a column then has `limit` cells.
    ///
    /// Calls `placed` with each cell's column and index. Does nothing if the block is not open.
    pub fn append(
        &self,
        step: i32,
        cells: &mut [(usize, &mut CellValue<'_>)],
        limit: usize,
        mut placed: impl FnMut(usize, u32),
    ) -> Appended {
        let mut state = self.state.lock();
        let State::Open(buffers) = &mut *state else { return Appended::Nothing };
        let mut longest = 0;
        buffers.append(&self.columns, step, cells, &mut |position, index| {
            longest = longest.max(index as usize + 1);
            placed(position, index);
        });
        state.freeze_if(longest >= limit)
    }

    /// Faster form of `append` for cells of every column in order, in a block of rows. Also returns
    /// their index. Does nothing for other blocks.
    pub(in crate::writer) fn append_row<'v>(
        &self,
        step: i32,
        cells: impl Iterator<Item = &'v CellValue<'v>>,
        limit: usize,
    ) -> (Appended, u32) {
        let mut state = self.state.lock();
        let State::Open(Buffers::Rows(rows)) = &mut *state else { return (Appended::Nothing, 0) };
        let index = rows.append(&self.columns, step, cells);
        (state.freeze_if(index as usize + 1 >= limit), index)
    }

    /// Number of cells in the column at `position`, 0 if the block is not open.
    pub fn open_len(&self, position: usize) -> usize {
        match &*self.state.lock() {
            State::Open(buffers) => buffers.steps(position).len(),
            _ => 0,
        }
    }

    /// Ends the open phase: later cells go to another block. Returns true if the block was open.
    pub fn freeze(&self) -> bool {
        let mut state = self.state.lock();
        matches!(*state, State::Open(_)) && state.freeze_if(true) == Appended::AndFroze
    }

    /// True if items must wait until the block is frozen.
    pub fn is_gated(&self) -> bool {
        self.gated
    }

    /// True if items that refer to this block may be sent now.
    pub fn is_ready(&self) -> bool {
        !self.gated || !matches!(&*self.state.lock(), State::Open(_))
    }

    /// Positions of the cells in their chunks. Encodes the block if necessary.
    pub(in crate::writer) fn closed(&self, next_key: &mut dyn FnMut() -> u64) -> ClosedRef<'_> {
        self.closed.get().unwrap_or_else(|| self.close(next_key)).as_ref()
    }

    fn close(&self, next_key: &mut dyn FnMut() -> u64) -> &Closed {
        let mut state = self.state.lock();
        let buffers = match &mut *state {
            State::Closed => return self.closed.get().expect("set under the lock"),
            State::Encoding(buffers) => Arc::clone(buffers),
            State::Open(buffers) | State::Frozen(buffers) => {
                let buffers = buffers.take().completed(&self.columns);
                if buffers.num_bytes() <= MAX_LOCKED_BYTES {
                    *state = State::Closed;
                    return self.closed.get_or_init(|| self.encode(&buffers, next_key));
                }
                let buffers = Arc::new(buffers);
                *state = State::Encoding(Arc::clone(&buffers));
                buffers
            }
        };
        drop(state);
        let encoded = self.encode(&buffers, next_key);
        let mut state = self.state.lock();
        *state = State::Closed;
        // Another thread may have been faster. Its result is kept, because its keys may be in use.
        self.closed.get_or_init(|| encoded)
    }

    /// Records that cells below an index are queued; returns the number of new ones.
    pub fn mark_queued(&self, position: usize, below: u32) -> u32 {
        let queued_below = &self.marks[position].queued_below;
        let before = queued_below.load(Ordering::Relaxed);
        // Two threads at the same time may count cells twice; an atomic addition is much slower.
        if before < below {
            queued_below.store(below, Ordering::Relaxed);
        }
        below.saturating_sub(before)
    }

    /// Encodes the cells. Columns with cells at the same steps share a chunk, unless items refer to
    /// only one of them, because a chunk is always sent as a whole.
    fn encode(&self, buffers: &Buffers, next_key: &mut dyn FnMut() -> u64) -> Closed {
        if let Buffers::Raw(raw) = buffers {
            return self.encode_raw(raw, next_key);
        }
        let columns = self.columns();
        // Rows, if all columns fit one chunk.
        let rows = match buffers {
            Buffers::Rows(rows) if !rows.steps.is_empty() => {
                self.columns.are_referenced_alike().then_some(rows)
            }
            _ => None,
        };
        if let Some(closed) = rows.and_then(|rows| self.encode_by_template(rows, next_key)) {
            return closed;
        }
        let mut positions: TensorPositions = SmallVec::from_elem((u16::MAX, 0), columns.len());
        let mut chunks: SmallVec<[Chunk; 1]> = SmallVec::new();
        for first in 0..columns.len() {
            let steps = buffers.steps(first);
            if positions[first].0 != u16::MAX || steps.is_empty() {
                continue;
            }
            let referenced = columns[first].is_referenced();
            let mut data = Vec::new();
            let mut tensors = 0;
            for position in first..columns.len() {
                if positions[position].0 != u16::MAX
                    || buffers.steps(position) != steps
                    || columns[position].is_referenced() != referenced
                {
                    continue;
                }
                positions[position] = (chunks.len() as u16, tensors);
                tensors += 1;
                self.put_column(&mut data, position, buffers);
            }
            let key = next_key();
            let range = self.range(steps);
            let mut maker = self.columns.encoders.chunk_maker.lock();
            chunks.push(maker.make_of(key, range, self.columns.encoding.delta, data));
        }
        if let (Some(rows), [chunk]) = (rows, &chunks[..]) {
            self.learn_template(rows, chunk);
        }
        Closed { chunks, positions }
    }

    fn encode_raw(&self, raw: &Raw, next_key: &mut dyn FnMut() -> u64) -> Closed {
        let spec = &self.columns()[0].spec;
        let shape = spec.shape_of_rows(raw.steps.len());
        let mut compressed = Vec::new();
        let compression = self.columns.encoding.compression;
        let pays =
            put_compressed_tensor(&mut compressed, spec.dtype, &shape, raw.cells(), compression);
        let payload = if pays { compressed.into() } else { raw.payload.clone() };
        let chunk = Chunk::new(next_key(), self.range(&raw.steps), false, payload);
        Closed { chunks: smallvec![chunk], positions: smallvec![(0, 0)] }
    }

    /// Encodes full rows by the template of an earlier chunk with other values.
    fn encode_by_template(&self, rows: &Rows, next_key: &mut dyn FnMut() -> u64) -> Option<Closed> {
        let num_rows = rows.steps.len();
        let mut templates = self.columns.encoders.templates.lock();
        let BlockTemplate { template, .. } = templates.find(|known| known.num_rows == num_rows)?;
        let key = next_key();
        let range = self.range(&rows.steps);
        let copy = |column, out: &mut [u8]| rows.copy_column(&self.columns, column, out);
        let chunk = template.fill(key, range, copy);
        let positions = (0..self.marks.len()).map(|tensor| (0, tensor as u16)).collect();
        Some(Closed { chunks: smallvec![chunk], positions })
    }

    /// Keeps the chunk of these rows as a template.
    fn learn_template(&self, rows: &Rows, chunk: &Chunk) {
        let num_rows = rows.steps.len();
        if self.columns.are_stored_raw(num_rows) {
            self.columns.encoders.templates.lock().learn(|| {
                let template = ChunkTemplate::new(chunk, self.marks.len(), num_rows)?;
                Some(BlockTemplate { num_rows, template })
            });
        }
    }

    fn range(&self, steps: &[i32]) -> SequenceRange {
        let start = steps[0];
        let end = steps[steps.len() - 1];
        let sparse = (end - start) as usize + 1 != steps.len();
        SequenceRange { episode_id: self.episode_id, start, end, sparse }
    }

    fn put_column(&self, data: &mut Vec<u8>, position: usize, buffers: &Buffers) {
        let spec = &self.columns()[position].spec;
        let shape = spec.shape_of_rows(buffers.steps(position).len());
        let mut put = |bytes| put_tensor(data, spec.dtype, &shape, bytes, self.columns.encoding);
        match buffers {
            Buffers::Rows(rows) => put(&rows.column(&self.columns, position)),
            Buffers::Raw(raw) => put(raw.cells()),
            Buffers::Columns(columns) => match &columns[position].data {
                TensorData::Bytes(bytes) => put(bytes),
                TensorData::Strings(strings) => put_string_tensor(data, &shape, strings),
            },
        }
    }

    /// The values of a cell.
    pub(in crate::writer) fn cell(&self, position: usize, index: usize) -> Result<TensorData> {
        let read = |buffers: &Buffers| Ok(buffers.cell(&self.columns, position, index));
        let (chunk, tensor) = match &*self.state.lock() {
            State::Open(buffers) | State::Frozen(buffers) => return read(buffers),
            State::Encoding(buffers) => return read(buffers),
            State::Closed => {
                let closed = self.closed.get().expect("set under the lock");
                closed.as_ref().chunk_and_tensor(position)
            }
        };
        Ok(chunk.tensor(tensor)?.rows(index, 1)?.data)
    }

    /// True if a cell has left the history.
    pub(in crate::writer) fn is_expired(&self, position: usize, index: u32) -> bool {
        index < self.rows_expired_below.load(Ordering::Acquire)
            || index < self.marks[position].expired_below.load(Ordering::Acquire)
    }

    /// Marks all cells below this index as expired, in every column of a block with rows. Only
    /// called by the owner of the block's history.
    pub(in crate::writer) fn expire_rows_below(&self, index: u32) {
        self.rows_expired_below.store(index, Ordering::Release);
    }

    /// Marks all cells of a column below this index as expired. Only called by the owner of the
    /// block's history.
    pub(in crate::writer) fn expire_below(&self, position: usize, index: u32) {
        let expired_below = &self.marks[position].expired_below;
        if expired_below.load(Ordering::Relaxed) < index {
            expired_below.store(index, Ordering::Release);
        }
    }
}

impl Closed {
    fn as_ref(&self) -> ClosedRef<'_> {
        ClosedRef { chunks: &self.chunks, positions: &self.positions }
    }
}

/// Chunks of a closed block, or of a row of a step, with the positions of the columns.
#[derive(Debug, Clone, Copy)]
pub(in crate::writer) struct ClosedRef<'a> {
    chunks: &'a [Chunk],
    positions: &'a TensorPositions,
}

impl<'a> ClosedRef<'a> {
    /// The chunk of all columns, if there is only one, and the positions of the columns.
    pub(super) fn only_chunk(self) -> Option<(&'a Chunk, &'a TensorPositions)> {
        match self.chunks {
            [chunk] => Some((chunk, self.positions)),
            _ => None,
        }
    }

    /// A column's chunk, and the position of its tensor in the chunk.
    pub(in crate::writer) fn chunk_and_tensor(self, position: usize) -> (&'a Chunk, usize) {
        let (chunk, tensor) = self.positions[position];
        (&self.chunks[usize::from(chunk)], usize::from(tensor))
    }
}

#[cfg(test)]
mod tests;
