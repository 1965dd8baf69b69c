// SPDX-License-Identifier: Apache-2.0
//! A scan: every item of a table once, oldest first, without drawing any.
//!
//! It begins by noting in which slots the items of that moment are, and then visits the slots in
//! the order of insertion. An item stays in its slot while it lives, and whatever else comes into
//! the slot is newer than the scan, so a time of insertion is all it takes to recognise it. Both
//! parts take the lock for a few thousand slots at a time, and no item is kept alive by a scan.

use reverb_data::{Result, Sampled};

use super::state::TableState;
use super::{MAX_SAMPLE_BYTES, Table, wait_queues};
use crate::selector::Handle;

/// Slots that are noted under one lock.
const NOTED_SLOTS: usize = 8192;

/// Slots that are visited under one lock: each may cost a wait for the memory.
const VISITED_SLOTS: usize = 512;

/// How far a scan has come. It belongs to the table that began it.
#[derive(Debug)]
pub struct Scan {
    /// When the newest item was inserted that takes part.
    newest_ns: i64,
    /// Where the items were when the scan began, oldest first.
    handles: Vec<Handle>,
    /// Handles that were visited.
    visited: usize,
}

impl Table {
    /// Begins a scan over the items that are in the table now.
    ///
    /// Takes some 20 ns an item, most of it without the lock.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn begin_scan(&self) -> Result<Scan> {
        let (newest_ns, num_slots) =
            self.look(|state| (state.newest_ns(), state.items().num_slots()))?;
        let mut places: Vec<(i64, Handle)> = Vec::new();
        let mut noted = Vec::with_capacity(NOTED_SLOTS.min(num_slots));
        for start in (0..num_slots).step_by(NOTED_SLOTS) {
            self.look(|state| {
                let items = state.items().in_slots(start..start + NOTED_SLOTS);
                let old = items.filter(|(_, item)| item.inserted_at_ns <= newest_ns);
                noted.extend(old.map(|(handle, item)| (item.inserted_at_ns, handle)));
            })?;
            places.append(&mut noted);
        }
        // Slots are mostly filled in order, which is what a stable sort is fast at.
        places.sort_by_key(|&(inserted_at_ns, _)| inserted_at_ns);
        let handles = places.into_iter().map(|(_, handle)| handle).collect();
        Ok(Scan { newest_ns, handles, visited: 0 })
    }

    /// The next items of a scan, as they are now, at least one; empty at the end. Never waits.
    ///
    /// As many come together as make up [`MAX_SAMPLE_BYTES`] of chunks, and a few hundred at most.
    /// Nothing of this counts as sampling. Their `probability` is 0, for nothing was drawn.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn scan(&self, scan: &mut Scan) -> Result<Vec<Sampled>> {
        let mut items = Vec::new();
        while items.is_empty() && scan.visited < scan.handles.len() {
            items.reserve(VISITED_SLOTS.min(scan.handles.len() - scan.visited));
            self.look(|state| scan.visit(state, &mut items))?;
        }
        Ok(items)
    }

    /// Reads something under the lock.
    fn look<T>(&self, read: impl FnOnce(&TableState) -> T) -> Result<T> {
        let shared = self.shared.lock();
        if shared.closed {
            return Err(wait_queues::closed(self.name()));
        }
        Ok(read(&shared.state))
    }
}

impl Scan {
    fn visit(&mut self, state: &TableState, items: &mut Vec<Sampled>) {
        let mut chunk_bytes = 0;
        for &handle in self.handles[self.visited..].iter().take(VISITED_SLOTS) {
            self.visited += 1;
            let Some(item) = state.items().in_slot(handle) else { continue };
            if item.inserted_at_ns > self.newest_ns {
                continue;
            }
            items.push(item.to_stored().looked_at(state.len() as i64));
            chunk_bytes += item.chunk_bytes as usize;
            if chunk_bytes >= MAX_SAMPLE_BYTES {
                break;
            }
        }
    }
}
