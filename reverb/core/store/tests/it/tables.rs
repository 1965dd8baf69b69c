// SPDX-License-Identifier: Apache-2.0
//! Tables for tests of a journal: what a server would give to it, and what it must give back.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use reverb_data::{
    Chunk, ChunkBuilder, DType, HeadsCache, SequenceRange, ShardIdentity, Tensor, TensorData,
};
use reverb_store::{Changes, Items, Note, Recovered, TableChanges};

/// A chunk whose content follows from its key. It is made once, as histories have the same keys.
pub(crate) fn plain(key: u64) -> Chunk {
    static MADE: Mutex<BTreeMap<u64, Chunk>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap();
    made.entry(key).or_insert_with(|| make(key)).clone()
}

fn make(key: u64) -> Chunk {
    let num_bytes = match key % 7 {
        0 | 1 => 300,
        2 => 9_000,
        rest => 1100 + 400 * rest as usize,
    };
    let rows = 1 + key as usize % 4;
    let mut noise = vec![0; rows * (num_bytes / rows)];
    SmallRng::seed_from_u64(key).fill_bytes(&mut noise);
    let shape = [rows, num_bytes / rows].as_slice().into();
    let tensor = Tensor { dtype: DType::UInt8, shape, data: TensorData::Bytes(noise) };
    let mut builder = ChunkBuilder::new(key % 2 == 1);
    builder.push(&tensor);
    let start = key as i32 % 9;
    let range = SequenceRange { episode_id: key / 5, start, end: start + 3, sparse: key % 5 == 1 };
    builder.finish(key, range)
}

/// The chunk as a server holds it.
pub(crate) fn held(key: u64, heads: &mut HeadsCache) -> Chunk {
    let plain = plain(key);
    Chunk::on_disk(&plain, heads).unwrap_or(plain)
}

/// Compares a chunk, wherever its payload is, with what follows from its key.
#[track_caller]
pub(crate) fn check_chunk(chunk: &Chunk) {
    let expected = plain(chunk.key());
    let loaded = chunk.load().unwrap();
    assert!(loaded.payload() == expected.payload(), "payload of chunk {}", chunk.key());
    assert_eq!((chunk.range(), loaded.range()), (expected.range(), expected.range()));
    assert_eq!(chunk.is_delta_encoded(), expected.is_delta_encoded());
    let (head, of_plain) = (chunk.head(0).unwrap(), expected.head(0).unwrap());
    assert_eq!((head.dtype, head.row_shape()), (of_plain.dtype, of_plain.row_shape()));
    assert_eq!((head.num_rows(), chunk.num_tensors()), (of_plain.num_rows(), 1));
}

#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// No other item has it, also under the same key.
    version: u64,
    chunks: Vec<Chunk>,
    values: Values,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Values {
    pub(crate) priority: f64,
    pub(crate) removal_priority: f64,
    pub(crate) times_sampled: u64,
}

impl Values {
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.priority.to_le_bytes());
        out.extend_from_slice(&self.removal_priority.to_le_bytes());
        out.extend_from_slice(&self.times_sampled.to_le_bytes());
    }
}

/// What is compared of an item: its version, the keys of its chunks, and its values.
type SeenItem = (u64, Vec<u64>, Values);

/// What is compared of all tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) tables: Vec<SeenTable>,
    pub(crate) notes: Vec<Note>,
    pub(crate) shard: Option<ShardIdentity>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SeenTable {
    settings: Vec<u8>,
    counters: Vec<u8>,
    pub(crate) items: BTreeMap<u64, SeenItem>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(crate) settings: u64,
    pub(crate) counters: u64,
    pub(crate) items: BTreeMap<u64, Item>,
    /// True if it was reset since the last commit began.
    was_reset: bool,
}

/// Two tables in step.
#[derive(Debug, Default)]
#[expect(clippy::struct_field_names, reason = "it is what it holds")]
pub(crate) struct Tables {
    pub(crate) tables: Vec<Table>,
    notes: Vec<Note>,
    new_notes: Vec<Note>,
    /// The place in a group.
    shard: Option<ShardIdentity>,
    /// What the last commit that began has.
    recorded: Seen,
    next: u64,
}

impl Tables {
    /// Empty tables, whose items have versions above `next`.
    pub(crate) fn new(next: u64) -> Self {
        Self { tables: vec![Table::default(); 2], next, ..Self::default() }
    }

    pub(crate) fn insert(&mut self, table: usize, key: u64, chunks: Vec<Chunk>) {
        self.next += 1;
        let values = Values { priority: self.next as f64, ..Values::default() };
        let item = Item { version: self.next, chunks, values };
        self.tables[table].items.insert(key, item);
        self.tables[table].counters += 1;
    }

    /// Changes the values of the item at a position.
    pub(crate) fn change(&mut self, table: usize, at: usize, change: impl FnOnce(&mut Values)) {
        let items = &mut self.tables[table].items;
        let num_items = items.len().max(1);
        if let Some(item) = items.values_mut().nth(at % num_items) {
            change(&mut item.values);
        }
    }

    pub(crate) fn delete(&mut self, table: usize, at: usize) {
        let items = &mut self.tables[table].items;
        let key = items.keys().nth(at % items.len().max(1)).copied();
        key.map(|key| items.remove(&key));
    }

    pub(crate) fn reset(&mut self, table: usize) {
        self.tables[table].items.clear();
        self.tables[table].was_reset = true;
    }

    pub(crate) fn note(&mut self, text: Vec<u8>) {
        self.next += 1;
        let at = UNIX_EPOCH + Duration::from_secs(self.next);
        let note = Note { at, client: "trainer".to_owned(), text };
        self.new_notes.push(note.clone());
        self.notes.push(note);
        let num_notes = self.notes.len();
        self.notes.drain(..num_notes.saturating_sub(16));
    }

    /// A new map of a group.
    pub(crate) fn join(&mut self) {
        self.next += 1;
        let (group, num_shards) = ("replay".to_owned(), self.next as u32);
        self.shard = Some(ShardIdentity { group, index: 1, num_shards });
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let items = self.tables.iter().flat_map(|table| table.items.values());
        items.flat_map(|item| &item.chunks)
    }

    /// The items with all that a base needs, as they are now.
    pub(crate) fn snapshot(&self) -> Vec<(usize, Table)> {
        self.tables.iter().cloned().enumerate().collect()
    }

    pub(crate) fn seen(&self) -> Seen {
        let tables = self.tables.iter().map(|table| SeenTable {
            settings: table.settings.to_le_bytes().to_vec(),
            counters: table.counters.to_le_bytes().to_vec(),
            items: table.items.iter().map(|(key, item)| (*key, item.seen())).collect(),
        });
        Seen { tables: tables.collect(), notes: self.notes.clone(), shard: self.shard.clone() }
    }

    /// Begins a commit: what has changed since the last one, net.
    pub(crate) fn take_changes(&mut self) -> (Changes, Seen) {
        let seen = self.seen();
        let before = std::mem::replace(&mut self.recorded, seen.clone());
        let mut changes = Changes {
            notes: std::mem::take(&mut self.new_notes),
            shard: self.shard.clone().filter(|_| before.shard != self.shard),
            ..Changes::default()
        };
        for (number, table) in self.tables.iter_mut().enumerate() {
            let mut before = before.tables.get(number).cloned().unwrap_or_default();
            let now = &seen.tables[number];
            let is_new = before.settings != now.settings;
            let settings = is_new.then(|| now.settings.clone());
            let counters =
                (is_new || before.counters != now.counters).then(|| now.counters.clone());
            let is_reset = std::mem::take(&mut table.was_reset);
            if is_reset {
                before.items.clear();
            }
            let gone = before.items.keys().filter(|key| !table.items.contains_key(key));
            let mut of_table = TableChanges {
                number: number as u32,
                settings,
                counters,
                is_reset,
                deleted: gone.copied().collect(),
                ..TableChanges::default()
            };
            for (&key, item) in &table.items {
                let values = item.values;
                match before.items.get(&key) {
                    Some((version, _, old)) if *version == item.version => {
                        let differs = |old: f64, new: f64| old.to_bits() != new.to_bits();
                        if differs(old.priority, values.priority) {
                            of_table.priorities.push((key, values.priority));
                        }
                        if differs(old.removal_priority, values.removal_priority) {
                            of_table.removal_priorities.push((key, values.removal_priority));
                        }
                        if old.times_sampled != values.times_sampled {
                            of_table.times_sampled.push((key, values.times_sampled));
                        }
                    }
                    _ => item.put(key, &mut of_table.items),
                }
            }
            changes.tables.push(of_table);
        }
        (changes, seen)
    }

    /// The tables that a journal gives back, and what is compared of them.
    pub(crate) fn recovered(recovered: &Recovered, next: u64) -> (Self, Seen) {
        let (notes, shard) = (recovered.notes.clone(), recovered.shard.clone());
        let mut tables = Self { notes: notes.clone(), shard: shard.clone(), ..Self::new(next) };
        let mut seen = Seen { tables: Vec::new(), notes, shard };
        for found in &recovered.tables {
            let number = found.number as usize;
            let mut items = BTreeMap::new();
            for it in &found.items {
                let word = |at: usize| u64::from_le_bytes(it.body[at..at + 8].try_into().unwrap());
                let values = Values {
                    priority: it.priority.unwrap_or(f64::from_bits(word(8))),
                    removal_priority: it.removal_priority.unwrap_or(f64::from_bits(word(16))),
                    times_sampled: it.times_sampled.unwrap_or(word(24)),
                };
                let item = Item { version: word(0), chunks: it.chunks.clone(), values };
                assert!(items.insert(it.key, item).is_none(), "an item is there twice");
            }
            let number_of = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let counters = found.counters.clone().unwrap();
            tables.tables[number] = Table {
                settings: number_of(&found.settings),
                counters: number_of(&counters),
                items,
                was_reset: false,
            };
            let items = &tables.tables[number].items;
            let items = items.iter().map(|(key, item)| (*key, item.seen())).collect();
            seen.tables.push(SeenTable { settings: found.settings.clone(), counters, items });
        }
        tables.recorded = tables.seen();
        if seen.tables.is_empty() {
            tables.recorded.tables.clear();
        }
        (tables, seen)
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }
}

impl Item {
    fn seen(&self) -> SeenItem {
        (self.version, self.chunks.iter().map(Chunk::key).collect(), self.values)
    }

    fn put(&self, key: u64, items: &mut Items) {
        items.push(key, self.chunks.iter().cloned(), |out| {
            out.extend_from_slice(&self.version.to_le_bytes());
            self.values.put(out);
        });
    }
}

/// Takes some items out of a snapshot, as a part of a base; `None` at the end.
pub(crate) fn take_part(snapshot: &mut Vec<(usize, Table)>, most: usize) -> Option<Changes> {
    let (number, table) = snapshot.first_mut()?;
    let is_first = !table.was_reset;
    // Says here that settings were written.
    table.was_reset = true;
    let mut part = TableChanges {
        number: *number as u32,
        settings: is_first.then(|| table.settings.to_le_bytes().to_vec()),
        counters: is_first.then(|| table.counters.to_le_bytes().to_vec()),
        ..TableChanges::default()
    };
    for _ in 0..most {
        let Some((key, item)) = table.items.pop_first() else { break };
        item.put(key, &mut part.items);
    }
    if table.items.is_empty() {
        snapshot.remove(0);
    }
    Some(Changes { tables: vec![part], ..Changes::default() })
}
