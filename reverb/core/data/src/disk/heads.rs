// SPDX-License-Identifier: Apache-2.0
//! Heads of the tensors of disk chunks, shared by chunks that look alike.

use std::mem::size_of_val;
use std::sync::Arc;

use reverb_base::error::{Error, Result};
use smallvec::SmallVec;

use crate::account::allocated_bytes;
use crate::chunk::Chunk;
use crate::dtype::DType;
use crate::proto_bytes::{Field, Reader, put_varint};
use crate::templates::recent_cache::RecentCache;
use crate::tensor::{Shape, Tensor};
use crate::tensor_head::TensorHead;

/// A chunk with more tensors stays in memory for good: their heads could take more than its values.
const MAX_TENSORS: usize = 1024;

/// The same for a shape: 64 dimensions, as many as NumPy has, take 832 bytes at most.
const MAX_SHAPE_BYTES: usize = 1024;

/// Heads of all tensors of a chunk. The number of rows lies in the chunk, so that lengths make no
/// new ones.
#[derive(Debug, PartialEq, Eq)]
pub struct Heads(Box<[Head]>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Head {
    dtype: DType,
    row_shape: Shape,
    /// `None` if the tensor has as many rows as the first one.
    num_rows: Option<usize>,
}

impl Heads {
    /// Appends them as varints: the number of tensors, and of each its dtype, rank, shape of a row,
    /// and 0 or one more than its rows.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.len() as u64);
        for Head { dtype, row_shape, num_rows } in &self.0 {
            put_varint(out, dtype.number() as u64);
            put_varint(out, row_shape.len() as u64);
            for &dim in row_shape {
                put_varint(out, dim as u64);
            }
            put_varint(out, num_rows.map_or(0, |rows| rows as u64 + 1));
        }
    }

    /// Reads what `put` has written.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for other bytes or too many tensors.
    pub fn parse(bytes: &[u8]) -> Result<Arc<Self>> {
        let mut reader = Reader::new(bytes);
        let number = reader.length()?;
        let mut heads = Vec::new();
        for _ in 0..number {
            let dtype = i32::try_from(reader.varint()?).unwrap_or(-1);
            let dtype = DType::from_number(dtype)?;
            let rank = reader.length()?;
            let row_shape = (0..rank).map(|_| reader.length()).collect::<Result<Shape>>()?;
            let num_rows = reader.length()?.checked_sub(1);
            if heads.len() == MAX_TENSORS {
                return Err(Error::invalid_argument("heads have too many tensors"));
            }
            heads.push(Head { dtype, row_shape, num_rows });
        }
        if !reader.is_empty() {
            return Err(Error::invalid_argument("heads are longer than their tensors"));
        }
        Ok(Arc::new(Self(heads.into())))
    }

    /// Returns true if tensors of these sizes can be in memory, the first with `num_rows`.
    pub(super) fn can_have(&self, num_rows: u32) -> bool {
        self.0.iter().all(|Head { dtype, row_shape, num_rows: own }| {
            let rows = own.unwrap_or(num_rows as usize).max(1);
            let elements = Tensor::num_elements(row_shape).and_then(|n| n.checked_mul(rows));
            let bytes = elements.and_then(|n| n.checked_mul(dtype.size().max(1)));
            bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok())
        })
    }

    /// Number of tensors.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The head of a tensor of a chunk whose first tensor has `num_rows`.
    #[inline]
    pub(super) fn get(&self, index: usize, num_rows: u32) -> Option<TensorHead<'_>> {
        let head = self.0.get(index)?;
        let num_rows = head.num_rows.unwrap_or(num_rows as usize);
        Some(TensorHead::of_rows(head.dtype, num_rows, &head.row_shape))
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let spilled = |head: &Head| {
            let is_spilled = head.row_shape.spilled();
            if is_spilled { allocated_bytes(size_of_val(&*head.row_shape)) } else { 0 }
        };
        let shapes: usize = self.0.iter().map(spilled).sum();
        // An `Arc` has two counters.
        let own = allocated_bytes(size_of::<Self>() + 2 * size_of::<usize>());
        own + allocated_bytes(size_of_val(&*self.0)) + shapes
    }
}

/// The last heads of a stream, which its next chunks share.
#[derive(Debug, Default)]
pub struct HeadsCache(RecentCache<Arc<Heads>>);

/// Heads of a chunk.
pub(super) struct Found {
    pub(super) heads: Arc<Heads>,
    /// Rows of the first tensor.
    pub(super) num_rows: u32,
    /// True if the heads were made for this chunk.
    pub(super) is_new: bool,
}

impl HeadsCache {
    /// The heads of a plain chunk; `None` if a tensor does not parse or lacks rows.
    pub(super) fn find(&mut self, plain: &Chunk) -> Option<Found> {
        // Before shapes are parsed: two bytes may be a dimension, which takes eight.
        if has_long_shape(plain) {
            return None;
        }
        let mut heads: SmallVec<[Head; 4]> = SmallVec::new();
        let mut first = None;
        for tensor in plain.tensors() {
            let tensor = tensor.ok()?;
            let num_rows = tensor.num_rows().ok()?;
            if num_rows > 0 {
                tensor.plausible_bytes(num_rows).ok()?;
            }
            let first = *first.get_or_insert(num_rows);
            if heads.len() == MAX_TENSORS {
                return None;
            }
            heads.push(Head {
                dtype: tensor.dtype,
                row_shape: Shape::from_slice(tensor.row_shape()),
                num_rows: (num_rows != first).then_some(num_rows),
            });
        }
        let num_rows = u32::try_from(first.unwrap_or(0)).ok()?;
        if let Some(known) = self.0.find(|known| *known.0 == *heads) {
            return Some(Found { heads: Arc::clone(known), num_rows, is_new: false });
        }
        let heads = Arc::new(Heads(heads.into_vec().into()));
        self.0.learn(|| Some(Arc::clone(&heads)));
        Some(Found { heads, num_rows, is_new: true })
    }
}

/// True if a tensor of the chunk has a shape of more than `MAX_SHAPE_BYTES`.
fn has_long_shape(plain: &Chunk) -> bool {
    if plain.known_layout().is_some() {
        return false;
    }
    nested(plain.stored(), 1)
        .any(|tensor| nested(tensor, 2).any(|shape| shape.len() > MAX_SHAPE_BYTES))
}

/// The fields of this number in a message, up to what does not parse.
fn nested(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader::new(message);
    let fields = std::iter::from_fn(move || reader.field().ok().flatten());
    fields.filter_map(move |field| match field {
        (found, Field::Bytes(bytes)) if found == number => Some(bytes),
        _ => None,
    })
}
