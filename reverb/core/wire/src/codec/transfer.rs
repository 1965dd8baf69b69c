// SPDX-License-Identifier: Apache-2.0
//! Messages of a transfer: `InsertStreamRequest`s with stored items.

use std::collections::{HashMap, VecDeque};

use reverb_base::{Error, Result};
use reverb_data::proto_bytes::{put_nested, put_packed_field};
use reverb_data::{Chunk, StoredItem};
use reverb_rpc::message::{Message, MessageBuilder};

use crate::codec::chunk::{ChunkMeasure, put_chunk};
use crate::codec::item::{ItemHead, put_item};
use crate::codec::trajectory_template::TrajectoryTemplates;

/// Approximate size at which a message ends.
const MESSAGE_BYTES: usize = 256 << 10;

/// Approximate size of an item or a chunk without its payload.
const OVERHEAD_BYTES: usize = 96;

/// Bytes of chunks that the server keeps for later items; consecutive items often share chunks.
const KEPT_BYTES: usize = 16 << 20;

/// Number of chunks that the server keeps; every message has their keys.
const KEPT_CHUNKS: usize = 1024;

/// Encodes the items of a transfer. A chunk that several nearby items refer to is sent once.
#[derive(Debug, Default)]
pub struct TransferEncoder {
    templates: TrajectoryTemplates,
    kept: HashMap<u64, Chunk>,
    /// Keys of those chunks, oldest first.
    in_order: VecDeque<u64>,
    kept_bytes: usize,
}

struct Draft {
    builder: MessageBuilder,
    bytes: usize,
    num_items: usize,
}

impl Draft {
    fn new() -> Self {
        Self { builder: MessageBuilder::with_capacity(4096), bytes: 0, num_items: 0 }
    }
}

impl TransferEncoder {
    /// Encodes items of a table.
    ///
    /// # Errors
    ///
    /// `DataLoss` for an item with two chunks of the same key.
    pub fn encode(&mut self, table: &str, items: &[StoredItem]) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        let mut draft = Draft::new();
        for item in items {
            for chunk in item.trajectory.chunks() {
                if self.has_other(chunk) {
                    // A later chunk replaces an earlier one of its key, for a whole message.
                    let last = std::mem::replace(&mut draft, Draft::new());
                    self.finish(last, &mut messages);
                    self.forget(chunk.key());
                }
            }
            for chunk in item.trajectory.chunks() {
                self.put_chunk(&mut draft, item.key, chunk)?;
                if draft.bytes >= MESSAGE_BYTES && draft.num_items == 0 {
                    let full = std::mem::replace(&mut draft, Draft::new());
                    messages.push(full.builder.finish());
                }
            }
            let head = ItemHead::of_stored(table, item);
            let templates = &mut self.templates;
            put_nested(draft.builder.out(), 2, |out| {
                put_item(out, &head, &item.trajectory, templates);
            });
            draft.bytes += OVERHEAD_BYTES;
            draft.num_items += 1;
            if draft.bytes >= MESSAGE_BYTES {
                let full = std::mem::replace(&mut draft, Draft::new());
                self.finish(full, &mut messages);
            }
        }
        self.finish(draft, &mut messages);
        Ok(messages)
    }

    fn has_other(&self, chunk: &Chunk) -> bool {
        self.kept.get(&chunk.key()).is_some_and(|kept| !kept.is_same(chunk))
    }

    fn put_chunk(&mut self, draft: &mut Draft, item: u64, chunk: &Chunk) -> Result<()> {
        match self.kept.get(&chunk.key()) {
            Some(kept) if kept.is_same(chunk) => return Ok(()),
            Some(_) => {
                return Err(Error::data_loss(format!(
                    "Item {item} has two chunks with the key {}; it cannot be transferred.",
                    chunk.key()
                )));
            }
            None => {}
        }
        put_chunk(&mut draft.builder, 1, chunk, ChunkMeasure::new(chunk));
        let bytes = chunk.payload_len() + OVERHEAD_BYTES;
        draft.bytes += bytes;
        self.kept_bytes += bytes;
        self.kept.insert(chunk.key(), chunk.clone());
        self.in_order.push_back(chunk.key());
        Ok(())
    }

    /// Ends a message with the keys of the chunks that the server must keep.
    fn finish(&mut self, mut draft: Draft, messages: &mut Vec<Message>) {
        if draft.num_items == 0 {
            return;
        }
        while (self.kept_bytes > KEPT_BYTES || self.in_order.len() > KEPT_CHUNKS)
            && let Some(oldest) = self.in_order.pop_front()
        {
            if let Some(chunk) = self.kept.remove(&oldest) {
                self.kept_bytes -= chunk.payload_len() + OVERHEAD_BYTES;
            }
        }
        let keys: Vec<u64> = self.in_order.iter().copied().collect();
        put_packed_field(draft.builder.out(), 3, &keys);
        messages.push(draft.builder.finish());
    }

    fn forget(&mut self, key: u64) {
        if let Some(chunk) = self.kept.remove(&key) {
            self.kept_bytes -= chunk.payload_len() + OVERHEAD_BYTES;
            self.in_order.retain(|&kept| kept != key);
        }
    }
}
