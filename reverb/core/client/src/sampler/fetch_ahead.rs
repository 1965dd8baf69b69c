// SPDX-License-Identifier: Apache-2.0
//! Brings the chunks of the next items into the cache before they are copied.

use std::hint::black_box;

use reverb_data::Sampled;

/// Number of items that are fetched together. Their chunks must fit into the cache.
const BLOCK: usize = 8;

/// Iterates over the samples, and reads the beginnings of the chunks of each block of items before
/// the block's first item.
///
/// The reads are independent, so the processor waits for all of them at once. Otherwise it would
/// wait for each one separately while it copies a large chunk.
#[inline]
pub fn fetched_ahead(samples: &[Sampled]) -> impl Iterator<Item = &Sampled> {
    samples.chunks(BLOCK).flat_map(|block| {
        let chunks = block.iter().flat_map(|sampled| sampled.trajectory.chunks());
        let first_bytes = chunks.filter_map(|chunk| chunk.stored().first());
        black_box(first_bytes.fold(0, |all, byte| all ^ byte));
        block
    })
}

#[cfg(test)]
mod tests {
    use reverb_data::{Chunk, SequenceRange, TrajectoryBuilder};

    use super::*;
    use crate::sampler::testing;

    fn sampled(key: u64, payload: &[u8]) -> Sampled {
        let mut builder = TrajectoryBuilder::new();
        let chunk = Chunk::from_slice(key, SequenceRange::default(), false, payload);
        builder.slice(&chunk, 0, 0, 1);
        builder.end_column(true);
        testing::sampled(key, builder.finish().unwrap())
    }

    #[test]
    fn all_samples_come_in_order() {
        for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3] {
            let samples: Vec<Sampled> = (0..len as u64).map(|key| sampled(key, &[7])).collect();
            let keys: Vec<u64> = fetched_ahead(&samples).map(|sampled| sampled.key).collect();
            assert_eq!(keys, (0..len as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_chunk_without_payload_is_passed_on() {
        let samples = [sampled(1, &[]), sampled(2, &[7])];
        assert_eq!(fetched_ahead(&samples).count(), 2);
    }
}
