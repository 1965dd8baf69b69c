// SPDX-License-Identifier: Apache-2.0
//! Chunks: consecutive cells of one or several columns, encoded, immutable, shared by reference.

use std::fmt;

use bytes::Bytes;
use triomphe::ThinArc;

use crate::codec::{TensorView, put_string_tensor, put_tensor};
use crate::error::{Error, Result};
use crate::proto_bytes::{Field, Reader};
use crate::tensor::{Tensor, TensorData};

/// The range of an episode's steps that a chunk covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceRange {
    /// Random id of the episode.
    pub episode_id: u64,
    /// First step.
    pub start: i32,
    /// Last step, inclusive.
    pub end: i32,
    /// Whether steps in between are missing.
    pub sparse: bool,
}

/// An encoded, immutable run of steps. Cloning shares it.
///
/// One allocation holds the header and a small payload; a large payload stays in the buffer it
/// arrived in.
#[derive(Clone)]
pub struct Chunk(ThinArc<Header, u8>);

struct Header {
    key: u64,
    range: SequenceRange,
    delta: bool,
    /// The payload, if it is not inline.
    shared: Option<Box<Bytes>>,
}

/// Payloads up to this size are copied next to the header; larger ones stay in their buffer.
const MAX_INLINE_BYTES: usize = 4096;

impl Chunk {
    /// A chunk of the given payload, a serialized `ChunkData.Data` message.
    pub fn new(key: u64, range: SequenceRange, delta: bool, data: Bytes) -> Self {
        if data.len() <= MAX_INLINE_BYTES {
            return Self::from_slice(key, range, delta, &data);
        }
        let header = Header { key, range, delta, shared: Some(Box::new(data)) };
        Self(ThinArc::from_header_and_slice(header, &[]))
    }

    /// A chunk whose payload is copied, next to its header or into a buffer of its own.
    pub fn from_payload(key: u64, range: SequenceRange, delta: bool, data: &[u8]) -> Self {
        if data.len() <= MAX_INLINE_BYTES {
            return Self::from_slice(key, range, delta, data);
        }
        Self::new(key, range, delta, Bytes::copy_from_slice(data))
    }

    /// A chunk whose payload is copied next to its header.
    pub fn from_slice(key: u64, range: SequenceRange, delta: bool, data: &[u8]) -> Self {
        Self(ThinArc::from_header_and_slice(Header { key, range, delta, shared: None }, data))
    }

    /// Its random key.
    pub fn key(&self) -> u64 {
        self.header().key
    }

    /// The range of its steps in the episode.
    pub fn range(&self) -> SequenceRange {
        self.header().range
    }

    /// Whether its integer tensors are delta encoded.
    pub fn is_delta_encoded(&self) -> bool {
        self.header().delta
    }

    /// The payload: a serialized `ChunkData.Data` message.
    pub fn data(&self) -> &[u8] {
        match &self.header().shared {
            Some(bytes) => bytes,
            None => &self.0.slice,
        }
    }

    /// The payload as a shared buffer, if it has one.
    pub fn shared_data(&self) -> Option<&Bytes> {
        self.header().shared.as_deref()
    }

    /// The tensors in order, with their headers parsed.
    pub fn tensors(&self) -> impl Iterator<Item = Result<TensorView<'_>>> {
        let delta = self.is_delta_encoded();
        let mut reader = Reader::new(self.data());
        std::iter::from_fn(move || {
            loop {
                match reader.field() {
                    Ok(None) => return None,
                    Ok(Some((1, Field::Bytes(tensor)))) => {
                        return Some(TensorView::parse(tensor, delta));
                    }
                    Ok(Some(_)) => {}
                    Err(error) => {
                        reader = Reader::new(&[]);
                        return Some(Err(error));
                    }
                }
            }
        })
    }

    /// The tensor at `index`.
    pub fn tensor(&self, index: usize) -> Result<TensorView<'_>> {
        let mut reader = Reader::new(self.data());
        let mut at = 0;
        while let Some((field, value)) = reader.field()? {
            if let (1, Field::Bytes(tensor)) = (field, value) {
                if at == index {
                    return TensorView::parse(tensor, self.is_delta_encoded());
                }
                at += 1;
            }
        }
        Err(Error::invalid_argument(format!(
            "Tensor index {index} is out of range: chunk {} holds {at} tensors.",
            self.key()
        )))
    }

    /// Whether both are the same chunk in memory.
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.header(), other.header())
    }

    /// An identifier that is unique among all live chunks, even those with the same key.
    pub fn identity(&self) -> usize {
        std::ptr::from_ref(self.header()).addr()
    }

    /// Number of references to this chunk, for tests and memory reports.
    pub fn reference_count(&self) -> usize {
        ThinArc::strong_count(&self.0)
    }

    fn header(&self) -> &Header {
        &self.0.header.header
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("key", &self.key())
            .field("range", &self.range())
            .field("bytes", &self.data().len())
            .finish_non_exhaustive()
    }
}

/// Encodes tensors into a chunk.
#[derive(Debug, Default)]
pub struct ChunkBuilder {
    data: Vec<u8>,
    delta: bool,
}

impl ChunkBuilder {
    /// A builder; `delta` turns delta encoding on for the whole chunk.
    pub fn new(delta: bool) -> Self {
        Self { data: Vec::new(), delta }
    }

    /// Adds a stacked tensor.
    pub fn push(&mut self, tensor: &Tensor) {
        match &tensor.data {
            TensorData::Bytes(bytes) => {
                put_tensor(&mut self.data, tensor.dtype, &tensor.shape, bytes, self.delta);
            }
            TensorData::Strings(strings) => {
                put_string_tensor(&mut self.data, &tensor.shape, strings);
            }
        }
    }

    /// Builds the chunk from all tensors that were added.
    pub fn finish(self, key: u64, range: SequenceRange) -> Chunk {
        if self.data.len() <= MAX_INLINE_BYTES {
            return Chunk::from_slice(key, range, self.delta, &self.data);
        }
        Chunk::new(key, range, self.delta, Bytes::from(self.data))
    }
}
