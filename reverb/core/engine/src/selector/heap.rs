// SPDX-License-Identifier: Apache-2.0
//! Selects the item with the highest or the lowest priority.

use std::cmp::Ordering;

use rand::rngs::SmallRng;

use super::{Handle, Pick, RestorePoint, Select, ensure};

/// An item in the heap. The smallest one is selected, by `rank`, then by `touched`.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Priority, negated if the highest is selected.
    rank: f64,
    /// Number of the last insert or update of the item, so that ties rotate.
    touched: u64,
    handle: Handle,
}

impl Entry {
    fn is_before(&self, other: &Self) -> bool {
        match self.rank.partial_cmp(&other.rank) {
            Some(Ordering::Equal) => self.touched < other.touched,
            order => order == Some(Ordering::Less),
        }
    }
}

/// Children of an entry. Four are adjacent in memory, and make the heap half as deep as two.
const FAN_OUT: usize = 4;

/// A heap that knows the position of each item.
#[derive(Debug)]
pub(crate) struct Heap {
    sign: f64,
    entries: Vec<Entry>,
    /// Position of each handle in the heap. Entries of absent handles are meaningless.
    positions: Vec<u32>,
    touches: u64,
}

impl Heap {
    pub(super) fn new(min_heap: bool) -> Self {
        let sign = if min_heap { 1.0 } else { -1.0 };
        Self { sign, entries: Vec::new(), positions: Vec::new(), touches: 0 }
    }

    /// Priority of a present item.
    pub(super) fn priority_of(&self, handle: Handle) -> f64 {
        self.sign * self.entries[self.positions[handle as usize] as usize].rank
    }

    fn entry(&mut self, handle: Handle, priority: f64) -> Entry {
        self.touches += 1;
        Entry { rank: self.sign * priority, touched: self.touches, handle }
    }

    fn place(&mut self, at: usize, entry: Entry) {
        self.entries[at] = entry;
        self.positions[entry.handle as usize] = at as u32;
    }

    /// Moves the entry at `at` up or down to its position.
    fn settle(&mut self, at: usize) {
        let entry = self.entries[at];
        let at = self.sift_up(at, &entry);
        let at = self.sift_down(at, &entry);
        self.place(at, entry);
    }

    fn sift_up(&mut self, mut at: usize, entry: &Entry) -> usize {
        while at > 0 {
            let parent = (at - 1) / FAN_OUT;
            if !entry.is_before(&self.entries[parent]) {
                break;
            }
            self.place(at, self.entries[parent]);
            at = parent;
        }
        at
    }

    fn sift_down(&mut self, mut at: usize, entry: &Entry) -> usize {
        loop {
            let first = FAN_OUT * at + 1;
            let last = self.entries.len().min(first + FAN_OUT);
            if first >= last {
                return at;
            }
            let mut child = first;
            for other in first + 1..last {
                if self.entries[other].is_before(&self.entries[child]) {
                    child = other;
                }
            }
            if !self.entries[child].is_before(entry) {
                return at;
            }
            self.place(at, self.entries[child]);
            at = child;
        }
    }
}

impl Select for Heap {
    // Priority, age, handle, and the way back.
    const ITEM_BYTES: u64 = 28;
    const REPEATS: bool = false;

    fn insert(&mut self, handle: Handle, priority: f64) {
        let entry = self.entry(handle, priority);
        ensure(&mut self.positions, handle, 0);
        self.entries.push(entry);
        self.settle(self.entries.len() - 1);
    }

    fn remove(&mut self, handle: Handle) {
        let at = self.positions[handle as usize] as usize;
        self.entries.swap_remove(at);
        if at < self.entries.len() {
            self.settle(at);
        }
    }

    /// Number of the item's last insert or update.
    fn restore_point(&self, handle: Handle) -> RestorePoint {
        self.entries[self.positions[handle as usize] as usize].touched
    }

    fn put_back(&mut self, handle: Handle, priority: f64, point: RestorePoint) {
        self.entries.push(Entry { rank: self.sign * priority, touched: point, handle });
        self.settle(self.entries.len() - 1);
    }

    fn update(&mut self, handle: Handle, priority: f64) {
        let at = self.positions[handle as usize] as usize;
        self.entries[at] = self.entry(handle, priority);
        self.settle(at);
    }

    fn pick_many(&mut self, _rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        if let Some(handle) = self.entries.first().map(|entry| entry.handle) {
            picks.extend(std::iter::repeat_n(Pick::certain(handle), count));
        }
    }

    fn probability_of(&self, _handle: Handle) -> f64 {
        1.0
    }

    fn min_probability(&self) -> f64 {
        if self.entries.is_empty() { 0.0 } else { 1.0 }
    }
}
