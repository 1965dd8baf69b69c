// SPDX-License-Identifier: Apache-2.0
//! The chunks of a scan that its reader still has, so that neighbours that share chunks bring them
//! once. Both ends do the same with the same chunks, so they agree without talking about it.

use std::collections::{HashMap, VecDeque};

use reverb_data::Chunk;

/// What keeping a chunk costs beside its payload, in bytes.
const CHUNK_COST: usize = 256;

/// The chunks that came last.
///
/// A writer that keeps less than its reader sends more than it had to, and nothing goes wrong.
#[derive(Debug)]
pub(crate) struct KeptChunks {
    limit: usize,
    bytes: usize,
    in_order: VecDeque<Chunk>,
    /// The latest of each key: writers draw keys at random, but nobody makes them.
    by_key: HashMap<u64, Chunk>,
}

impl KeptChunks {
    /// Keeps at most `limit` bytes beyond the sample that is being sent.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, in_order: VecDeque::new(), by_key: HashMap::new() }
    }

    /// Keeps a chunk, unless it is there; says whether it was not.
    pub(crate) fn add(&mut self, chunk: &Chunk) -> bool {
        if self.get(chunk.key()).is_some_and(|kept| kept.is_same(chunk)) {
            return false;
        }
        self.bytes += cost(chunk);
        self.in_order.push_back(chunk.clone());
        self.by_key.insert(chunk.key(), chunk.clone());
        true
    }

    /// The latest chunk of a key.
    pub(crate) fn get(&self, key: u64) -> Option<&Chunk> {
        self.by_key.get(&key)
    }

    /// Forgets what exceeds the limit. To be called between samples, for one sample may refer to
    /// chunks that others of its own would displace.
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
    chunk.data().len() + CHUNK_COST
}

#[cfg(test)]
mod tests {
    use super::*;
    use reverb_data::SequenceRange;

    fn chunk(key: u64, bytes: usize) -> Chunk {
        Chunk::from_slice(key, SequenceRange::default(), false, &vec![0; bytes])
    }

    #[test]
    fn the_latest_are_kept_up_to_the_limit_and_for_the_length_of_a_sample_all() {
        let mut kept = KeptChunks::new(2 * (CHUNK_COST + 10));
        let chunks: Vec<Chunk> = (0..3).map(|key| chunk(key, 10)).collect();
        assert!(chunks.iter().all(|chunk| kept.add(chunk)));
        assert!(!kept.add(&chunks[0]));
        kept.end_sample();
        assert_eq!(
            (0..3).map(|key| kept.get(key).is_some()).collect::<Vec<_>>(),
            [false, true, true]
        );
        assert!(kept.add(&chunks[0]), "it was forgotten");
    }

    #[test]
    fn another_chunk_of_the_same_key_takes_its_place() {
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
    fn without_a_limit_nothing_outlives_its_sample() {
        let mut kept = KeptChunks::new(0);
        assert!(kept.add(&chunk(1, 0)));
        kept.end_sample();
        assert!(kept.get(1).is_none());
        assert_eq!(kept.bytes, 0);
    }
}
