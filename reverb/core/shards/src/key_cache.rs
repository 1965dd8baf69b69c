// SPDX-License-Identifier: Apache-2.0
//! Foreign keys: keys that were sampled at a shard that does not own their slot. Writers that do
//! not know about slots create them.

/// Capacity; a new key overwrites the key at its position.
const CAPACITY: usize = 1 << 20;

/// The most recent foreign keys and their shards. Takes 16 MiB from the first key on.
#[derive(Debug, Default)]
pub(crate) struct ForeignKeyCache(Vec<(u64, i32)>);

impl ForeignKeyCache {
    pub(crate) fn remember(&mut self, key: u64, shard: i32) {
        if self.0.is_empty() {
            // No key is `u64::MAX`, so it marks an empty entry.
            self.0 = vec![(u64::MAX, 0); CAPACITY];
        }
        self.0[position(key)] = (key, shard);
    }

    pub(crate) fn recall(&self, key: u64) -> Option<i32> {
        let (known, shard) = self.0.get(position(key))?;
        (*known == key).then_some(*shard)
    }
}

/// Position of a key: its low bits, which are random.
fn position(key: u64) -> usize {
    key as usize & (CAPACITY - 1)
}
