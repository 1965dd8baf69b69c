// SPDX-License-Identifier: Apache-2.0
//! Handles of items by the hashes of their keys.

use hashbrown::HashTable;

use crate::selector::Handle;

/// Number of parts. Each grows at another time: a table of a million items would otherwise read
/// all of them under one lock whenever its index doubles.
const PARTS: usize = 256;

/// An index in parts, which are chosen by bits of the hash that the parts do not use themselves.
#[derive(Debug)]
pub(super) struct KeyIndex {
    parts: Box<[HashTable<Handle>; PARTS]>,
    len: usize,
}

impl KeyIndex {
    pub(super) fn new() -> Self {
        Self { parts: Box::new(std::array::from_fn(|_| HashTable::new())), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(&Handle) -> bool) -> Option<Handle> {
        self.parts[part_of(hash)].find(hash, is_it).copied()
    }

    /// Adds a handle that is not there yet. `hash_of` is called for others of its part.
    pub(super) fn insert(&mut self, hash: u64, handle: Handle, hash_of: impl Fn(&Handle) -> u64) {
        self.parts[part_of(hash)].insert_unique(hash, handle, hash_of);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, hash: u64, handle: Handle) {
        if let Ok(entry) = self.parts[part_of(hash)].find_entry(hash, |&found| found == handle) {
            entry.remove();
            self.len -= 1;
        }
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Handle> {
        self.parts.iter().flat_map(HashTable::iter)
    }
}

fn part_of(hash: u64) -> usize {
    (hash >> 40) as usize % PARTS
}
