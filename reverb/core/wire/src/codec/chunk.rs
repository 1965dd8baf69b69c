// SPDX-License-Identifier: Apache-2.0
//! `ChunkData`: a short header and a payload that only its writer and its reader decode.

use bytes::Bytes;
use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{
    Field, Reader, put_int_field, put_nested, put_nested_of_width, put_tag, put_varint,
    put_varint_field, varint_len,
};
use reverb_data::{Chunk, ChunkMaker, SequenceRange};

use reverb_rpc::message::MessageBuilder;

/// An encoded chunk in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawChunk<'a> {
    /// Key.
    pub key: u64,
    /// Range of its steps in the episode.
    pub range: SequenceRange,
    /// True if its integer tensors are delta encoded.
    pub delta: bool,
    /// The serialized `ChunkData.Data`.
    pub data: &'a [u8],
    /// True if it has data in the field of early checkpoints.
    pub has_deprecated_data: bool,
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
        chunk.read_in_order(&mut reader)?;
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

    /// Reads the fields that come in the order of their numbers, each once.
    #[inline]
    fn read_in_order(&mut self, reader: &mut Reader<'a>) -> Result<()> {
        if let Some(key) = reader.next_varint(1)? {
            self.key = key;
        }
        if let Some(range) = reader.next_bytes(2)? {
            parse_range(range, &mut self.range)?;
        }
        if let Some(delta) = reader.next_varint(4)? {
            self.delta = delta != 0;
        }
        if let Some(data) = reader.next_bytes(5)? {
            self.data = data;
        }
        reader.next_varint(6)?;
        Ok(())
    }

    /// Creates a chunk for storing; `message` is the buffer that contains `data`. It does not keep
    /// a message alive that is much larger than itself.
    pub fn to_stored(&self, message: &Bytes, maker: &mut ChunkMaker) -> Chunk {
        if self.data.len() >= MIN_SHARED_STORED && self.data.len() >= message.len() / 2 {
            self.to_shared(message)
        } else {
            maker.make(self.key, self.range, self.delta, self.data)
        }
    }

    /// Creates a chunk that is decoded soon and dropped; `message` is the buffer that contains
    /// `data`.
    pub fn to_transient(&self, message: &Bytes) -> Chunk {
        if self.data.len() > MIN_SHARED_TRANSIENT {
            self.to_shared(message)
        } else {
            Chunk::from_slice(self.key, self.range, self.delta, self.data)
        }
    }

    fn to_shared(self, message: &Bytes) -> Chunk {
        let data = message.slice_ref(self.data);
        Chunk::from_shared(self.key, self.range, self.delta, data, message.len())
    }
}

fn parse_range(message: &[u8], range: &mut SequenceRange) -> Result<()> {
    let mut reader = Reader::new(message);
    if let Some(episode_id) = reader.next_varint(1)? {
        range.episode_id = episode_id;
    }
    if let Some(start) = reader.next_varint(2)? {
        range.start = start as i32;
    }
    if let Some(end) = reader.next_varint(3)? {
        range.end = end as i32;
    }
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

/// Lengths of a chunk that are needed before it is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkMeasure {
    range_len: usize,
    message_len: usize,
    tensors: u64,
}

impl ChunkMeasure {
    pub(crate) fn new(chunk: &Chunk) -> Self {
        let range = chunk.range();
        let range_len = field_len(range.episode_id)
            + field_len(i64::from(range.start) as u64)
            + field_len(i64::from(range.end) as u64)
            + field_len(u64::from(range.sparse));
        let data_len = chunk.payload_len();
        let tensors = chunk.num_tensors() as u64;
        let message_len = field_len(chunk.key())
            + 2
            + range_len
            + field_len(u64::from(chunk.is_delta_encoded()))
            + 1
            + varint_len(data_len as u64)
            + data_len
            + field_len(tensors);
        Self { range_len, message_len, tensors }
    }

    /// Number of bytes that `put_chunk` appends for a field number below 16.
    pub(crate) fn field_len(self) -> usize {
        1 + varint_len(self.message_len as u64) + self.message_len
    }
}

/// Length of a varint field with a number below 16; 0 if the value is zero, which is left out.
#[inline]
fn field_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_len(value) }
}

/// Appends a chunk as field `field`.
pub(crate) fn put_chunk(
    builder: &mut MessageBuilder,
    field: u32,
    chunk: &Chunk,
    measure: ChunkMeasure,
) {
    put_chunk_with(builder, field, chunk, measure, |builder| put_payload(builder, chunk));
}

/// Appends a chunk as field `field`. `put` appends its payload.
pub(crate) fn put_chunk_with(
    builder: &mut MessageBuilder,
    field: u32,
    chunk: &Chunk,
    measure: ChunkMeasure,
    put: impl FnOnce(&mut MessageBuilder),
) {
    let range = chunk.range();
    let out = builder.out();
    put_tag(out, field, 2);
    put_varint(out, measure.message_len as u64);
    put_varint_field(out, 1, chunk.key());
    put_tag(out, 2, 2);
    put_varint(out, measure.range_len as u64);
    put_range(out, range);
    put_varint_field(out, 4, u64::from(chunk.is_delta_encoded()));
    put_tag(out, 5, 2);
    put_varint(out, chunk.payload_len() as u64);
    put(builder);
    put_varint_field(builder.out(), 6, measure.tensors);
}

/// Appends the payload of a chunk.
pub(crate) fn put_payload(builder: &mut MessageBuilder, chunk: &Chunk) {
    match chunk.shared_payload() {
        Some(data) => builder.put_shared(data),
        None => chunk.put_payload(builder.out()),
    }
}

/// Largest payload of a chunk that most likely takes less than 128 bytes in all.
const MAX_SHORT_PAYLOAD: usize = 88;

/// Appends a small chunk without a shared payload.
#[inline]
pub(crate) fn put_small_chunk(out: &mut Vec<u8>, field: u32, chunk: &Chunk) {
    let put = |out: &mut Vec<u8>| put_fields(out, chunk.key(), chunk, chunk.num_tensors() as u64);
    if chunk.payload_len() <= MAX_SHORT_PAYLOAD {
        put_nested_of_width::<1>(out, field, put);
    } else {
        put_nested_of_width::<2>(out, field, put);
    }
}

#[inline]
fn put_fields(out: &mut Vec<u8>, key: u64, chunk: &Chunk, num_tensors: u64) {
    put_varint_field(out, 1, key);
    put_nested(out, 2, |out| put_range(out, chunk.range()));
    put_varint_field(out, 4, u64::from(chunk.is_delta_encoded()));
    put_tag(out, 5, 2);
    put_varint(out, chunk.payload_len() as u64);
    chunk.put_payload(out);
    put_varint_field(out, 6, num_tensors);
}

#[inline]
fn put_range(out: &mut Vec<u8>, range: SequenceRange) {
    put_varint_field(out, 1, range.episode_id);
    put_int_field(out, 2, i64::from(range.start));
    put_int_field(out, 3, i64::from(range.end));
    put_varint_field(out, 4, u64::from(range.sparse));
}

/// Appends the whole `ChunkData` message of a chunk with the given key, including the size
/// statistics of field 7. Used for checkpoints.
pub fn put_chunk_data(out: &mut Vec<u8>, key: u64, chunk: &Chunk) {
    let mut tensors = 0;
    let mut bytes = 0;
    // A damaged payload is stored unchanged. It only ends the count.
    for tensor in chunk.tensors().map_while(Result::ok) {
        tensors += 1;
        bytes += tensor.uncompressed_bytes() as u64;
    }
    put_fields(out, key, chunk, tensors);
    put_varint_field(out, 7, bytes);
}
