// SPDX-License-Identifier: Apache-2.0
//! Known layouts: a small chunk whose layout is known stores its values alone.

use crate::account::allocated_bytes;
use crate::chunk::{self, Chunk};
use crate::codec::TensorView;
use crate::templates::interned::{Interned, NUM_ENTRIES};
use crate::templates::payload_layout::{PayloadLayout, RawTensor};
use crate::tensor::Shape;
use crate::tensor_head::TensorHead;

/// Larger payloads have no known layout: it would save little, and data from peers must not stay in
/// memory forever.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 1024;

static KNOWN: Interned<KnownLayout> = Interned::new();

/// Bits of a chunk with the index of its layout.
pub(crate) const INDEX_MASK: u16 = NUM_ENTRIES as u16 - 1;

/// A layout that is stored completely, so that values are enough to restore the payload.
#[derive(Debug)]
pub(crate) struct KnownLayout {
    /// Index in the intern table.
    pub(crate) index: u16,
    pub(crate) layout: PayloadLayout,
    /// The payload, with zeros for values.
    blank: Box<[u8]>,
    /// Starts of each tensor's values in a byte string of values alone.
    pub(crate) starts: Box<[usize]>,
    pub(crate) num_value_bytes: usize,
    pub(crate) chunk_bytes: u64,
}

impl KnownLayout {
    /// The layout at an index that a chunk has.
    #[inline]
    pub(crate) fn at(index: u16) -> &'static Self {
        KNOWN.at(index)
    }

    /// Interns the layout of a chunk; `None` if it has none, or if the table is full.
    pub(crate) fn of(chunk: &Chunk) -> Option<&'static Self> {
        if let Some(known) = chunk.known_layout() {
            return Some(known);
        }
        Self::of_payload(chunk.stored(), chunk.is_delta_encoded())
    }

    /// Interns the layout of a payload; `None` if it has none, or if the table is full.
    pub(crate) fn of_payload(payload: &[u8], delta: bool) -> Option<&'static Self> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return None;
        }
        let layout = PayloadLayout::new(payload, delta)?;
        let mut blank = payload.to_vec();
        for tensor in &layout.tensors {
            blank[tensor.values.clone()].fill(0);
        }
        let is_it = |known: &Self| known.layout.delta == delta && *known.blank == *blank;
        let make = |index| {
            let layout = layout.clone();
            let mut num_value_bytes = 0;
            let starts = layout.tensors.iter().map(|tensor| {
                num_value_bytes += tensor.values.len();
                num_value_bytes - tensor.values.len()
            });
            let starts: Box<[usize]> = starts.collect();
            Self {
                index,
                layout,
                blank: blank.clone().into(),
                starts,
                num_value_bytes,
                chunk_bytes: allocated_bytes(chunk::bytes_beside(num_value_bytes)) as u64,
            }
        };
        KNOWN.intern(&blank, is_it, make)
    }

    #[inline]
    pub(crate) fn payload_len(&self) -> usize {
        self.blank.len()
    }

    /// Appends the values of a payload of this layout.
    pub(crate) fn put_values(&self, payload: &[u8], out: &mut Vec<u8>) {
        for tensor in &self.layout.tensors {
            out.extend_from_slice(&payload[tensor.values.clone()]);
        }
    }

    /// Appends the payload of a chunk with these values.
    #[inline]
    pub(crate) fn put_payload(&self, mut values: &[u8], out: &mut Vec<u8>) {
        let mut done = 0;
        for tensor in &self.layout.tensors {
            let (now, later) = values.split_at(tensor.values.len());
            out.extend_from_slice(&self.blank[done..tensor.values.start]);
            out.extend_from_slice(now);
            (values, done) = (later, tensor.values.end);
        }
        out.extend_from_slice(&self.blank[done..]);
    }

    /// The head of a tensor of its chunks.
    #[inline]
    pub(crate) fn head(&self, index: usize) -> Option<TensorHead<'_>> {
        let RawTensor { dtype, shape, .. } = self.layout.tensors.get(index)?;
        let (&num_rows, row_shape) = shape.split_first()?;
        Some(TensorHead::of_rows(*dtype, num_rows, row_shape))
    }

    /// A tensor of a chunk with these values.
    pub(crate) fn tensor<'a>(&self, index: usize, values: &'a [u8]) -> Option<TensorView<'a>> {
        let tensor = self.layout.tensors.get(index)?;
        let &start = self.starts.get(index)?;
        let values = &values[start..start + tensor.values.len()];
        Some(TensorView::raw(tensor.dtype, Shape::from_slice(&tensor.shape), values))
    }
}
