// SPDX-License-Identifier: Apache-2.0
//! Columns of items of one chunk: the slices of the chunk. Nearly all items of a program have the
//! same, so each list is stored once, and never freed.

use smallvec::SmallVec;

use crate::templates::interned::Interned;

/// Longer lists are not interned: data from peers must not stay in memory forever.
const MAX_BYTES: usize = 256;

static KNOWN: Interned<Columns> = Interned::new();

/// The columns of an item, as `Trajectory` stores them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// Index in the intern table.
    pub(crate) index: u16,
    pub(crate) len: u32,
    pub(crate) encoded: SmallVec<[u8; 24]>,
}

impl Columns {
    /// Interns the columns; `None` if the table is full.
    pub(crate) fn intern(num_columns: u32, encoded: &[u8]) -> Option<&'static Self> {
        if encoded.len() > MAX_BYTES {
            return None;
        }
        let is_it = |known: &Self| known.len == num_columns && *known.encoded == *encoded;
        let make = |index| Self { index, len: num_columns, encoded: encoded.into() };
        KNOWN.intern(encoded, is_it, make)
    }

    #[inline]
    pub(crate) fn at(index: u16) -> &'static Self {
        KNOWN.at(index)
    }
}
