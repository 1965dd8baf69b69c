// SPDX-License-Identifier: Apache-2.0
//! Step headers: find the values of steps in chunks of any length, without parsing the chunks.

use smallvec::SmallVec;

use crate::chunk::Chunk;
use crate::codec::put_dims;
use crate::dtype::DType;
use crate::literal;
use crate::proto_bytes::Reader;
use crate::tensor::{Shape, Tensor};

/// Dtype and shape of one step.
///
/// Chunks of items of different lengths differ in their number of steps. Everything else in the
/// header of a tensor is compared with the output of our encoder, which takes a third of the time
/// of parsing it. A tensor with another header is not found, even if it holds such steps.
#[derive(Debug)]
pub struct StepHeader {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the dimensions of one step.
    pub shape: Shape,
    /// Bytes of one step in memory; 0 for strings.
    pub num_bytes: usize,
    dtype_number: u8,
    /// Encoded shape without the number of steps.
    dims: SmallVec<[u8; 32]>,
}

const TENSOR_TAG: u8 = 1 << 3 | 2;
/// Tags of a tensor: its dtype, shape and elements.
const DTYPE_TAG: u8 = 1 << 3;
const SHAPE_TAG: u8 = 2 << 3 | 2;
const CONTENT_TAG: u8 = 4 << 3 | 2;
/// The tag of a dimension in a shape, and that of its size.
const DIM_TAG: u8 = 2 << 3 | 2;
const SIZE_TAG: u8 = 1 << 3;

impl StepHeader {
    /// The header of these steps; `None` if the shape overflows.
    pub fn new(dtype: DType, shape: &[usize]) -> Option<Self> {
        let num_bytes = Tensor::num_bytes(dtype, shape)?;
        // Numbers of dtypes take one byte as a varint.
        let dtype_number = u8::try_from(dtype.number()).ok().filter(|&number| number < 0x80)?;
        let mut dims = Vec::new();
        put_dims(&mut dims, shape);
        let shape = Shape::from_slice(shape);
        let dims = SmallVec::from_vec(dims);
        Some(Self { dtype, shape, num_bytes, dtype_number, dims })
    }

    /// Steps `[offset, offset + length)` of a tensor in [`Chunk::stored`], at least one byte.
    ///
    /// `None` if the tensor has other steps or fewer, if it is compressed or delta encoded, if its
    /// elements are strings, if its header is unusual, or if it is damaged.
    #[inline]
    pub fn find<'c>(
        &self,
        chunk: &'c Chunk,
        tensor: usize,
        offset: usize,
        length: usize,
    ) -> Option<&'c [u8]> {
        let (num_steps, values) = match chunk.known_layout() {
            Some(known) => {
                let raw = known.layout.tensors.get(tensor)?;
                if raw.dtype != self.dtype || raw.shape[1..] != self.shape[..] {
                    return None;
                }
                let start = *known.starts.get(tensor)?;
                (raw.shape[0], chunk.stored().get(start..start + raw.values.len())?)
            }
            None if chunk.is_delta_encoded() => return None,
            None => self.values(chunk.stored(), tensor)?,
        };
        if offset.checked_add(length)? > num_steps || self.dtype == DType::String {
            return None;
        }
        let steps = values.get(offset * self.num_bytes..(offset + length) * self.num_bytes)?;
        (!steps.is_empty()).then_some(steps)
    }

    /// The number of steps of a tensor, and its elements.
    #[inline]
    fn values<'c>(&self, payload: &'c [u8], tensor: usize) -> Option<(usize, &'c [u8])> {
        let mut payload = Reader::new(payload);
        for _ in 0..tensor {
            field(&mut payload, TENSOR_TAG)?;
        }
        let message = field(&mut payload, TENSOR_TAG)?;
        let [DTYPE_TAG, number, message @ ..] = message else { return None };
        let mut message = Reader::new(message);
        let mut dims = Reader::new(field(&mut message, SHAPE_TAG)?);
        let [SIZE_TAG, size @ ..] = field(&mut dims, DIM_TAG)? else { return None };
        let mut size = Reader::new(size);
        let num_steps = size.length().ok()?;
        let values = literal::body(field(&mut message, CONTENT_TAG)?)?;
        let is_it = *number == self.dtype_number
            && *dims.rest() == *self.dims
            && size.is_empty()
            && message.is_empty()
            && Some(values.len()) == num_steps.checked_mul(self.num_bytes);
        is_it.then_some((num_steps, values))
    }
}

/// The next field of bytes, if it has this tag.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a dozen instructions, called four times for an item")]
fn field<'a>(reader: &mut Reader<'a>, tag: u8) -> Option<&'a [u8]> {
    let (&first, rest) = reader.rest().split_first()?;
    if first != tag {
        return None;
    }
    *reader = Reader::new(rest);
    let length = reader.length().ok()?;
    reader.take(length).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::templates::chunk_layout::ChunkLayout;
    use crate::{ChunkBuilder, SequenceRange, TensorData};

    const DTYPES: [DType; 3] = [DType::UInt8, DType::Float32, DType::Int64];

    /// Tensors of noise, which does not compress.
    fn chunk(tensors: &[(DType, Vec<usize>)], delta: bool) -> Chunk {
        let mut builder = ChunkBuilder::new(delta);
        let mut state = 1_u32;
        for (dtype, shape) in tensors {
            let mut noise = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let len = Tensor::num_bytes(*dtype, shape).unwrap();
            builder.push(&Tensor {
                dtype: *dtype,
                shape: Shape::from_slice(shape),
                data: TensorData::Bytes((0..len).map(|_| noise()).collect()),
            });
        }
        builder.finish(1, SequenceRange::default())
    }

    /// The chunk as it is stored by its values alone, if its layout can be known.
    fn of_values(whole: &Chunk) -> Option<Chunk> {
        let layout = ChunkLayout::for_more(whole).filter(|layout| !layout.matches(whole))?;
        let mut values = Vec::new();
        for tensor in whole.tensors() {
            values.extend_from_slice(tensor.unwrap().values_in_place().unwrap());
        }
        Some(layout.chunk(1, SequenceRange::default(), &values))
    }

    fn tensors() -> impl Strategy<Value = Vec<(DType, Vec<usize>)>> {
        let shape = (1usize..300, prop::collection::vec(1usize..4, 0..3))
            .prop_map(|(rows, rest)| [vec![rows], rest].concat());
        prop::collection::vec((prop::sample::select(DTYPES.to_vec()), shape), 1..4)
    }

    /// Checks that finding gives the same as parsing; returns true if the steps were found.
    fn check(
        kind: &StepHeader,
        chunk: &Chunk,
        tensor: usize,
        offset: usize,
        length: usize,
    ) -> bool {
        let Some(found) = kind.find(chunk, tensor, offset, length) else { return false };
        let parsed = chunk.tensor(tensor).unwrap();
        assert_eq!((parsed.dtype, parsed.row_shape()), (kind.dtype, &kind.shape[..]));
        let steps = parsed.rows(offset, length).unwrap().data;
        assert_eq!(TensorData::Bytes(found.to_vec()), steps);
        true
    }

    proptest! {
        /// Steps of every tensor that is not encoded are found, with the values that parsing gives.
        #[test]
        fn steps_are_found_in_chunks_of_any_length(tensors in tensors(), delta in any::<bool>()) {
            let whole = chunk(&tensors, delta);
            let of_values = of_values(&whole);
            for chunk in std::iter::once(&whole).chain(&of_values) {
                for (at, (dtype, shape)) in tensors.iter().enumerate() {
                    let kind = StepHeader::new(*dtype, &shape[1..]).unwrap();
                    for (offset, length) in [(0, shape[0]), (shape[0] - 1, 1), (0, shape[0] + 1)] {
                        let found = check(&kind, chunk, at, offset, length);
                        let is_plain = (chunk.known_layout().is_some() || !delta)
                            && chunk.tensor(at).unwrap().values_in_place().is_some();
                        prop_assert_eq!(found, is_plain && offset + length <= shape[0]);
                    }
                    prop_assert_eq!(kind.find(chunk, at, usize::MAX, 1), None);
                    prop_assert_eq!(kind.find(chunk, at, 0, 0), None);
                    prop_assert_eq!(kind.find(chunk, tensors.len(), 0, 1), None);
                }
            }
        }

        /// Steps with another dtype or shape are never found.
        #[test]
        fn other_steps_are_not_found(one in tensors(), another in tensors()) {
            let whole = chunk(&one, false);
            let of_values = of_values(&whole);
            for (dtype, shape) in &another {
                let kind = StepHeader::new(*dtype, &shape[1..]).unwrap();
                for (at, (of_chunk, rows)) in one.iter().enumerate() {
                    let is_kind = of_chunk == dtype && rows[1..] == shape[1..];
                    for chunk in std::iter::once(&whole).chain(&of_values) {
                        prop_assert!(check(&kind, chunk, at, 0, 1) <= is_kind);
                    }
                }
            }
        }

        /// In damaged chunks, finding gives the same as parsing or nothing.
        #[test]
        fn damaged_chunks_give_nothing_else(
            tensors in tensors(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut payload = chunk(&tensors, false).payload().into_owned();
            // Damage matters most in the headers.
            let at = at.index(payload.len().min(40));
            payload[at] = byte;
            for payload in [&payload[..], &payload[..=cut.index(payload.len())]] {
                let damaged = Chunk::from_slice(1, SequenceRange::default(), false, payload);
                for (at, (dtype, shape)) in tensors.iter().enumerate() {
                    let kind = StepHeader::new(*dtype, &shape[1..]).unwrap();
                    check(&kind, &damaged, at, 0, 1);
                    check(&kind, &damaged, at, 0, shape[0]);
                }
            }
        }
    }

    #[test]
    fn strings_and_steps_without_elements_are_not_found() {
        let mut builder = ChunkBuilder::new(false);
        let data = TensorData::Strings(vec![b"abc".to_vec()]);
        builder.push(&Tensor { dtype: DType::String, shape: Shape::from_slice(&[1]), data });
        let data = TensorData::Bytes(Vec::new());
        builder.push(&Tensor { dtype: DType::Int64, shape: Shape::from_slice(&[2, 0]), data });
        let chunk = builder.finish(1, SequenceRange::default());
        let strings = StepHeader::new(DType::String, &[]).unwrap();
        assert_eq!(strings.find(&chunk, 0, 0, 1), None);
        let empty = StepHeader::new(DType::Int64, &[0]).unwrap();
        assert_eq!(empty.find(&chunk, 1, 0, 2), None);
        assert!(StepHeader::new(DType::Int64, &[usize::MAX, 2]).is_none());
    }
}
