// SPDX-License-Identifier: Apache-2.0
//! The chunks of many items, each once, under unique keys.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use reverb_data::{Chunk, Trajectory};

/// Distinct chunks in order of first reference.
///
/// Writers draw keys at random, and two of them may send different chunks with the same key. A
/// checkpoint finds chunks by key alone, so the later chunk gets a new key there.
#[derive(Debug, Default)]
pub(crate) struct ChunkSet {
    chunks: Vec<(u64, Chunk)>,
    by_key: HashMap<u64, u32>,
    /// New keys, by identity of the chunk.
    renamed: HashMap<usize, u64>,
}

impl ChunkSet {
    /// Adds those chunks of an item that are not in the set yet.
    pub(crate) fn add(&mut self, trajectory: &Trajectory) {
        for chunk in trajectory.chunks() {
            let mut key = chunk.key();
            loop {
                match self.by_key.entry(key) {
                    Entry::Vacant(entry) => {
                        entry.insert(self.chunks.len() as u32);
                        self.chunks.push((key, chunk.clone()));
                        break;
                    }
                    Entry::Occupied(entry) => {
                        let known = &self.chunks[*entry.get() as usize].1;
                        if known.is_same(chunk) || is_equal(known, chunk) {
                            break;
                        }
                    }
                }
                key = *self.renamed.entry(chunk.identity()).or_insert_with(rand::random);
            }
        }
    }

    pub(crate) fn key_of(&self, chunk: &Chunk) -> u64 {
        if self.renamed.is_empty() {
            return chunk.key();
        }
        self.renamed.get(&chunk.identity()).copied().unwrap_or_else(|| chunk.key())
    }

    pub(crate) fn chunks(&self) -> &[(u64, Chunk)] {
        &self.chunks
    }
}

/// Returns true if both chunks are the same for a reader.
fn is_equal(a: &Chunk, b: &Chunk) -> bool {
    a.range() == b.range() && a.is_delta_encoded() == b.is_delta_encoded() && a.has_payload_of(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reverb_data::{SequenceRange, TrajectoryBuilder};

    fn item(chunks: &[&Chunk]) -> Trajectory {
        let mut builder = TrajectoryBuilder::new();
        for chunk in chunks {
            builder.slice(chunk, 0, 0, 1);
        }
        builder.end_column(false);
        builder.finish().unwrap()
    }

    fn chunk(key: u64, data: u8) -> Chunk {
        Chunk::from_slice(key, SequenceRange::default(), false, &[data])
    }

    #[test]
    fn equal_chunks_are_one_and_different_ones_get_different_keys() {
        let (one, same, other, third) = (chunk(1, 1), chunk(1, 1), chunk(1, 2), chunk(2, 1));
        let mut set = ChunkSet::default();
        for trajectory in [item(&[&one]), item(&[&same, &third]), item(&[&other]), item(&[&other])]
        {
            set.add(&trajectory);
        }
        assert_eq!(set.chunks().len(), 3);
        assert_eq!([set.key_of(&one), set.key_of(&same), set.key_of(&third)], [1, 1, 2]);
        let renamed = set.key_of(&other);
        assert!(renamed != 1 && renamed != 2);
        assert_eq!(set.chunks()[2].0, renamed);
        assert!(set.chunks()[2].1.is_same(&other));
    }
}
