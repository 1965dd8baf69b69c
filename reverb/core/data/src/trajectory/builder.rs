// SPDX-License-Identifier: Apache-2.0
//! Builds trajectories from slices of chunks.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::cut::NeededChunks;
use super::runs::REPEATED;
use super::{Chunks, Column, OneChunkColumns, Run, Slice, Trajectory};
use crate::chunk::Chunk;
use crate::proto_bytes::{put_varint, put_varint_over};
use crate::templates::columns::Columns;
use reverb_base::error::{Error, Result};

/// Collects columns and slices. A slice that continues the previous one is merged with it, unless
/// one of them has no steps: `validate` has to find those. No other slices are merged.
#[derive(Debug, Default)]
pub struct TrajectoryBuilder {
    chunks: Vec<Chunk>,
    /// Filled only once there are enough chunks for a linear search to be slow.
    ordinals: HashMap<u64, usize>,
    pub(super) columns: Vec<u8>,
    pub(super) num_columns: u32,
    open: OpenColumn,
    /// True if a slice is repeated.
    is_repeated: bool,
    /// Chunks of an item of which a part is cut.
    pub(super) needed: NeededChunks,
    /// Columns of the last trajectory of one chunk; nearly always the next one has the same.
    latest: Option<OneChunkColumns>,
}

/// A column that is being built. Its slices are written as they arrive, for there may be millions;
/// the last one is held back, because it may grow.
#[derive(Debug, Default)]
struct OpenColumn {
    last: Option<Slice>,
    num_runs: usize,
    /// Start of the column, once it has a written run.
    begin: usize,
}

/// Error for a requested column that an item lacks.
#[cold]
pub(super) fn no_column(at: u32, num_columns: usize) -> Error {
    Error::invalid_argument(format!(
        "columns has column {at}, but an item has {num_columns} columns."
    ))
}

/// Error for an item without a step.
#[cold]
pub(super) fn no_slice() -> Error {
    Error::invalid_argument("Item trajectory must not be empty.")
}

/// Appends a run to the column that is being built.
#[inline]
pub(super) fn put_run(columns: &mut Vec<u8>, run: Run) {
    let Run { slice: Slice { chunk, tensor, offset, length }, times } = run;
    put_varint(columns, chunk as u64);
    let tensor = tensor << 1;
    if times == 1 && tensor | offset | length < 0x80 {
        columns.extend_from_slice(&[tensor as u8, offset as u8, length as u8]);
        return;
    }
    let is_repeated = if times == 1 { 0 } else { REPEATED };
    for number in [tensor as u64 | is_repeated, offset as u64, length as u64] {
        put_varint(columns, number);
    }
    if times != 1 {
        put_varint(columns, times as u64);
    }
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

    /// Adds a run to the column that is being built: its slice is of this chunk.
    pub fn run(&mut self, chunk: &Chunk, run: Run) {
        let Run { slice: Slice { tensor, offset, length, .. }, times } = run;
        if times == 1 {
            return self.slice(chunk, tensor, offset, length);
        }
        let slice = Slice { chunk: self.ordinal(chunk), tensor, offset, length };
        self.write_slice();
        self.write(Run { slice, times });
        self.is_repeated = true;
    }

    /// Ends the column that is being built.
    pub fn end_column(&mut self, squeeze: bool) {
        self.write_slice();
        let OpenColumn { num_runs, begin, .. } = std::mem::take(&mut self.open);
        let head = (num_runs as u64) << 1 | u64::from(squeeze);
        if num_runs == 0 {
            put_varint(&mut self.columns, head);
        } else {
            put_varint_over::<1>(&mut self.columns, begin, head);
        }
        self.num_columns += 1;
    }

    fn write_slice(&mut self) {
        if let Some(slice) = self.open.last.take() {
            self.write(Run { slice, times: 1 });
        }
    }

    fn write(&mut self, run: Run) {
        if self.open.num_runs == 0 {
            self.open.begin = self.columns.len();
            // The head of the column is known at its end.
            self.columns.push(0);
        }
        self.open.num_runs += 1;
        put_run(&mut self.columns, run);
    }

    /// A trajectory of some columns of another one, with only the chunks that they need.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it has no such column.
    pub fn select(&mut self, trajectory: &Trajectory, columns: &[u32]) -> Result<Trajectory> {
        let all: SmallVec<[Column<'_>; 8]> = trajectory.columns().collect();
        for &at in columns {
            let Some(column) = all.get(at as usize) else {
                self.clear();
                return Err(no_column(at, all.len()));
            };
            for run in column.runs() {
                self.run(&trajectory.chunks()[run.slice.chunk], run);
            }
            self.end_column(column.squeeze);
        }
        self.finish()
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.ordinals.clear();
        self.columns.clear();
        self.open = OpenColumn::default();
        self.is_repeated = false;
        self.num_columns = 0;
    }

    /// Builds the trajectory. The builder is empty then, and keeps its memory for the next one.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no column or no slice at all.
    pub fn finish(&mut self) -> Result<Trajectory> {
        let num_columns = std::mem::take(&mut self.num_columns);
        self.ordinals.clear();
        let is_repeated = std::mem::take(&mut self.is_repeated);
        let trajectory = match self.chunks.len() {
            0 => Err(no_slice()),
            // A padded window is read once, and others have other numbers: nothing is interned.
            1 if is_repeated => {
                let chunk = Chunks::One(self.chunks.swap_remove(0));
                Ok(Trajectory::part(chunk, num_columns, &self.columns))
            }
            1 => {
                let chunk = self.chunks.swap_remove(0);
                let is_it = |latest: &OneChunkColumns| {
                    let columns = latest.columns();
                    columns.len == num_columns && *columns.encoded == *self.columns
                };
                if !self.latest.as_ref().is_some_and(is_it) {
                    let columns = Columns::intern(num_columns, &self.columns);
                    self.latest = columns.map(|columns| OneChunkColumns(columns.index));
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
