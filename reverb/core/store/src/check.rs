// SPDX-License-Identifier: Apache-2.0
//! Reads all that the last commit of a journal needs.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reverb_base::Result;
use reverb_data::{Chunk, ShardIdentity};
use reverb_files::Disk;

use crate::changes::Note;
use crate::directory::Directory;
use crate::head::{FileKind, HEAD_BYTES};
use crate::journal::Journal;
use crate::listing::open;
use crate::pace::Pace;
use crate::recovered::RecoveredTable;
use crate::recovery::{self, Damage};
use crate::store::StoreOptions;

/// What is in a journal.
#[derive(Debug)]
pub struct Report {
    /// The last commit, or the last one before what is damaged.
    pub commit: u64,
    /// When it was made.
    pub at: SystemTime,
    /// Its tables.
    pub tables: Vec<StoredTable>,
    /// The last notes, in order.
    pub notes: Vec<Note>,
    /// The place of its server in a group, if it had one.
    pub shard: Option<ShardIdentity>,
    /// Data files, logs and bases: their number and bytes.
    pub files: [(u64, u64); 3],
    /// Bytes of payloads that nothing needs.
    pub garbage_bytes: u64,
    /// Bytes of a commit that was not finished, which a start leaves.
    pub dropped_bytes: u64,
    /// Bases that are damaged, in place of which an older one is read.
    pub damaged_bases: Vec<String>,
    /// What a start is refused for, and the number of records behind it, about.
    pub damage: Option<(String, u64)>,
    /// Where a repair has moved the logs and bases that were there.
    pub moved_to: Option<PathBuf>,
}

/// A table.
#[derive(Debug)]
pub struct StoredTable {
    /// Its number in the journal.
    pub number: u32,
    /// Settings, signature and counters, as they were recorded last.
    pub settings: Vec<u8>,
    /// Items that are whole.
    pub num_items: u64,
    /// Items that lack a part.
    pub lost: LostItems,
}

/// Keys of items by what they lack.
pub type LostItems = BTreeMap<String, Vec<u64>>;

impl Report {
    /// Returns true if a start is refused, or loses items later.
    pub fn is_damaged(&self) -> bool {
        self.damage.is_some() || self.tables.iter().any(|table| !table.lost.is_empty())
    }
}

/// A journal that was read, and all items of it that are whole.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) journal: Journal,
    pub(crate) tables: Vec<RecoveredTable>,
    pub(crate) report: Report,
}

/// Reads and compares all that the last commit of a stopped server needs: every frame and every
/// payload, at so many bytes a second at most. Changes nothing but the lock.
///
/// # Errors
///
/// `FailedPrecondition` if there is no journal, it is in use, or was written by a newer release;
/// `DataLoss` if nothing of it can be read, or a file is of another store; `Cancelled`.
pub fn check(
    path: &Path,
    disk: Arc<dyn Disk>,
    bytes_per_second: u64,
    cancelled: &AtomicBool,
) -> Result<Report> {
    examine(path, disk, bytes_per_second, cancelled).map(|examined| examined.report)
}

pub(crate) fn examine(
    path: &Path,
    disk: Arc<dyn Disk>,
    bytes_per_second: u64,
    cancelled: &AtomicBool,
) -> Result<Examined> {
    let pace = Pace::new(bytes_per_second);
    let (mut directory, listing) = Directory::open_left(path, disk, pace)?;
    let found = recovery::find(&directory, &listing, cancelled)?;
    let found = found.unwrap_or_else(|| recovery::Found::nothing(0, 0));
    directory.first_number = listing.next_number.max(found.replay.next_number);
    let mut files = [(0, 0); 3];
    let kinds = [
        (FileKind::Data, &listing.data),
        (FileKind::Log, &listing.logs),
        (FileKind::Base, &listing.bases),
    ];
    for ((count, bytes), (kind, found)) in files.iter_mut().zip(kinds) {
        for &number in found.keys() {
            *count += 1;
            *bytes += open(&directory, kind, number).map_or(0, |(_, len)| len);
        }
    }
    let journal = Journal::of(StoreOptions::new(path), directory, &found);
    let mut report = Report {
        commit: found.commit,
        at: UNIX_EPOCH + Duration::from_nanos(found.at),
        tables: Vec::new(),
        notes: found.replay.notes.iter().cloned().collect(),
        shard: found.replay.shard.clone(),
        files,
        garbage_bytes: 0,
        dropped_bytes: found.dropped_bytes,
        damaged_bases: found.damaged_bases,
        damage: found.damage.map(|Damage { what, num_records }| (what, num_records)),
        moved_to: None,
    };
    let (mut needed, mut lost) = (HashMap::new(), BTreeMap::<u32, LostItems>::new());
    let mut lose = |table: u32, key: u64, why: &str| {
        lost.entry(table).or_default().entry(why.to_owned()).or_default().push(key);
    };
    let need = |number| journal.need(&mut needed, number);
    let mut tables = found.replay.into_tables(cancelled, need, |table, key, error| {
        lose(table, key, error.message());
        Ok(())
    })?;
    let live_bytes: u64 = needed.values().map(|(file, _)| file.live_bytes()).sum();
    let (num_files, bytes) = files[0];
    report.garbage_bytes = bytes.saturating_sub(num_files * HEAD_BYTES as u64 + live_bytes);
    let wrong = wrong_payloads(&tables, cancelled)?;
    for table in &mut tables {
        table.items.retain(|item| {
            let why = item.chunks.iter().find_map(|chunk| wrong.get(&chunk.identity()));
            why.inspect(|why| lose(table.number, item.key, why)).is_none()
        });
    }
    for RecoveredTable { number, settings, items, .. } in &tables {
        let (number, settings, num_items) = (*number, settings.clone(), items.len() as u64);
        let lost = lost.remove(&number).unwrap_or_default();
        report.tables.push(StoredTable { number, settings, num_items, lost });
    }
    Ok(Examined { journal, tables, report })
}

/// Chunks whose payloads are not those that were written, by identity, and why. They are read in
/// the order in which they lie in the files.
fn wrong_payloads(
    tables: &[RecoveredTable],
    cancelled: &AtomicBool,
) -> Result<HashMap<usize, String>> {
    let chunks = tables.iter().flat_map(|table| &table.items).flat_map(|item| &item.chunks);
    let place = |chunk: &Chunk| chunk.place().map(|it| (it.file.number(), it.offset));
    let mut chunks: Vec<_> = chunks.filter_map(|chunk| Some((place(chunk)?, chunk))).collect();
    chunks.sort_unstable_by_key(|&(place, chunk)| (place, chunk.identity()));
    chunks.dedup_by_key(|(_, chunk)| chunk.identity());
    let mut wrong = HashMap::new();
    for (_, chunk) in chunks {
        recovery::check_not_cancelled(cancelled)?;
        if let Err(error) = chunk.load() {
            wrong.insert(chunk.identity(), error.message().to_owned());
        }
    }
    Ok(wrong)
}
