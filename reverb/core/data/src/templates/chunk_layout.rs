// SPDX-License-Identifier: Apache-2.0
//! Layouts of chunks: where the values are in chunks that differ in nothing but their values.

use std::ops::Range;

use crate::chunk::{Chunk, SequenceRange};
use crate::templates::known_layout::KnownLayout;
use crate::templates::payload_layout::PayloadLayout;

/// The common part of chunks that differ only in key, range and values, and the positions of each
/// tensor's values.
///
/// Comparing a chunk with a layout is much cheaper than parsing it, and exact: a chunk that matches
/// holds the same tensors, with the same dtypes, shapes and positions. Only chunks whose tensors
/// are neither compressed nor delta encoded have a layout.
#[derive(Debug)]
pub struct ChunkLayout(Form);

#[derive(Debug)]
enum Form {
    /// Layout of chunks that store their values alone.
    Known(&'static KnownLayout),
    /// Layout of chunks that store their payload.
    Own(Box<PayloadLayout>),
}

impl ChunkLayout {
    /// The layout of a chunk; `None` if it has none.
    pub fn new(chunk: &Chunk) -> Option<Self> {
        if let Some(known) = chunk.known_layout() {
            return Some(Self(Form::Known(known)));
        }
        let layout = PayloadLayout::new(chunk.stored(), chunk.is_delta_encoded())?;
        Some(Self(Form::Own(Box::new(layout))))
    }

    /// The layout for further chunks like this one. If possible they store their values alone, even
    /// if this one does not.
    pub fn for_more(chunk: &Chunk) -> Option<Self> {
        KnownLayout::of(chunk)
            .map_or_else(|| Self::new(chunk), |known| Some(Self(Form::Known(known))))
    }

    /// Returns true if the chunk differs from the layout's chunk only in its values, and is stored
    /// in the same way.
    #[inline]
    pub fn matches(&self, chunk: &Chunk) -> bool {
        match (&self.0, chunk.layout_index()) {
            (Form::Known(known), Some(index)) => known.index == index,
            (Form::Own(own), None) => own.matches(chunk.stored(), chunk.is_delta_encoded()),
            _ => false,
        }
    }

    /// Range of rows `[offset, offset + length)` of a tensor in [`Chunk::stored`] of every chunk
    /// that matches; `None` if there are no such rows.
    pub fn rows(&self, tensor: usize, offset: usize, length: usize) -> Option<Range<usize>> {
        let (layout, start) = match &self.0 {
            Form::Known(known) => (&known.layout, known.starts.get(tensor).copied()),
            Form::Own(own) => (&**own, own.tensors.get(tensor).map(|tensor| tensor.values.start)),
        };
        let rows = layout.tensors.get(tensor)?.rows(offset, length)?;
        let start = start?;
        Some(start + rows.start..start + rows.end)
    }

    /// Stored bytes of a chunk of this layout with zeros for values; `chunk` has the same payload
    /// except for its values.
    pub fn blank(&self, chunk: &Chunk) -> Vec<u8> {
        match &self.0 {
            Form::Known(known) => vec![0; known.num_value_bytes],
            Form::Own(_) => chunk.stored().to_vec(),
        }
    }

    /// Creates a chunk of this layout with these stored bytes.
    #[inline]
    pub fn chunk(&self, key: u64, range: SequenceRange, stored: &[u8]) -> Chunk {
        match &self.0 {
            Form::Known(known) => Chunk::of_layout(key, range, known, stored),
            Form::Own(own) => Chunk::from_payload(key, range, own.delta, stored),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ChunkBuilder, DType, SequenceRange, Shape, Tensor, TensorData};

    fn chunk(shapes: &[Vec<usize>], delta: bool, seed: u8) -> Chunk {
        let mut builder = ChunkBuilder::new(delta);
        for shape in shapes {
            let len: usize = shape.iter().product();
            // Noise does not compress.
            let mut state = u32::from(seed) + 1;
            let mut noise = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            builder.push(&Tensor {
                dtype: DType::UInt8,
                shape: Shape::from_slice(shape),
                data: TensorData::Bytes((0..len).map(|_| noise()).collect()),
            });
        }
        builder.finish(1, SequenceRange::default())
    }

    fn shapes() -> impl Strategy<Value = Vec<Vec<usize>>> {
        let shape = (1usize..4, prop::collection::vec(0usize..9, 0..3))
            .prop_map(|(rows, rest)| [vec![rows], rest].concat());
        prop::collection::vec(shape, 1..5)
    }

    proptest! {
        /// In a chunk that matches, the values are where the layout says, as parsing confirms.
        #[test]
        fn rows_are_where_the_layout_says(shapes in shapes(), delta in any::<bool>(), seed in any::<u8>()) {
            let Some(layout) = ChunkLayout::new(&chunk(&shapes, delta, 0)) else { return Ok(()) };
            let other = chunk(&shapes, delta, seed);
            prop_assume!(layout.matches(&other));
            for (i, shape) in shapes.iter().enumerate() {
                let tensor = other.tensor(i).unwrap();
                for offset in 0..=shape[0] {
                    for length in 0..=shape[0] - offset {
                        let rows = layout.rows(i, offset, length).unwrap();
                        let expected = tensor.rows(offset, length).unwrap().data;
                        prop_assert_eq!(TensorData::Bytes(other.stored()[rows].to_vec()), expected);
                    }
                }
                prop_assert!(layout.rows(i, 0, shape[0] + 1).is_none());
                prop_assert!(layout.rows(i, usize::MAX, 2).is_none());
            }
            prop_assert!(layout.rows(shapes.len(), 0, 0).is_none());
        }

        /// A chunk with a changed value matches; one with any other changed byte does not.
        #[test]
        fn every_byte_but_the_values_counts(shapes in shapes(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let original = chunk(&shapes, false, 0);
            let Some(layout) = ChunkLayout::new(&original) else { return Ok(()) };
            let mut payload = original.stored().to_vec();
            let at = at.index(payload.len());
            payload[at] ^= 1 << bit;
            let changed = Chunk::from_slice(1, SequenceRange::default(), false, &payload);
            let is_value = (0..shapes.len())
                .any(|i| layout.rows(i, 0, shapes[i][0]).unwrap().contains(&at));
            prop_assert_eq!(layout.matches(&changed), is_value);
        }

        /// A damaged chunk has a layout only if all its tensors can be read.
        #[test]
        fn damaged_chunks_have_no_wrong_layout(
            shapes in shapes(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
        ) {
            let mut payload = chunk(&shapes, false, 0).stored().to_vec();
            let at = at.index(payload.len());
            payload[at] = byte;
            payload.truncate(cut.index(payload.len()) + 1);
            let damaged = Chunk::from_slice(1, SequenceRange::default(), false, &payload);
            let Some(layout) = ChunkLayout::new(&damaged) else { return Ok(()) };
            for (i, tensor) in damaged.tensors().enumerate() {
                let tensor = tensor.unwrap();
                let rows = tensor.num_rows().unwrap();
                let range = layout.rows(i, 0, rows).unwrap();
                let expected = tensor.rows(0, rows).unwrap().data;
                prop_assert_eq!(TensorData::Bytes(payload[range].to_vec()), expected);
            }
        }
    }

    #[test]
    fn compressed_delta_encoded_and_string_tensors_have_no_layout() {
        let mut zeros = ChunkBuilder::new(false);
        let data = TensorData::Bytes(vec![0; 4096]);
        let shape = Shape::from_slice(&[4096]);
        zeros.push(&Tensor { dtype: DType::UInt8, shape, data });
        assert!(ChunkLayout::new(&zeros.finish(1, SequenceRange::default())).is_none());
        assert!(ChunkLayout::new(&chunk(&[vec![2, 3]], true, 0)).is_none());
        let mut strings = ChunkBuilder::new(false);
        let data = TensorData::Strings(vec![b"abc".to_vec()]);
        strings.push(&Tensor { dtype: DType::String, shape: Shape::from_slice(&[1]), data });
        assert!(ChunkLayout::new(&strings.finish(1, SequenceRange::default())).is_none());
    }

    #[test]
    fn chunks_that_store_their_values_alone_match_each_other() {
        let shapes = [vec![2, 3], vec![2]];
        let whole = chunk(&shapes, false, 0);
        let layout = ChunkLayout::for_more(&whole).unwrap();
        assert!(!layout.matches(&whole), "it is stored in another way");
        assert_eq!(layout.blank(&whole), [0; 8]);
        let values = layout.chunk(7, SequenceRange::default(), &[1, 2, 3, 4, 5, 6, 8, 9]);
        for layout in [&layout, &ChunkLayout::new(&values).unwrap()] {
            assert!(layout.matches(&values));
            assert_eq!(layout.rows(0, 1, 1), Some(3..6));
            assert_eq!(layout.rows(1, 0, 2), Some(6..8));
            assert_eq!((layout.rows(1, 1, 2), layout.rows(2, 0, 1)), (None, None));
        }
        assert!(!ChunkLayout::new(&whole).unwrap().matches(&values));
        let decoded = values.tensor(1).unwrap().rows(0, 2).unwrap();
        assert_eq!(decoded.data, TensorData::Bytes(vec![8, 9]));
    }

    #[test]
    fn a_chunk_with_the_delta_flag_matches_none_without() {
        // A tensor of rank 1 is never delta encoded, even if the flag is set.
        let (plain, flagged) = (chunk(&[vec![3]], false, 0), chunk(&[vec![3]], true, 0));
        assert_eq!(plain.stored(), flagged.stored());
        assert!(!ChunkLayout::new(&plain).unwrap().matches(&flagged));
    }
}
