// SPDX-License-Identifier: Apache-2.0
//! Cells, and the blocks that collect them.
//!
//! A block becomes a chunk. While it is open, cells are appended to plain buffers, one per column.
//! Once it is frozen, nothing changes any more. Closing encodes it, in the task of the send queue
//! and outside the lock, so that `append` never waits for compression.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use reverb_data::codec::{put_string_tensor, put_tensor};
use reverb_data::tensor::shape_text;
use reverb_data::{Chunk, DType, Error, Result, SequenceRange, Shape, Tensor, TensorData};
use smallvec::SmallVec;

/// Type and shape of every cell of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellSpec {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape of one cell.
    pub shape: Shape,
}

impl CellSpec {
    /// Bytes of one cell; 0 for strings.
    pub fn num_bytes(&self) -> usize {
        Tensor::num_bytes(self.dtype, &self.shape).unwrap_or(0)
    }
}

/// One value for one column, still owned by the caller.
#[derive(Debug)]
pub enum CellValue<'a> {
    /// Elements of a fixed size, row-major.
    Bytes {
        /// Type of the elements.
        dtype: DType,
        /// Shape of the cell.
        shape: &'a [usize],
        /// The elements.
        bytes: &'a [u8],
    },
    /// Strings.
    Strings {
        /// Shape of the cell.
        shape: &'a [usize],
        /// The elements.
        strings: Vec<Vec<u8>>,
    },
}

impl CellValue<'_> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            CellValue::Bytes { dtype, .. } => *dtype,
            CellValue::Strings { .. } => DType::String,
        }
    }

    /// Shape of the cell.
    pub fn shape(&self) -> &[usize] {
        match self {
            CellValue::Bytes { shape, .. } | CellValue::Strings { shape, .. } => shape,
        }
    }

    /// The spec of a column whose first cell this is.
    pub fn spec(&self) -> CellSpec {
        CellSpec { dtype: self.dtype(), shape: Shape::from_slice(self.shape()) }
    }

    /// Row `i` of a value whose first dimension is `num_rows`.
    pub fn row(&self, i: usize, num_rows: usize) -> CellValue<'_> {
        match self {
            CellValue::Bytes { dtype, shape, bytes } => {
                let size = bytes.len() / num_rows;
                let bytes = &bytes[i * size..(i + 1) * size];
                CellValue::Bytes { dtype: *dtype, shape: &shape[1..], bytes }
            }
            CellValue::Strings { shape, strings } => {
                let size = strings.len() / num_rows;
                let strings = strings[i * size..(i + 1) * size].to_vec();
                CellValue::Strings { shape: &shape[1..], strings }
            }
        }
    }

    /// Checks the value against its column's spec; `column` names the column in the error.
    pub fn check(&self, spec: &CellSpec, column: &dyn std::fmt::Display) -> Result<()> {
        if self.dtype() != spec.dtype {
            return Err(Error::signature_mismatch(format!(
                "Tensor of wrong dtype provided for column {column}. Got {} but expected {}.",
                self.dtype().name(),
                spec.dtype.name(),
            )));
        }
        if self.shape() != spec.shape.as_slice() {
            return Err(Error::signature_mismatch(format!(
                "Tensor of incompatible shape provided for column {column}. Got {} which is incompatible with {}.",
                shape_text(self.shape()),
                shape_text(&spec.shape),
            )));
        }
        Ok(())
    }
}

/// The cells of one column in a block.
#[derive(Debug)]
struct TensorBuffer {
    /// Each cell's step in the episode.
    steps: Vec<i32>,
    data: TensorData,
}

#[derive(Debug)]
enum State {
    Open(Vec<TensorBuffer>),
    Frozen(Arc<Vec<TensorBuffer>>),
    Closed(Closed),
}

/// Where the cells of a closed block are.
#[derive(Debug, Clone)]
struct Closed {
    chunks: SmallVec<[Chunk; 1]>,
    /// For each column of the block: the index of its chunk, and of its tensor in the chunk.
    positions: SmallVec<[(u16, u16); 4]>,
}

/// State of a block's column that is accessible without the lock.
#[derive(Debug)]
pub struct BlockColumn {
    /// Type and shape of the cells.
    pub spec: Arc<CellSpec>,
    /// Whether any item refers to the column. All blocks of a column share the flag.
    pub referenced: Arc<AtomicBool>,
    /// Cells below this index have left the history.
    expired_below: AtomicU32,
    /// Whether the cells are counted in the waiting bytes of a send queue.
    queued: AtomicBool,
}

/// An unfinished chunk, of one column or of several small ones.
#[derive(Debug)]
pub struct Block {
    columns: SmallVec<[BlockColumn; 4]>,
    episode_id: u64,
    delta: bool,
    /// Whether items must wait until the owner freezes the block (fixed chunk lengths).
    gated: bool,
    state: Mutex<State>,
}

impl Block {
    /// An open block of the given columns.
    pub fn new(
        columns: impl IntoIterator<Item = (Arc<CellSpec>, Arc<AtomicBool>)>,
        episode_id: u64,
        gated: bool,
        delta: bool,
    ) -> Arc<Self> {
        let columns: SmallVec<[BlockColumn; 4]> = columns
            .into_iter()
            .map(|(spec, referenced)| BlockColumn {
                spec,
                referenced,
                expired_below: AtomicU32::new(0),
                queued: AtomicBool::new(false),
            })
            .collect();
        let buffers = columns.iter().map(|column| TensorBuffer {
            steps: Vec::new(),
            data: match column.spec.dtype {
                DType::String => TensorData::Strings(Vec::new()),
                _ => TensorData::Bytes(Vec::new()),
            },
        });
        let state = Mutex::new(State::Open(buffers.collect()));
        Arc::new(Self { columns, episode_id, delta, gated, state })
    }

    /// Its columns.
    pub fn columns(&self) -> &[BlockColumn] {
        &self.columns
    }

    /// Appends cells `(position of the column, value)` of one step; the values must fit the specs.
    ///
    /// Calls `placed` with each cell's column and index. Returns `false`, and does nothing, if the
    /// block is not open any more.
    pub fn append<'c, 'v: 'c>(
        &self,
        step: i32,
        cells: impl Iterator<Item = (usize, &'c mut CellValue<'v>)>,
        mut placed: impl FnMut(usize, u32),
    ) -> bool {
        let mut state = self.state.lock();
        let State::Open(buffers) = &mut *state else { return false };
        for (position, value) in cells {
            let buffer = &mut buffers[position];
            placed(position, buffer.steps.len() as u32);
            buffer.push(step, value);
        }
        true
    }

    /// Number of cells in the column at `position`, 0 if the block is not open.
    pub fn open_len(&self, position: usize) -> usize {
        match &*self.state.lock() {
            State::Open(buffers) => buffers[position].steps.len(),
            _ => 0,
        }
    }

    /// Ends the open phase: later cells go to another block. Returns whether the block was open.
    pub fn freeze(&self) -> bool {
        let mut state = self.state.lock();
        if let State::Open(buffers) = &mut *state {
            *state = State::Frozen(Arc::new(std::mem::take(buffers)));
            return true;
        }
        false
    }

    /// Whether items that refer to this block may be sent now.
    pub fn is_ready(&self) -> bool {
        !self.gated || !matches!(&*self.state.lock(), State::Open(_))
    }

    /// A column's chunk, and the position of its tensor in the chunk. Encodes the block if
    /// necessary.
    pub fn chunk_of(&self, position: usize, next_key: &mut dyn FnMut() -> u64) -> (Chunk, usize) {
        let buffers = {
            let mut state = self.state.lock();
            match &mut *state {
                State::Closed(closed) => return closed.chunk_and_tensor(position),
                State::Frozen(buffers) => Arc::clone(buffers),
                State::Open(buffers) => {
                    let frozen = Arc::new(std::mem::take(buffers));
                    *state = State::Frozen(Arc::clone(&frozen));
                    frozen
                }
            }
        };
        let closed = self.encode(&buffers, next_key);
        let mut state = self.state.lock();
        // Another thread may have been faster. Its result is kept, because its keys may be in use.
        if let State::Closed(closed) = &*state {
            return closed.chunk_and_tensor(position);
        }
        let found = closed.chunk_and_tensor(position);
        *state = State::Closed(closed);
        found
    }

    /// Records that an item refers to the column at `position`; returns whether it is the first.
    pub fn mark_queued(&self, position: usize) -> bool {
        !self.columns[position].queued.swap(true, Ordering::Relaxed)
    }

    /// Whether `chunk` came from this block.
    pub fn holds(&self, chunk: &Chunk) -> bool {
        match &*self.state.lock() {
            State::Closed(closed) => closed.chunks.iter().any(|own| own.is_same(chunk)),
            _ => false,
        }
    }

    /// Columns with cells at the same steps share a chunk, unless items refer to only one of them:
    /// a chunk is always sent as a whole.
    fn encode(&self, buffers: &[TensorBuffer], next_key: &mut dyn FnMut() -> u64) -> Closed {
        let mut positions: SmallVec<[(u16, u16); 4]> =
            SmallVec::from_elem((u16::MAX, 0), buffers.len());
        let mut chunks = SmallVec::new();
        for first in 0..buffers.len() {
            if positions[first].0 != u16::MAX || buffers[first].steps.is_empty() {
                continue;
            }
            let steps = &buffers[first].steps;
            let referenced = self.columns[first].referenced.load(Ordering::Relaxed);
            let mut data = Vec::new();
            let mut tensors = 0;
            for position in first..buffers.len() {
                let buffer = &buffers[position];
                if positions[position].0 != u16::MAX
                    || buffer.steps != *steps
                    || self.columns[position].referenced.load(Ordering::Relaxed) != referenced
                {
                    continue;
                }
                positions[position] = (chunks.len() as u16, tensors);
                tensors += 1;
                self.put_buffer(&mut data, position, buffer);
            }
            let (start, end) = (steps[0], steps[steps.len() - 1]);
            let sparse = (end - start) as usize + 1 != steps.len();
            let range = SequenceRange { episode_id: self.episode_id, start, end, sparse };
            chunks.push(Chunk::new(next_key(), range, self.delta, data.into()));
        }
        Closed { chunks, positions }
    }

    fn put_buffer(&self, data: &mut Vec<u8>, position: usize, buffer: &TensorBuffer) {
        let spec = &self.columns[position].spec;
        let mut shape = Shape::with_capacity(spec.shape.len() + 1);
        shape.push(buffer.steps.len());
        shape.extend_from_slice(&spec.shape);
        match &buffer.data {
            TensorData::Bytes(bytes) => put_tensor(data, spec.dtype, &shape, bytes, self.delta),
            TensorData::Strings(strings) => put_string_tensor(data, &shape, strings),
        }
    }
}

impl TensorBuffer {
    fn push(&mut self, step: i32, value: &mut CellValue<'_>) {
        match (&mut self.data, value) {
            (TensorData::Bytes(buffer), CellValue::Bytes { bytes, .. }) => {
                buffer.extend_from_slice(bytes);
            }
            (TensorData::Strings(buffer), CellValue::Strings { strings, .. }) => {
                buffer.append(strings);
            }
            _ => unreachable!("the dtype was checked"),
        }
        self.steps.push(step);
    }

    fn row(&self, index: usize, spec: &CellSpec) -> TensorData {
        match &self.data {
            TensorData::Bytes(bytes) => {
                let size = spec.num_bytes();
                TensorData::Bytes(bytes[index * size..(index + 1) * size].to_vec())
            }
            TensorData::Strings(strings) => {
                let size = Tensor::num_elements(&spec.shape).unwrap_or(0);
                TensorData::Strings(strings[index * size..(index + 1) * size].to_vec())
            }
        }
    }
}

impl Closed {
    fn chunk_and_tensor(&self, position: usize) -> (Chunk, usize) {
        let (chunk, tensor) = self.positions[position];
        (self.chunks[usize::from(chunk)].clone(), usize::from(tensor))
    }
}

/// A reference to one cell. Keeps the cell's block in memory.
#[derive(Debug, Clone)]
pub struct CellRef {
    /// The block it is in.
    pub block: Arc<Block>,
    /// Its column in the block.
    pub position: u16,
    /// Its index in that column.
    pub index: u32,
}

impl CellRef {
    /// Type and shape of the cell.
    pub fn spec(&self) -> &Arc<CellSpec> {
        &self.block.columns[usize::from(self.position)].spec
    }

    /// Whether the cell has left its writer's history; new items must not use it then.
    pub fn is_expired(&self) -> bool {
        let column = &self.block.columns[usize::from(self.position)];
        self.index < column.expired_below.load(Ordering::Acquire)
    }

    /// Marks this cell and all before it in its block as expired.
    pub fn expire(&self) {
        let column = &self.block.columns[usize::from(self.position)];
        column.expired_below.fetch_max(self.index + 1, Ordering::AcqRel);
    }

    /// Records that an item refers to the column.
    pub fn mark_referenced(&self) {
        self.block.columns[usize::from(self.position)].referenced.store(true, Ordering::Relaxed);
    }

    /// Decodes the cell.
    pub fn read(&self) -> Result<Tensor> {
        let spec = self.spec();
        let position = usize::from(self.position);
        let index = self.index as usize;
        let data = match &*self.block.state.lock() {
            State::Open(buffers) => buffers[position].row(index, spec),
            State::Frozen(buffers) => buffers[position].row(index, spec),
            State::Closed(closed) => {
                let (chunk, tensor) = closed.chunk_and_tensor(position);
                chunk.tensor(tensor)?.rows(index, 1)?.data
            }
        };
        Ok(Tensor { dtype: spec.dtype, shape: spec.shape.clone(), data })
    }
}
