// SPDX-License-Identifier: Apache-2.0
//! The sweep: goes round the tables, and brings payloads to the disk while memory is short.
//!
//! It is the only thing that looks for chunks, so no chunk is in a second list. It begins where it
//! stopped: the entries of a table are mostly in the order of their age, so those behind it have
//! forgotten their payloads already.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use reverb_base::byte_size;
use reverb_data::{Chunk, WhenFull};
use reverb_engine::Table;
use reverb_store::{FilesToEmpty, StoreStatus};

use super::adopt::AllPairs;
use super::commits::{CommitStatus, Relief};
use super::files::Files;
use crate::service::memory::Memory;

/// Payloads leave memory from this part of the limit on, down to the second.
const FORGET_FROM_PERCENT: u64 = 80;
const FORGET_UNTIL_PERCENT: u64 = 78;

/// Rest after a round that found nothing: headers alone may take more than that part.
const REST: Duration = Duration::from_secs(1);

/// Time between two looks at what waits for the disk.
const BRIEF: Duration = Duration::from_millis(2);

/// Items that are removed under one lock while the disk is full.
const REMOVED_TOGETHER: usize = 64;

/// Part of a table that is removed together, if that is more: a 128th.
const PARTS_REMOVED: usize = 128;

/// What the sweep and those who wait for it share.
#[derive(Debug, Default)]
pub(crate) struct SweepSignal {
    forgets_at_once: bool,
    state: Mutex<Wanted>,
    changed: Condvar,
    /// Copy of `Wanted::is_woken`, so that inserts take no lock while the sweep works.
    is_awake: AtomicBool,
    /// True if the last round freed nothing, so that memory has to be got by other means.
    found_nothing: AtomicBool,
    /// Bytes of payloads of each table that its last visit left in memory, because the store did
    /// not take them.
    kept_bytes: Mutex<HashMap<usize, u64>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Wanted {
    is_woken: bool,
    is_stopped: bool,
}

impl SweepSignal {
    pub(crate) fn new(forgets_at_once: bool) -> Self {
        Self { forgets_at_once, ..Self::default() }
    }

    /// Part of the limit from which on payloads leave memory.
    fn forget_from_percent(&self) -> u64 {
        if self.forgets_at_once { 0 } else { FORGET_FROM_PERCENT }
    }

    /// Part of the limit down to which payloads leave memory.
    fn forget_until_percent(&self) -> u64 {
        if self.forgets_at_once { 0 } else { FORGET_UNTIL_PERCENT }
    }

    /// Rest after a round that found nothing.
    fn rest_after_nothing(&self) -> Duration {
        if self.forgets_at_once { BRIEF } else { REST }
    }

    /// Wakes the sweep if memory is short.
    pub(crate) fn wake_if_short(&self, memory: &Memory) {
        if memory.is_above(self.forget_from_percent())
            && !self.is_awake.swap(true, Ordering::Relaxed)
        {
            self.change(|wanted| wanted.is_woken = true);
        }
    }

    /// True while a round may still free memory.
    pub(crate) fn may_free(&self) -> bool {
        !self.found_nothing.load(Ordering::Relaxed)
    }

    /// Bytes of payloads of this table that have to stay in memory.
    pub(crate) fn kept_bytes(&self, table: usize) -> u64 {
        self.kept_bytes.lock().get(&table).copied().unwrap_or(0)
    }

    /// Ends the sweep soon.
    pub(crate) fn stop(&self) {
        self.change(|wanted| wanted.is_stopped = true);
    }

    fn change(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Waits until it is woken, stopped, or `at_most` has passed. Returns false if it is stopped.
    fn wait(&self, at_most: Duration) -> bool {
        let mut wanted = self.state.lock();
        if !wanted.is_woken && !wanted.is_stopped {
            self.changed.wait_for(&mut wanted, at_most);
        }
        wanted.is_woken = false;
        self.is_awake.store(false, Ordering::Relaxed);
        !wanted.is_stopped
    }

    /// Waits for the time, however often it is woken. Returns false if it is stopped.
    fn rest(&self, time: Duration) -> bool {
        let mut wanted = self.state.lock();
        self.changed.wait_while_for(&mut wanted, |wanted| !wanted.is_stopped, time);
        !wanted.is_stopped
    }
}

/// The thread of the sweep.
pub(crate) struct Sweep {
    pub(crate) signal: Arc<SweepSignal>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) files: Files,
    pub(crate) pairs: Arc<AllPairs>,
    pub(crate) tables: Vec<Arc<Table>>,
    /// Table and entry where the next piece begins.
    pub(crate) next: (usize, usize),
    /// Bytes of payloads of that table that the store did not take so far.
    pub(crate) kept_bytes: u64,
}

/// What a piece of a table had for the sweep.
struct Found {
    /// True if payloads were forgotten, or given to the store to be written and forgotten.
    payloads: bool,
    /// Bytes of payloads that the store did not take.
    kept_bytes: u64,
    /// Entry where the next piece begins; `None` at the end of the table.
    next: Option<usize>,
}

impl Sweep {
    /// Works until it is stopped.
    pub(crate) fn run(mut self) {
        while self.signal.wait(REST) {
            self.empty_files();
            self.make_room_in_journal();
            if self.memory.is_above(self.signal.forget_from_percent()) && !self.make_room() {
                self.signal.found_nothing.store(true, Ordering::Relaxed);
                if !self.signal.rest(self.signal.rest_after_nothing()) {
                    return;
                }
            }
        }
    }

    /// Writes and forgets payloads until there is room. Returns false if a whole round found none.
    fn make_room(&mut self) -> bool {
        let mut ends = 0;
        while self.is_short() && !self.signal.is_stopped() {
            let (table, entry) = self.next;
            let found = self.visit(table, entry, None);
            if found.payloads {
                ends = 0;
                self.signal.found_nothing.store(false, Ordering::Relaxed);
            }
            self.kept_bytes += found.kept_bytes;
            if let Some(next) = found.next {
                self.next.1 = next;
                continue;
            }
            self.signal.kept_bytes.lock().insert(table, std::mem::take(&mut self.kept_bytes));
            self.next = ((table + 1) % self.tables.len(), 0);
            ends += 1;
            self.empty_files();
            // What waits for the disk would be found again.
            while self.files.waiting_bytes() > 0 && self.signal.rest(BRIEF) {}
            self.pairs.clean();
            // The first table may have been visited from the middle on.
            if ends > self.tables.len() && !self.remove_items_of_full_disk() {
                return false;
            }
        }
        true
    }

    /// True if memory is short, also when all that waits for the disk will have been written.
    fn is_short(&self) -> bool {
        self.memory.is_above_without(self.signal.forget_until_percent(), self.files.waiting_bytes())
    }

    /// Moves what lives in files with little of it, so that they can be deleted.
    fn empty_files(&self) {
        let files = self.files.to_empty();
        if files.is_empty() || self.files.is_moving() {
            return;
        }
        for table in 0..self.tables.len() {
            let mut next = Some(0);
            while let Some(entry) = next
                && !self.signal.is_stopped()
            {
                next = self.visit(table, entry, Some(&files)).next;
            }
        }
    }

    /// Goes through a piece of a table: removes items that have lost a payload, and moves payloads
    /// out of `files`, or without them forgets payloads, after they are written.
    fn visit(&self, table: usize, entry: usize, files: Option<&FilesToEmpty>) -> Found {
        let table = &self.tables[table];
        let (mut chunks, mut lost) = (Vec::new(), Vec::new());
        let next = table.sweep(entry, &mut chunks, &mut lost);
        if !lost.is_empty() {
            table.remove_lost(&lost);
        }
        let mut payloads = false;
        let (mut new, mut moved) = (Vec::new(), Vec::new());
        for chunk in chunks {
            match (chunk.place(), files) {
                (Some(place), Some(files)) if files.contains(&place) => moved.push(chunk),
                (_, Some(_)) => {}
                (Some(_), None) => payloads |= chunk.forget(),
                (None, None) => new.push(chunk),
            }
        }
        if !moved.is_empty() {
            self.files.move_out(moved);
        }
        let mut kept_bytes = new.iter().map(Chunk::payload_bytes).sum();
        if !new.is_empty() && self.files.write_and_forget(new) {
            (payloads, kept_bytes) = (true, 0);
        }
        Found { payloads, kept_bytes, next }
    }

    /// Removes items while the files of a journal have as many bytes as they may. Each time the
    /// next commit has to be on disk before it is known what that has freed.
    fn make_room_in_journal(&self) {
        let Some(commits) = self.files.journal() else { return };
        let mut has_said = false;
        while !self.signal.is_stopped() {
            self.empty_files();
            let CommitStatus { last, relief, .. } = commits.status();
            // Garbage first: what lives beside it is moved with the next commit.
            let is_better = match relief {
                Relief::Base => false,
                Relief::Commit => true,
                Relief::Removal => commits.is_moving() || self.remove_items_of_full_disk(),
            };
            if !is_better {
                return;
            }
            if relief == Relief::Removal && !std::mem::replace(&mut has_said, true) {
                let StoreStatus { path, max_bytes, .. } = commits.store_status();
                tracing::warn!(
                    "store {}: its files have nearly as many bytes as they may ({}), so tables \
                     with when_full=\"remove\" give up items",
                    path.display(),
                    byte_size::describe(max_bytes)
                );
            }
            if !commits.want(0) {
                return;
            }
            while commits.status().last == last && !commits.status().is_failing {
                if !self.signal.rest(BRIEF) {
                    return;
                }
            }
        }
    }

    /// Removes items if the disk has no room left for what should be written. Returns true if it
    /// did.
    fn remove_items_of_full_disk(&self) -> bool {
        if !self.files.is_full() {
            return false;
        }
        // A journal has small items as well.
        let on_disk = |table: &Arc<Table>| match self.files.journal() {
            Some(_) => table.bytes(),
            None => table.payload_bytes(),
        };
        let may_remove = |table: &&Arc<Table>| {
            table.config().memory.when_full == WhenFull::Remove && on_disk(table) > 0
        };
        let largest = self.tables.iter().filter(may_remove).max_by_key(|table| on_disk(table));
        largest.is_some_and(|table| {
            let few = REMOVED_TOGETHER.max(table.len() / PARTS_REMOVED);
            table.evict(few, u64::MAX).items > 0
        })
    }
}
