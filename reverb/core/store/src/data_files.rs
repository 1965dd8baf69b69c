// SPDX-License-Identifier: Apache-2.0
//! The data files of a store: which are dead, and which are to be emptied.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use reverb_data::{DataFile, Place};

use crate::head::HEAD_BYTES;

/// Garbage at which files are emptied, and what is left of it then.
const MOST_GARBAGE: f64 = 0.3;
const KEPT_GARBAGE: f64 = 0.15;

/// Least garbage of a file for which its payloads are moved, to get bytes back.
const WORTH_MOVING: f64 = 1.0 / 16.0;

/// The files that are there.
#[derive(Debug)]
pub(crate) struct DataFiles {
    by_number: BTreeMap<u32, Listed>,
    next_number: u32,
    /// Numbers of the files that are to be emptied, until all of them are gone.
    to_empty: FilesToEmpty,
}

#[derive(Debug)]
struct Listed {
    /// Places have the references. A file without one has no reader, and is deleted.
    file: Weak<DataFile>,
    /// Bytes behind the head.
    bytes: u64,
    is_written: bool,
}

impl Listed {
    fn is_referred_to(&self) -> bool {
        self.file.strong_count() > 0
    }

    fn live_bytes(&self) -> u64 {
        self.file.upgrade().map_or(0, |file| file.live_bytes()).min(self.bytes)
    }

    /// Dead bytes of all.
    fn garbage(&self) -> f64 {
        (self.bytes - self.live_bytes()) as f64 / self.bytes.max(1) as f64
    }
}

/// Bytes of data files, without their heads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sizes {
    pub(crate) bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) num_files: usize,
}

impl Sizes {
    /// Bytes on disk.
    pub(crate) fn used(self) -> u64 {
        self.bytes + (self.num_files * HEAD_BYTES) as u64
    }
}

/// Files whose payloads are to be moved, so that they can be deleted.
#[derive(Debug, Clone, Default)]
pub struct FilesToEmpty(Arc<[u32]>);

impl FilesToEmpty {
    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a payload at this place is to be moved.
    pub fn contains(&self, place: &Place) -> bool {
        self.0.binary_search(&place.file.number()).is_ok()
    }
}

impl DataFiles {
    pub(crate) fn new(first_number: u32) -> Self {
        let by_number = BTreeMap::new();
        Self { by_number, next_number: first_number, to_empty: FilesToEmpty::default() }
    }

    /// A number that no file has had.
    pub(crate) fn take_number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Lists a file that is written from now on.
    pub(crate) fn add(&mut self, file: &Arc<DataFile>) {
        let listed = Listed { file: Arc::downgrade(file), bytes: 0, is_written: true };
        self.by_number.insert(file.number(), listed);
    }

    /// The file has grown to so many bytes behind its head.
    pub(crate) fn set_bytes(&mut self, number: u32, bytes: u64) {
        if let Some(listed) = self.by_number.get_mut(&number) {
            listed.bytes = bytes;
        }
    }

    /// Nothing is written to the file from now on.
    pub(crate) fn close(&mut self, number: u32) {
        if let Some(listed) = self.by_number.get_mut(&number) {
            listed.is_written = false;
        }
    }

    pub(crate) fn remove(&mut self, number: u32) {
        self.by_number.remove(&number);
    }

    /// Numbers of the files that nothing refers to.
    pub(crate) fn dead(&self) -> Vec<u32> {
        let dead = self.by_number.iter().filter(|(_, it)| !it.is_referred_to());
        dead.map(|(&number, _)| number).collect()
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.by_number.keys().copied().collect()
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let mut sizes = Sizes { num_files: self.by_number.len(), ..Sizes::default() };
        for listed in self.by_number.values() {
            sizes.bytes += listed.bytes;
            sizes.live_bytes += listed.live_bytes();
        }
        sizes
    }

    /// The files that are to be emptied, as they were chosen last.
    pub(crate) fn chosen(&self) -> FilesToEmpty {
        self.to_empty.clone()
    }

    /// The files that are to be emptied: those chosen before, while there is one of them. Else the
    /// emptiest, if there is too much garbage; or enough of them to get `wanted` bytes back. What
    /// lives in all of them fits in the room for it.
    pub(crate) fn choose(&mut self, wanted: u64, room: u64) -> FilesToEmpty {
        let is_there = |number| self.by_number.get(number).is_some_and(Listed::is_referred_to);
        if !self.to_empty.0.iter().any(is_there) {
            self.to_empty = FilesToEmpty(self.emptiest(wanted, room).into());
        }
        self.to_empty.clone()
    }

    fn emptiest(&self, wanted: u64, mut room: u64) -> Vec<u32> {
        let Sizes { bytes, live_bytes, .. } = self.sizes();
        let garbage_after = |freed: u64| {
            let left = bytes - freed;
            left.saturating_sub(live_bytes) as f64 / left.max(1) as f64
        };
        let mut chosen = Vec::new();
        if wanted == 0 && garbage_after(0) <= MOST_GARBAGE {
            return chosen;
        }
        let closed = self.by_number.iter().filter(|(_, it)| !it.is_written && it.is_referred_to());
        let mut closed: Vec<_> = closed.map(|(&number, it)| (it.garbage(), number)).collect();
        closed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let mut freed = 0;
        for (garbage, number) in closed {
            let is_worth_it = freed < wanted && garbage >= WORTH_MOVING;
            if garbage_after(freed) <= KEPT_GARBAGE && !is_worth_it {
                break;
            }
            let bytes = self.by_number[&number].bytes;
            let dead = (bytes as f64 * garbage) as u64;
            let needed = bytes - dead + 2 * HEAD_BYTES as u64;
            if needed <= room {
                room -= needed;
                freed += dead;
                chosen.push(number);
            }
        }
        chosen.sort_unstable();
        chosen
    }
}
