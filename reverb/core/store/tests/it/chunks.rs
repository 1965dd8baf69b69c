// SPDX-License-Identifier: Apache-2.0
//! Chunks for tests, whose bytes follow from their keys.

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use reverb_data::{Chunk, ChunkBuilder, DType, HeadsCache, SequenceRange, Tensor, TensorData};

/// A plain chunk of noise.
pub(crate) fn plain(key: u64, num_bytes: usize) -> Chunk {
    let mut noise = vec![0; num_bytes];
    SmallRng::seed_from_u64(key).fill_bytes(&mut noise);
    let shape = [1, num_bytes].as_slice().into();
    let tensor = Tensor { dtype: DType::UInt8, shape, data: TensorData::Bytes(noise) };
    let mut builder = ChunkBuilder::new(false);
    builder.push(&tensor);
    builder.finish(key, SequenceRange::default())
}

/// A disk chunk of the same noise.
pub(crate) fn on_disk(key: u64, num_bytes: usize) -> Chunk {
    Chunk::on_disk(&plain(key, num_bytes), &mut HeadsCache::default()).unwrap()
}

/// Reads a chunk and compares each byte with its generator.
#[track_caller]
pub(crate) fn check(chunk: &Chunk, num_bytes: usize) {
    assert!(chunk.load().unwrap().payload() == plain(chunk.key(), num_bytes).payload());
}

/// Bytes that payloads take in data files.
pub(crate) fn bytes_on_disk<'a>(chunks: impl IntoIterator<Item = &'a Chunk>) -> u64 {
    let lengths = chunks.into_iter().map(|chunk| chunk.payload_len() as u64);
    lengths.map(|length| length.next_multiple_of(8)).sum()
}
