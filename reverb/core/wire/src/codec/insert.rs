// SPDX-License-Identifier: Apache-2.0
//! `InsertStreamRequest` and `InsertStreamResponse`.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{
    Field, Reader, put_bytes_field, put_nested, put_packed_field, put_tag, put_varint,
    put_varint_field,
};
use reverb_data::rollouts::Refusal;

use crate::codec::chunk::{ChunkMeasure, RawChunk, put_chunk};
use crate::codec::item::{ItemHead, RawItem, put_item};
use crate::codec::trajectory_template::TrajectoryTemplates;
use crate::convert::rollouts::{from_change, from_refusal, to_refusal};
use crate::decoded_size;
use crate::generated::insert_stream_response::Refused;
use crate::transport::InsertBatch;
use reverb_rpc::message::{Message, MessageBuilder};

/// Encodes a batch, whose items may wait for so long; `templates` belong to the stream.
pub fn encode_request(
    batch: &InsertBatch,
    templates: &mut TrajectoryTemplates,
    max_wait: Option<Duration>,
) -> Message {
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
        put_nested(out, 2, |out| {
            put_item(out, &head, &item.trajectory, templates);
            if let Some(change) = &item.change {
                put_bytes_field(out, 1003, &from_change(change).encode_to_vec());
            }
            put_varint_field(out, 1005, u64::from(item.replaces));
        });
    }
    put_packed_field(out, 3, &batch.keep_chunk_keys);
    if let Some(max_wait) = max_wait {
        put_tag(out, MAX_WAIT_MS, 0);
        put_varint(out, u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX));
    }
    builder.finish()
}

/// Number of the field of a request for the longest wait of its items.
const MAX_WAIT_MS: u32 = 1000;

/// Approximate memory of a chunk without content that a stream holds.
const CHUNK_BYTES: usize = 112;

/// A received request. Its chunks and items are read from the message on demand.
#[derive(Debug, Clone)]
pub struct InsertRequest {
    message: Bytes,
    num_chunks: usize,
    num_items: usize,
    num_kept_chunks: usize,
    max_wait: Option<Duration>,
}

impl InsertRequest {
    /// Checks the top-level fields of a message.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is malformed, or if nearly all of its chunks are empty.
    pub fn parse(message: Bytes) -> Result<Self> {
        let mut num_chunks = 0;
        let mut num_items = 0;
        let mut num_kept_chunks = 0;
        let mut max_wait = None;
        let mut reader = Reader::new(&message);
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (1, Field::Bytes(_)) => num_chunks += 1,
                (2, Field::Bytes(_)) => num_items += 1,
                (3, Field::Varint(_)) => num_kept_chunks += 1,
                (3, Field::Bytes(packed)) => num_kept_chunks += packed_len(packed),
                (MAX_WAIT_MS, Field::Varint(ms)) => max_wait = Some(Duration::from_millis(ms)),
                _ => {}
            }
        }
        // The factor of two allows chunks of a single number, which take some fifty bytes in a
        // message.
        decoded_size::check(2 * message.len(), num_chunks * CHUNK_BYTES)?;
        Ok(Self { message, num_chunks, num_items, num_kept_chunks, max_wait })
    }

    /// Longest wait of its items, if it is limited.
    pub fn max_wait(&self) -> Option<Duration> {
        self.max_wait
    }

    /// Number of chunks.
    pub fn num_chunks(&self) -> usize {
        self.num_chunks
    }

    /// Number of items.
    pub fn num_items(&self) -> usize {
        self.num_items
    }

    /// Number of chunks that the stream must keep.
    pub fn num_kept_chunks(&self) -> usize {
        self.num_kept_chunks
    }

    /// Calls `call` with the key of each chunk that the stream must keep. A list of them would take
    /// up to eight times as much as the message.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if a list ends in the middle of a key.
    pub fn for_each_kept_chunk(&self, mut call: impl FnMut(u64)) -> Result<()> {
        let mut reader = Reader::new(&self.message);
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (3, Field::Varint(key)) => call(key),
                (3, Field::Bytes(packed)) => for_each_packed(packed, &mut call)?,
                _ => {}
            }
        }
        Ok(())
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

/// Encodes the confirmation of items, of which some may be refused.
pub fn encode_confirmation(keys: &[u64], refused: &[(u64, Refusal)]) -> Message {
    let mut builder = MessageBuilder::with_capacity(keys.len() * 10 + 11);
    let out = builder.out();
    put_packed_field(out, 1, keys);
    for (key, refusal) in refused {
        put_bytes_field(out, 1000, &from_refusal(*key, refusal).encode_to_vec());
    }
    builder.finish()
}

/// Keys of confirmed items, and those of them that were refused.
pub type Confirmed = (Vec<u64>, Vec<(u64, Refusal)>);

/// Decodes the keys of a confirmation, and those of them that were refused.
///
/// # Errors
///
/// `InvalidArgument` if it is malformed, or if nearly all of its keys are tiny.
pub fn decode_confirmation(message: &[u8]) -> Result<Confirmed> {
    let mut keys = Vec::new();
    let mut refused = Vec::new();
    decoded_size::check(message.len(), packed_len(message) * size_of::<u64>())?;
    let mut reader = Reader::new(message);
    while let Some((field, value)) = reader.field()? {
        match (field, value) {
            (1, Field::Varint(key)) => keys.push(key),
            (1, Field::Bytes(packed)) => read_packed(packed, &mut keys)?,
            (1000, Field::Bytes(one)) => {
                let one = Refused::decode(one).map_err(|error| {
                    Error::invalid_argument(format!("Malformed message: {error}."))
                })?;
                refused.push(to_refusal(one));
            }
            _ => {}
        }
    }
    Ok((keys, refused))
}

pub(crate) fn packed_len(packed: &[u8]) -> usize {
    packed.iter().filter(|&&byte| byte < 0x80).count()
}

pub(crate) fn read_packed(packed: &[u8], keys: &mut Vec<u64>) -> Result<()> {
    keys.reserve(packed_len(packed));
    for_each_packed(packed, |key| keys.push(key))
}

fn for_each_packed(packed: &[u8], mut call: impl FnMut(u64)) -> Result<()> {
    let mut reader = Reader::new(packed);
    while !reader.is_empty() {
        call(reader.varint().map_err(|_| {
            Error::invalid_argument("Malformed message: a list of keys ends in the middle of one.")
        })?);
    }
    Ok(())
}
