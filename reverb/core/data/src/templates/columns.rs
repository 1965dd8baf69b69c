// SPDX-License-Identifier: Apache-2.0
//! The columns of items of one chunk: which slices of it they are. Nearly all items of a program
//! have the same, so each is kept once, and for ever.

use smallvec::SmallVec;

use crate::templates::interned::Interned;

/// Longer columns are not kept: what a peer sends must not stay in memory for ever.
const MAX_BYTES: usize = 256;

static KNOWN: Interned<Columns> = Interned::new();

/// The columns of an item, as `Trajectory` stores them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// Its place among all that are kept.
    pub(crate) place: u16,
    /// Number of columns.
    pub(crate) len: u32,
    pub(crate) encoded: SmallVec<[u8; 24]>,
}

impl Columns {
    /// The columns that are kept; `None` if there is no place for them.
    pub(crate) fn intern(num_columns: u32, encoded: &[u8]) -> Option<&'static Self> {
        if encoded.len() > MAX_BYTES {
            return None;
        }
        let is_it = |it: &Self| it.len == num_columns && *it.encoded == *encoded;
        let make = |place| Self { place, len: num_columns, encoded: encoded.into() };
        KNOWN.intern(encoded, is_it, make)
    }

    /// The columns at their place.
    #[inline]
    pub(crate) fn at(place: u16) -> &'static Self {
        KNOWN.at(place)
    }
}
