// SPDX-License-Identifier: Apache-2.0
//! What a commit or a part of a base records.

use std::time::SystemTime;

use reverb_data::{Chunk, ShardIdentity};

/// What happened to all tables since the last commit, net: one entry an item. Of a base, a part of
/// what was in them at its commit.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// At most one for each table, and all before a second part of a base has more of them.
    pub tables: Vec<TableChanges>,
    /// The moment to which they belong; `None`: when they are written.
    pub taken_at: Option<SystemTime>,
    /// Notes of clients, in order.
    pub notes: Vec<Note>,
    /// Chunks whose payloads are to be moved out of files that are to be emptied.
    pub moved: Vec<Chunk>,
    /// The server's place in its group, if that is new. Not in a part of a base.
    pub shard: Option<ShardIdentity>,
}

/// Changes of one table. A reset comes first, then deletions, then the others.
#[derive(Debug, Clone, Default)]
pub struct TableChanges {
    /// Number of the table.
    pub number: u32,
    /// Settings, signature and counters, if settings have changed; of a base in its first part.
    pub settings: Option<Vec<u8>>,
    /// Counters, if they have changed.
    pub counters: Option<Vec<u8>>,
    /// True if all items were removed that an earlier commit has.
    pub is_reset: bool,
    /// Keys of items that are gone.
    pub deleted: Vec<u64>,
    /// Items that are new, or replace the ones with their keys.
    pub items: Items,
    /// New priorities.
    pub priorities: Vec<(u64, f64)>,
    /// New removal priorities.
    pub removal_priorities: Vec<(u64, f64)>,
    /// New numbers of samples.
    pub times_sampled: Vec<(u64, u64)>,
}

/// A note that a client has stored in a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// When it came.
    pub at: SystemTime,
    /// Name of the client.
    pub client: String,
    /// The note.
    pub text: Vec<u8>,
}

/// Items, one after another.
#[derive(Debug, Clone, Default)]
pub struct Items {
    entries: Vec<Entry>,
    chunks: Vec<Chunk>,
    bodies: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: u64,
    /// Where its chunks and its body end.
    end_of_chunks: usize,
    end_of_body: usize,
}

/// An item as it is recorded.
#[derive(Debug, Clone, Copy)]
pub struct ItemRecord<'a> {
    /// Its key.
    pub key: u64,
    /// Its chunks, each once.
    pub chunks: &'a [Chunk],
    /// All else, which refers to the chunks by their positions.
    pub body: &'a [u8],
}

/// Bytes of most bodies, and of most records of items with their chunks.
const USUAL_BODY: usize = 64;
const USUAL_RECORD: usize = 160;

impl Items {
    /// Makes room for so many items of a usual size.
    pub fn reserve(&mut self, num_items: usize) {
        self.entries.reserve(num_items);
        self.chunks.reserve(num_items);
        self.bodies.reserve(num_items * USUAL_BODY);
    }

    /// Bytes of their records, unless they are unusual.
    pub(crate) fn usual_record_bytes(&self) -> usize {
        self.entries.len() * USUAL_RECORD
    }

    /// Adds an item whose body a closure appends.
    pub fn push(
        &mut self,
        key: u64,
        chunks: impl IntoIterator<Item = Chunk>,
        put_body: impl FnOnce(&mut Vec<u8>),
    ) {
        self.chunks.extend(chunks);
        put_body(&mut self.bodies);
        let (end_of_chunks, end_of_body) = (self.chunks.len(), self.bodies.len());
        self.entries.push(Entry { key, end_of_chunks, end_of_body });
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The items in order.
    pub fn iter(&self) -> impl Iterator<Item = ItemRecord<'_>> {
        let (mut chunk, mut byte) = (0, 0);
        self.entries.iter().map(move |entry| {
            let chunks = &self.chunks[chunk..entry.end_of_chunks];
            let body = &self.bodies[byte..entry.end_of_body];
            (chunk, byte) = (entry.end_of_chunks, entry.end_of_body);
            ItemRecord { key: entry.key, chunks, body }
        })
    }

    /// Chunks of all items.
    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }
}
