// SPDX-License-Identifier: Apache-2.0
//! Records: what is written in frames.
//!
//! The records of a frame are the fields of a protobuf message, each of them bytes. A kind of 16
//! and above may be skipped by a program that does not know it. `v` is a varint, keys and doubles
//! have eight bytes, little endian.

use std::collections::VecDeque;

use hashbrown::HashMap;
use reverb_data::proto_bytes::{put_nested, put_varint};
use reverb_data::{Chunk, PAYLOAD_ALIGNMENT, Place, Recorded, ShardIdentity};

use crate::changes::{Changes, ItemRecord, Note, TableChanges};
use crate::frame::Records;
use crate::head::{FileKind, nanoseconds};

/// v table, then settings, signature and counters.
pub(crate) const TABLE: u32 = 1;
/// v table, then counters.
pub(crate) const COUNTERS: u32 = 2;
/// v id, then heads of tensors.
pub(crate) const HEADS: u32 = 3;
/// A head of a chunk, then v id of heads, v rows, v data file, v offset / 8, v bytes, u32 checksum.
/// The same id again: it has moved.
pub(crate) const CHUNK: u32 = 4;
/// A head of a chunk, then its payload. Such a head is: v id, u64 key, u64 episode, i32 first step,
/// i32 last step, u8 flags.
pub(crate) const SMALL: u32 = 5;
/// v table, u64 key, v number of chunks, v ids of them, then the body. It replaces the item with
/// its key.
pub(crate) const ITEM: u32 = 6;
/// v table, then (key, priority) to the end.
pub(crate) const PRIORITY: u32 = 7;
/// v table, then (key, removal priority) to the end.
pub(crate) const REMOVAL: u32 = 8;
/// v table, then (key, v times) to the end.
pub(crate) const TIMES: u32 = 9;
/// v table, then keys to the end.
pub(crate) const DELETE: u32 = 10;
/// v table. All its items are gone.
pub(crate) const RESET: u32 = 11;
/// u64 nanoseconds since 1970, v length and name of the client, then the note.
pub(crate) const NOTE: u32 = 12;
/// The last record of a base: v next id.
pub(crate) const END: u32 = 13;

/// Kinds from this one on may be skipped.
pub(crate) const FIRST_SKIPPED: u32 = 16;

/// v index, v number of shards, name of the group: the server's place in the newest map.
pub(crate) const SHARD: u32 = 16;

/// Flags of a chunk.
pub(crate) const SPARSE: u8 = 1;
pub(crate) const DELTA: u8 = 2;

/// Notes that are kept.
pub(crate) const MAX_NOTES: usize = 16;

/// Bytes of small chunks that a file does not write again.
const MAX_REMEMBERED_BYTES: usize = 16 << 20;

/// Heads that a file does not write again.
const MAX_REMEMBERED_HEADS: usize = 4096;

/// Writes the records of one file, and knows which chunks have one in it.
#[derive(Debug)]
pub(crate) struct Recorder {
    kind: FileKind,
    number: u32,
    heads: HashMap<Vec<u8>, u64>,
    /// Ids of small chunks by their identity, which they keep while they are in `recent`.
    small: HashMap<usize, u64>,
    recent: VecDeque<Chunk>,
    recent_bytes: usize,
}

impl Recorder {
    /// A recorder of the log or the base with a number.
    pub(crate) fn new(kind: FileKind, number: u32) -> Self {
        Self {
            kind,
            number,
            heads: HashMap::new(),
            small: HashMap::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
        }
    }

    /// Records changes. Disk chunks among them have places. Ids are taken from `next_id` on.
    pub(crate) fn put(&mut self, records: &mut Records, changes: &Changes, next_id: &mut u64) {
        for chunk in &changes.moved {
            if let (Some(place), Some(recorded)) = (chunk.place(), chunk.recorded()) {
                // A chunk that has no id has no record to correct.
                if recorded.id != 0 {
                    self.put_chunk(records, chunk, &place, recorded, next_id);
                }
            }
        }
        for table in &changes.tables {
            self.put_table(records, table, next_id);
        }
    }

    fn put_table(&mut self, records: &mut Records, table: &TableChanges, next_id: &mut u64) {
        let number = u64::from(table.number);
        if table.is_reset {
            put_nested(records.begin(), RESET, |out| put_varint(out, number));
        }
        for (kind, bytes) in [(TABLE, &table.settings), (COUNTERS, &table.counters)] {
            if let Some(bytes) = bytes {
                put_nested(records.begin(), kind, |out| {
                    put_varint(out, number);
                    out.extend_from_slice(bytes);
                });
            }
        }
        put_list(records, DELETE, number, &table.deleted, |out, key| {
            out.extend_from_slice(&key.to_le_bytes());
        });
        records.reserve(table.items.usual_record_bytes());
        let mut ids = Vec::new();
        for item in table.items.iter() {
            ids.clear();
            for chunk in item.chunks {
                ids.push(self.id_of(records, chunk, next_id));
            }
            put_item(records, number, item, &ids);
        }
        let values = [(PRIORITY, &table.priorities), (REMOVAL, &table.removal_priorities)];
        for (kind, values) in values {
            put_list(records, kind, number, values, |out, (key, value)| {
                out.extend_from_slice(&key.to_le_bytes());
                out.extend_from_slice(&value.to_le_bytes());
            });
        }
        put_list(records, TIMES, number, &table.times_sampled, |out, (key, times)| {
            out.extend_from_slice(&key.to_le_bytes());
            put_varint(out, *times);
        });
    }

    /// The id of a chunk. It gets a record if this file has none.
    fn id_of(&mut self, records: &mut Records, chunk: &Chunk, next_id: &mut u64) -> u64 {
        if let (Some(place), Some(mut recorded)) = (chunk.place(), chunk.recorded()) {
            if recorded.id == 0 {
                recorded.id = take_id(next_id);
            }
            let by = if self.kind == FileKind::Log { recorded.log } else { recorded.base };
            if by != self.number {
                self.put_chunk(records, chunk, &place, recorded, next_id);
            }
            return recorded.id;
        }
        if let Some(id) = self.small.get(&chunk.identity()) {
            return *id;
        }
        let id = take_id(next_id);
        put_nested(records.begin(), SMALL, |out| {
            put_chunk_head(out, id, chunk);
            chunk.put_payload(out);
        });
        self.remember(chunk, id);
        id
    }

    fn remember(&mut self, chunk: &Chunk, id: u64) {
        self.recent_bytes += chunk.bytes() as usize;
        self.recent.push_back(chunk.clone());
        self.small.insert(chunk.identity(), id);
        while self.recent_bytes > MAX_REMEMBERED_BYTES {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.small.remove(&oldest.identity());
            self.recent_bytes -= oldest.bytes() as usize;
        }
    }

    fn put_chunk(
        &mut self,
        records: &mut Records,
        chunk: &Chunk,
        place: &Place,
        mut recorded: Recorded,
        next_id: &mut u64,
    ) {
        let (heads, num_rows) = chunk.heads().expect("a chunk with a place has heads");
        let mut bytes = Vec::new();
        heads.put(&mut bytes);
        let heads = self.id_of_heads(records, bytes, next_id);
        put_nested(records.begin(), CHUNK, |out| {
            put_chunk_head(out, recorded.id, chunk);
            let position = place.offset / PAYLOAD_ALIGNMENT;
            let file = u64::from(place.file.number());
            let len = chunk.payload_len() as u64;
            for number in [heads, u64::from(num_rows), file, position, len] {
                put_varint(out, number);
            }
            out.extend_from_slice(&place.crc.to_le_bytes());
        });
        match self.kind {
            FileKind::Log => recorded.log = self.number,
            _ => recorded.base = self.number,
        }
        chunk.set_recorded(recorded);
    }

    /// The id of heads. They get a record if this file has none.
    fn id_of_heads(&mut self, records: &mut Records, bytes: Vec<u8>, next_id: &mut u64) -> u64 {
        if let Some(id) = self.heads.get(&bytes) {
            return *id;
        }
        let id = take_id(next_id);
        put_nested(records.begin(), HEADS, |out| {
            put_varint(out, id);
            out.extend_from_slice(&bytes);
        });
        if self.heads.len() == MAX_REMEMBERED_HEADS {
            self.heads.clear();
        }
        self.heads.insert(bytes, id);
        id
    }
}

fn take_id(next_id: &mut u64) -> u64 {
    *next_id += 1;
    *next_id - 1
}

/// Records a list of a table's keys, unless it is empty.
fn put_list<T>(
    records: &mut Records,
    kind: u32,
    table: u64,
    list: &[T],
    put: impl Fn(&mut Vec<u8>, &T),
) {
    if !list.is_empty() {
        put_nested(records.begin(), kind, |out| {
            put_varint(out, table);
            for it in list {
                put(out, it);
            }
        });
    }
}

fn put_item(records: &mut Records, table: u64, item: ItemRecord<'_>, ids: &[u64]) {
    put_nested(records.begin(), ITEM, |out| {
        put_varint(out, table);
        out.extend_from_slice(&item.key.to_le_bytes());
        put_varint(out, ids.len() as u64);
        for &id in ids {
            put_varint(out, id);
        }
        out.extend_from_slice(item.body);
    });
}

fn put_chunk_head(out: &mut Vec<u8>, id: u64, chunk: &Chunk) {
    let range = chunk.range();
    put_varint(out, id);
    out.extend_from_slice(&chunk.key().to_le_bytes());
    out.extend_from_slice(&range.episode_id.to_le_bytes());
    out.extend_from_slice(&range.start.to_le_bytes());
    out.extend_from_slice(&range.end.to_le_bytes());
    let sparse = if range.sparse { SPARSE } else { 0 };
    out.push(sparse | if chunk.is_delta_encoded() { DELTA } else { 0 });
}

/// Records notes.
pub(crate) fn put_notes<'a>(records: &mut Records, notes: impl IntoIterator<Item = &'a Note>) {
    for Note { at, client, text } in notes {
        put_nested(records.begin(), NOTE, |out| {
            out.extend_from_slice(&nanoseconds(*at).to_le_bytes());
            put_varint(out, client.len() as u64);
            out.extend_from_slice(client.as_bytes());
            out.extend_from_slice(text);
        });
    }
}

/// Records the server's place in its group, if it has one.
pub(crate) fn put_shard(records: &mut Records, shard: Option<&ShardIdentity>) {
    if let Some(ShardIdentity { group, index, num_shards }) = shard {
        put_nested(records.begin(), SHARD, |out| {
            put_varint(out, u64::from(*index));
            put_varint(out, u64::from(*num_shards));
            out.extend_from_slice(group.as_bytes());
        });
    }
}

/// Records the end of a base.
pub(crate) fn put_end(records: &mut Records, next_id: u64) {
    put_nested(records.begin(), END, |out| put_varint(out, next_id));
}
