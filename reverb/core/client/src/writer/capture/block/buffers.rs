// SPDX-License-Identifier: Apache-2.0
//! Buffers of a block: cells before they are encoded.

use std::borrow::Cow;

use bytes::Bytes;
use reverb_data::codec::put_raw_tensor_head;
use reverb_data::{DType, Tensor, TensorData};
use smallvec::SmallVec;

use super::BlockColumns;
use crate::writer::capture::cell::{CellSpec, CellValue};

/// A payload's unused memory is at most this fraction of its size.
const MAX_WASTE_DIVISOR: usize = 16;

/// Size of rows that are kept inside their block, so that the encoding thread frees less memory of
/// another thread.
const SMALL_ROW_BYTES: usize = 64;

/// The cells of a block.
#[derive(Debug)]
pub(super) enum Buffers {
    /// Every step has a cell in every column.
    Rows(Rows),
    /// Rows of one column of large cells, about to be encoded.
    Raw(Raw),
    /// One buffer for each column.
    Columns(Vec<ColumnBuffer>),
}

/// Rows: steps one after another, each with the cells of all columns.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Step in the episode of each row.
    pub(super) steps: SmallVec<[i32; 2]>,
    /// Space for the head of a tensor, then the cells.
    bytes: SmallVec<[u8; SMALL_ROW_BYTES]>,
    room: usize,
}

/// Cells of one column in the form in which a chunk stores them without compression: the payload
/// needs no copy.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) steps: SmallVec<[i32; 2]>,
    /// Head of the tensor, then the cells.
    pub(super) payload: Bytes,
    head_len: usize,
}

/// The cells of one column.
#[derive(Debug)]
pub(super) struct ColumnBuffer {
    /// Step in the episode of each cell.
    steps: SmallVec<[i32; 2]>,
    pub(super) data: TensorData,
}

impl Buffers {
    pub(super) fn new(columns: &BlockColumns) -> Self {
        if columns.are_kept_in_rows() {
            return Buffers::Rows(Rows::default());
        }
        let buffers = columns.as_slice().iter().map(|column| ColumnBuffer {
            steps: SmallVec::new(),
            data: match column.spec.dtype {
                DType::String => TensorData::Strings(Vec::new()),
                _ => TensorData::Bytes(Vec::new()),
            },
        });
        Buffers::Columns(buffers.collect())
    }

    /// Takes the cells out.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Buffers::Rows(Rows::default()))
    }

    /// Prepares the cells for encoding.
    pub(super) fn completed(self, columns: &BlockColumns) -> Self {
        match self {
            Buffers::Rows(rows) => rows.into_raw(columns).map_or_else(Buffers::Rows, Buffers::Raw),
            other => other,
        }
    }

    /// Adds cells `(position of the column, value)` of one step; calls `placed` with each cell's
    /// column and index.
    pub(super) fn append(
        &mut self,
        columns: &BlockColumns,
        step: i32,
        cells: &mut [(usize, &mut CellValue<'_>)],
        placed: &mut impl FnMut(usize, u32),
    ) {
        if let Buffers::Rows(rows) = self {
            let is_full = cells.len() == columns.as_slice().len()
                && cells.iter().enumerate().all(|(i, (position, _))| *position == i);
            if is_full {
                let index = rows.append(columns, step, cells.iter().map(|(_, value)| &**value));
                (0..cells.len()).for_each(|position| placed(position, index));
                return;
            }
            *self = Buffers::Columns(rows.columns(columns));
        }
        let Buffers::Columns(buffers) = self else { unreachable!("rows were replaced") };
        for (position, value) in cells {
            let buffer = &mut buffers[*position];
            placed(*position, buffer.steps.len() as u32);
            buffer.push(step, value);
        }
    }

    /// The steps at which a column has cells.
    pub(super) fn steps(&self, position: usize) -> &[i32] {
        match self {
            Buffers::Rows(rows) => &rows.steps,
            Buffers::Raw(raw) => &raw.steps,
            Buffers::Columns(buffers) => &buffers[position].steps,
        }
    }

    /// Bytes of all cells. Strings count as large.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Buffers::Rows(rows) => rows.cells().len(),
            Buffers::Raw(raw) => raw.cells().len(),
            Buffers::Columns(buffers) => {
                let bytes = |buffer: &ColumnBuffer| match &buffer.data {
                    TensorData::Bytes(bytes) => bytes.len(),
                    TensorData::Strings(_) => usize::MAX / 2,
                };
                buffers.iter().map(bytes).fold(0, usize::saturating_add)
            }
        }
    }

    /// One cell.
    pub(super) fn cell(&self, columns: &BlockColumns, position: usize, index: usize) -> TensorData {
        let spec = &columns.as_slice()[position].spec;
        match self {
            Buffers::Rows(rows) => {
                let place = columns.place_in_row(position);
                let row = &rows.cells()[columns.row_bytes * index..];
                TensorData::Bytes(row[place].to_vec())
            }
            Buffers::Raw(raw) => {
                let size = columns.row_bytes;
                TensorData::Bytes(raw.cells()[index * size..(index + 1) * size].to_vec())
            }
            Buffers::Columns(buffers) => buffers[position].row(index, spec),
        }
    }
}

impl Rows {
    /// Adds a row; returns its index.
    pub(super) fn append<'v>(
        &mut self,
        columns: &BlockColumns,
        step: i32,
        values: impl Iterator<Item = &'v CellValue<'v>>,
    ) -> u32 {
        if self.steps.is_empty() {
            self.room = columns.room_for_head();
            self.bytes.reserve_exact(self.room + columns.row_bytes);
            self.bytes.resize(self.room, 0);
        }
        for value in values {
            let CellValue::Bytes { bytes, .. } = value else {
                unreachable!("the dtype was checked")
            };
            self.bytes.extend_from_slice(bytes);
        }
        self.steps.push(step);
        self.steps.len() as u32 - 1
    }

    /// The cells of one column.
    pub(super) fn column(&self, columns: &BlockColumns, position: usize) -> Cow<'_, [u8]> {
        if columns.as_slice().len() == 1 {
            return Cow::Borrowed(self.cells());
        }
        let place = columns.place_in_row(position);
        let mut bytes = vec![0; place.len() * self.steps.len()];
        self.copy_column(columns, position, &mut bytes);
        Cow::Owned(bytes)
    }

    /// Copies the cells of one column.
    pub(super) fn copy_column(&self, columns: &BlockColumns, position: usize, out: &mut [u8]) {
        let place = columns.place_in_row(position);
        let rows = self.cells().chunks_exact(columns.row_bytes);
        for (row, out) in rows.zip(out.chunks_exact_mut(place.len())) {
            out.copy_from_slice(&row[place.clone()]);
        }
    }

    /// The bytes of the rows, one after another.
    pub(super) fn cells(&self) -> &[u8] {
        &self.bytes[self.room..]
    }

    /// Puts the head before the cells of one column of large cells; returns other rows unchanged.
    fn into_raw(mut self, columns: &BlockColumns) -> Result<Raw, Self> {
        let wasted = self.bytes.capacity() - self.bytes.len();
        if self.room == 0 || wasted > self.bytes.len() / MAX_WASTE_DIVISOR {
            return Err(self);
        }
        let mut head = Vec::with_capacity(self.room);
        let spec = &columns.as_slice()[0].spec;
        let size = self.cells().len();
        put_raw_tensor_head(&mut head, spec.dtype, &spec.shape_of_rows(self.steps.len()), size);
        let Some(start) = self.room.checked_sub(head.len()) else { return Err(self) };
        self.bytes[start..self.room].copy_from_slice(&head);
        let payload = Bytes::from(self.bytes.into_vec()).slice(start..);
        Ok(Raw { steps: self.steps, payload, head_len: head.len() })
    }

    fn columns(&self, columns: &BlockColumns) -> Vec<ColumnBuffer> {
        let buffer = |position| ColumnBuffer {
            steps: self.steps.clone(),
            data: TensorData::Bytes(self.column(columns, position).into_owned()),
        };
        (0..columns.as_slice().len()).map(buffer).collect()
    }
}

impl Raw {
    pub(super) fn cells(&self) -> &[u8] {
        &self.payload[self.head_len..]
    }
}

impl ColumnBuffer {
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
