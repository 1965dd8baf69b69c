// SPDX-License-Identifier: Apache-2.0
//! Samples of disk chunks: the same messages as those of plain ones, and no payload is read.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use reverb_data::{
    Chunk, ChunkBuilder, DType, DataFile, HeadsCache, Place, ReadAt, Sampled, SequenceRange, Shape,
    StoredItem, Tensor, TensorData, TrajectoryBuilder,
};
use reverb_rpc::message::body_bytes;
use reverb_wire::codec::sample::SampleEncoder;

/// A file that the encoder may not read.
#[derive(Debug)]
struct Unread;

impl ReadAt for Unread {
    fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        panic!("the encoder was not given a payload");
    }
}

fn plain_chunk(key: u64, num_bytes: usize) -> Chunk {
    let mut builder = ChunkBuilder::new(false);
    let noise = (0..num_bytes as u64).map(|at| {
        let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
    });
    builder.push(&Tensor {
        dtype: DType::UInt8,
        shape: Shape::from_slice(&[1, num_bytes]),
        data: TensorData::Bytes(noise.collect()),
    });
    builder.finish(key, SequenceRange { episode_id: key, ..SequenceRange::default() })
}

/// The same chunk on disk, forgotten; a small one stays as it is.
fn on_disk(plain: &Chunk, file: &Arc<DataFile>) -> Chunk {
    let Some(chunk) = Chunk::on_disk(plain, &mut HeadsCache::default()) else {
        return plain.clone();
    };
    chunk.set_place(Place { file: Arc::clone(file), offset: 0, crc: 0 });
    assert!(chunk.forget());
    chunk
}

fn samples(all: &[Vec<usize>], chunks: &[Chunk]) -> Vec<Sampled> {
    let sample = |(key, of): (usize, &Vec<usize>)| {
        let mut builder = TrajectoryBuilder::new();
        for &chunk in of {
            builder.slice(&chunks[chunk], 0, 0, 1);
        }
        builder.end_column(false);
        let item = StoredItem {
            key: key as u64,
            priority: 1.0,
            removal_priority: None,
            times_sampled: 0,
            inserted_at_ns: 5,
            trajectory: builder.finish().unwrap(),
        };
        item.into_scanned(9)
    };
    all.iter().enumerate().map(sample).collect()
}

/// The messages, and the bytes of the payloads that each needs.
fn encode(
    samples: &[Sampled],
    plain: &[Chunk],
    kept: Option<usize>,
    max_bytes: usize,
) -> (Vec<Bytes>, Vec<usize>) {
    let mut encoder = SampleEncoder::new();
    if let Some(kept) = kept {
        encoder = encoder.with_kept_chunks(kept);
    }
    let (mut messages, mut missing) = (Vec::new(), Vec::new());
    let mut take = |encoder: &mut SampleEncoder| {
        let given: Vec<Chunk> =
            encoder.missing().iter().map(|chunk| plain[chunk.key() as usize].clone()).collect();
        missing.push(given.iter().map(Chunk::payload_len).sum());
        messages.push(body_bytes(encoder.take(&given)));
    };
    for sample in samples {
        while !encoder.write("t", sample, &sample.trajectory, max_bytes) {
            take(&mut encoder);
        }
        if encoder.is_over(max_bytes) {
            take(&mut encoder);
        }
    }
    take(&mut encoder);
    (messages, missing)
}

/// Below and above the sizes at which a chunk is small, is stored beside its header, and is shared.
const SIZES: [usize; 9] = [1, 900, 1100, 1900, 2100, 4000, 4200, 20_000, 99_000];

proptest! {
    #[test]
    fn messages_of_disk_chunks_are_those_of_plain_ones(
        all in prop::collection::vec(prop::collection::vec(0..SIZES.len() * 2, 1..6), 1..40),
        kept in prop_oneof![Just(None), (0usize..100_000).prop_map(Some)],
        max_bytes in prop_oneof![Just(0usize), 0usize..300_000],
    ) {
        let chunk = |key: usize| plain_chunk(key as u64, SIZES[key % SIZES.len()]);
        let plain: Vec<Chunk> = (0..SIZES.len() * 2).map(chunk).collect();
        let file = DataFile::new(1, "data-0000000001.seg".into(), Box::new(Unread));
        let disk: Vec<Chunk> = plain.iter().map(|chunk| on_disk(chunk, &file)).collect();
        prop_assert!(disk[2].is_disk_chunk() && !disk[1].is_disk_chunk());
        let (expected, none) = encode(&samples(&all, &plain), &plain, kept, max_bytes);
        let (messages, missing) = encode(&samples(&all, &disk), &plain, kept, max_bytes);
        prop_assert_eq!(messages, expected);
        prop_assert!(none.iter().all(|&bytes| bytes == 0));
        // A message needs no more than it takes: an item is never read as a whole.
        let largest = plain.iter().map(Chunk::payload_len).max().unwrap_or(0);
        prop_assert!(missing.iter().all(|&bytes| bytes <= max_bytes + largest), "{missing:?}");
    }
}

#[test]
#[should_panic(expected = "needs the plain chunks of all its disk chunks")]
fn a_message_without_its_payloads_is_refused() {
    let file = DataFile::new(1, "data-0000000001.seg".into(), Box::new(Unread));
    let samples = samples(&[vec![0]], &[on_disk(&plain_chunk(0, 5000), &file)]);
    let mut encoder = SampleEncoder::new();
    assert!(encoder.write("t", &samples[0], &samples[0].trajectory, 1 << 20));
    drop(encoder.take(&[]));
}
