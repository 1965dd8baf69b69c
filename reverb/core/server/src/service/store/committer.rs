// SPDX-License-Identifier: Apache-2.0
//! The thread that takes commits of the tables, writes them to the journal, and makes bases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_base::figures::seconds;
use reverb_base::{Error, Result};
use reverb_data::Chunk;
use reverb_engine::{Commit, SnapshotCut, Table, TableCut};
use reverb_store::{Changes, Committed, Journal, TableChanges};

use super::commits::{Commits, Relief, Waiting};
use super::record::{Recorder, put_item};
use crate::service::group::Group;

/// Bytes of entries at which a commit is made at once.
const MAX_ENTRY_BYTES: usize = 64 << 20;

/// Bytes of payloads that a commit moves at most, or one payload: inserts wait for it.
const MAX_MOVED_BYTES: usize = 32 << 20;

/// Items in a part of a base.
const PART_ITEMS: usize = 4096;

/// Log bytes above which the last commit of a server is followed by a base: to replay more takes
/// about a second.
const MAX_LOG_BYTES_AT_STOP: u64 = 64 << 20;

/// Time that this base may take. The server waits for its end, and a start can do without it.
const MAX_BASE_AT_STOP: Duration = Duration::from_secs(3);

/// What the thread has.
pub(super) struct Committer {
    commits: Arc<Commits>,
    journal: Journal,
    tables: Vec<Arc<Table>>,
    /// The group of the server, whose place in it is recorded.
    group: Arc<Group>,
    recorder: Recorder,
    wants_base: bool,
    /// When the last commit was taken.
    began_at: Instant,
    base_failed_at: Option<Instant>,
    /// Bytes of all tables when the last commit was taken, and what the journal had room for then.
    bytes: u64,
    free_bytes: Option<u64>,
    /// True after a commit was given up. Without it the next ones would make no whole state.
    has_lost: bool,
}

impl Committer {
    pub(super) fn new(
        commits: &Arc<Commits>,
        journal: Journal,
        tables: &[Arc<Table>],
        group: &Arc<Group>,
        recorder: Recorder,
        wants_base: bool,
    ) -> Self {
        let (commits, tables, group) = (Arc::clone(commits), tables.to_vec(), Arc::clone(group));
        let began_at = Instant::now();
        Self {
            commits,
            journal,
            tables,
            group,
            recorder,
            wants_base,
            began_at,
            base_failed_at: None,
            bytes: 0,
            free_bytes: None,
            has_lost: false,
        }
    }

    /// Works until the server stops.
    pub(super) fn run(mut self) {
        let commits = Arc::clone(&self.commits);
        (self.bytes, self.free_bytes) = (self.table_bytes(), self.journal.free_bytes());
        while commits.wait(self.began_at, || self.has_much()) {
            self.commit();
            if self.wants_base || self.journal.wants_base() {
                self.make_base(None);
            }
            let relief = if self.journal.needs_room() {
                Relief::Removal
            } else if self.journal.is_full() && self.journal.has_dead_files() {
                Relief::Commit
            } else {
                Relief::Base
            };
            commits.state.lock().status.relief = relief;
        }
        if self.commit() {
            if self.journal.log_bytes() > MAX_LOG_BYTES_AT_STOP {
                self.make_base(Some(Instant::now() + MAX_BASE_AT_STOP));
            }
            self.journal.set_stopped();
        }
        drop(self);
        let waiting = {
            let mut state = commits.state.lock();
            state.has_ended = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
        commits.changed.notify_all();
    }

    /// True if the entries of the tables take much memory, or much of the room that there is.
    fn has_much(&self) -> bool {
        if self.tables.iter().map(|table| table.unsynced().bytes).sum::<usize>() > MAX_ENTRY_BYTES {
            return true;
        }
        let Some(free_bytes) = self.free_bytes else { return false };
        let new_bytes = self.table_bytes().saturating_sub(self.bytes);
        if new_bytes >= free_bytes {
            self.commits.state.lock().status.is_full = true;
        }
        new_bytes > free_bytes / 2
    }

    fn table_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.bytes()).sum()
    }

    /// Takes a commit and writes it. Returns false if the server stops before it is on disk.
    fn commit(&mut self) -> bool {
        if self.has_lost {
            return false;
        }
        let asked = self.take_asked();
        self.bytes = self.table_bytes();
        let commit = Commit::take(&self.tables);
        self.write(&commit, asked)
    }

    /// What was asked for until now: notes, moves, and who waits.
    fn take_asked(&mut self) -> Asked {
        self.began_at = Instant::now();
        let mut state = self.commits.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        let wanted_bytes = state.wanted_bytes;
        let mut moved_bytes = 0;
        let few = state.moved.iter().rev().take_while(|chunk| {
            moved_bytes += chunk.payload_len();
            moved_bytes <= MAX_MOVED_BYTES
        });
        let num_kept = state.moved.len() - few.count().max(1).min(state.moved.len());
        let moved = state.moved.split_off(num_kept);
        state.num_moving = moved.len();
        // Those that are left come with the next one.
        state.is_wanted = num_kept > 0;
        Asked { waiting, moved, wanted_bytes }
    }

    /// Writes a commit until it is on disk. Returns false if the server stops before.
    fn write(&mut self, commit: &Commit, asked: Asked) -> bool {
        let Asked { mut waiting, moved, wanted_bytes } = asked;
        self.wants_base |= self.recorder.counts_more_times(commit);
        let notes = waiting.iter_mut().filter_map(|it| it.note.take()).collect();
        let (tables, taken_at) = (self.recorder.record(commit), Some(commit.taken_at));
        // Read after the commit was taken, so items of a new place come with it or later.
        let place = self.group.stored_place();
        let shard = place.filter(|place| self.journal.shard() != Some(place));
        let changes = Changes { tables, taken_at, notes, moved, shard };
        let is_empty = changes.tables.is_empty()
            && changes.notes.is_empty()
            && changes.shard.is_none()
            && changes.moved.is_empty()
            && !self.journal.has_dead_files();
        let unchanged = || Committed { at: commit.taken_at, ..self.commits.status().last };
        let committed = if is_empty { Some(unchanged()) } else { self.write_changes(&changes) };
        let Some(committed) = committed else {
            self.has_lost = true;
            return false;
        };
        drop(changes);
        self.tables.iter().for_each(|table| table.set_synced());
        self.free_bytes = self.journal.free_bytes();
        let is_full = self.free_bytes.is_none();
        let mut state = self.commits.state.lock();
        state.status.last = committed;
        state.status.is_full = is_full;
        state.num_moving = 0;
        state.wanted_bytes = state.wanted_bytes.saturating_sub(wanted_bytes);
        drop(state);
        self.commits.changed.notify_all();
        for it in waiting {
            // Who has waited may be gone.
            let _ = it.answer.send(Ok(committed));
        }
        true
    }

    fn write_changes(&mut self, changes: &Changes) -> Option<Committed> {
        let (start, retry_after) = (Instant::now(), self.commits.retry_after);
        // When the server stops there is one more attempt.
        let mut is_last = false;
        loop {
            let error = match self.journal.commit(changes) {
                Ok(committed) => {
                    self.set_failing(false);
                    return Some(committed);
                }
                Err(error) => error,
            };
            if is_last {
                let lost = error.followed_by(&format!(
                    "The server stops, and what happened in the last {} is lost.",
                    seconds(start.elapsed())
                ));
                tracing::error!("{lost}");
                let lost = Error::data_loss(lost.message());
                self.commits.state.lock().lost = Some(lost);
                return None;
            }
            if self.set_failing(true) {
                tracing::error!(
                    "{error} Nothing is lost: it is tried again each {}, and inserts wait \
                     meanwhile.",
                    seconds(retry_after)
                );
            }
            is_last = !self.commits.rest(retry_after);
        }
    }

    /// Returns true if that is new.
    fn set_failing(&self, is_failing: bool) -> bool {
        let status = &mut self.commits.state.lock().status;
        std::mem::replace(&mut status.is_failing, is_failing) != is_failing
    }

    /// Makes a base, until this time, or until the server stops.
    fn make_base(&mut self, until: Option<Instant>) {
        let may_try = self.base_failed_at.is_none_or(|at| at.elapsed() > self.commits.retry_after);
        if self.has_lost || !may_try {
            return;
        }
        // While a checkpoint copies the tables, it has to wait.
        let asked = self.take_asked();
        let Ok((commit, cut)) = Commit::take_with_snapshot(&self.tables) else {
            let mut state = self.commits.state.lock();
            state.is_wanted |= !asked.waiting.is_empty();
            state.waiting.splice(0..0, asked.waiting);
            state.moved.extend(asked.moved);
            return;
        };
        if !self.write(&commit, asked) {
            return;
        }
        match self.write_base(&commit, cut, until) {
            Ok(is_finished) => {
                self.base_failed_at = None;
                if is_finished {
                    self.wants_base = false;
                    self.commits.state.lock().status.last_base_at = Some(commit.taken_at);
                }
            }
            Err(error) => {
                self.journal.abandon_base();
                self.base_failed_at = Some(Instant::now());
                tracing::warn!("{error} A base was not finished; the log goes on.");
            }
        }
    }

    /// Writes the base of a commit, with other commits between its parts. Returns false if it was
    /// given up.
    fn write_base(
        &mut self,
        commit: &Commit,
        cut: SnapshotCut,
        until: Option<Instant>,
    ) -> Result<bool> {
        let mut base = BaseWriter::begin(&mut self.journal, &self.recorder, commit, cut)?;
        while base.put_part(&mut self.journal)? {
            let is_over = match until {
                Some(until) => Instant::now() > until,
                None => self.commits.is_stopped(),
            };
            if is_over || (self.commits.is_due(self.began_at) && !self.commit()) {
                self.journal.abandon_base();
                return Ok(false);
            }
        }
        self.journal.end_base()?;
        Ok(true)
    }
}

/// What was asked for before a commit.
struct Asked {
    waiting: Vec<Waiting>,
    moved: Vec<Chunk>,
    wanted_bytes: u64,
}

/// Writes the items of a snapshot to a base.
pub(super) struct BaseWriter {
    /// Tables that are left: what the next part of each begins with, and its items.
    tables: std::vec::IntoIter<(TableChanges, TableCut)>,
    current: Option<(TableChanges, TableCut)>,
}

impl BaseWriter {
    pub(super) fn begin(
        journal: &mut Journal,
        recorder: &Recorder,
        commit: &Commit,
        cut: SnapshotCut,
    ) -> Result<Self> {
        journal.begin_base()?;
        let tables: Vec<_> =
            recorder.begin_base(commit).into_iter().zip(cut.into_tables()).collect();
        Ok(Self { tables: tables.into_iter(), current: None })
    }

    /// Writes the next part. Returns false if there is none.
    pub(super) fn put_part(&mut self, journal: &mut Journal) -> Result<bool> {
        let current = self.current.take().or_else(|| self.tables.next());
        let Some((mut part, mut cut)) = current else { return Ok(false) };
        let number = part.number;
        let mut items: Vec<_> = Vec::with_capacity(PART_ITEMS);
        let mut has_more = true;
        while has_more && items.len() < PART_ITEMS {
            has_more = cut.next_piece(&mut items);
        }
        part.items.reserve(items.len());
        for item in items {
            put_item(&mut part.items, &item);
        }
        journal.put_part(&Changes { tables: vec![part], ..Changes::default() })?;
        if has_more {
            self.current = Some((TableChanges { number, ..TableChanges::default() }, cut));
        }
        Ok(true)
    }
}
