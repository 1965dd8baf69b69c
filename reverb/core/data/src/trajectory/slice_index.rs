// SPDX-License-Identifier: Apache-2.0
//! Index of the slices of a long trajectory, so that a window is found without reading all of them.
//!
//! It lies behind the encoded columns: for each column the position of its head and the number of
//! its first entry; the entries, one for every 64th slice, each with the position of the slice and
//! its first step; and the number of its own bytes. All numbers are `u32`, little endian.

use super::Slice;
use super::runs::read_run;
use crate::proto_bytes::Reader;

/// Trajectories with at most this many slices have no index: reading all takes a microsecond.
const MAX_UNINDEXED: usize = 256;
/// Number of slices that are read to find one of them.
const EVERY: usize = 64;
const NUMBER: usize = size_of::<u32>();

/// False if encoded columns certainly have few slices.
#[inline]
pub(super) fn may_need(columns: &[u8]) -> bool {
    // A slice takes at least four bytes.
    columns.len() > 4 * MAX_UNINDEXED && u32::try_from(columns.len()).is_ok()
}

/// Appends an index to encoded columns, if they have many slices. Returns true if it did.
pub(super) fn append(num_columns: u32, columns: &mut Vec<u8>) -> bool {
    let mut heads = Vec::new();
    let mut entries = Vec::new();
    let mut num_slices = 0;
    let mut reader = Reader::new(columns);
    let position = |reader: &Reader<'_>| (columns.len() - reader.rest().len()) as u32;
    for _ in 0..num_columns {
        heads.push(position(&reader));
        heads.push((entries.len() / 2) as u32);
        let head = reader.varint().expect("the builder wrote this");
        let mut step = 0_usize;
        for at in 0..(head >> 1) as usize {
            if at % EVERY == 0 {
                entries.push(position(&reader));
                entries.push(u32::try_from(step).unwrap_or(u32::MAX));
            }
            step = step.saturating_add(read_run(&mut reader).num_steps());
            num_slices += 1;
        }
    }
    if num_slices <= MAX_UNINDEXED {
        return false;
    }
    let num_bytes = (heads.len() + entries.len() + 1) * NUMBER;
    let numbers = heads.into_iter().chain(entries).chain([num_bytes as u32]);
    columns.reserve_exact(num_bytes);
    columns.extend(numbers.flat_map(u32::to_le_bytes));
    true
}

/// The index behind encoded columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct SliceIndex<'a> {
    columns: &'a [u8],
    numbers: &'a [[u8; NUMBER]],
    num_columns: usize,
}

impl<'a> SliceIndex<'a> {
    /// Reads the index that `append` wrote.
    pub(super) fn new(num_columns: usize, columns: &'a [u8]) -> Self {
        let (_, len) = columns.split_last_chunk().expect("the builder wrote this");
        let (columns, index) = columns.split_at(columns.len() - u32::from_le_bytes(*len) as usize);
        let (numbers, _) = index.as_chunks();
        Self { columns, numbers, num_columns }
    }

    /// The columns without the index.
    pub(super) fn columns(self) -> &'a [u8] {
        self.columns
    }

    /// A number of the index; 0 if there is none, as for a column without slices.
    fn number(self, at: usize) -> usize {
        self.numbers.get(at).map_or(0, |&number| u32::from_le_bytes(number) as usize)
    }

    /// A column.
    pub(super) fn column(self, at: usize) -> IndexedColumn<'a> {
        let mut reader = Reader::new(&self.columns[self.number(2 * at)..]);
        let head = reader.varint().expect("the builder wrote this");
        let first_entry = 2 * (self.num_columns + self.number(2 * at + 1));
        let num_slices = (head >> 1) as usize;
        IndexedColumn { index: self, squeeze: head & 1 == 1, num_slices, first_entry }
    }
}

/// A column of an indexed trajectory.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexedColumn<'a> {
    index: SliceIndex<'a>,
    /// True if the column is a single step without the leading dimension.
    pub(super) squeeze: bool,
    num_slices: usize,
    /// Place of its first entry among the numbers.
    first_entry: usize,
}

impl<'a> IndexedColumn<'a> {
    /// Its slices from one on that begins at or before a step, and the first step of that one. The
    /// trajectory is stored, so none is repeated.
    pub(super) fn slices_from(self, step: usize) -> (usize, impl Iterator<Item = Slice> + use<'a>) {
        let Self { index, num_slices, first_entry, .. } = self;
        // The last entry whose first step is not after the step.
        let mut low = 0;
        let mut high = num_slices.div_ceil(EVERY);
        let begin_of = |at: usize| index.number(first_entry + 2 * at + 1);
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if begin_of(middle) <= step { low = middle } else { high = middle }
        }
        let mut reader = Reader::new(&index.columns[index.number(first_entry + 2 * low)..]);
        let slices = (low * EVERY..num_slices).map(move |_| read_run(&mut reader).slice);
        (begin_of(low), slices)
    }
}
