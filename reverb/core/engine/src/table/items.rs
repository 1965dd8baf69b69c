// SPDX-License-Identifier: Apache-2.0
//! The items of a table: one array, addressed by small handles, with an index by key.

use std::hint::black_box;
use std::ops::Range;

use rand::Rng;
use reverb_base::memory::prefetch_from;
use reverb_data::{
    Chunk, OneChunkColumns, StepCount, StoredItem, StoredTrajectory, Trajectory, TrajectoryContent,
};
use smallvec::SmallVec;

use super::key_index::KeyIndex;
use super::visits;
use crate::selector::Handle;

/// A stored item. There are millions, so it takes 40 bytes: its fields besides the trajectory are
/// part of both variants, without the padding of a `Trajectory`.
#[derive(Debug)]
pub(super) enum Item {
    OfOneChunk(Values, Chunk, OneChunkColumns),
    Stored(Values, StoredTrajectory),
}

/// Fields of an item besides its trajectory.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed(4))]
pub(super) struct Values {
    key: u64,
    priority: f64,
    /// Wall time, made strictly increasing in order of insertion.
    inserted_at_ns: i64,
    times_sampled: i32,
}

impl Item {
    fn values(&self) -> &Values {
        match self {
            Self::OfOneChunk(values, ..) | Self::Stored(values, _) => values,
        }
    }

    fn values_mut(&mut self) -> &mut Values {
        match self {
            Self::OfOneChunk(values, ..) | Self::Stored(values, _) => values,
        }
    }

    pub(super) fn key(&self) -> u64 {
        self.values().key
    }

    pub(super) fn priority(&self) -> f64 {
        self.values().priority
    }

    pub(super) fn set_priority(&mut self, priority: f64) {
        self.values_mut().priority = priority;
    }

    /// Wall time, made strictly increasing in order of insertion.
    pub(super) fn inserted_at_ns(&self) -> i64 {
        self.values().inserted_at_ns
    }

    pub(super) fn times_sampled(&self) -> i32 {
        self.values().times_sampled
    }

    pub(super) fn set_times_sampled(&mut self, times_sampled: i32) {
        self.values_mut().times_sampled = times_sampled;
    }

    pub(super) fn trajectory(&self) -> Trajectory {
        match self {
            Self::OfOneChunk(_, chunk, columns) => columns.of(chunk.clone()),
            Self::Stored(_, stored) => TrajectoryContent::Stored(stored.clone()).into(),
        }
    }

    fn into_trajectory(self) -> Trajectory {
        match self {
            Self::OfOneChunk(_, chunk, columns) => columns.of(chunk),
            Self::Stored(_, stored) => TrajectoryContent::Stored(stored).into(),
        }
    }

    /// The item in that form, out of its table.
    #[inline]
    pub(super) fn into_stored(self, removal_priority: Option<f64>) -> StoredItem {
        let Values { key, priority, inserted_at_ns, times_sampled } = *self.values();
        let trajectory = self.into_trajectory();
        StoredItem { key, priority, removal_priority, times_sampled, inserted_at_ns, trajectory }
    }

    /// Starts to bring what its trajectory begins with into the cache of the processor.
    #[inline]
    pub(super) fn prefetch_trajectory(&self) {
        match self {
            Self::OfOneChunk(_, chunk, _) => chunk.prefetch(),
            Self::Stored(_, stored) => stored.prefetch(),
        }
    }

    /// Number of its steps.
    pub(super) fn step_count(&self) -> StepCount {
        StepCount::of(&self.trajectory())
    }

    /// The item in the form for checkpoints and scans.
    pub(super) fn to_stored(&self, removal_priority: Option<f64>) -> StoredItem {
        let Values { key, priority, inserted_at_ns, times_sampled } = *self.values();
        let trajectory = self.trajectory();
        StoredItem { key, priority, removal_priority, times_sampled, inserted_at_ns, trajectory }
    }
}

impl From<StoredItem> for Item {
    fn from(item: StoredItem) -> Self {
        let StoredItem { key, priority, times_sampled, inserted_at_ns, trajectory, .. } = item;
        let values = Values { key, priority, inserted_at_ns, times_sampled };
        match trajectory.into_content() {
            TrajectoryContent::OfOneChunk(chunk, columns) => {
                Self::OfOneChunk(values, chunk, columns)
            }
            TrajectoryContent::Stored(stored) => Self::Stored(values, stored),
        }
    }
}

/// Bytes of an item here: its entry in the list, and one in the index (four bytes and one control
/// byte at a load of about two thirds).
pub(super) const ITEM_BYTES: u64 = size_of::<Entry>() as u64 + 8;

/// Largest number of entries that are visited under one lock.
pub(super) const LARGEST_PIECE: usize = 8192;

/// A reason to visit all items at once. `docs/design/engine.md` has a row for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AllItems {
    /// No lock is held: the contents have left the table.
    OutsideTheLock,
    /// The samples that all items allow are added up after a delete or a change of the settings,
    /// in a table with a `max_times_sampled` above 1 and a `min_diff`.
    SamplesLeft,
    #[cfg(test)]
    Test,
}

/// No free entry.
const NONE: Handle = Handle::MAX;

#[derive(Debug)]
enum Entry {
    Taken(Item),
    /// `next` is another free entry.
    Free {
        next: Handle,
    },
}

impl Entry {
    fn item(&self) -> &Item {
        match self {
            Self::Taken(item) => item,
            Self::Free { .. } => unreachable!("handles in use point to items"),
        }
    }
}

/// The items of a table.
#[derive(Debug)]
pub(super) struct Items {
    entries: Vec<Entry>,
    /// Maximum number of entries.
    limit: usize,
    free: Handle,
    index: KeyIndex,
    hasher: KeyHasher,
}

impl Items {
    /// Makes an empty list of at most `limit` items. Memory is allocated as items are added.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            limit,
            free: NONE,
            index: KeyIndex::new(),
            hasher: KeyHasher::new(),
        }
    }

    /// Changes the maximum number of entries. Entries that exist stay.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn find(&self, key: u64) -> Option<Handle> {
        let is_it = |&handle: &Handle| self.get(handle).key() == key;
        self.index.find(self.hasher.hash(key), is_it)
    }

    /// Calls `call` with the position and the handle of each known key, in order.
    ///
    /// All handles are first guessed by their hashes alone, so that the processor fetches the items
    /// from memory in parallel.
    pub(super) fn find_many(
        &self,
        keys: impl Iterator<Item = u64> + Clone,
        mut call: impl FnMut(usize, Handle),
    ) {
        let guess = |key| self.index.find(self.hasher.hash(key), |_| true);
        let guesses: SmallVec<[Option<Handle>; 32]> = keys.clone().map(guess).collect();
        for (at, (key, guess)) in keys.zip(guesses).enumerate() {
            let is_right = |&handle: &Handle| self.get(handle).key() == key;
            // If there is no guess, there is no item with this hash.
            let found = guess.filter(is_right).or_else(|| guess.and_then(|_| self.find(key)));
            if let Some(handle) = found {
                call(at, handle);
            }
        }
    }

    /// Lets the processor fetch what inserting `keys` and removing the first of `handles`, as many
    /// as `removed`, needs from memory, all in parallel. Entries of the next ones come too, for the
    /// next call.
    pub(super) fn fetch(
        &self,
        keys: impl Iterator<Item = u64>,
        removed: usize,
        handles: impl Iterator<Item = Handle>,
    ) {
        // Reading from the index is enough to have it fetched: nothing depends on what is read.
        let fetch_place = |key| black_box(self.index.find(self.hasher.hash(key), |_| true));
        let mut soon: SmallVec<[Handle; 32]> = SmallVec::new();
        for (at, handle) in handles.enumerate() {
            prefetch_from(&self.entries[handle as usize], size_of::<Entry>());
            if at < removed {
                soon.push(handle);
            }
        }
        for key in keys {
            fetch_place(key);
        }
        for handle in soon {
            let item = self.get(handle);
            item.prefetch_trajectory();
            fetch_place(item.key());
        }
    }

    /// Lets the processor fetch items and what their trajectories begin with from memory, all in
    /// parallel. Otherwise the reference counting that follows would fetch them one by one.
    pub(super) fn prefetch(&self, handles: impl Iterator<Item = Handle> + Clone) {
        for handle in handles.clone() {
            prefetch_from(&self.entries[handle as usize], size_of::<Entry>());
        }
        for handle in handles {
            self.get(handle).prefetch_trajectory();
        }
    }

    pub(super) fn get(&self, handle: Handle) -> &Item {
        visits::count(1);
        self.entries[handle as usize].item()
    }

    pub(super) fn get_mut(&mut self, handle: Handle) -> &mut Item {
        visits::count(1);
        match &mut self.entries[handle as usize] {
            Entry::Taken(item) => item,
            Entry::Free { .. } => unreachable!("handles in use point to items"),
        }
    }

    /// Number of entries, used and free. All handles are below it.
    pub(super) fn num_entries(&self) -> usize {
        self.entries.len()
    }

    /// The items in `num` entries from `start` on, of which there may be fewer. At most so many are
    /// visited under one lock, so there is no other way to visit items but [`Self::all`].
    pub(super) fn piece(&self, start: usize, num: usize) -> impl Iterator<Item = (Handle, &Item)> {
        debug_assert!(num <= LARGEST_PIECE, "{num} entries are too many under one lock");
        visits::count(num);
        self.in_entries(start..start.saturating_add(num))
    }

    /// All items. The reason says why they may be visited at once.
    pub(super) fn all(&self, why: AllItems) -> impl Iterator<Item = (Handle, &Item)> {
        visits::count(if why == AllItems::OutsideTheLock { 0 } else { self.len() });
        self.in_entries(0..self.entries.len())
    }

    fn in_entries(&self, entries: Range<usize>) -> impl Iterator<Item = (Handle, &Item)> {
        let end = entries.end.min(self.entries.len());
        let start = entries.start.min(end);
        self.entries[start..end].iter().enumerate().filter_map(move |(at, entry)| match entry {
            Entry::Taken(item) => Some(((start + at) as Handle, item)),
            Entry::Free { .. } => None,
        })
    }

    /// The item in an entry, if the entry exists and is in use.
    pub(super) fn in_entry(&self, handle: Handle) -> Option<&Item> {
        visits::count(1);
        match self.entries.get(handle as usize)? {
            Entry::Taken(item) => Some(item),
            Entry::Free { .. } => None,
        }
    }

    /// Adds an item whose key is not present yet.
    pub(super) fn insert(&mut self, item: Item) -> Handle {
        let key = item.key();
        let handle = self.free;
        let handle = if handle == NONE {
            self.push(item)
        } else {
            let entry = &mut self.entries[handle as usize];
            if let Entry::Free { next } = *entry {
                self.free = next;
            }
            *entry = Entry::Taken(item);
            handle
        };
        let Self { entries, index, hasher, .. } = self;
        let hash_of = |&handle: &Handle| hasher.hash(entries[handle as usize].item().key());
        index.insert(hasher.hash(key), handle, hash_of);
        handle
    }

    pub(super) fn remove(&mut self, handle: Handle) -> Item {
        let hash = self.hasher.hash(self.get(handle).key());
        self.index.remove(hash, handle);
        let entry = Entry::Free { next: self.free };
        self.free = handle;
        match std::mem::replace(&mut self.entries[handle as usize], entry) {
            Entry::Taken(item) => item,
            Entry::Free { .. } => unreachable!("handles in use point to items"),
        }
    }

    fn push(&mut self, item: Item) -> Handle {
        let len = self.entries.len();
        if len == self.entries.capacity() {
            // Doubles the capacity, up to the limit of the table.
            self.entries.reserve_exact(len.max(16).min(self.limit.saturating_sub(len).max(1)));
        }
        self.entries.push(Entry::Taken(item));
        len as Handle
    }
}

/// Hashes keys. Honest clients send random keys. The seed prevents a malicious client from choosing
/// keys that collide.
#[derive(Debug, Clone, Copy)]
struct KeyHasher {
    seed: u64,
    factor: u64,
}

impl KeyHasher {
    fn new() -> Self {
        let mut rng = rand::rng();
        Self { seed: rng.random(), factor: rng.random::<u64>() | 1 }
    }

    fn hash(self, key: u64) -> u64 {
        let product = u128::from(key ^ self.seed) * u128::from(self.factor);
        (product >> 64) as u64 ^ product as u64
    }
}

#[cfg(test)]
mod tests {
    use reverb_data::NewItem;

    use super::*;
    use crate::table::testing;

    impl Items {
        /// All keys, sorted.
        pub(in crate::table) fn keys(&self) -> Vec<u64> {
            let mut keys: Vec<u64> =
                self.index.iter().map(|&handle| self.get(handle).key()).collect();
            keys.sort_unstable();
            keys
        }
    }

    #[test]
    fn an_entry_takes_forty_bytes() {
        assert_eq!(std::mem::size_of::<Entry>(), 40);
    }

    #[test]
    fn many_keys_are_found_as_one_by_one() {
        let mut items = Items::new(1 << 20);
        for key in 0..50_000u64 {
            let NewItem { key, priority, times_sampled, trajectory, .. } = testing::item(key * 3);
            let inserted_at_ns = 0;
            let item = StoredItem {
                key,
                priority,
                removal_priority: None,
                times_sampled,
                inserted_at_ns,
                trajectory,
            };
            items.insert(item.into());
        }
        let keys: Vec<u64> = (0..150_000).rev().chain(0..10).collect();
        let one_by_one: Vec<_> = keys
            .iter()
            .enumerate()
            .filter_map(|(at, &key)| items.find(key).map(|handle| (at, handle)))
            .collect();
        assert_eq!(one_by_one.len(), 50_000 + 4);
        let mut together = Vec::new();
        items.find_many(keys.iter().copied(), |at, handle| together.push((at, handle)));
        assert_eq!(together, one_by_one);
    }

    #[test]
    fn sequential_keys_spread_over_the_hash() {
        let hasher = KeyHasher::new();
        let mut buckets = [0usize; 256];
        for key in 0..25_600u64 {
            buckets[(hasher.hash(key) % 256) as usize] += 1;
        }
        assert!(buckets.iter().all(|&count| count < 400), "{buckets:?}");
    }
}
