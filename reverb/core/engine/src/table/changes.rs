// SPDX-License-Identifier: Apache-2.0
//! Changes of a table since its last commit, net: one entry an item.
//!
//! A mutation only notes which item it is about, so that a batch that is undone can take its notes
//! back. When an operation ends, its notes are folded into the entries, under the same lock. An
//! item that comes and goes between two commits leaves no entry: its chunks must not live on. A
//! second update overwrites the first: a disk that hangs costs memory for items, not for updates.

use std::time::{Duration, Instant};

use reverb_base::memory::prefetch_from;
use reverb_data::StoredItem;

use super::items::Item;
use super::state::Contents;
use crate::selector::Handle;

/// Changes of a table from one commit to the next. To be applied in the order of the fields.
#[derive(Debug, Default)]
pub struct Changes {
    /// True if all items of the commit before have left by a reset.
    pub is_reset: bool,
    /// Keys of other items of the commit before that have left.
    pub deleted: Vec<u64>,
    /// Items that came and are still there, in no particular order. One may have the key of a
    /// deleted item.
    pub added: Vec<StoredItem>,
    /// New values of items of the commit before, in no particular order.
    pub changed: Vec<ChangedItem>,
}

impl Changes {
    /// True if nothing has changed; counters may have.
    pub fn is_empty(&self) -> bool {
        !self.is_reset
            && self.deleted.is_empty()
            && self.added.is_empty()
            && self.changed.is_empty()
    }
}

/// The values of an item that was updated or sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangedItem {
    /// Key of the item.
    pub key: u64,
    /// Its priority.
    pub priority: f64,
    /// Its removal priority, if it has one.
    pub removal_priority: Option<f64>,
    /// Number of times it was sampled, if the table allows more than one and limits them. Samples
    /// of other tables are no changes of their items.
    pub times_sampled: Option<i32>,
}

/// What a mutation has done to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutation {
    Added,
    Changed,
    Removed,
}

#[derive(Debug, Clone, Copy)]
struct Note {
    key: u64,
    handle: Handle,
    mutation: Mutation,
}

/// Values that are found by a number, which is kept for each handle.
#[derive(Debug)]
struct Entries<T> {
    /// Tell which numbers are still right, so that none has to be cleared.
    handles: Vec<Handle>,
    values: Vec<T>,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self { handles: Vec::new(), values: Vec::new() }
    }
}

/// The number of an item without an entry.
const NO_ENTRY: u32 = u32::MAX;

/// The number of a new item that is removed again by the same operation.
const COMES_AND_GOES: u32 = u32::MAX - 1;

/// The numbers of entries, by handle. An item has one entry at most.
#[derive(Debug, Default)]
struct Numbers(Vec<u32>);

impl Numbers {
    /// Starts to bring a number into the cache of the processor.
    fn prefetch(&self, handle: Handle) {
        if let Some(number) = self.0.get(handle as usize) {
            prefetch_from(number, size_of::<u32>());
        }
    }

    #[inline]
    fn get(&self, handle: Handle) -> u32 {
        self.0.get(handle as usize).copied().unwrap_or(NO_ENTRY)
    }

    fn set(&mut self, handle: Handle, number: u32) {
        let at = handle as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, NO_ENTRY);
        }
        self.0[at] = number;
    }
}

impl<T> Entries<T> {
    #[inline]
    fn get_mut(&mut self, number: u32, handle: Handle) -> Option<&mut T> {
        let is_right = self.handles.get(number as usize) == Some(&handle);
        if is_right { self.values.get_mut(number as usize) } else { None }
    }

    #[inline]
    fn push(&mut self, handle: Handle, value: T, numbers: &mut Numbers) {
        numbers.set(handle, self.values.len() as u32);
        self.handles.push(handle);
        self.values.push(value);
    }

    /// Removes the entry of an item; false if it has none here.
    fn remove(&mut self, handle: Handle, numbers: &mut Numbers) -> bool {
        let number = numbers.get(handle);
        let at = number as usize;
        if self.handles.get(at) != Some(&handle) {
            return false;
        }
        self.handles.swap_remove(at);
        self.values.swap_remove(at);
        if let Some(&moved) = self.handles.get(at) {
            numbers.set(moved, number);
        }
        true
    }
}

/// Records the changes of a table.
#[derive(Debug)]
pub(super) struct ChangeRecorder {
    /// Age of the oldest change that is not on disk at which inserts begin to wait.
    max_lag: Duration,
    /// Notes of the operation that is running.
    notes: Vec<Note>,
    numbers: Numbers,
    added: Entries<StoredItem>,
    changed: Entries<ChangedItem>,
    deleted: Vec<u64>,
    is_reset: bool,
    /// Time of the first change since the last commit.
    since: Option<Instant>,
    /// Time of the first change of the commits that are not on disk yet.
    unsynced: Option<Instant>,
}

impl ChangeRecorder {
    pub(super) fn new(max_lag: Duration) -> Self {
        Self {
            max_lag,
            notes: Vec::new(),
            numbers: Numbers::default(),
            added: Entries::default(),
            changed: Entries::default(),
            deleted: Vec::new(),
            is_reset: false,
            since: None,
            unsynced: None,
        }
    }

    #[inline]
    pub(super) fn note(&mut self, mutation: Mutation, handle: Handle, key: u64) {
        self.numbers.prefetch(handle);
        self.notes.push(Note { key, handle, mutation });
    }

    pub(super) fn num_notes(&self) -> usize {
        self.notes.len()
    }

    /// Forgets the last notes, of a batch that was undone.
    pub(super) fn cut_notes(&mut self, num_notes: usize) {
        self.notes.truncate(num_notes);
    }

    /// Ends an operation: its notes become entries.
    pub(super) fn fold(&mut self, contents: &Contents, with_times: bool, now: Instant) {
        let mut notes = std::mem::take(&mut self.notes);
        for Note { key, handle, mutation } in notes.drain(..) {
            // If the item is gone, the note of its removal follows.
            let item = contents.items.in_entry(handle).filter(|item| item.key() == key);
            match (mutation, item) {
                (Mutation::Added, Some(item)) => {
                    let item = item.to_stored(contents.removal_priority(handle));
                    self.added.push(handle, item, &mut self.numbers);
                }
                (Mutation::Added, None) => self.numbers.set(handle, COMES_AND_GOES),
                (Mutation::Changed, Some(item)) => {
                    let removal_priority = contents.removal_priority(handle);
                    self.change(handle, item, removal_priority, with_times);
                }
                (Mutation::Changed, None) => {}
                (Mutation::Removed, _) => self.remove(handle, key),
            }
        }
        // The next operation uses the memory again.
        self.notes = notes;
        // If all of them leave again, their counters are still of no commit.
        if self.since.is_none() && self.has_changes() {
            self.since = Some(now);
        }
    }

    fn change(
        &mut self,
        handle: Handle,
        item: &Item,
        removal_priority: Option<f64>,
        with_times: bool,
    ) {
        let number = self.numbers.get(handle);
        if let Some(added) = self.added.get_mut(number, handle) {
            added.priority = item.priority();
            added.removal_priority = removal_priority;
            added.times_sampled = item.times_sampled();
            return;
        }
        let value = ChangedItem {
            key: item.key(),
            priority: item.priority(),
            removal_priority,
            times_sampled: with_times.then(|| item.times_sampled()),
        };
        match self.changed.get_mut(number, handle) {
            Some(changed) => *changed = value,
            None => self.changed.push(handle, value, &mut self.numbers),
        }
    }

    fn remove(&mut self, handle: Handle, key: u64) {
        if self.numbers.get(handle) == COMES_AND_GOES {
            self.numbers.set(handle, NO_ENTRY);
        } else if !self.added.remove(handle, &mut self.numbers) {
            self.changed.remove(handle, &mut self.numbers);
            self.deleted.push(key);
        }
    }

    /// Notes a reset. Returns the changes before it, to be freed.
    pub(super) fn reset(&mut self) -> Changes {
        self.notes.clear();
        let before = self.take_changes();
        self.is_reset = true;
        before
    }

    /// Takes the changes for a commit.
    pub(super) fn take(&mut self) -> Changes {
        debug_assert!(self.notes.is_empty(), "an operation has ended before its lock is free");
        self.unsynced = self.unsynced.or(self.since.take());
        self.take_changes()
    }

    fn take_changes(&mut self) -> Changes {
        Changes {
            is_reset: std::mem::take(&mut self.is_reset),
            deleted: std::mem::take(&mut self.deleted),
            added: std::mem::take(&mut self.added).values,
            changed: std::mem::take(&mut self.changed).values,
        }
    }

    fn has_changes(&self) -> bool {
        let Self { added, changed, deleted, is_reset, .. } = self;
        *is_reset || !(added.values.is_empty() && changed.values.is_empty() && deleted.is_empty())
    }

    /// Bytes of the entries since the last commit, without the trajectories, which the table has.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.deleted)
            + size_of_val(&*self.added.values)
            + size_of_val(&*self.changed.values)
            + size_of::<Handle>() * (self.added.handles.len() + self.changed.handles.len())
    }

    /// Time of the oldest change that is not on disk.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.unsynced.or(self.since)
    }

    /// All commits that were taken are on disk.
    pub(super) fn set_synced(&mut self) {
        self.unsynced = None;
    }

    /// Age of the oldest change that is not on disk, if inserts have to wait for it.
    pub(super) fn lag_above_limit(&self, now: Instant) -> Option<Duration> {
        let lag = now.saturating_duration_since(self.oldest()?);
        (lag >= self.max_lag).then_some(lag)
    }
}

#[cfg(test)]
mod tests;
