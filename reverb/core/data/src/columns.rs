// SPDX-License-Identifier: Apache-2.0
//! The columns of items of one chunk: which slices of it they are. Nearly all items of a program
//! have the same, so each is kept once, and for ever.

use std::sync::OnceLock;

/// Places for different columns. When those that fit have been taken, the columns of an item are
/// stored with it; that is slower and takes more memory, and nothing else.
const PLACES: usize = 4096;

/// Number of places that are tried.
const PROBES: usize = 16;

/// Longer columns are not kept: what a peer sends must not stay in memory for ever.
const MAX_BYTES: usize = 256;

static KNOWN: [OnceLock<Columns>; PLACES] = [const { OnceLock::new() }; PLACES];

/// The columns of an item, as `Trajectory` stores them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) num_columns: u32,
    pub(crate) encoded: Box<[u8]>,
}

impl Columns {
    /// The columns that are kept; `None` if there is no place for them.
    pub(crate) fn intern(num_columns: u32, encoded: &[u8]) -> Option<&'static Self> {
        if encoded.len() > MAX_BYTES {
            return None;
        }
        let start = hash(encoded);
        for probe in 0..PROBES {
            let place = &KNOWN[(start + probe) % PLACES];
            let columns =
                place.get_or_init(|| Self { num_columns, encoded: encoded.to_vec().into() });
            if columns.num_columns == num_columns && *columns.encoded == *encoded {
                return Some(columns);
            }
        }
        None
    }
}

/// FNV-1a; the columns of most items are some fifteen bytes.
fn hash(encoded: &[u8]) -> usize {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for &byte in encoded {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash ^ hash >> 32) as usize
}
