// SPDX-License-Identifier: Apache-2.0
//! Statistics of a checkpoint, computed without keeping its data in memory.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use prost::Message;
use reverb_base::Result;
use reverb_wire::codec::item::RawItem;
use reverb_wire::generated::PrioritizedItem;

use crate::blocks::Block;
use crate::progress::Progress;
use crate::stored::{Stored, no_chunk, to_chunk};

/// Statistics of the items of a table; empty if there are no items.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TableStatistics {
    /// Number of distinct chunks that its items refer to.
    pub num_chunks: u64,
    /// Bytes of the encoded payloads of those chunks, each counted once.
    pub chunk_bytes: u64,
    /// Bytes of the decoded payloads.
    pub decoded_bytes: u64,
    /// Times of insertion, nanoseconds since 1970, in the order of the file.
    pub inserted_at_ns: Vec<i64>,
    /// Priorities, in the order of the file.
    pub priorities: Vec<f64>,
    /// Number of times that each item was sampled.
    pub times_sampled: Vec<i32>,
    /// Number of steps of the longest column of each item.
    pub lengths: Vec<u32>,
}

/// The part of an item that the statistics need.
struct Entry {
    table: usize,
    inserted_at_ns: i64,
    priority: f64,
    times_sampled: i32,
    length: u32,
    chunks: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct ChunkSize {
    key: u64,
    encoded: u64,
    decoded: u64,
}

impl Stored {
    /// Statistics of each table, in the order of `tables`. Reads and checks everything, and blocks
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// `DataLoss` with the file and the position if it is damaged.
    pub fn statistics(&self, progress: &Arc<Progress>) -> Result<Vec<TableStatistics>> {
        progress.expect_items(self.num_items().unwrap_or(0));
        let mut sizes: HashMap<u64, ChunkSize> = HashMap::new();
        self.for_each_chunk(
            progress,
            |record, block| {
                let chunk = to_chunk(record, block)?;
                let tensors = chunk.tensors().map_while(Result::ok);
                let decoded = tensors.map(|tensor| tensor.uncompressed_bytes() as u64).sum();
                Ok(ChunkSize { key: chunk.key(), encoded: chunk.payload_len() as u64, decoded })
            },
            |size| {
                sizes.entry(size.key).or_insert(size);
                Ok(())
            },
        )?;
        let mut tables = vec![TableStatistics::default(); self.tables().len()];
        let mut seen = vec![HashSet::new(); tables.len()];
        let mut count = |entry: Entry| {
            let table = &mut tables[entry.table];
            table.inserted_at_ns.push(entry.inserted_at_ns);
            table.priorities.push(entry.priority);
            table.times_sampled.push(entry.times_sampled);
            table.lengths.push(entry.length);
            for key in entry.chunks {
                if seen[entry.table].insert(key)
                    && let Some(size) = sizes.get(&key)
                {
                    table.num_chunks += 1;
                    table.chunk_bytes += size.encoded;
                    table.decoded_bytes += size.decoded;
                }
            }
        };
        for (table, message) in self.messages_in_tables() {
            count(to_entry(table, message)?);
        }
        let parse = |block: &Block| self.entries_of(block, &sizes);
        self.for_each_item_block(progress, parse, |entry| {
            count(entry);
            Ok(())
        })?;
        Ok(tables)
    }

    fn entries_of(&self, block: &Block, chunks: &HashMap<u64, ChunkSize>) -> Result<Vec<Entry>> {
        let entries = block.records().map(|record| {
            let record = record?;
            let entry = RawItem::parse(record.data).and_then(|raw| {
                let entry = to_entry(self.position_of(raw.table)?, record.data)?;
                match entry.chunks.iter().find(|key| !chunks.contains_key(*key)) {
                    Some(key) => Err(no_chunk(raw.key, raw.table, *key)),
                    None => Ok(entry),
                }
            });
            entry.map_err(|error| record.damaged(error.message()))
        });
        entries.collect()
    }
}

fn to_entry(table: usize, message: &[u8]) -> Result<Entry> {
    let raw = RawItem::parse(message)?;
    let mut chunks = Vec::new();
    let mut lengths = Vec::<u32>::new();
    raw.for_each_slice(|column, key, length| {
        if chunks.last() != Some(&key) {
            chunks.push(key);
        }
        if lengths.len() <= column {
            lengths.resize(column + 1, 0);
        }
        lengths[column] = lengths[column].saturating_add(length.max(0) as u32);
    })?;
    let mut length = lengths.into_iter().max().unwrap_or(0);
    if chunks.is_empty()
        && let Ok(item) = PrioritizedItem::decode(message)
    {
        #[expect(deprecated, reason = "a layout of early releases")]
        let PrioritizedItem {
            deprecated_chunk_keys: keys, deprecated_sequence_range: range, ..
        } = item;
        chunks = keys;
        length = range.map_or(0, |range| range.length.max(0) as u32);
    }
    Ok(Entry {
        table,
        inserted_at_ns: raw.inserted_at_ns,
        priority: raw.priority,
        times_sampled: raw.times_sampled,
        length,
        chunks,
    })
}
