// SPDX-License-Identifier: Apache-2.0
//! Tests of batches.

use proptest::prelude::*;
use reverb_data::{
    Chunk, ChunkBuilder, DType, SequenceRange, Shape, StepWindow, Tensor, TensorData, Trajectory,
    TrajectoryBuilder,
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
        let mut appended = builder(samples.len() + missing);
        for some in samples.chunks(parts + 1) {
            // The memory of very large batches is taken when all items are there.
            prop_assert_eq!(appended.append(some), missing <= 7);
        }
        let batch = unfinished.finish(&samples).unwrap();
        prop_assert!(missing > 7 || batch.len() == WIDTHS.len());
        let appended = if missing > 7 { Vec::new() } else { appended.into_columns() };
        for (i, column) in batch.into_iter().enumerate().chain(appended.into_iter().enumerate()) {
            prop_assert_eq!(&column.shape[..], &[samples.len(), num_steps, WIDTHS[i]]);
            prop_assert_eq!(content(column), decoded(&samples, i).concat());
        }
    }
}

/// An episode: of both columns all steps, in chunks of these lengths and kinds.
fn episode(key: u64, chunks: &[(usize, u8)]) -> Trajectory {
    let mut builder = TrajectoryBuilder::new();
    let mut noise = key as u32 + 1;
    for (width, column) in WIDTHS.into_iter().zip(0..) {
        for (&(length, kind), at) in chunks.iter().zip(0..) {
            let mut value = || {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if kind == 1 { (noise >> 30) as u8 } else { (noise >> 24) as u8 }
            };
            let mut chunk = ChunkBuilder::new(kind == 2);
            // The second column is in a chunk with another one.
            for width in [width, 1].into_iter().take(1 + column) {
                chunk.push(&Tensor {
                    dtype: DType::UInt8,
                    shape: Shape::from_slice(&[length, width]),
                    data: TensorData::Bytes((0..length * width).map(|_| value()).collect()),
                });
            }
            let chunk =
                chunk.finish(key * 1000 + column as u64 * 100 + at, SequenceRange::default());
            builder.slice(&chunk, 0, 0, length);
        }
        builder.end_column(false);
    }
    builder.finish().unwrap()
}

proptest! {
    /// Windows of episodes are copied, from chunks that are known or not, in any number of parts.
    #[test]
    fn a_batch_of_windows_has_their_steps(
        // Chunks of few lengths, most of them raw, others compressed or delta encoded.
        episodes in prop::collection::vec(
            prop::collection::vec(
                (prop::sample::select(vec![1usize, 4, 4, 7]), prop::sample::select(vec![0u8, 0, 0, 1, 2])),
                3..9,
            ),
            1..5,
        ),
        picks in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 1..60),
        length in 1u32..4,
        parts in 0usize..5,
    ) {
        let episodes: Vec<(Trajectory, usize)> = episodes
            .iter()
            .zip(0..)
            .map(|(it, key)| (episode(key, it), it.iter().map(|(steps, _)| steps).sum()))
            .collect();
        let window = StepWindow { length, before: 0, pads_left: false, pads_right: false };
        let mut cutter = TrajectoryBuilder::new();
        let mut cut = |(at, first): &(prop::sample::Index, prop::sample::Index)| {
            let (whole, steps) = at.get(&episodes);
            let start = first.index(steps + 1 - length as usize) as i32;
            cutter.cut(whole, &[], window, start, &[]).unwrap()
        };
        let samples: Vec<Sampled> =
            picks.iter().zip(0..).map(|(pick, key)| testing::sampled(key, cut(pick))).collect();
        let mut unfinished = builder(samples.len());
        for part in 1..=parts {
            unfinished.add(&samples[..samples.len() * part / parts]);
        }
        for (i, column) in unfinished.finish(&samples).unwrap().into_iter().enumerate() {
            prop_assert_eq!(&column.shape[..], &[samples.len(), length as usize, WIDTHS[i]]);
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
