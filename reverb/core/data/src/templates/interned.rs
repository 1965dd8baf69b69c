// SPDX-License-Identifier: Apache-2.0
//! Process-wide intern table with 4,096 entries that are never freed.

use once_cell::race::OnceBox;

/// Number of entries. When the table is full, further values are not interned, which only takes
/// more time and memory.
pub(crate) const NUM_ENTRIES: usize = 4096;

/// Number of entries that a lookup tries.
const PROBES: usize = 16;

/// A table without a lock. Its entries never change. Each is a pointer, so that a static table
/// takes no room in the file of the module.
#[derive(Debug)]
pub(crate) struct Interned<T>([OnceBox<T>; NUM_ENTRIES]);

impl<T> Interned<T> {
    #[expect(clippy::large_stack_arrays, reason = "only statics are made")]
    pub(crate) const fn new() -> Self {
        Self([const { OnceBox::new() }; NUM_ENTRIES])
    }

    /// The entry for which `is_it` is true, or else a new one that `make` returns for its index.
    /// `bytes` choose where the search begins, so equal values must have equal `bytes`. `None` if
    /// all entries of the search hold other values.
    pub(crate) fn intern(
        &self,
        bytes: &[u8],
        is_it: impl Fn(&T) -> bool,
        make: impl Fn(u16) -> T,
    ) -> Option<&T> {
        let start = hash(bytes);
        let mut entries = (start..start + PROBES).map(|index| index % NUM_ENTRIES);
        entries.find_map(|index| {
            let entry = self.0[index].get_or_init(|| Box::new(make(index as u16)));
            is_it(entry).then_some(entry)
        })
    }

    /// The entry at an index that `make` was called with.
    #[inline]
    pub(crate) fn at(&self, index: u16) -> &T {
        self.0[usize::from(index)].get().expect("only entries that were taken are known")
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
