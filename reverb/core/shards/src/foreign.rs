// SPDX-License-Identifier: Apache-2.0
//! The shards where items were sampled whose keys have slots of other shards: writers that know
//! nothing of slots have made them.

/// How many keys are remembered: a later one takes the place of another.
const NUM_PLACES: usize = 1 << 20;

/// The last foreign keys, 16 MiB once there are any.
#[derive(Debug, Default)]
pub(crate) struct ForeignKeys(Vec<(u64, i32)>);

impl ForeignKeys {
    pub(crate) fn remember(&mut self, key: u64, shard: i32) {
        if self.0.is_empty() {
            // No key is 2^64 - 1.
            self.0 = vec![(u64::MAX, 0); NUM_PLACES];
        }
        self.0[place(key)] = (key, shard);
    }

    pub(crate) fn recall(&self, key: u64) -> Option<i32> {
        let (known, shard) = self.0.get(place(key))?;
        (*known == key).then_some(*shard)
    }
}

/// The low bits of keys are random.
fn place(key: u64) -> usize {
    key as usize & (NUM_PLACES - 1)
}
