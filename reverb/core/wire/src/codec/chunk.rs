// SPDX-License-Identifier: Apache-2.0
//! `ChunkData`: a short header and a payload that only its writer and its reader decode.

use bytes::Bytes;
use reverb_data::proto_bytes::{
    Field, MAX_VARINT_BYTES, Reader, put_bytes_field, put_int_field, put_nested, put_tag,
    put_varint, put_varint_field, varint, varint_len,
};
use reverb_data::{Chunk, Error, Result, SequenceRange};

use reverb_rpc::message::MessageBuilder;

/// An encoded chunk in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawChunk<'a> {
    /// Its key.
    pub key: u64,
    /// The range of its steps in the episode.
    pub range: SequenceRange,
    /// Whether its integer tensors are delta encoded.
    pub delta: bool,
    /// The serialized `ChunkData.Data`.
    pub data: &'a [u8],
    /// Whether it has data in the field of early checkpoints.
    pub has_deprecated_data: bool,
}

/// When a chunk shares the buffer of its message, instead of copying its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// The chunk is stored. It must not keep a message alive that is much larger than itself.
    Stored,
    /// The chunk is decoded soon and dropped.
    Transient,
}

/// Smaller payloads are copied, because their receive buffer may hold many messages, up to a few
/// megabytes.
const MIN_SHARED_STORED: usize = 128 * 1024;
const MIN_SHARED_TRANSIENT: usize = 4096;

impl<'a> RawChunk<'a> {
    /// Reads a `ChunkData` message.
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        let mut chunk = Self {
            key: 0,
            range: SequenceRange::default(),
            delta: false,
            data: &[],
            has_deprecated_data: false,
        };
        let mut reader = Reader::new(message);
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (1, Field::Varint(key)) => chunk.key = key,
                (2, Field::Bytes(range)) => parse_range(range, &mut chunk.range)?,
                (3, _) => chunk.has_deprecated_data = true,
                (4, Field::Varint(delta)) => chunk.delta = delta != 0,
                (5, Field::Bytes(data)) => {
                    if !chunk.data.is_empty() && !data.is_empty() {
                        // Protobuf would merge the two; no writer splits a payload.
                        return Err(Error::invalid_argument(
                            "Malformed message: a chunk has two payloads.",
                        ));
                    }
                    chunk.data = data;
                }
                _ => {}
            }
        }
        Ok(chunk)
    }

    /// Converts it to a chunk; `message` is the buffer that contains `data`.
    pub fn to_chunk(&self, message: &Bytes, sharing: Sharing) -> Chunk {
        let shared = match sharing {
            Sharing::Stored => {
                self.data.len() >= MIN_SHARED_STORED && self.data.len() >= message.len() / 2
            }
            Sharing::Transient => self.data.len() > MIN_SHARED_TRANSIENT,
        };
        if shared {
            let data = message.slice_ref(self.data);
            Chunk::from_shared(self.key, self.range, self.delta, data, message.len())
        } else {
            Chunk::from_slice(self.key, self.range, self.delta, self.data)
        }
    }
}

fn parse_range(message: &[u8], range: &mut SequenceRange) -> Result<()> {
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        if let Field::Varint(value) = value {
            match field {
                1 => range.episode_id = value,
                2 => range.start = value as i32,
                3 => range.end = value as i32,
                4 => range.sparse = value != 0,
                _ => {}
            }
        }
    }
    Ok(())
}

/// A chunk as a field of a message, whose length is known before it is written.
pub(crate) struct ChunkField<'a> {
    chunk: &'a Chunk,
    header: ChunkHeader,
    tensors: u64,
    /// Length of the message inside the field.
    length: usize,
}

impl<'a> ChunkField<'a> {
    pub(crate) fn new(chunk: &'a Chunk) -> Self {
        let header = header(chunk);
        let tensors = number_of_tensors(chunk);
        let length = header.length
            + payload_field_len(chunk.data().len())
            + if tensors == 0 { 0 } else { 1 + varint_len(tensors) };
        Self { chunk, header, tensors, length }
    }

    /// Number of bytes that `put` appends for a field number below 16.
    pub(crate) fn len(&self) -> usize {
        1 + varint_len(self.length as u64) + self.length
    }

    /// Appends it as field `field`.
    pub(crate) fn put(&self, builder: &mut MessageBuilder, field: u32) {
        let out = builder.out();
        put_tag(out, field, 2);
        put_varint(out, self.length as u64);
        out.extend_from_slice(self.header.bytes());
        put_tag(out, 5, 2);
        put_varint(out, self.chunk.data().len() as u64);
        match self.chunk.shared_data() {
            Some(data) => builder.put_shared(data),
            None => out.extend_from_slice(self.chunk.data()),
        }
        put_varint_field(builder.out(), 6, self.tensors);
    }
}

fn payload_field_len(bytes: usize) -> usize {
    1 + varint_len(bytes as u64) + bytes
}

fn number_of_tensors(chunk: &Chunk) -> u64 {
    let mut reader = Reader::new(chunk.data());
    let mut tensors = 0;
    // A damaged payload only ends the count. The reader reports it.
    while let Ok(Some((field, _))) = reader.field() {
        tensors += u64::from(field == 1);
    }
    tensors
}

/// The fields before the payload, in a buffer on the stack.
struct ChunkHeader {
    bytes: [u8; Self::MAX],
    length: usize,
}

impl ChunkHeader {
    /// Key, tag and length of the range, episode, start, end, sparse, delta: each with its maximum
    /// length, and the room in which a varint of any length can be put.
    const MAX: usize = 11 + 2 + 11 + 11 + 11 + 2 + 2 + MAX_VARINT_BYTES;

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn put(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    #[inline]
    fn put_field(&mut self, field: u8, value: u64) {
        if value == 0 {
            return;
        }
        self.put(field << 3);
        let (bytes, length) = varint(value);
        self.bytes[self.length..][..MAX_VARINT_BYTES].copy_from_slice(&bytes);
        self.length += length;
    }
}

fn header(chunk: &Chunk) -> ChunkHeader {
    let mut header = ChunkHeader { bytes: [0; ChunkHeader::MAX], length: 0 };
    let range = chunk.range();
    header.put_field(1, chunk.key());
    header.put(2 << 3 | 2);
    let at = header.length;
    header.put(0);
    header.put_field(1, range.episode_id);
    header.put_field(2, i64::from(range.start) as u64);
    header.put_field(3, i64::from(range.end) as u64);
    header.put_field(4, u64::from(range.sparse));
    header.bytes[at] = (header.length - at - 1) as u8;
    header.put_field(4, u64::from(chunk.is_delta_encoded()));
    header
}

/// Appends the whole `ChunkData` message of a chunk with the given key, including the size
/// statistics of field 7. Used for checkpoints.
pub fn put_chunk_data(out: &mut Vec<u8>, key: u64, chunk: &Chunk) {
    let range = chunk.range();
    let (mut tensors, mut bytes) = (0, 0);
    // A damaged payload is stored unchanged. It only ends the count.
    for tensor in chunk.tensors().map_while(Result::ok) {
        tensors += 1;
        bytes += tensor.uncompressed_bytes() as u64;
    }
    put_varint_field(out, 1, key);
    put_nested(out, 2, |out| {
        put_varint_field(out, 1, range.episode_id);
        put_int_field(out, 2, i64::from(range.start));
        put_int_field(out, 3, i64::from(range.end));
        put_varint_field(out, 4, u64::from(range.sparse));
    });
    put_varint_field(out, 4, u64::from(chunk.is_delta_encoded()));
    put_bytes_field(out, 5, chunk.data());
    put_varint_field(out, 6, tensors);
    put_varint_field(out, 7, bytes);
}
