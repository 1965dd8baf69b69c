// SPDX-License-Identifier: Apache-2.0
//! Things of which a program has few, though millions of others refer to them: each is kept once,
//! and for ever.

use std::sync::OnceLock;

/// Places for different things. What comes when those that fit have been taken is not kept; that
/// takes more time and memory, and nothing else.
pub(crate) const PLACES: usize = 4096;

/// Number of places that are tried.
const PROBES: usize = 16;

/// A list without a lock. What is in it never changes.
#[derive(Debug)]
pub(crate) struct Interned<T>([OnceLock<T>; PLACES]);

impl<T> Interned<T> {
    pub(crate) const fn new() -> Self {
        Self([const { OnceLock::new() }; PLACES])
    }

    /// The thing of which `is_it` is true, or else what `make` returns for its place; `None` if
    /// there is no place. Equal things have equal `bytes`.
    pub(crate) fn intern(
        &self,
        bytes: &[u8],
        is_it: impl Fn(&T) -> bool,
        make: impl Fn(u16) -> T,
    ) -> Option<&T> {
        let start = hash(bytes);
        let mut places = (start..start + PROBES).map(|place| place % PLACES);
        places.find_map(|place| {
            let thing = self.0[place].get_or_init(|| make(place as u16));
            is_it(thing).then_some(thing)
        })
    }

    /// What is at a place that `make` was called with.
    #[inline]
    pub(crate) fn at(&self, place: u16) -> &T {
        self.0[usize::from(place)].get().expect("only places that were taken are known")
    }
}

/// FNV-1a; the columns of most items are some fifteen bytes.
fn hash(bytes: &[u8]) -> usize {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    // Half of the range, so that probing does not overflow.
    ((hash ^ hash >> 32) >> 1) as usize
}
