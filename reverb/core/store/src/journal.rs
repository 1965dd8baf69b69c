// SPDX-License-Identifier: Apache-2.0
//! A journal: tables that survive their process.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reverb_base::{Error, ErrorKind, Result};
use reverb_data::{Chunk, DataFile, ShardIdentity};
use reverb_files::Disk;

use crate::appender::Appender;
use crate::base::{Base, Population};
use crate::changes::{Changes, Note};
use crate::counts::Counts;
use crate::directory::Directory;
use crate::frame::{FrameHead, FrameKind, Records};
use crate::head::{FileKind, HEAD_BYTES, nanoseconds};
use crate::listing::{Listing, is_ours, open};
use crate::log::{Log, LogEnd};
use crate::observer::Observer;
use crate::open_file::OpenFile;
use crate::queue::{Refusal, Task, Written};
use crate::record::{MAX_NOTES, put_notes, put_shard};
use crate::recovered::Recovered;
use crate::recovery::{self, Found};
use crate::replay::Needed;
use crate::store::{Shared, StoreOptions};

/// Ids that a lost commit may have used.
const SKIPPED_IDS: u64 = 1 << 32;

/// Log bytes for which a base is not made.
const MIN_LOG_BYTES: u64 = 64 << 20;

/// Bytes of logs for which a full journal makes no base.
const FEW_BYTES: u64 = 1 << 20;

/// A journal in a directory. One thread writes it.
///
/// A commit is on disk when `commit` returns. After an error nothing is lost, and the same commit
/// is to be given again: it goes to new files.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    appender: Appender,
    /// Chunks that the appender has, by identity.
    appended: HashSet<usize>,
    /// `None` after a failure.
    log: Option<Log>,
    log_end: LogEnd,
    base: Option<Base>,
    /// Number of the newest base, its bytes, and those of the log since it began.
    newest_base: u32,
    base_bytes: u64,
    log_bytes: u64,
    /// Items since that base.
    items: Population,
    /// Logs and bases that are there.
    files: Vec<JournalFile>,
    next_id: u64,
    commit: u64,
    /// When it was made, in nanoseconds.
    at: u64,
    notes: VecDeque<Note>,
    shard: Option<ShardIdentity>,
    /// Data files that nothing referred to when the last commit was on disk.
    dead: Vec<u32>,
}

/// A log or a base.
#[derive(Debug)]
struct JournalFile {
    kind: FileKind,
    number: u32,
    bytes: u64,
}

/// A commit that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Its number.
    pub commit: u64,
    /// The moment to which it belongs; later than that of the commit before.
    pub at: SystemTime,
}

impl Journal {
    /// Takes the directory for this process, makes it if it is missing, and recovers the last
    /// commit. May take long; `cancelled` ends it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a budget that is too small. `FailedPrecondition` if the path is no
    /// directory, cannot be written or locked, is in use, or was written by a newer release.
    /// `DataLoss` if something that was on disk is damaged or missing; nothing is deleted then.
    /// `Cancelled`.
    pub fn open(
        options: StoreOptions,
        disk: Arc<dyn Disk>,
        cancelled: &AtomicBool,
    ) -> Result<(Self, Recovered)> {
        options.check()?;
        let (mut directory, listing) = Directory::open_journal(&options.path, disk)?;
        let found = recovery::find(&directory, &listing, cancelled)?;
        let is_new = found.is_none();
        let at = nanoseconds(SystemTime::now());
        let found = found.unwrap_or_else(|| Found::nothing(0, at));
        for text in &found.damaged_bases {
            tracing::warn!("store {text}; the base before is taken");
        }
        found.check(&directory)?;
        directory.first_number = listing.next_number.max(found.replay.next_number);
        let mut journal = Self::of(options, directory, &found);
        if is_new {
            journal.next_id = 1;
        }
        let (commit, at) = (found.commit, found.at);
        let (last, dropped_bytes) = (found.last, found.dropped_bytes);
        let mut needed = HashMap::new();
        let need = |number| journal.need(&mut needed, number);
        let tables = found.replay.into_tables(cancelled, need, |_, key, error| {
            Err(Error::data_loss(format!("item {key} needs {}", error.message())))
        });
        let tables = tables.map_err(|error| {
            if error.kind() == ErrorKind::Cancelled {
                return error;
            }
            let path = journal.shared.directory.path.display();
            let text = format!("store {path}: {}: reverb store repair {path}", error.message());
            Error::data_loss(text)
        })?;
        journal.start(last, &listing, &needed, is_new)?;
        let (at, notes) = (UNIX_EPOCH + Duration::from_nanos(at), journal.notes.clone().into());
        let shard = journal.shard.clone();
        Ok((journal, Recovered { commit, at, tables, notes, shard, dropped_bytes }))
    }

    /// A journal that goes on after a commit, and has written nothing yet.
    pub(crate) fn of(options: StoreOptions, directory: Directory, found: &Found) -> Self {
        Self {
            shared: Arc::new(Shared::new(options, directory)),
            appender: Appender::default(),
            appended: HashSet::new(),
            log: None,
            log_end: found.log_end,
            base: None,
            newest_base: found.base,
            base_bytes: 0,
            log_bytes: 0,
            items: Population::default(),
            files: Vec::new(),
            next_id: found.replay.next_id.saturating_add(SKIPPED_IDS),
            commit: found.commit,
            at: found.at,
            notes: found.replay.notes.clone(),
            shard: found.replay.shard.clone(),
            dead: Vec::new(),
        }
    }

    /// Opens a data file that an item needs.
    pub(crate) fn need(&self, needed: &mut HashMap<u32, Needed>, number: u32) -> Result<Needed> {
        if let Some(found) = needed.get(&number) {
            return Ok(found.clone());
        }
        let path = self.shared.directory.file(FileKind::Data, number);
        let found = open(&self.shared.directory, FileKind::Data, number);
        let (file, len) = found.map_err(|error| {
            Error::data_loss(format!("{}, which cannot be opened: {error}", path.display()))
        })?;
        let (counts, waker) = (self.shared.counts.clone(), self.shared.waker.clone());
        let open = OpenFile { file, counts, waker };
        let data: Arc<DataFile> = DataFile::new(number, path, Box::new(open));
        let mut files = self.shared.files.lock();
        files.add(&data);
        files.set_bytes(number, len.saturating_sub(HEAD_BYTES as u64));
        files.close(number);
        needed.insert(number, (data.clone(), len));
        Ok((data, len))
    }

    /// Begins a log, with the last frame that was found. So what was recovered is on disk before
    /// anything is deleted.
    fn start(
        &mut self,
        last: Option<(FrameHead, Vec<u8>)>,
        listing: &Listing,
        needed: &HashMap<u32, Needed>,
        is_new: bool,
    ) -> Result<()> {
        let shared = self.shared.clone();
        let (commit, at, log_before) = (self.commit, self.at, self.log_end);
        self.create_log(|random| {
            let records = last.map(|(head, records)| Records::of(&head, &records));
            let seal = |it: Records| it.seal(random, FrameKind::Commit, commit, commit - 1, at);
            records.map(seal).unwrap_or_default()
        })?;
        if is_new {
            self.create_base()?;
            self.end_base()?;
        }
        let directory = &shared.directory;
        for path in &listing.parts {
            directory.delete(path, &shared.counts);
        }
        for (kind, files) in [(FileKind::Log, &listing.logs), (FileKind::Base, &listing.bases)] {
            for (&number, head) in files {
                // The log before the new one has all that this one had.
                let is_passed_over = kind == FileKind::Log
                    && (log_before.number + 1..self.log_end.number).contains(&number);
                if head.is_some() && !is_new && !is_passed_over {
                    let bytes = open(directory, kind, number).map_or(0, |(_, len)| len);
                    self.files.push(JournalFile { kind, number, bytes });
                } else if is_ours(directory, kind, number) {
                    directory.delete(&directory.file(kind, number), &shared.counts);
                }
            }
        }
        for &number in listing.data.keys() {
            if needed.contains_key(&number) {
                continue;
            }
            let path = directory.file(FileKind::Data, number);
            if is_ours(directory, FileKind::Data, number) {
                directory.delete(&path, &shared.counts);
            } else {
                tracing::warn!("store: {} is not of this store, so it stays", path.display());
            }
        }
        self.count_files();
        Ok(())
    }

    /// Brings payloads that have no place to the disk, so that they may leave memory. Chunks that
    /// have a place, or stay in memory, are left.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the disk fails.
    pub fn write(&mut self, chunks: &[Chunk]) -> Result<()> {
        let written = self.append(chunks, Task::Write).and_then(|()| self.sync_payloads());
        self.finish(written)
    }

    /// Brings a commit to the disk: payloads, then records.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the disk fails. The same changes are to be given again, and go to new
    /// files.
    pub fn commit(&mut self, changes: &Changes) -> Result<Committed> {
        let committed = self.try_commit(changes);
        let committed = self.finish(committed)?;
        if self.shared.queue.lock().end_trouble(false) {
            tracing::info!("store {}: writes again", self.shared.directory.path.display());
        }
        Ok(committed)
    }

    fn try_commit(&mut self, changes: &Changes) -> Written<Committed> {
        let shared = self.shared.clone();
        let log = self.log.as_ref().map(|log| log.number);
        let found = shared.directory.find_own(log);
        found.map_err(|error| shared.failed_at("use", shared.directory.path.clone(), error))?;
        self.put_payloads(changes)?;
        if self.log.is_none() {
            self.create_log(|_| Vec::new())?;
        }
        let log = self.log.as_mut().expect("it was created");
        let mut records = Records::new();
        log.recorder.put(&mut records, changes, &mut self.next_id);
        put_notes(&mut records, &changes.notes);
        put_shard(&mut records, changes.shard.as_ref());
        let at = nanoseconds(changes.taken_at.unwrap_or_else(SystemTime::now)).max(self.at + 1);
        let next = self.commit + 1;
        let frame = records.seal(&log.random, FrameKind::Commit, next, self.commit, at);
        log.append(&shared, &frame)?;
        self.log_end = log.end();
        self.log_bytes += frame.len() as u64;
        self.count_log();
        (self.commit, self.at) = (next, at);
        self.items.add(changes);
        if let Some(base) = &mut self.base {
            base.items.add(changes);
        }
        self.notes.extend(changes.notes.iter().cloned());
        let num_notes = self.notes.len();
        self.notes.drain(..num_notes.saturating_sub(MAX_NOTES));
        self.shard = changes.shard.clone().or(self.shard.take());
        self.delete_dead();
        self.make_room();
        Ok(Committed { commit: next, at: UNIX_EPOCH + Duration::from_nanos(at) })
    }

    /// Brings the payloads of changes to the disk.
    fn put_payloads(&mut self, changes: &Changes) -> Written {
        for table in &changes.tables {
            self.append(table.items.chunks(), Task::Write)?;
        }
        self.append(&changes.moved, Task::Move)?;
        self.sync_payloads()
    }

    /// Brings what was appended to the disk, and tells its chunks where it is.
    fn sync_payloads(&mut self) -> Written {
        self.appender.flush(&self.shared)?;
        self.appender.sync(&self.shared)?;
        self.appender.set_places();
        self.appended.clear();
        Ok(())
    }

    fn append<'a>(&mut self, chunks: impl IntoIterator<Item = &'a Chunk>, task: Task) -> Written {
        for chunk in chunks {
            if !chunk.is_disk_chunk() || self.appended.contains(&chunk.identity()) {
                continue;
            }
            let plain = match (chunk.place(), task) {
                (None, _) => chunk.resident(),
                (Some(place), Task::Move) => {
                    let is_moved = self.shared.files.lock().chosen().contains(&place);
                    // Who finds it lost tells of it.
                    if is_moved { chunk.load().ok() } else { None }
                }
                _ => None,
            };
            if let Some(plain) = plain {
                self.appender.push(&self.shared, chunk.clone(), &plain.payload(), task)?;
                self.appended.insert(chunk.identity());
            }
        }
        Ok(())
    }

    /// After a failure closes the files that are written. What they have beyond the last commit
    /// does not count.
    fn finish<T>(&mut self, written: Written<T>) -> Result<T> {
        written.map_err(|refusal| {
            self.appender.give_up(&self.shared, true);
            self.appended.clear();
            self.log = None;
            self.shared.set_trouble(&refusal);
            refusal.into()
        })
    }

    fn create_log(&mut self, first: impl FnOnce(&[u8; 16]) -> Vec<u8>) -> Written {
        let number = self.shared.files.lock().take_number();
        self.files.push(JournalFile { kind: FileKind::Log, number, bytes: 0 });
        let log = Log::create(&self.shared, number, self.log_end, first)?;
        self.log_end = log.end();
        self.log = Some(log);
        self.count_log();
        Ok(())
    }

    /// Counts the bytes of the log, which has grown.
    fn count_log(&mut self) {
        let LogEnd { number, end } = self.log_end;
        let log = self.files.iter_mut().rev();
        if let Some(log) =
            log.filter(|file| file.kind == FileKind::Log).find(|log| log.number == number)
        {
            let before = std::mem::replace(&mut log.bytes, end);
            let written = &self.shared.counts.written_log_bytes;
            written.fetch_add(end.saturating_sub(before), Relaxed);
        }
        self.count_files();
    }

    /// Counts the bytes of logs and bases.
    fn count_files(&self) {
        let Counts { log_bytes, base_bytes, .. } = &*self.shared.counts;
        for (kind, sum) in [(FileKind::Log, log_bytes), (FileKind::Base, base_bytes)] {
            let files = self.files.iter().filter(|file| file.kind == kind);
            sum.store(files.map(|file| file.bytes).sum(), Relaxed);
        }
    }

    /// Deletes files that were dead when the commit before was on disk: what referred to them was
    /// removed before this one, which is on disk too.
    fn delete_dead(&mut self) {
        let dead = self.shared.files.lock().dead();
        self.shared.delete(std::mem::replace(&mut self.dead, dead));
    }

    /// Begins a base of the last commit, and a log for those that follow. Its parts are the items
    /// that were there at that commit.
    ///
    /// # Errors
    ///
    /// As `commit`. There is no base then.
    pub fn begin_base(&mut self) -> Result<()> {
        self.abandon_base();
        let log = self.create_log(|_| Vec::new());
        self.finish(log)?;
        let base = self.create_base();
        self.finish(base)
    }

    /// Creates the base with the number of the log that has just begun.
    fn create_base(&mut self) -> Written {
        let (number, commit) = (self.log_end.number, (self.commit, self.at));
        let of_commit = (self.notes.clone(), self.shard.clone());
        self.base = Some(Base::create(&self.shared, number, commit, of_commit)?);
        self.log_bytes = 0;
        Ok(())
    }

    /// Writes a part of the base. Changes of a base have settings and items.
    ///
    /// # Errors
    ///
    /// As `commit`. There is no base then. `FailedPrecondition` if there is none.
    pub fn put_part(&mut self, part: &Changes) -> Result<()> {
        let payloads = self.put_payloads(part);
        self.finish(payloads)?;
        let mut base = self.take_base()?;
        base.put(&self.shared, part, &mut self.next_id)
            .inspect_err(|_| base.delete(&self.shared))?;
        self.base = Some(base);
        Ok(())
    }

    /// Ends the base, and deletes the bases and logs that are older than the one before.
    ///
    /// # Errors
    ///
    /// As `put_part`.
    pub fn end_base(&mut self) -> Result<()> {
        let mut base = self.take_base()?;
        let finished = base.finish(&self.shared, self.next_id);
        self.base_bytes = finished.inspect_err(|_| base.delete(&self.shared))?;
        self.items = base.items;
        let kept_from = std::mem::replace(&mut self.newest_base, base.number);
        let (number, bytes) = (base.number, self.base_bytes);
        self.files.push(JournalFile { kind: FileKind::Base, number, bytes });
        self.shared.counts.written_base_bytes.fetch_add(bytes, Relaxed);
        self.delete_before(kept_from);
        self.make_room();
        Ok(())
    }

    /// Deletes logs and bases that are older.
    fn delete_before(&mut self, kept_from: u32) {
        let Shared { directory, counts, .. } = &*self.shared;
        self.files.retain(|&JournalFile { kind, number, .. }| {
            number >= kept_from || !directory.delete(&directory.file(kind, number), counts)
        });
        self.count_files();
    }

    /// Where room is scarce, no second base is kept.
    fn make_room(&mut self) {
        let next = self.items.next_base_bytes(self.base_bytes, self.log_bytes);
        self.shared.counts.next_base_bytes.store(next, Relaxed);
        if self.is_full() {
            self.delete_before(self.newest_base);
        }
    }

    fn take_base(&mut self) -> Result<Base> {
        self.base.take().ok_or_else(|| {
            Error::failed_precondition(
                "there is no base: its last part has failed, or it has ended",
            )
        })
    }

    /// Deletes the base that is not finished, if there is one.
    pub fn abandon_base(&mut self) {
        if let Some(base) = self.base.take() {
            base.delete(&self.shared);
        }
    }

    /// Moves all files to a directory of their own in that of the store, which is empty then, and
    /// returns its path.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the system refuses it.
    pub fn set_aside(self) -> Result<PathBuf> {
        self.shared.directory.set_aside("stale", |_, _| true)
    }

    /// Makes a base of all tables, and moves what was there before into a directory of its own.
    /// Returns its path.
    ///
    /// # Errors
    ///
    /// As `put_part`.
    pub(crate) fn start_over(
        &mut self,
        parts: impl IntoIterator<Item = Changes>,
    ) -> Result<PathBuf> {
        // The new log goes on with none of those that are there.
        self.log_end = LogEnd { number: 0, end: 0 };
        self.begin_base()?;
        for part in parts {
            self.put_part(&part)?;
        }
        self.end_base()?;
        let first = self.newest_base;
        let is_before = |kind, number| kind != FileKind::Data && number < first;
        self.shared.directory.set_aside("before-repair", is_before)
    }

    /// Returns true if one more commit would delete files that nothing needs.
    pub fn has_dead_files(&self) -> bool {
        !self.dead.is_empty() || !self.shared.files.lock().dead().is_empty()
    }

    /// Returns true if its files have nearly as many bytes as they may, so that inserts have to
    /// wait. What it is given is written nevertheless.
    pub fn is_full(&self) -> bool {
        self.free_bytes().is_none()
    }

    /// Bytes that may come until it is full; `None` if it is.
    pub fn free_bytes(&self) -> Option<u64> {
        // The next base has to have room too.
        let next = self.shared.counts.next_base_bytes.load(Relaxed);
        self.shared.room().checked_sub(self.shared.kept_back() + next)
    }

    /// Returns true if it is full, and only items that leave can free anything.
    pub fn needs_room(&self) -> bool {
        let is_waiting = self.base.is_some() || self.wants_base() || self.has_dead_files();
        !is_waiting && self.is_full()
    }

    /// Returns true if a base is due: the log has become long, or files that it would make
    /// superfluous are in the way.
    pub fn wants_base(&self) -> bool {
        let Counts { log_bytes, base_bytes, next_base_bytes, .. } = &*self.shared.counts;
        let least = MIN_LOG_BYTES.min(self.shared.budget() / 8);
        let is_long = self.log_bytes > self.base_bytes.max(least);
        let next = next_base_bytes.load(Relaxed);
        let freed = (log_bytes.load(Relaxed) + base_bytes.load(Relaxed)).saturating_sub(next);
        let is_in_the_way = freed > FEW_BYTES.max(next / 8);
        self.base.is_none() && (is_long || is_in_the_way && self.is_full())
    }

    /// Bytes of the log since the newest base, which a start would replay.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// What other threads see of it.
    pub fn observer(&self) -> Observer {
        Observer(self.shared.clone())
    }

    /// Says that the server has stopped, and the last commit is all that it had.
    pub fn set_stopped(&self) {
        self.shared.directory.set_stopped(self.log_end.number, self.commit);
    }

    /// Id of the store, in all its files.
    pub fn id(&self) -> u128 {
        u128::from_be_bytes(self.shared.directory.id)
    }

    /// The place of its server in a group, as it was recorded last.
    pub fn shard(&self) -> Option<&ShardIdentity> {
        self.shard.as_ref()
    }

    /// The last commit; 0 if there is none.
    pub fn last_commit(&self) -> u64 {
        self.commit
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A forked child has neither the lock nor the files.
        if self.shared.waker.is_mine() {
            self.shared.directory.unlock();
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => Self::resource_exhausted(
                "The store is full: its files have as many bytes as Store(max_bytes) allows.",
            ),
            Refusal::Failed { call, path, error } => Self::new(
                ErrorKind::Unavailable,
                format!("The store cannot {call} {}: {error}.", path.display()),
            ),
        }
    }
}
