// SPDX-License-Identifier: Apache-2.0
//! Tests of batches.

use proptest::prelude::*;
use reverb_data::{
    Chunk, ChunkBuilder, DType, SequenceRange, Shape, Tensor, TensorData, TrajectoryBuilder,
};

use super::*;
use crate::sampler::batch_column::ColumnData;
use crate::sampler::testing;

/// Bytes of a step of each of the two columns.
pub(in crate::sampler) const WIDTHS: [usize; 2] = [300, 7];

/// A chunk of one step of both columns; its values are stored raw, or compressed.
pub(in crate::sampler) fn chunk(key: u64, is_compressible: bool) -> Chunk {
    let mut noise = key as u32 + 1;
    let mut value = || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if is_compressible { key as u8 } else { (noise >> 24) as u8 }
    };
    let mut builder = ChunkBuilder::new(false);
    for width in WIDTHS {
        builder.push(&Tensor {
            dtype: DType::UInt8,
            shape: Shape::from_slice(&[1, width]),
            data: TensorData::Bytes((0..width).map(|_| value()).collect()),
        });
    }
    builder.finish(key, SequenceRange::default())
}

/// An item of consecutive chunks.
pub(in crate::sampler) fn sampled(key: u64, chunks: &[Chunk]) -> Sampled {
    let mut builder = TrajectoryBuilder::new();
    for tensor in 0..WIDTHS.len() {
        for chunk in chunks {
            builder.slice(chunk, tensor, 0, 1);
        }
        builder.end_column(false);
    }
    testing::sampled(key, builder.finish().unwrap())
}

/// Bytes of a column.
pub(in crate::sampler) fn content(column: BatchColumn) -> Vec<u8> {
    let len = Tensor::num_bytes(column.dtype, &column.shape).unwrap();
    match column.data {
        ColumnData::Memory(mut memory) => memory.bytes_mut(len).to_vec(),
        _ => unreachable!(),
    }
}

/// Column `index` of each item, decoded.
pub(in crate::sampler) fn decoded(samples: &[Sampled], index: usize) -> Vec<Vec<u8>> {
    let of = |sampled: &Sampled| match sampled.trajectory.decode().unwrap().swap_remove(index).data
    {
        TensorData::Bytes(bytes) => bytes,
        TensorData::Strings(_) => unreachable!(),
    };
    samples.iter().map(of).collect()
}

/// Bounds of a batch with this many items of any size.
pub(in crate::sampler) fn bounds(batch_size: usize) -> BatchBounds {
    BatchBounds { batch_size, max_bytes: usize::MAX }
}

fn builder<'m>(batch_size: usize) -> BatchBuilder<'m> {
    BatchBuilder::new(bounds(batch_size), RaggedForm::Refuse, None)
}

proptest! {
    /// A batch consists of its items one after another, for any number of parts, with and without
    /// plans.
    #[test]
    fn a_batch_is_its_items_in_order(
        compressible in prop::collection::vec(any::<bool>(), 3..12),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..30),
        num_steps in 1usize..3,
        // Number of parts that arrive, and number of missing items.
        (parts, missing) in (0usize..5, prop::sample::select(vec![0, 7, 1 << 40])),
    ) {
        let history: Vec<Chunk> =
            compressible.iter().zip(0..).map(|(&it, key)| chunk(key, it)).collect();
        let windows: Vec<&[Chunk]> = history.windows(num_steps).collect();
        let pick = |pick: &prop::sample::Index| windows[pick.index(windows.len())];
        let samples: Vec<Sampled> =
            picks.iter().zip(0..).map(|(it, key)| sampled(key, pick(it))).collect();
        let mut unfinished = builder(samples.len() + missing);
        for part in 1..=parts {
            unfinished.add(&samples[..samples.len() * part / parts]);
        }
        let batch = unfinished.finish(&samples).unwrap();
        for (i, column) in batch.into_iter().enumerate() {
            prop_assert_eq!(&column.shape[..], &[samples.len(), num_steps, WIDTHS[i]]);
            prop_assert_eq!(content(column), decoded(&samples, i).concat());
        }
    }
}

#[test]
fn an_item_of_another_length_is_named() {
    let history = [chunk(1, false), chunk(2, false), chunk(3, true)];
    let samples = [sampled(1, &history[..2]), sampled(2, &history[..1])];
    let error = builder(2).finish(&samples).unwrap_err();
    assert!(error.to_string().contains("[2,300]"), "{error}");
    let mut unfinished = builder(3);
    (1..3).for_each(|len| unfinished.add(&samples[..len]));
    unfinished.add(&[sampled(1, &history[..2]), sampled(2, &history[..1]), sampled(3, &history)]);
    assert_eq!(unfinished.finish(&samples).unwrap_err(), error, "the first one counts");
}
