// SPDX-License-Identifier: Apache-2.0
//! A scan: reads every item of a table once, oldest first, without sampling; or some of them.
//!
//! A scan first lists the entries of the present items, then visits them in order of insertion. It
//! may list part of them at a time, which needs less memory, but reads all entries for each list.
//! An item stays in its entry until it is removed, and any later item in that entry is newer than
//! the scan, so the insertion time is enough to recognise it. What has replaced an item since is in
//! the same entry, and counts as old as that; see `replaced.rs`. Listing locks the table for some
//! thousand entries at a time, visiting for some hundred. A scan keeps no item alive.
//!
//! A condition is checked twice: when an item is listed, so that most listed items fulfil it, and
//! when it is visited, because it may have changed. A scan of some keys lists nothing: it finds
//! each key when it visits it.

use reverb_base::Result;
use reverb_data::{ItemCondition, Sampled, StoredItem};

use super::items::Item;
use super::replaced::OpenScan;
use super::state::TableState;
use super::{MAX_SAMPLE_BYTES, Table, wait_queues};
use crate::selector::Handle;

/// Number of entries that are listed under one lock.
const LISTED_ENTRIES: usize = 8192;

/// Number of entries that are visited under one lock: each may cost a cache miss.
const VISITED_ENTRIES: usize = 512;

/// Number of keys whose items the processor fetches from memory in parallel.
const FOUND_TOGETHER: usize = 32;

/// Progress of a scan. Belongs to the table that began it.
#[derive(Debug)]
pub struct Scan {
    /// Insertion time of the newest item that the scan includes.
    newest_ns: i64,
    condition: ItemCondition,
    /// Entries of the next items, oldest first.
    handles: Vec<Handle>,
    /// Keys of the next items, in a scan of some keys.
    keys: Vec<u64>,
    /// Number of handles, or of keys, that were visited.
    visited: usize,
    /// The last item that was listed.
    last: Option<Position>,
    /// True if some items may not be listed yet.
    is_open: bool,
    /// Not for a scan of some keys, which does not ask when they came.
    _open: Option<OpenScan>,
}

/// Order of an item in a scan: insertion time and handle.
type Position = (i64, Handle);

impl Table {
    /// Begins a scan over the items that are in the table now.
    ///
    /// Takes about 20 ns per item, mostly without the lock, and 4 bytes.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn begin_scan(&self) -> Result<Scan> {
        self.begin_scan_where(ItemCondition::ALL)
    }

    /// Like [`Table::begin_scan`], over the items that fulfil a condition.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn begin_scan_where(&self, condition: ItemCondition) -> Result<Scan> {
        let mut scan = self.begin_unlisted_scan(condition)?;
        self.list(&mut scan, usize::MAX)?;
        Ok(scan)
    }

    /// Like [`Table::begin_scan_where`], but lists nothing yet; see [`Table::list`].
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn begin_unlisted_scan(&self, condition: ItemCondition) -> Result<Scan> {
        let (newest_ns, open) =
            self.read_state(|state| (state.newest_ns(), state.contents().replaced.begin_scan()))?;
        Ok(Scan { newest_ns, is_open: true, _open: Some(open), ..Scan::of(condition, &[]) })
    }

    /// Begins a scan over the items with these keys that fulfil a condition, in the order of the
    /// keys. Unknown keys are left out; a key that is there twice is read twice.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn begin_fetch(&self, keys: &[u64], condition: ItemCondition) -> Result<Scan> {
        self.read_state(|_| Scan::of(condition, keys))
    }

    /// Lists the next items of a scan, at most `most`, after all listed items were visited.
    ///
    /// Reads all entries of the table. Takes up to [`Scan::LISTING_BYTES`] per listed item
    /// meanwhile, and then a handle for each.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn list(&self, scan: &mut Scan, most: usize) -> Result<()> {
        let num_entries = self.read_state(|state| state.items().num_entries())?;
        let mut positions: Vec<Position> = Vec::new();
        // A short list also needs little memory while it is made.
        let step = most.clamp(VISITED_ENTRIES, LISTED_ENTRIES);
        let mut listed = Vec::with_capacity(step.min(num_entries));
        let mut is_cut = false;
        for start in (0..num_entries).step_by(step) {
            self.read_state(|state| {
                let items = state.items().piece(start, step);
                let all = items.filter(|(_, item)| fulfils(&scan.condition, item));
                let all = all.map(|(handle, item)| (state.since_ns(item), handle));
                listed.extend(all.filter(|position| {
                    position.0 <= scan.newest_ns && scan.last.is_none_or(|last| *position > last)
                }));
            })?;
            if positions.len() + listed.len() > most.saturating_mul(2) {
                is_cut |= keep_first(&mut positions, most);
            }
            positions.append(&mut listed);
        }
        // Entries are mostly filled in order, and a stable sort is fast on sorted runs.
        positions.sort_by_key(|&position| position);
        is_cut |= positions.len() > most;
        positions.truncate(most);
        scan.last = positions.last().copied().or(scan.last);
        scan.is_open = is_cut;
        // A new list, because the memory of the positions is larger.
        let mut handles = Vec::with_capacity(positions.len());
        handles.extend(positions.into_iter().map(|(_, handle)| handle));
        scan.handles = handles;
        scan.visited = 0;
        Ok(())
    }

    /// Reads the next items of a scan in their present state, if they fulfil its condition then: at
    /// least one, or none after the last listed one. Never waits.
    ///
    /// Returns items until their chunks reach [`MAX_SAMPLE_BYTES`], and a few hundred at most. Does
    /// not count as sampling; `probability` is 0.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn scan(&self, scan: &mut Scan) -> Result<Vec<Sampled>> {
        self.scan_some(scan, Scan::MAX_ITEMS)
    }

    /// Like [`Table::scan`], with at most `most` items.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn scan_some(&self, scan: &mut Scan, most: usize) -> Result<Vec<Sampled>> {
        let mut items = Vec::new();
        let listed = scan.handles.len().max(scan.keys.len());
        while items.is_empty() && scan.visited < listed {
            items.reserve(most.min(listed - scan.visited));
            self.read_state(|state| scan.visit(state, most, &mut items))?;
        }
        Ok(items)
    }

    /// Reads from the state under the lock.
    fn read_state<T>(&self, read: impl FnOnce(&TableState) -> T) -> Result<T> {
        let shared = self.shared.lock();
        if shared.closed {
            return Err(wait_queues::closed(self.name()));
        }
        Ok(read(&shared.state))
    }
}

/// True if an item fulfils a condition now.
pub(super) fn fulfils(condition: &ItemCondition, item: &Item) -> bool {
    condition.holds(item.priority(), item.times_sampled(), item.inserted_at_ns())
}

/// An item in the form for scans, if it fulfils a condition now.
fn stored_if(
    condition: &ItemCondition,
    state: &TableState,
    handle: Handle,
    item: &Item,
) -> Option<StoredItem> {
    fulfils(condition, item).then(|| item.to_stored(state.removal_priority(handle)))
}

/// Keeps the first `most` positions; returns true if there were more.
fn keep_first(positions: &mut Vec<Position>, most: usize) -> bool {
    let has_more = positions.len() > most;
    if has_more && most > 0 {
        positions.select_nth_unstable(most - 1);
        positions.truncate(most);
    }
    has_more
}

impl Scan {
    /// Bytes per item while the list is made.
    pub const LISTING_BYTES: usize = 3 * size_of::<Position>();
    /// Largest number of items that are read at a time.
    pub const MAX_ITEMS: usize = VISITED_ENTRIES;

    /// A scan of these keys, which lists nothing.
    fn of(condition: ItemCondition, keys: &[u64]) -> Self {
        Self {
            newest_ns: i64::MAX,
            condition,
            handles: Vec::new(),
            keys: keys.to_vec(),
            visited: 0,
            last: None,
            is_open: false,
            _open: None,
        }
    }

    /// Bytes of the list.
    pub fn listed_bytes(&self) -> usize {
        self.handles.len() * size_of::<Handle>() + self.keys.len() * size_of::<u64>()
    }

    /// True if all listed items are visited and there may be more.
    pub fn needs_list(&self) -> bool {
        self.is_open && self.visited == self.handles.len()
    }

    /// Reads items by their keys, also those that are aside.
    fn visit_keys(&mut self, state: &TableState, most: usize, items: &mut Vec<Sampled>) {
        let Self { keys, visited, condition, .. } = self;
        let end = keys.len().min(*visited + VISITED_ENTRIES);
        let mut chunk_bytes = 0;
        while *visited < end {
            let block = &keys[*visited..end.min(*visited + FOUND_TOGETHER)];
            let mut handles = [None; FOUND_TOGETHER];
            state.items().find_many(block.iter().copied(), |at, handle| handles[at] = Some(handle));
            state.items().prefetch(handles.iter().copied().flatten());
            for (&key, handle) in block.iter().zip(handles) {
                if items.len() >= most || chunk_bytes >= MAX_SAMPLE_BYTES {
                    return;
                }
                *visited += 1;
                let found = match handle {
                    Some(it) => stored_if(condition, state, it, state.items().get(it)),
                    None => state.aside(key).filter(|it| {
                        condition.holds(it.priority, it.times_sampled, it.inserted_at_ns)
                    }),
                };
                if let Some(item) = found {
                    chunk_bytes += item.trajectory.chunk_bytes();
                    items.push(item.into_scanned(state.len() as i64));
                }
            }
        }
    }

    fn visit(&mut self, state: &TableState, most: usize, items: &mut Vec<Sampled>) {
        if !self.keys.is_empty() {
            return self.visit_keys(state, most, items);
        }
        let mut chunk_bytes = 0;
        for &handle in self.handles[self.visited..].iter().take(VISITED_ENTRIES) {
            self.visited += 1;
            let item = state.items().in_entry(handle);
            let listed = item.filter(|item| state.since_ns(item) <= self.newest_ns);
            let found = listed.and_then(|it| stored_if(&self.condition, state, handle, it));
            let Some(item) = found else { continue };
            chunk_bytes += item.trajectory.chunk_bytes();
            items.push(item.into_scanned(state.len() as i64));
            if chunk_bytes >= MAX_SAMPLE_BYTES || items.len() >= most {
                break;
            }
        }
    }
}
