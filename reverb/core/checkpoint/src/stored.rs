// SPDX-License-Identifier: Apache-2.0
//! A complete checkpoint on disk: reads its tables, chunks and items, and verifies all checksums.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use reverb_base::{Error, Result, Unreadable, open_file};
use reverb_data::rollouts::{Stage, StoredGrowing};
use reverb_data::{Chunk, ChunkMaker, Counters, ShardIdentity, StoredItem, TableConfig};
use reverb_wire::codec::chunk::RawChunk;
use reverb_wire::codec::item::RawItem;
use reverb_wire::convert::rollouts::to_growing;
use reverb_wire::generated::PriorityTableCheckpoint;

use crate::blocks::{Block, Blocks, Encoding, Record};
use crate::directory::{CHUNKS, DONE, ITEMS, TABLES, is_complete, is_in_use, latest};
use crate::failure::{damaged, unreadable};
use crate::legacy;
use crate::manifest::Manifest;
use crate::name::ServerName;
use crate::pipeline::{in_order, num_threads};
use crate::progress::Progress;
use crate::record::{MAX_CHUNK_RECORD_BYTES, MAX_RECORD_BYTES};
use crate::settings;
use crate::table_record::read_table;

/// Number of attempts to open the latest checkpoint while servers replace it by newer ones.
pub(crate) const ATTEMPTS: usize = 5;

const MAX_TABLES: usize = 65_536;

/// A stored table.
#[derive(Debug, Clone)]
pub struct StoredTable {
    message: PriorityTableCheckpoint,
}

impl StoredTable {
    /// Reads the message of a table, and that of its counters if they were stored later.
    ///
    /// # Errors
    ///
    /// `DataLoss` if it is none, or has items.
    pub fn parse(message: &[u8], counters: Option<&[u8]>) -> Result<Self> {
        let parse = |message: &[u8]| {
            let (message, items) = read_table(message)
                .map_err(|what| Error::data_loss(format!("it is no table: {what}")))?;
            let is_table = items.is_empty();
            is_table.then_some(message).ok_or_else(|| Error::data_loss("a table has items"))
        };
        let mut message = parse(message)?;
        if let Some(counters) = counters {
            settings::take_counters(&mut message, &parse(counters)?);
        }
        Ok(Self { message })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.message.table_name
    }

    /// Settings and counters, as stored in the checkpoint.
    pub fn message(&self) -> &PriorityTableCheckpoint {
        &self.message
    }

    /// Its settings.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the settings are invalid.
    pub fn config(&self) -> Result<TableConfig> {
        settings::to_config(&self.message).map_err(|error| {
            let text = format!("The stored settings of table {}: {error}", self.name());
            Error::failed_precondition(text)
        })
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        settings::to_counters(&self.message)
    }
}

pub(crate) type ChunkMap = HashMap<u64, Chunk>;

/// A checkpoint whose files are open. It may be deleted meanwhile.
#[derive(Debug)]
pub struct Stored {
    path: PathBuf,
    tables: Vec<StoredTable>,
    items: Option<Arc<File>>,
    chunks: Arc<File>,
    encoding: Encoding,
    manifest: Option<Manifest>,
    /// Items inside the records of tables, a layout of early releases.
    items_in_tables: Vec<(u32, Bytes)>,
    /// Number of items that were left out, summed over all reads.
    num_left_out: AtomicU64,
}

impl Stored {
    /// Opens a checkpoint, or the latest complete one in a directory of checkpoints. If a name is
    /// given, it is the latest one of the server with that name.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if there is none; `DataLoss` if its tables are damaged.
    pub fn open(path: &Path, name: Option<&ServerName>) -> Result<Self> {
        if is_complete(path)? {
            return Self::read(path.to_owned());
        }
        for attempt in 1..=ATTEMPTS {
            // A listing can miss the checkpoint that replaces the one it finds, so it is repeated.
            let Some(found) = latest(path, name)? else { continue };
            match Self::read(found.clone()) {
                Err(error) if attempt < ATTEMPTS && is_gone(&found) => drop(error),
                read => return read,
            }
        }
        let of_name = name.map_or_else(String::new, |name| format!(" of a server named {name}"));
        Err(Error::failed_precondition(format!(
            "There is no complete checkpoint{of_name} at {}: neither it nor a directory in it has a \
             file {DONE}{}.",
            path.display(),
            if name.is_some() { " with that name" } else { "" }
        )))
    }

    pub(crate) fn read(path: PathBuf) -> Result<Self> {
        let manifest = Manifest::read(&path)?;
        let tables = required(&path, TABLES)?;
        let chunks = required(&path, CHUNKS)?;
        let items = open_part(&path, ITEMS)?;
        let encoding = Encoding::from_file(&path.join(TABLES), &tables)?;
        let mut stored = Self {
            path,
            tables: Vec::new(),
            items,
            chunks,
            encoding,
            manifest,
            items_in_tables: Vec::new(),
            num_left_out: AtomicU64::new(0),
        };
        if stored.manifest.is_some() && stored.items.is_none() {
            return Err(missing(&stored.path.join(ITEMS)));
        }
        stored.read_tables(&tables)?;
        Ok(stored)
    }

    /// Directory of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the server that saved it, if it had one.
    pub fn server_name(&self) -> Option<&ServerName> {
        self.manifest.as_ref()?.name.as_ref()
    }

    /// Shard that saved it, if the server was in a group.
    pub fn shard(&self) -> Option<&ShardIdentity> {
        self.manifest.as_ref()?.shard.as_ref()
    }

    /// Time of its snapshot. Earlier releases and dm-reverb did not write it.
    pub fn taken_at(&self) -> Option<SystemTime> {
        self.manifest.as_ref()?.taken_at
    }

    /// Its tables, in the order of the file.
    pub fn tables(&self) -> &[StoredTable] {
        &self.tables
    }

    /// Returns true if a running server saved or loaded it.
    pub fn is_in_use(&self) -> bool {
        is_in_use(&self.path)
    }

    /// Size of its files on disk, without reading them.
    ///
    /// # Errors
    ///
    /// `DataLoss` if a file has another size than the manifest says.
    pub fn bytes(&self) -> Result<u64> {
        let mut sum = 0;
        for name in [TABLES, ITEMS, CHUNKS] {
            let path = self.path.join(name);
            let bytes = std::fs::metadata(&path).map_or(0, |found| found.len());
            let listed = self.manifest.as_ref().and_then(|manifest| manifest.file(name));
            if let Some(expected) = listed.map(|file| file.bytes).filter(|it| *it != bytes) {
                let what = format!("it has {bytes} bytes, and {DONE} says {expected}.");
                return Err(damaged(&path, "as a whole", &what));
            }
            sum += bytes;
        }
        Ok(sum)
    }

    /// Number of items, if it is known before reading them.
    pub fn num_items(&self) -> Option<u64> {
        self.num_records(ITEMS)
    }

    /// Number of records of a file by the manifest.
    fn num_records(&self, name: &str) -> Option<u64> {
        Some(self.manifest.as_ref()?.file(name)?.records)
    }

    fn read_tables(&mut self, file: &Arc<File>) -> Result<()> {
        let progress = Arc::default();
        let mut blocks = self.blocks(TABLES, file, &progress);
        let mut tables = Vec::new();
        let mut names = HashSet::new();
        let mut old_items = Vec::new();
        while let Some(block) = blocks.next()? {
            for record in block.records() {
                let record = record?;
                let (message, items) = read_table(record.data)
                    .map_err(|what| record.damaged(&format!("it is no table: {what}.")))?;
                if tables.len() == MAX_TABLES {
                    let what = format!("there are more than {MAX_TABLES} tables.");
                    return Err(record.damaged(&what));
                }
                if !names.insert(message.table_name.clone()) {
                    let what = format!("there are two tables {}.", message.table_name);
                    return Err(record.damaged(&what));
                }
                let position = tables.len() as u32;
                old_items.extend(
                    items.into_iter().map(|item| (position, block.bytes().slice_ref(item))),
                );
                tables.push(StoredTable { message });
            }
        }
        self.check_count(TABLES, blocks.num_records())?;
        if !old_items.is_empty() && self.items.is_some() {
            let what = format!("it holds items, and there is a file {ITEMS}.");
            return Err(damaged(&self.path.join(TABLES), "as a whole", &what));
        }
        self.tables = tables;
        self.items_in_tables = old_items;
        Ok(())
    }

    /// Returns true if the manifest has the number of records, so that it was checked.
    pub(crate) fn is_counted(&self) -> bool {
        self.manifest.is_some()
    }

    /// Number of items that were left out while all of them were read once.
    pub(crate) fn num_left_out(&self) -> u64 {
        self.num_left_out.load(Ordering::Relaxed)
    }

    /// Compares the number of records with the one in the manifest.
    fn check_count(&self, name: &str, records: u64) -> Result<()> {
        match self.num_records(name) {
            Some(expected) if expected != records => {
                let what = format!("it has {records} records, and {DONE} says {expected}.");
                Err(damaged(&self.path.join(name), "as a whole", &what))
            }
            _ => Ok(()),
        }
    }

    /// Applies `parse` to every record of the chunks in several threads, and passes the results on
    /// in order.
    pub(crate) fn for_each_chunk<T: Send>(
        &self,
        progress: &Arc<Progress>,
        parse: impl Fn(&Record<'_>, &Block) -> Result<T> + Sync,
        mut each: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let mut blocks = self.blocks(CHUNKS, &self.chunks, progress);
        let parse = |block: &Block| {
            block.records().map(|record| parse(&record?, block)).collect::<Result<Vec<T>>>()
        };
        for_each_block(&mut blocks, progress, parse, |parsed| {
            parsed.into_iter().try_for_each(&mut each)
        })?;
        self.check_count(CHUNKS, blocks.num_records())
    }

    /// Applies `parse` to every block of items in several threads, and passes the results on in
    /// order.
    pub(crate) fn for_each_item_block<T: Send>(
        &self,
        progress: &Arc<Progress>,
        parse: impl Fn(&Block) -> Result<Vec<T>> + Sync,
        mut each: impl FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let Some(mut blocks) = self.item_blocks(progress) else { return Ok(()) };
        for_each_block(&mut blocks, progress, parse, |parsed| {
            progress.add_items(parsed.len() as u64);
            parsed.into_iter().try_for_each(&mut each)
        })?;
        self.check_num_items(blocks.num_records())
    }

    /// Compares the number of items with the one in the manifest.
    pub(crate) fn check_num_items(&self, records: u64) -> Result<()> {
        self.check_count(ITEMS, records)
    }

    /// Reads all chunks, because items may refer to any of them.
    pub(crate) fn chunks(
        &self,
        progress: &Arc<Progress>,
        mut adopt: impl FnMut(Chunk) -> Result<Chunk>,
    ) -> Result<ChunkMap> {
        // The expected number may be wrong, so it reserves memory only up to a limit.
        let expected = self.num_records(CHUNKS).unwrap_or(0).min(1 << 22) as usize;
        let mut chunks = ChunkMap::with_capacity(expected);
        let mut num_lost = 0;
        self.for_each_chunk(progress, to_chunk, |chunk| {
            match chunks.entry(chunk.key()) {
                Entry::Vacant(entry) => drop(entry.insert(adopt(chunk)?)),
                Entry::Occupied(entry) if !entry.get().load()?.has_payload_of(&chunk) => {
                    num_lost += 1;
                }
                Entry::Occupied(_) => {}
            }
            Ok(())
        })?;
        if num_lost > 0 {
            tracing::warn!(
                "checkpoint {}: {num_lost} chunk(s) have the key of another one and were ignored, \
                 as in dm-reverb, which writes them when two writers draw the same key",
                self.path.display()
            );
        }
        Ok(chunks)
    }

    /// Calls `each` with every item and the position of its table, in order.
    pub(crate) fn for_each_item(
        &self,
        progress: &Arc<Progress>,
        chunks: &ChunkMap,
        mut each: impl FnMut(usize, StoredItem) -> Result<()>,
    ) -> Result<()> {
        for (table, item) in self.items_in_tables(chunks)? {
            each(table, item)?;
        }
        let parse = |block: &Block| self.items_of(block, chunks);
        self.for_each_item_block(progress, parse, |(table, item)| each(table, item))
    }

    /// Calls `each` with every item of a table with rollouts, and the position of the table. Ready
    /// ones are without their columns.
    pub(crate) fn for_each_growing(
        &self,
        chunks: &ChunkMap,
        mut each: impl FnMut(usize, StoredGrowing) -> Result<()>,
    ) -> Result<()> {
        for (position, table) in self.tables.iter().enumerate() {
            let items = table.message.rollouts.iter().flat_map(|rollouts| &rollouts.items);
            for record in items {
                let item = to_growing_item(record, chunks, table.name()).map_err(|error| {
                    let place = format!("in table {}", table.name());
                    damaged(&self.path.join(TABLES), &place, error.message())
                })?;
                each(position, item)?;
            }
        }
        Ok(())
    }

    /// The items inside the records of tables, with the positions of their tables.
    pub(crate) fn items_in_tables(&self, chunks: &ChunkMap) -> Result<Vec<(usize, StoredItem)>> {
        let items = self.messages_in_tables().map(|(table, message)| {
            let name = self.tables[table].name();
            let item = RawItem::parse(message);
            let item = item.and_then(|raw| self.item_with_steps(&raw, message, chunks, name));
            let item = item.map_err(|error| {
                damaged(&self.path.join(TABLES), &format!("in table {name}"), error.message())
            });
            item.map(|item| item.map(|item| (table, item)))
        });
        items.filter_map(Result::transpose).collect()
    }

    /// The same items as encoded messages.
    pub(crate) fn messages_in_tables(&self) -> impl Iterator<Item = (usize, &Bytes)> {
        self.items_in_tables.iter().map(|(table, message)| (*table as usize, message))
    }

    /// The records of items, of all tables.
    pub(crate) fn item_blocks(&self, progress: &Arc<Progress>) -> Option<Blocks> {
        Some(self.blocks(ITEMS, self.items.as_ref()?, progress))
    }

    fn blocks(&self, name: &str, file: &Arc<File>, progress: &Arc<Progress>) -> Blocks {
        let max_bytes = if name == CHUNKS { MAX_CHUNK_RECORD_BYTES } else { MAX_RECORD_BYTES };
        Blocks::new(self.path.join(name), file, self.encoding, max_bytes, progress)
    }

    /// The items of a block with the positions of their tables.
    pub(crate) fn items_of(
        &self,
        block: &Block,
        chunks: &ChunkMap,
    ) -> Result<Vec<(usize, StoredItem)>> {
        let parsed = block.records().map(|record| {
            let record = record?;
            let item = RawItem::parse(record.data).and_then(|raw| {
                let table = self.position_of(raw.table)?;
                let item = self.item_with_steps(&raw, record.data, chunks, raw.table)?;
                Ok(item.map(|item| (table, item)))
            });
            item.map_err(|error| record.damaged(error.message()))
        });
        parsed.filter_map(Result::transpose).collect()
    }

    /// Reads an item; `None`, and a warning in the log, if it has a slice without steps. Releases
    /// before this check could save such items; no server accepts them any more.
    fn item_with_steps(
        &self,
        raw: &RawItem<'_>,
        message: &[u8],
        chunks: &ChunkMap,
        table: &str,
    ) -> Result<Option<StoredItem>> {
        let error = match to_item(raw, message, chunks, table) {
            Ok(item) => return Ok(Some(item)),
            Err(error) => error,
        };
        let mut shortest = i32::MAX;
        raw.for_each_slice(|_, _, length| shortest = shortest.min(length))?;
        if shortest >= 1 {
            return Err(error);
        }
        self.num_left_out.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            table,
            "checkpoint {}: item {} is left out, because a slice of it has length {shortest}; \
             slices have at least 1 step",
            self.path.display(),
            raw.key
        );
        Ok(None)
    }

    /// The position in `tables` of the table with this name.
    pub(crate) fn position_of(&self, table: &str) -> Result<usize> {
        self.tables.iter().position(|known| known.name() == table).ok_or_else(|| {
            Error::data_loss(format!("the item is of table '{table}', which {TABLES} lacks."))
        })
    }
}

/// Parses blocks in several threads, and passes the results to `each` in order.
fn for_each_block<T: Send>(
    blocks: &mut Blocks,
    progress: &Progress,
    parse: impl Fn(&Block) -> Result<Vec<T>> + Sync,
    each: impl FnMut(Vec<T>) -> Result<()>,
) -> Result<()> {
    in_order(
        num_threads(usize::MAX),
        progress.cancelled(),
        || blocks.next(),
        |block| block.bytes().len(),
        || (),
        |(), block| parse(&block),
        each,
    )
}

/// Reads an item and checks its references.
fn to_item(
    raw: &RawItem<'_>,
    message: &[u8],
    chunks: &ChunkMap,
    table: &str,
) -> Result<StoredItem> {
    let find = |key| chunks.get(&key).ok_or_else(|| no_chunk(raw.key, table, key));
    let trajectory = if raw.has_deprecated_references {
        legacy::item_trajectory(message, find)?
    } else {
        raw.trajectory(find)?
    };
    trajectory.validate()?;
    Ok(StoredItem {
        key: raw.key,
        priority: raw.priority,
        removal_priority: raw.removal_priority,
        times_sampled: raw.times_sampled,
        inserted_at_ns: raw.inserted_at_ns,
        trajectory,
    })
}

/// Reads an item with rollouts, and checks its columns if it has them here.
fn to_growing_item(record: &[u8], chunks: &ChunkMap, table: &str) -> Result<StoredGrowing> {
    let raw = RawItem::parse(record)?;
    let growing = raw.growing.ok_or_else(|| Error::data_loss("an item has no state."))?;
    let (mut item, parts) = to_growing(raw.key, growing)?;
    if item.stage != Stage::Ready {
        item.aside = Some((to_item(&raw, record, chunks, table)?, parts));
    }
    Ok(item)
}

pub(crate) fn no_chunk(item: u64, table: &str, key: u64) -> Error {
    Error::data_loss(format!(
        "item {item} of table {table} refers to chunk {key}, which is not in {CHUNKS}."
    ))
}

thread_local! {
    /// Nearly all chunks of a checkpoint have the same layout.
    static CHUNK_MAKER: RefCell<ChunkMaker> = RefCell::default();
}

pub(crate) fn to_chunk(record: &Record<'_>, block: &Block) -> Result<Chunk> {
    let parse = || {
        let raw = RawChunk::parse(record.data)?;
        if !raw.has_deprecated_data {
            return Ok(CHUNK_MAKER.with_borrow_mut(|maker| raw.to_stored(block.bytes(), maker)));
        }
        let data = legacy::chunk_payload(record.data, !raw.data.is_empty())?;
        let make = |maker: &mut ChunkMaker| maker.make(raw.key, raw.range, raw.delta, &data);
        Ok(CHUNK_MAKER.with_borrow_mut(make))
    };
    parse().map_err(|error: Error| record.damaged(error.message()))
}

fn open_part(directory: &Path, name: &str) -> Result<Option<Arc<File>>> {
    let path = directory.join(name);
    match open_file(&path, OpenOptions::new().read(true)) {
        Ok(file) => Ok(Some(Arc::new(file))),
        Err(Unreadable::Refused(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(unreadable(&path, &why)),
    }
}

fn required(directory: &Path, name: &str) -> Result<Arc<File>> {
    open_part(directory, name)?.ok_or_else(|| missing(&directory.join(name)))
}

fn missing(path: &Path) -> Error {
    damaged(path, "as a whole", "it is missing.")
}

/// Returns true if a read failed because the checkpoint was deleted meanwhile.
pub(crate) fn is_gone(path: &Path) -> bool {
    matches!(is_complete(path), Ok(false))
}
