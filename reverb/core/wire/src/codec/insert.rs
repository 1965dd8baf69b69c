// SPDX-License-Identifier: Apache-2.0
//! `InsertStreamRequest` and `InsertStreamResponse`.

use bytes::Bytes;
use reverb_data::proto_bytes::{Field, Reader, put_nested, put_packed_field};
use reverb_data::{Error, Result};

use crate::codec::chunk::{ChunkMeasure, RawChunk, put_chunk};
use crate::codec::item::{ItemHead, RawItem, put_item};
use crate::codec::trajectory_template::TrajectoryTemplates;
use crate::transport::InsertBatch;
use reverb_rpc::message::{Message, MessageBuilder};

/// Encodes a batch; `templates` are those of the stream.
pub fn encode_request(batch: &InsertBatch, templates: &mut TrajectoryTemplates) -> Message {
    let small = batch.chunks.iter().map(|chunk| chunk.payload_len().min(2048) + 64).sum::<usize>();
    let mut builder = MessageBuilder::with_capacity(
        small + batch.items.len() * 96 + batch.keep_chunk_keys.len() * 10,
    );
    for chunk in &batch.chunks {
        put_chunk(&mut builder, 1, chunk, ChunkMeasure::new(chunk));
    }
    let out = builder.out();
    for item in &batch.items {
        let head = ItemHead {
            key: item.key,
            table: &item.table,
            priority: item.priority,
            removal_priority: item.removal_priority,
            times_sampled: item.times_sampled,
            inserted_at_ns: None,
        };
        put_nested(out, 2, |out| put_item(out, &head, &item.trajectory, templates));
    }
    put_packed_field(out, 3, &batch.keep_chunk_keys);
    builder.finish()
}

/// A received request. Its chunks and items are read from the message on demand.
#[derive(Debug, Clone)]
pub struct InsertRequest {
    message: Bytes,
    num_chunks: usize,
    num_items: usize,
    keep_chunk_keys: Vec<u64>,
}

impl InsertRequest {
    /// Checks the top-level fields of a message.
    pub fn parse(message: Bytes) -> Result<Self> {
        let (mut num_chunks, mut num_items) = (0, 0);
        let mut keep_chunk_keys = Vec::new();
        let mut reader = Reader::new(&message);
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (1, Field::Bytes(_)) => num_chunks += 1,
                (2, Field::Bytes(_)) => num_items += 1,
                (3, Field::Varint(key)) => keep_chunk_keys.push(key),
                (3, Field::Bytes(packed)) => read_packed(packed, &mut keep_chunk_keys)?,
                _ => {}
            }
        }
        Ok(Self { message, num_chunks, num_items, keep_chunk_keys })
    }

    /// Number of chunks.
    pub fn num_chunks(&self) -> usize {
        self.num_chunks
    }

    /// Number of items.
    pub fn num_items(&self) -> usize {
        self.num_items
    }

    /// Keys of the chunks that the stream must keep.
    pub fn keep_chunk_keys(&self) -> &[u64] {
        &self.keep_chunk_keys
    }

    /// The bytes of the whole message.
    pub fn message(&self) -> &Bytes {
        &self.message
    }

    /// The chunks in order.
    pub fn chunks(&self) -> impl Iterator<Item = Result<RawChunk<'_>>> {
        self.fields(1).map(RawChunk::parse)
    }

    /// The items in order.
    pub fn items(&self) -> impl Iterator<Item = Result<RawItem<'_>>> {
        self.fields(2).map(RawItem::parse)
    }

    fn fields(&self, wanted: u32) -> impl Iterator<Item = &[u8]> {
        let mut reader = Reader::new(&self.message);
        std::iter::from_fn(move || {
            loop {
                // `parse` has checked the top-level fields, so there is no error here.
                match reader.field().ok().flatten()? {
                    (field, Field::Bytes(bytes)) if field == wanted => return Some(bytes),
                    _ => {}
                }
            }
        })
    }
}

/// Encodes the confirmation of items.
pub fn encode_confirmation(keys: &[u64]) -> Message {
    let mut builder = MessageBuilder::with_capacity(keys.len() * 10 + 11);
    put_packed_field(builder.out(), 1, keys);
    builder.finish()
}

/// Decodes the keys of a confirmation.
pub fn decode_confirmation(message: &[u8]) -> Result<Vec<u64>> {
    let mut keys = Vec::new();
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (1, Field::Varint(key)) => keys.push(key),
            (1, Field::Bytes(packed)) => read_packed(packed, &mut keys)?,
            _ => {}
        }
    }
    Ok(keys)
}

pub(crate) fn read_packed(packed: &[u8], keys: &mut Vec<u64>) -> Result<()> {
    keys.reserve(packed.len().div_ceil(10));
    let mut reader = Reader::new(packed);
    while !reader.is_empty() {
        keys.push(reader.varint().map_err(|_| {
            Error::invalid_argument("Malformed message: a list of keys ends in the middle of one.")
        })?);
    }
    Ok(())
}
