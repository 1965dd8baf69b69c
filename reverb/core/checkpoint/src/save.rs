// SPDX-License-Identifier: Apache-2.0
//! Saving a checkpoint while its tables stay in use.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use prost::Message;
use reverb_base::error::grouped;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::proto_bytes::{put_bytes_field, put_varint_field};
use reverb_data::rollouts::StoredGrowing;
use reverb_data::{Chunk, ShardIdentity, StoredItem};
use reverb_engine::{SnapshotCut, Table, TableSnapshot};
use reverb_wire::codec::chunk::put_chunk_data;
use reverb_wire::codec::item::{ItemHead, put_item_with_keys};
use reverb_wire::convert::rollouts::from_growing;

use crate::chunk_set::ChunkSet;
use crate::directory::{CHUNKS, ITEMS, Partial, TABLES, prune};
use crate::failure::from_io;
use crate::held::Held;
use crate::manifest::{FileEntry, Manifest};
use crate::name::ServerName;
use crate::pipeline::{check, in_order, lower_priority, num_threads};
use crate::progress::Progress;
use crate::record::{MAX_CHUNK_RECORD_BYTES, MAX_RECORD_BYTES, put_record};
use crate::settings;
use crate::table_record::read_table;
use crate::zlib::{Compressor, Piece, STREAM_HEADER, StreamChecksum};

/// Number of items whose records are compressed together, about 400 kB.
const ITEMS_PER_PIECE: usize = 4096;

/// Chunks are compressed together up to this many bytes of data.
const PIECE_BYTES: usize = 512 * 1024;

/// Time between two attempts to begin a snapshot.
const COPY_POLL: Duration = Duration::from_millis(5);

/// Approximate size of a chunk's record besides its data.
const CHUNK_HEADER_BYTES: usize = 64;

/// Approximate size of an item's record.
const ITEM_BYTES: usize = 100;

/// Options of a save.
#[derive(Debug, Clone, Default)]
pub struct SaveOptions {
    /// Directory of checkpoints.
    pub root: PathBuf,
    /// Group of the checkpoint. Groups are not supported, so it must be empty.
    pub group: String,
    /// Number of checkpoints to keep, including the new one; at least 1. Checkpoints of servers
    /// with other names do not count and are never deleted.
    pub keep_latest: usize,
    /// Name of the server, if it has one. It is written into the checkpoint.
    pub name: Option<ServerName>,
    /// Shard of the server, if it is in a group. It is written into the checkpoint.
    pub shard: Option<ShardIdentity>,
    /// Id of the store of the server, if it has one. It is written into the checkpoint.
    pub store: Option<u128>,
}

/// Result of a save.
#[derive(Debug)]
pub struct Saved {
    /// Directory of the checkpoint.
    pub path: PathBuf,
    /// Number of items in it.
    pub num_items: u64,
    /// Size on disk.
    pub bytes: u64,
    /// Time of the snapshot.
    pub taken_at: SystemTime,
    /// Time for which all tables were locked together.
    pub locked: Duration,
    /// Duration of the save.
    pub took: Duration,
}

/// Saves a consistent snapshot of all `tables`. They are locked together only to begin the
/// snapshot. Later changes are not part of it. On Linux this permanently lowers the priority of the
/// calling thread, unless the snapshot is small.
///
/// Adds the new checkpoint to `held`, and removes deleted ones from it.
///
/// # Errors
///
/// `InvalidArgument` if `group` is not empty; `ResourceExhausted` with both sizes, before anything
/// is written, if the file system has less room than the checkpoint needs; `FailedPrecondition` or
/// `ResourceExhausted` with the path if the system refuses an operation, or if a record is too
/// long; `Cancelled` if `progress` was cancelled. After an error nothing of the new checkpoint
/// remains, and older ones are unchanged.
pub fn save(
    tables: &[Arc<Table>],
    options: &SaveOptions,
    progress: &Progress,
    held: &mut Held,
) -> Result<Saved> {
    if !options.group.is_empty() {
        return Err(Error::invalid_argument(format!(
            "Checkpoints have no groups: group must be empty, got '{}'.",
            options.group
        )));
    }
    let start = Instant::now();
    let partial = Partial::create(&options.root)?;
    let cut = begin_snapshot(tables, progress)?;
    let taken_at = cut.taken_at();
    let locked = cut.locked();
    let num_items = cut.num_items();
    progress.expect_items(num_items);
    let snapshots = cut.copy();
    // Lowered only now: during the snapshot, callers would wait for locks that a low-priority
    // thread holds.
    let has_many_items = num_items > ITEMS_PER_PIECE as u64;
    if has_many_items {
        lower_priority();
    }
    let mut manifest = Manifest::new(options.name.clone());
    manifest.shard.clone_from(&options.shard);
    manifest.store = options.store;
    manifest.taken_at = Some(taken_at);
    let growing: Vec<Vec<StoredGrowing>> = snapshots
        .iter()
        .map(|snapshot| snapshot.rollouts.as_ref().map_or_else(Vec::new, |kept| kept.to_stored()))
        .collect();
    let mut chunks = ChunkSet::default();
    for item in snapshots.iter().flat_map(|snapshot| &snapshot.items) {
        chunks.add(&item.trajectory);
    }
    for (item, _) in growing.iter().flatten().filter_map(|item| item.aside.as_ref()) {
        chunks.add(&item.trajectory);
    }
    // A small save takes a moment; with a low priority, many times as long on a busy machine.
    let bytes = chunks.chunks().iter().map(|(_, chunk)| chunk.payload_len()).sum::<usize>();
    if !has_many_items && bytes > PIECE_BYTES {
        lower_priority();
    }
    check_room(&options.root, free_bytes(&options.root), &snapshots, &chunks, progress)?;
    manifest.files.push(write_tables(&partial, &snapshots, &growing, &chunks, progress)?);
    manifest.files.push(write_items(Some(&partial), &snapshots, &chunks, progress)?);
    // From here on only the chunks are needed. Items that were removed from the tables can be
    // freed.
    drop(snapshots);
    manifest.files.push(write_chunks(Some(&partial), &chunks, progress)?);
    drop(chunks);
    let published = partial.publish(&manifest)?;
    let path = published.path.clone();
    held.checkpoints.push(published);
    prune(&options.root, options.keep_latest, options.name.as_ref(), held);
    let bytes = manifest.files.iter().map(|file| file.bytes).sum();
    Ok(Saved { path, num_items, bytes, taken_at, locked, took: start.elapsed() })
}

/// Begins a snapshot when the tables are not being copied for the journal any more.
fn begin_snapshot(tables: &[Arc<Table>], progress: &Progress) -> Result<SnapshotCut> {
    loop {
        match SnapshotCut::begin(tables) {
            Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
                check(progress.cancelled())?;
                std::thread::sleep(COPY_POLL);
            }
            begun => return begun,
        }
    }
}

/// Refuses a save that does not fit. Older checkpoints stay until it is complete, and have no files
/// in common with it. If it fits only when it is compressed, it is compressed twice, the first time
/// for its size.
fn check_room(
    root: &Path,
    free: Option<u64>,
    snapshots: &[TableSnapshot],
    chunks: &ChunkSet,
    progress: &Progress,
) -> Result<()> {
    let items: usize = snapshots.iter().map(|snapshot| snapshot.items.len()).sum();
    let of_chunk = |(_, chunk): &(u64, Chunk)| chunk.payload_len() + CHUNK_HEADER_BYTES;
    let raw = items * ITEM_BYTES + chunks.chunks().iter().map(of_chunk).sum::<usize>();
    let Some(free) = free.filter(|free| (raw as u64) > *free) else { return Ok(()) };
    let items = write_items(None, snapshots, chunks, progress)?;
    let needed = items.bytes + write_chunks(None, chunks, progress)?.bytes;
    if needed <= free {
        return Ok(());
    }
    Err(Error::resource_exhausted(format!(
        "Checkpoint: it needs {} bytes, and the file system of {} has {} bytes free. Free some \
         space, or choose another directory.",
        grouped(needed as usize),
        root.display(),
        grouped(free as usize)
    )))
}

/// Bytes that this process may still write to a file system; `None` if it does not say.
#[cfg(unix)]
fn free_bytes(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    let is_root = rustix::process::geteuid().is_root();
    let blocks = if is_root { found.f_bfree } else { found.f_bavail };
    (found.f_blocks > 0).then(|| blocks.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

fn write_tables(
    partial: &Partial,
    snapshots: &[TableSnapshot],
    growing: &[Vec<StoredGrowing>],
    chunks: &ChunkSet,
    progress: &Progress,
) -> Result<FileEntry> {
    let mut raw = Vec::new();
    for (snapshot, growing) in snapshots.iter().zip(growing) {
        let mut message = settings::to_message(&snapshot.info);
        if let Some(rollouts) = &mut message.rollouts {
            let name = &snapshot.info.config.name;
            rollouts.items = growing.iter().map(|item| growing_item(name, item, chunks)).collect();
        }
        let data = message.encode_to_vec();
        read_table(&data).map_err(|what| {
            let name = &snapshot.info.config.name;
            Error::resource_exhausted(format!("Checkpoint: table {name} cannot be stored: {what}."))
        })?;
        let length = put_record(&mut raw, |out| out.extend_from_slice(&data));
        check_length(TABLES, length, MAX_RECORD_BYTES)?;
    }
    let mut file = RecordFile::begin(partial.path(), TABLES, Some(partial.tables()), progress)?;
    file.write(&Compressor::new().compress(&raw))?;
    file.finish(snapshots.len() as u64)
}

/// The record of an item with rollouts, with its columns unless it is ready.
fn growing_item(table: &str, item: &StoredGrowing, chunks: &ChunkSet) -> Vec<u8> {
    let mut record = Vec::new();
    match &item.aside {
        Some((stored, _)) => {
            let head = ItemHead::of_stored(table, stored);
            put_item_with_keys(&mut record, &head, &stored.trajectory, |it| chunks.key_of(it));
        }
        None => put_varint_field(&mut record, 1, item.key),
    }
    put_bytes_field(&mut record, 1004, &from_growing(item).encode_to_vec());
    record
}

fn write_items(
    partial: Option<&Partial>,
    snapshots: &[TableSnapshot],
    chunks: &ChunkSet,
    progress: &Progress,
) -> Result<FileEntry> {
    let pieces: Vec<(&str, &[StoredItem])> = snapshots
        .iter()
        .flat_map(|snapshot| {
            let name = snapshot.info.config.name.as_str();
            snapshot.items.chunks(ITEMS_PER_PIECE).map(move |items| (name, items))
        })
        .collect();
    write_pieces(partial, ITEMS, pieces, progress, |raw, (table, items)| {
        for item in items {
            let head = ItemHead::of_stored(table, item);
            let put = |out: &mut Vec<u8>| {
                put_item_with_keys(out, &head, &item.trajectory, |chunk| chunks.key_of(chunk));
            };
            let length = put_record(raw, put);
            check_length(ITEMS, length, MAX_RECORD_BYTES)?;
        }
        Ok(items.len())
    })
}

/// Ranges of chunks that are compressed together.
fn pieces_of(chunks: &[(u64, Chunk)]) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (at, (_, chunk)) in chunks.iter().enumerate() {
        if bytes >= PIECE_BYTES {
            pieces.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += chunk.payload_len() + CHUNK_HEADER_BYTES;
    }
    if start < chunks.len() {
        pieces.push(start..chunks.len());
    }
    pieces
}

fn write_chunks(
    partial: Option<&Partial>,
    chunks: &ChunkSet,
    progress: &Progress,
) -> Result<FileEntry> {
    let all = chunks.chunks();
    write_pieces(partial, CHUNKS, pieces_of(all), progress, |raw, piece| {
        for (key, chunk) in &all[piece.clone()] {
            // One payload at a time: all of them may not fit into memory.
            let plain = chunk
                .load()
                .map_err(|error| error.context("Checkpoint: a payload cannot be read back"))?;
            let length = put_record(raw, |out| put_chunk_data(out, *key, &plain));
            check_length(CHUNKS, length, MAX_CHUNK_RECORD_BYTES)?;
        }
        Ok(piece.len())
    })
}

/// Writes a file of pieces, which several threads compress. `put` appends the records of a piece,
/// and returns their number. Without `partial` it only measures the file.
fn write_pieces<P: Send>(
    partial: Option<&Partial>,
    name: &'static str,
    pieces: Vec<P>,
    progress: &Progress,
    put: impl Fn(&mut Vec<u8>, P) -> Result<usize> + Sync,
) -> Result<FileEntry> {
    let created = partial.map(|partial| partial.create_file(name)).transpose()?;
    let directory = partial.map_or(Path::new(""), Partial::path);
    let mut file = RecordFile::begin(directory, name, created.as_ref(), progress)?;
    let threads = num_threads(pieces.len());
    let mut pieces = pieces.into_iter();
    let mut num_records = 0;
    in_order(
        threads,
        progress.cancelled(),
        || Ok(pieces.next()),
        |_| 0,
        || {
            // A single thread is the calling one.
            if threads > 1 {
                lower_priority();
            }
            (Compressor::new(), Vec::new())
        },
        |(compressor, raw), piece| {
            raw.clear();
            let count = put(raw, piece)?;
            Ok((compressor.compress(raw), count))
        },
        |(piece, count)| {
            num_records += count as u64;
            let is_of_items = name == ITEMS && partial.is_some();
            progress.add_items(if is_of_items { count as u64 } else { 0 });
            file.write(&piece)
        },
    )?;
    file.finish(num_records)
}

/// Refuses a record that is too long for readers.
fn check_length(name: &str, length: u64, max_bytes: u64) -> Result<()> {
    if length <= max_bytes {
        return Ok(());
    }
    Err(Error::resource_exhausted(format!(
        "Checkpoint: a record of {name} would have {length} bytes, and may have {max_bytes}. Delete \
         the item, or make the chunks of such items shorter."
    )))
}

#[derive(Debug)]
struct RecordFile<'a> {
    name: &'static str,
    path: PathBuf,
    /// Absent if the file is only measured.
    file: Option<&'a File>,
    progress: &'a Progress,
    bytes: u64,
    checksum: StreamChecksum,
}

impl<'a> RecordFile<'a> {
    fn begin(
        directory: &Path,
        name: &'static str,
        file: Option<&'a File>,
        progress: &'a Progress,
    ) -> Result<Self> {
        let path = directory.join(name);
        let checksum = StreamChecksum::new();
        let mut begun = Self { name, path, file, progress, bytes: 0, checksum };
        begun.write_bytes(&STREAM_HEADER)?;
        Ok(begun)
    }

    fn write(&mut self, piece: &Piece) -> Result<()> {
        self.checksum.add(piece);
        self.write_bytes(&piece.bytes)
    }

    fn finish(mut self, records: u64) -> Result<FileEntry> {
        let trailer = self.checksum.trailer();
        self.write_bytes(&trailer)?;
        if let Some(file) = self.file {
            file.sync_all().map_err(|error| from_io("write", &self.path, &error))?;
        }
        Ok(FileEntry { name: self.name.to_owned(), records, bytes: self.bytes })
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        if let Some(mut file) = self.file {
            file.write_all(bytes).map_err(|error| from_io("write", &self.path, &error))?;
            self.progress.add_bytes(bytes.len() as u64);
        }
        Ok(())
    }
}
