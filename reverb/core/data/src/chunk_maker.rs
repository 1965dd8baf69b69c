// SPDX-License-Identifier: Apache-2.0
//! Makes chunks for storing.

use crate::chunk::{Chunk, SequenceRange};
use crate::templates::known_layout::{KnownLayout, MAX_PAYLOAD_BYTES};
use crate::templates::recent_cache::RecentCache;

/// Makes chunks one after another. A chunk with a small payload and a known layout stores its
/// values alone; only its memory differs.
///
/// The payload alone decides this, not earlier chunks: a table that is saved and loaded takes the
/// same memory again. The only exception is a full table of layouts.
#[derive(Debug, Default)]
pub struct ChunkMaker {
    known: RecentCache<&'static KnownLayout>,
    values: Vec<u8>,
}

impl ChunkMaker {
    /// Like [`Chunk::new`].
    pub fn make_of(&mut self, key: u64, range: SequenceRange, delta: bool, data: Vec<u8>) -> Chunk {
        let chunk = self.make_known(key, range, delta, &data);
        chunk.unwrap_or_else(|| Chunk::new(key, range, delta, data.into()))
    }

    /// Like [`Chunk::from_slice`].
    pub fn make(&mut self, key: u64, range: SequenceRange, delta: bool, payload: &[u8]) -> Chunk {
        let chunk = self.make_known(key, range, delta, payload);
        chunk.unwrap_or_else(|| Chunk::from_slice(key, range, delta, payload))
    }

    /// Creates a chunk that stores its values alone; `None` if the payload can have no known
    /// layout.
    fn make_known(
        &mut self,
        key: u64,
        range: SequenceRange,
        delta: bool,
        payload: &[u8],
    ) -> Option<Chunk> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return None;
        }
        let known = self.known.find(|known| known.layout.matches(payload, delta)).copied();
        let known = if let Some(known) = known {
            known
        } else {
            let known = KnownLayout::of_payload(payload, delta)?;
            self.known.learn(|| Some(known));
            known
        };
        self.values.clear();
        known.put_values(payload, &mut self.values);
        Some(Chunk::of_layout(key, range, known, &self.values))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::TensorView;
    use crate::{ChunkBuilder, DType, Shape, Tensor, TensorData, TensorHead};

    fn payload(shapes: &[Vec<usize>], delta: bool, seed: u8) -> Vec<u8> {
        let mut builder = ChunkBuilder::new(delta);
        for shape in shapes {
            let len: usize = shape.iter().product();
            // Long tensors of a few values are compressed.
            let value = |i: usize| if len > 300 { 0 } else { (i * 89) as u8 ^ seed };
            builder.push(&Tensor {
                dtype: DType::UInt8,
                shape: Shape::from_slice(shape),
                data: TensorData::Bytes((0..len).map(value).collect()),
            });
        }
        builder.finish(1, SequenceRange::default()).payload().into_owned()
    }

    /// Everything that callers can see of a chunk.
    fn contents(chunk: &Chunk) -> impl PartialEq + std::fmt::Debug {
        let rows = |index: usize| {
            let tensor = chunk.tensor(index)?;
            let (num_rows, row_bytes) = (tensor.num_rows()?, tensor.row_bytes());
            let rows = (0..=num_rows + 1).map(|row| tensor.rows(row, 1)).collect::<Vec<_>>();
            let whole = tensor.rows(0, num_rows);
            reverb_base::Result::Ok((tensor.dtype, tensor.shape.clone(), row_bytes, rows, whole))
        };
        let shown = |head: TensorHead<'_>| {
            (head.dtype, head.num_rows(), head.row_shape().to_vec(), head.check_rows(1, 2))
        };
        for index in 0..=chunk.num_tensors() {
            let of_tensor = chunk.tensor(index).map(TensorView::into_head).map(shown);
            assert_eq!(chunk.head(index).map(shown), of_tensor);
        }
        let tensors: Vec<_> = (0..=chunk.num_tensors()).map(rows).collect();
        let sizes: Vec<_> = chunk
            .tensors()
            .map(|tensor| tensor.map(|tensor| tensor.uncompressed_bytes()))
            .collect();
        let mut appended = vec![9];
        chunk.put_payload(&mut appended);
        let head = (chunk.key(), chunk.range(), chunk.is_delta_encoded(), chunk.payload_len());
        (head, chunk.payload().into_owned(), appended, tensors, sizes)
    }

    proptest! {
        /// A chunk, even a damaged one, looks the same however it is stored.
        #[test]
        fn a_chunk_is_the_same_however_it_is_kept(
            chunks in prop::collection::vec((
                prop::collection::vec(
                    (0usize..4, prop::collection::vec(0usize..12, 0..3))
                        .prop_map(|(rows, rest)| [vec![rows], rest].concat()),
                    0..4,
                ),
                any::<(bool, bool, u8)>(),
                prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>())),
                prop::option::weighted(0.1, any::<prop::sample::Index>()),
            ), 1..12),
        ) {
            let mut maker = ChunkMaker::default();
            let mut made = Vec::new();
            for (shapes, (delta, sparse, seed), damage, cut) in chunks {
                let mut payload = payload(&shapes, delta, seed);
                if let (Some((at, byte)), false) = (damage, payload.is_empty()) {
                    let at = at.index(payload.len());
                    payload[at] = byte;
                }
                if let (Some(cut), false) = (cut, payload.is_empty()) {
                    payload.truncate(cut.index(payload.len()));
                }
                let range = SequenceRange { episode_id: 5, start: -1, end: i32::from(seed), sparse };
                let plain = Chunk::from_slice(u64::from(seed), range, delta, &payload);
                for _ in 0..2 {
                    let chunk = maker.make(plain.key(), range, delta, &payload);
                    prop_assert_eq!(contents(&chunk), contents(&plain));
                    prop_assert!(chunk.has_payload_of(&plain) && plain.has_payload_of(&chunk));
                    prop_assert!(chunk.bytes() <= plain.bytes());
                    made.push(chunk);
                }
            }
            for a in &made {
                for b in &made {
                    prop_assert_eq!(a.has_payload_of(b), a.payload() == b.payload());
                }
            }
        }
    }

    #[test]
    fn what_a_chunk_keeps_does_not_depend_on_others() {
        let mut together = ChunkMaker::default();
        for round in 0..50 {
            for width in 1..30 {
                let payload = payload(&[vec![1, width], vec![width]], round % 2 == 1, round);
                let make = |maker: &mut ChunkMaker| {
                    maker.make(1, SequenceRange::default(), round % 2 == 1, &payload)
                };
                let (among_others, alone) = (make(&mut together), make(&mut ChunkMaker::default()));
                assert_eq!(among_others.stored(), alone.stored(), "{round} {width}");
            }
        }
    }

    #[test]
    fn small_chunks_that_are_alike_keep_their_values_alone() {
        let mut maker = ChunkMaker::default();
        let mut make = |shapes: &[Vec<usize>]| {
            let payload = payload(shapes, false, 1);
            maker.make(1, SequenceRange::default(), false, &payload)
        };
        let transition = [vec![1, 16], vec![1, 4], vec![1, 4]];
        for _ in 0..2 {
            let chunk = make(&transition);
            assert_eq!((chunk.stored().len(), chunk.bytes()), (24, 80));
        }
        let compressed = make(&[vec![1, 400]]);
        assert_eq!(compressed.stored(), &compressed.payload()[..]);
        let long = make(&(0..9).map(|_| vec![1, 120]).collect::<Vec<_>>());
        assert_eq!(long.stored().len(), long.payload_len());
    }
}
