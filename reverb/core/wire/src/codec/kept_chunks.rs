// SPDX-License-Identifier: Apache-2.0
//! A cache of the chunks that the reader of a scan still has, so that chunks shared by nearby items
//! are sent once. Both ends apply the same rules to the same chunks, so they stay in sync without
//! messages.

use std::collections::{HashMap, VecDeque};

use reverb_data::Chunk;

/// Memory of a kept chunk besides its payload, in bytes.
const CHUNK_COST: usize = 256;

/// The most recent chunks.
///
/// If a writer keeps less than its reader, it sends some chunks again, which does no harm.
#[derive(Debug)]
pub(crate) struct KeptChunks {
    limit: usize,
    bytes: usize,
    in_order: VecDeque<Chunk>,
    /// Latest chunk of each key. Keys should be random, but two chunks can have the same one.
    by_key: HashMap<u64, Chunk>,
}

impl KeptChunks {
    /// Keeps at most `limit` bytes beyond the sample that is being sent.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, in_order: VecDeque::new(), by_key: HashMap::new() }
    }

    /// Keeps a chunk; returns false if it was kept already.
    pub(crate) fn add(&mut self, chunk: &Chunk) -> bool {
        if self.get(chunk.key()).is_some_and(|kept| kept.is_same(chunk)) {
            return false;
        }
        self.bytes += cost(chunk);
        self.in_order.push_back(chunk.clone());
        self.by_key.insert(chunk.key(), chunk.clone());
        true
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Chunk> {
        self.by_key.get(&key)
    }

    /// Removes the oldest chunks above the limit. Must be called only between samples, because
    /// within a sample it could remove chunks that the sample refers to.
    pub(crate) fn end_sample(&mut self) {
        while self.bytes > self.limit
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.bytes -= cost(&oldest);
            if self.get(oldest.key()).is_some_and(|kept| kept.is_same(&oldest)) {
                self.by_key.remove(&oldest.key());
            }
        }
    }
}

fn cost(chunk: &Chunk) -> usize {
    chunk.payload_len() + CHUNK_COST
}

#[cfg(test)]
mod tests {
    use super::*;
    use reverb_data::SequenceRange;

    fn chunk(key: u64, bytes: usize) -> Chunk {
        Chunk::from_slice(key, SequenceRange::default(), false, &vec![0; bytes])
    }

    #[test]
    fn the_latest_are_kept_up_to_the_limit_and_all_within_a_sample() {
        let mut kept = KeptChunks::new(2 * (CHUNK_COST + 10));
        let chunks: Vec<Chunk> = (0..3).map(|key| chunk(key, 10)).collect();
        assert!(chunks.iter().all(|chunk| kept.add(chunk)));
        assert!(!kept.add(&chunks[0]));
        kept.end_sample();
        assert_eq!(
            (0..3).map(|key| kept.get(key).is_some()).collect::<Vec<_>>(),
            [false, true, true]
        );
        assert!(kept.add(&chunks[0]), "it was removed");
    }

    #[test]
    fn another_chunk_of_the_same_key_replaces_it() {
        let mut kept = KeptChunks::new(2 * (CHUNK_COST + 10));
        let (old, new) = (chunk(1, 10), chunk(1, 10));
        assert!(kept.add(&old) && kept.add(&new));
        kept.end_sample();
        assert!(kept.add(&chunk(2, 10)));
        kept.end_sample();
        assert!(kept.get(1).is_some_and(|kept| kept.is_same(&new)), "the old one left");
        assert!(kept.add(&old));
    }

    #[test]
    fn with_limit_zero_nothing_outlives_its_sample() {
        let mut kept = KeptChunks::new(0);
        assert!(kept.add(&chunk(1, 0)));
        kept.end_sample();
        assert!(kept.get(1).is_none());
        assert_eq!(kept.bytes, 0);
    }
}
