// SPDX-License-Identifier: Apache-2.0
//! Known layouts: a small chunk whose layout is known keeps its values alone.

use crate::account::allocated_bytes;
use crate::chunk::{self, Chunk};
use crate::codec::TensorView;
use crate::templates::interned::{Interned, PLACES};
use crate::templates::payload_layout::PayloadLayout;
use crate::tensor::Shape;

/// Layouts of larger payloads are not kept: they save little, and what a peer sends must not stay
/// in memory for ever.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 1024;

static KNOWN: Interned<KnownLayout> = Interned::new();

/// The bits of a chunk that tell the place of its layout.
pub(crate) const PLACE_MASK: u16 = PLACES as u16 - 1;

/// A layout of which every part is kept, so that values are enough to make the payload again.
#[derive(Debug)]
pub(crate) struct KnownLayout {
    /// Its place among all of them.
    pub(crate) place: u16,
    pub(crate) layout: PayloadLayout,
    /// The payload, with zeros for values.
    blank: Box<[u8]>,
    /// Where the values of each tensor begin if there is nothing else before them.
    pub(crate) starts: Box<[usize]>,
    pub(crate) num_value_bytes: usize,
    /// Bytes that a chunk takes.
    pub(crate) chunk_bytes: u64,
}

impl KnownLayout {
    /// The layout at a place that a chunk tells.
    #[inline]
    pub(crate) fn at(place: u16) -> &'static Self {
        KNOWN.at(place)
    }

    /// The layout of a chunk, which is known from now on; `None` if it has none, or if there is no
    /// place for it.
    pub(crate) fn of(chunk: &Chunk) -> Option<&'static Self> {
        if let Some(known) = chunk.known_layout() {
            return Some(known);
        }
        Self::of_payload(chunk.stored(), chunk.is_delta_encoded())
    }

    /// The layout of a payload, likewise.
    pub(crate) fn of_payload(payload: &[u8], delta: bool) -> Option<&'static Self> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return None;
        }
        let layout = PayloadLayout::new(payload, delta)?;
        let mut blank = payload.to_vec();
        for tensor in &layout.tensors {
            blank[tensor.values.clone()].fill(0);
        }
        let is_it = |it: &Self| it.layout.delta == delta && *it.blank == *blank;
        let make = |place| {
            let layout = layout.clone();
            let mut num_value_bytes = 0;
            let starts = layout.tensors.iter().map(|tensor| {
                num_value_bytes += tensor.values.len();
                num_value_bytes - tensor.values.len()
            });
            let starts: Box<[usize]> = starts.collect();
            Self {
                place,
                layout,
                blank: blank.clone().into(),
                starts,
                num_value_bytes,
                chunk_bytes: allocated_bytes(chunk::bytes_beside(num_value_bytes)) as u64,
            }
        };
        KNOWN.intern(&blank, is_it, make)
    }

    /// Length of the payload.
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

    /// A tensor of a chunk with these values.
    pub(crate) fn tensor<'a>(&self, index: usize, values: &'a [u8]) -> Option<TensorView<'a>> {
        let (tensor, &start) = (self.layout.tensors.get(index)?, self.starts.get(index)?);
        let values = &values[start..start + tensor.values.len()];
        Some(TensorView::raw(tensor.dtype, Shape::from_slice(&tensor.shape), values))
    }
}
