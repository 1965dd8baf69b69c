// SPDX-License-Identifier: Apache-2.0
//! The state of a table, and what each operation does to it.
//!
//! All operations are synchronous and never wait. The same operations with the same seed give the
//! same results. The caller passes the time. [`super::wait_queues`] decides which request is served
//! next, and [`super::Table`] makes callers wait.
//!
//! [`super::snapshot`] copies a state while it changes, and [`super::restore`] makes a state from
//! stored items.

mod distinct;
mod stacked;

use std::hint::black_box;

use hashbrown::HashMap;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use reverb_data::{
    Chunk, Counters, Error, MaxPriority, MemoryConfig, NewItem, Result, SampleOptions, Sampled,
    ServerAccount, StoredItem, TableAccount, TableConfig, Trajectory, WhenFull, is_max_priority,
    keep_samples, spare_samples,
};
use smallvec::SmallVec;

use super::episodes::Episodes;
use super::foreign_keys::ForeignKeys;
use super::items::{self, Item, Items};
use super::snapshot::BeforeImages;
use super::statistics::{Removal, Removed, Statistics};
use crate::rate_limiter::RateLimiter;
use crate::selector::{Handle, Largest, NewWeights, Pick, Selector};

/// A sample request is full when the chunks of its items reach this many bytes.
pub const MAX_SAMPLE_BYTES: usize = 1024 * 1024;

/// Maximum number of items of one sample request. It limits requests for items with very small
/// chunks.
pub const MAX_SAMPLE_ITEMS: usize = 65_536;

/// Number of items that are processed together, so that the processor fetches them from memory in
/// parallel.
const BLOCK: usize = 32;

/// What a removal priority takes in its map: a handle, a number and a byte of control, at a load of
/// about two thirds.
pub(super) const REMOVAL_BYTES: u64 = 26;

/// The state of a table.
#[derive(Debug)]
pub(super) struct TableState {
    name: Box<str>,
    max_size: usize,
    max_times_sampled: i32,
    memory: MemoryConfig,
    max_priority: MaxPriority,
    contents: Contents,
    limiter: RateLimiter,
    rng: SmallRng,
    /// Trajectories of deleted items. Freeing them can take long, so the caller does it after it
    /// has released the lock.
    garbage: Vec<Trajectory>,
    picks: Vec<Pick>,
    /// Insertion time of the newest item so far, removed ones included.
    newest_ns: i64,
    /// The before-images of a snapshot, while one is being copied.
    before_images: Option<Box<BeforeImages>>,
    statistics: Statistics,
    foreign_keys: ForeignKeys,
}

/// The part of the state that a reset discards.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) items: Items,
    sampler: Selector,
    remover: Selector,
    episodes: Episodes,
    num_unique_samples: i64,
    /// What the remover goes by, where that is not the priority.
    removal_priorities: HashMap<Handle, f64>,
    /// The largest priority of any item since there was none, or since the beginning.
    largest_priority: f64,
    account: TableAccount,
    /// What an item takes beside its trajectory: its slot, and its places in indexes.
    item_bytes: u64,
}

impl Contents {
    fn new(config: &TableConfig, server: &ServerAccount) -> Self {
        let (sampler, remover) = (Selector::new(&config.sampler), Selector::new(&config.remover));
        Self {
            // One more than `max_size`: an item is added before another one is evicted.
            items: Items::new(config.max_size as usize + 1),
            item_bytes: items::ITEM_BYTES + sampler.item_bytes() + remover.item_bytes(),
            sampler,
            remover,
            episodes: Episodes::default(),
            num_unique_samples: 0,
            removal_priorities: HashMap::new(),
            largest_priority: f64::NEG_INFINITY,
            account: TableAccount::open(server),
        }
    }

    /// What the remover goes by instead of the priority of an item.
    pub(super) fn removal_priority(&self, handle: Handle) -> Option<f64> {
        if self.removal_priorities.is_empty() {
            return None;
        }
        self.removal_priorities.get(&handle).copied()
    }

    /// Keeps what the remover goes by instead of the priority of an item. The remover is not told.
    fn keep_removal_priority(&mut self, handle: Handle, priority: f64) {
        if self.removal_priorities.insert(handle, priority).is_none() {
            self.account.add_bytes(REMOVAL_BYTES);
        }
    }

    /// The largest priority of the items that are there. Where the sampler has no weights, or with
    /// exponent 0, that of items that were there counts too.
    fn largest_present(&self) -> Option<f64> {
        if self.items.len() == 0 {
            return None;
        }
        Some(match self.sampler.largest() {
            Largest::Item(handle) => self.items.get(handle).priority(),
            Largest::Zero => 0.0,
            Largest::Unknown => self.largest_priority,
        })
    }

    /// All items as removed by a reset. Looks at every item.
    pub(super) fn as_removed(&self) -> Removed {
        let mut removed = Removed::default();
        for (_, item) in self.items.in_slots(0..self.items.num_slots()) {
            removed.count(Removal::Reset, item.times_sampled());
        }
        removed
    }
}

impl Drop for Contents {
    /// The chunks may live on elsewhere, so they must not name this table any more.
    fn drop(&mut self) {
        for (_, item) in self.items.in_slots(0..self.items.num_slots()) {
            self.account.remove(&item.trajectory(), self.item_bytes);
        }
        self.account.remove_bytes(self.removal_priorities.len() as u64 * REMOVAL_BYTES);
    }
}

/// The items that one sample request has got so far.
#[derive(Debug)]
pub(super) struct Batch {
    wanted: usize,
    chunk_bytes: usize,
    items: Vec<Sampled>,
    /// What the reader asks of the items.
    options: SampleOptions,
    /// Why the next batch cannot be sampled: its items cannot be stacked.
    refusal: Option<Error>,
    /// Whether the request had to wait. Reported with its first item.
    pub(super) has_waited: bool,
}

impl Batch {
    /// Of a request for `wanted` items. It ends before a batch of the reader whose items cannot be
    /// stacked.
    pub(super) fn new(wanted: usize, options: SampleOptions) -> Self {
        let wanted = wanted.min(MAX_SAMPLE_ITEMS);
        Self {
            wanted,
            chunk_bytes: 0,
            items: spare_samples(),
            options,
            refusal: None,
            has_waited: false,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        let SampleOptions { all_or_nothing, .. } = self.options;
        self.items.len() >= self.wanted
            || (self.chunk_bytes >= MAX_SAMPLE_BYTES && !all_or_nothing && self.may_end_here())
    }

    /// Whether no batch of the reader would be cut here.
    fn may_end_here(&self) -> bool {
        self.options.stacking.is_none_or(|stacking| stacking.after(self.items.len()).position == 0)
    }

    /// Whether the request is complete: it is full, or its next batch was refused.
    pub(super) fn is_over(&self) -> bool {
        self.is_full() || self.refusal.is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// How many samples it needs under one lock, if it takes no part of them.
    pub(super) fn whole(&self) -> Option<usize> {
        self.options.all_or_nothing.then_some(self.wanted)
    }

    /// The items that were added after the first ones.
    pub(super) fn since(&self, first: usize) -> &[Sampled] {
        self.items.get(first..).unwrap_or_default()
    }

    /// The sampled items, or the refusal if there are none.
    pub(super) fn into_answer(mut self) -> Result<Vec<Sampled>> {
        match self.refusal.take() {
            Some(error) if self.items.is_empty() => Err(error),
            _ => Ok(std::mem::take(&mut self.items)),
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        keep_samples(std::mem::take(&mut self.items));
    }
}

impl TableState {
    /// An empty table. `config` must be valid.
    pub(super) fn new(config: &TableConfig) -> Self {
        Self::with_counters(config, &Counters::default())
    }

    /// An empty table with given counters.
    pub(super) fn with_counters(config: &TableConfig, counters: &Counters) -> Self {
        let Counters { inserts, samples, deletes, deleted_episodes, .. } = *counters;
        let mut contents = Contents::new(config, &ServerAccount::open());
        contents.episodes = Episodes::after(deleted_episodes);
        contents.num_unique_samples = counters.unique_samples;
        contents.largest_priority = counters.largest_priority.unwrap_or(f64::NEG_INFINITY);
        Self {
            name: config.name.as_str().into(),
            max_size: config.max_size as usize,
            max_times_sampled: config.max_times_sampled,
            memory: config.memory,
            max_priority: config.max_priority,
            contents,
            limiter: RateLimiter::with_counters(config.rate_limiter, inserts, samples, deletes),
            rng: config.seed.map_or_else(SmallRng::from_os_rng, SmallRng::seed_from_u64),
            garbage: Vec::new(),
            picks: Vec::new(),
            newest_ns: i64::MIN,
            before_images: None,
            statistics: Statistics::default(),
            foreign_keys: ForeignKeys::default(),
        }
    }

    /// Inserts an item. The caller has checked that the limiter allows it.
    ///
    /// If the key exists already, only its priority is updated. That needs the limiter's permission
    /// too.
    pub(super) fn insert(&mut self, item: NewItem, now_ns: i64) {
        debug_assert!(self.limiter.can_insert(1));
        let priority = self.priority_of_new(item.priority);
        if let Some(handle) = self.contents.items.find(item.key) {
            if let Some(removal_priority) = item.removal_priority {
                self.contents.keep_removal_priority(handle, removal_priority);
                self.contents.remover.update(handle, removal_priority);
            }
            self.update_at(handle, priority);
            self.statistics.priority_updates += 1;
            self.garbage.push(item.trajectory);
            return;
        }
        self.add(StoredItem {
            key: item.key,
            trajectory: item.trajectory,
            priority,
            removal_priority: item.removal_priority,
            inserted_at_ns: now_ns,
            times_sampled: item.times_sampled,
        });
        self.limiter.count_insert();
        self.statistics.inserts += 1;
        self.statistics.last_insert_ns = now_ns;
    }

    /// The priority that a new item gets.
    fn priority_of_new(&self, priority: f64) -> f64 {
        if !is_max_priority(priority) {
            return priority;
        }
        self.max_priority().unwrap_or(1.0)
    }

    /// The priority that an item of `MAX_PRIORITY` gets now; `None` if there was no item.
    fn max_priority(&self) -> Option<f64> {
        match self.max_priority {
            MaxPriority::Present => self.contents.largest_present(),
            MaxPriority::Ever => self.largest_ever(),
        }
    }

    /// The largest priority of any item so far, if the table goes by it.
    pub(super) fn largest_ever(&self) -> Option<f64> {
        let largest = self.contents.largest_priority;
        (self.max_priority == MaxPriority::Ever && largest > f64::NEG_INFINITY).then_some(largest)
    }

    /// The largest priority of the items that are there, if the sampler knows it; `None` also if
    /// there are none.
    pub(super) fn largest_present(&self) -> Option<f64> {
        match self.contents.sampler.largest() {
            Largest::Unknown => None,
            _ => self.contents.largest_present(),
        }
    }

    /// Adds an item whose key does not exist yet, and evicts one if the table is over `max_size`.
    pub(super) fn add(&mut self, item: StoredItem) {
        // Clocks may be set back, and items of one call have the same time.
        self.newest_ns = item.inserted_at_ns.max(self.newest_ns.saturating_add(1));
        self.put(StoredItem { inserted_at_ns: self.newest_ns, ..item });
        self.evict_surplus();
    }

    /// Adds an item of another table as it was there; its key does not exist yet. Does not move the
    /// cursor of the limiter.
    pub(super) fn transfer(&mut self, item: StoredItem) {
        self.newest_ns = self.newest_ns.max(item.inserted_at_ns);
        let handle = self.put(item);
        self.limiter.count_transfer();
        if let Some(before) = &mut self.before_images {
            before.exclude(handle);
        }
        self.evict_surplus();
    }

    fn put(&mut self, item: StoredItem) -> Handle {
        let contents = &mut self.contents;
        contents.account.add(&item.trajectory, contents.item_bytes);
        contents.episodes.add(&item.trajectory);
        self.foreign_keys.note(item.key);
        let (priority, removal_priority) = (item.priority, item.removal_priority);
        if self.max_priority == MaxPriority::Present && contents.items.len() == 0 {
            contents.largest_priority = f64::NEG_INFINITY;
        }
        contents.largest_priority = contents.largest_priority.max(priority);
        let handle = contents.items.insert(item.into());
        if let Some(removal_priority) = removal_priority {
            contents.keep_removal_priority(handle, removal_priority);
        }
        contents.sampler.insert(handle, priority);
        contents.remover.insert(handle, removal_priority.unwrap_or(priority));
        handle
    }

    /// Evicts as many items as there are too many.
    fn evict_surplus(&mut self) {
        // The new item may be selected too: a Lifo remover evicts it at once.
        while let Some(reason) = self.is_too_large()
            && self.evict(reason)
        {}
    }

    /// Deletes the item that the remover selects; `false` if there is none.
    pub(super) fn evict(&mut self, reason: Removal) -> bool {
        self.picks.clear();
        self.contents.remover.pick_many(&mut self.rng, 1, &mut self.picks);
        let Some(&pick) = self.picks.first() else { return false };
        self.delete_at(pick.handle, reason);
        true
    }

    /// Why an item has to leave, if one has to.
    fn is_too_large(&self) -> Option<Removal> {
        let has_too_many_bytes = || match self.memory {
            MemoryConfig { max_bytes: Some(max_bytes), when_full: WhenFull::Remove } => {
                self.contents.account.bytes() > max_bytes
            }
            _ => false,
        };
        if self.contents.items.len() > self.max_size {
            return Some(Removal::Full);
        }
        has_too_many_bytes().then_some(Removal::Bytes)
    }

    /// Whether an item may be inserted now as far as the bytes are concerned.
    pub(super) fn has_room_for(&self, item: &NewItem) -> bool {
        self.has_room_for_trajectory(&item.trajectory, item.removal_priority)
            || self.contents.items.find(item.key).is_some()
    }

    /// Whether an item whose key does not exist yet may be added.
    pub(super) fn has_room_for_stored(&self, item: &StoredItem) -> bool {
        self.has_room_for_trajectory(&item.trajectory, item.removal_priority)
    }

    fn has_room_for_trajectory(
        &self,
        trajectory: &Trajectory,
        removal_priority: Option<f64>,
    ) -> bool {
        let MemoryConfig { max_bytes: Some(max_bytes), when_full: WhenFull::Wait } = self.memory
        else {
            return true;
        };
        let Contents { account, item_bytes, .. } = &self.contents;
        let item_bytes = item_bytes + removal_priority.map_or(0, |_| REMOVAL_BYTES);
        account.bytes() + account.would_add(trajectory, item_bytes) <= max_bytes
    }

    /// What an item takes beside its trajectory.
    pub(super) fn item_bytes(&self) -> u64 {
        self.contents.item_bytes
    }

    /// Samples into `batch` while the limiter allows and until the batch is full.
    pub(super) fn sample(&mut self, batch: &mut Batch) {
        let SampleOptions { stacking, all_or_nothing, .. } = batch.options;
        if all_or_nothing && !self.may_allow(batch.wanted) {
            return;
        }
        if batch.options.distinct {
            return self.sample_distinct(batch);
        }
        if self.max_times_sampled > 0 && (stacking.is_some() || all_or_nothing) {
            return self.sample_with_undo(batch);
        }
        // If sampling can delete items, each choice depends on the previous one.
        let block = match self.max_times_sampled > 0 {
            true => 1,
            false if self.contents.sampler.chooses_together() => MAX_SAMPLE_ITEMS,
            false => BLOCK,
        };
        while !batch.is_full() {
            let wanted = block.min(batch.wanted - batch.len());
            let allowed = self.limiter.samples_allowed(wanted);
            let mut picks = std::mem::take(&mut self.picks);
            picks.clear();
            let min_probability = self.contents.sampler.min_probability();
            self.contents.sampler.pick_many(&mut self.rng, allowed, &mut picks);
            if picks.len() > 1 {
                self.prefetch(&picks);
            }
            batch.items.reserve(picks.len());
            let mut num_taken = 0;
            for &pick in &picks {
                self.take(pick, min_probability, batch);
                num_taken += 1;
                if batch.is_full() {
                    break;
                }
            }
            for &pick in picks[num_taken..].iter().rev() {
                self.contents.sampler.unpick(pick);
            }
            let progress = !picks.is_empty();
            self.picks = picks;
            if !progress {
                break;
            }
        }
    }

    /// Whether so many samples may be allowed under one lock; never false if they are. If sampling
    /// deletes no items, they are.
    pub(super) fn may_allow(&self, wanted: usize) -> bool {
        self.limiter.samples_allowed(wanted) == wanted && self.samples_left(self.len()) >= wanted
    }

    /// How many samples so many items allow at most, as far as `max_times_sampled` is concerned.
    pub(super) fn samples_left(&self, num_items: usize) -> usize {
        match usize::try_from(self.max_times_sampled) {
            Ok(times) if times > 0 => num_items.saturating_mul(times),
            _ if num_items > 0 => usize::MAX,
            _ => 0,
        }
    }

    /// Deletes the item with this key; `false` if there is none.
    pub(super) fn delete(&mut self, key: u64) -> bool {
        let handle = self.contents.items.find(key);
        if let Some(handle) = handle {
            self.delete_at(handle, Removal::Deleted);
        }
        handle.is_some()
    }

    /// Updates the priorities of the items with these keys. The priorities must be checked. Unknown
    /// keys are added to `missing`.
    pub(super) fn update(&mut self, updates: &[(u64, f64)], missing: &mut Vec<u64>) {
        let contents = &mut self.contents;
        let mut found: SmallVec<[(Handle, f64); BLOCK]> = SmallVec::new();
        for block in updates.chunks(BLOCK) {
            // Finding all items first lets the processor fetch them from memory in parallel.
            found.clear();
            let keys = block.iter().map(|&(key, _)| key);
            contents.items.find_many(keys, |at, handle| found.push((handle, block[at].1)));
            if found.len() < block.len() {
                let keys = block.iter().map(|&(key, _)| key);
                missing.extend(keys.filter(|&key| contents.items.find(key).is_none()));
            }
            let num_found = found.len() as u64;
            for &(handle, priority) in &found {
                let item = contents.items.get_mut(handle);
                if let Some(before) = &mut self.before_images {
                    before.record(handle, item, contents.removal_priorities.get(&handle).copied());
                }
                item.set_priority(priority);
            }
            let priorities = found.iter().map(|&(_, priority)| priority);
            contents.largest_priority = priorities.fold(contents.largest_priority, f64::max);
            contents.sampler.update_many(&found);
            if !contents.removal_priorities.is_empty() {
                found.retain(|(handle, _)| !contents.removal_priorities.contains_key(handle));
            }
            contents.remover.update_many(&found);
            self.statistics.priority_updates += num_found;
        }
    }

    /// Removes all items and sets all counters to zero; the statistics go on. Returns the contents
    /// for the caller to count and to free, unless a snapshot still needs them.
    pub(super) fn reset(&mut self, config: &TableConfig) -> Option<Contents> {
        self.limiter.reset();
        self.foreign_keys.reset();
        let empty = Contents::new(config, self.contents.account.server());
        let contents = std::mem::replace(&mut self.contents, empty);
        match &mut self.before_images {
            Some(before) => before.record_reset(contents, &mut self.statistics.removed),
            None => Some(contents),
        }
    }

    /// What happened so far.
    pub(super) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The statistics, to count what does not happen here.
    pub(super) fn statistics_mut(&mut self) -> &mut Statistics {
        &mut self.statistics
    }

    /// Sum of the weights of all items, if the sampler has weights.
    pub(super) fn mass(&self) -> Option<f64> {
        self.contents.sampler.mass()
    }

    /// The trajectories to free, of all items deleted since the last call.
    pub(super) fn take_garbage(&mut self) -> Vec<Trajectory> {
        std::mem::take(&mut self.garbage)
    }

    /// The before-images, to begin, advance or end a snapshot.
    pub(super) fn before_images_mut(&mut self) -> &mut Option<Box<BeforeImages>> {
        &mut self.before_images
    }

    /// Gives the table other settings, which are valid. A table that is too large now stays within
    /// what it has; [`Self::shrink`] removes the rest.
    pub(super) fn configure(&mut self, config: &TableConfig) {
        self.max_times_sampled = config.max_times_sampled;
        self.contents.sampler.configure(&config.sampler);
        self.contents.items.set_limit(config.max_size as usize + 1);
        self.limit_to_what_is_there(config);
        if *self.limiter.config() != config.rate_limiter {
            self.limiter.configure(config.rate_limiter);
        }
    }

    /// Evicts at most `max_items` items of a table that is larger than its settings allow; whether
    /// none is left to evict.
    pub(super) fn shrink(&mut self, config: &TableConfig, max_items: usize) -> bool {
        let is_too_large = |state: &Self| {
            let MemoryConfig { max_bytes, when_full } = config.memory;
            let may_remove = when_full == WhenFull::Remove;
            state.len() > config.max_size as usize
                || (may_remove && state.account().bytes() > max_bytes.unwrap_or(u64::MAX))
        };
        let end = self.len().saturating_sub(max_items);
        while is_too_large(self) && self.len() > end && self.evict(Removal::Shrunk) {}
        self.limit_to_what_is_there(config);
        let is_done = !is_too_large(self) || self.len() == 0;
        if is_done && config.max_times_sampled > 0 {
            // Items that left, and those that may be sampled less often now, allowed samples that
            // nobody can take any more.
            let limit = i64::from(config.max_times_sampled);
            let items = self.contents.items.in_slots(0..self.contents.items.num_slots());
            // An item leaves with a sample, however often it was sampled before.
            let left = items.map(|(_, item)| (limit - i64::from(item.times_sampled())).max(1));
            let left = left.sum();
            self.limiter.limit_to(left);
        }
        is_done
    }

    /// The limits in force: those of the settings, or what is there if that is more.
    fn limit_to_what_is_there(&mut self, config: &TableConfig) {
        let MemoryConfig { max_bytes, when_full } = config.memory;
        self.max_size = self.len().max(config.max_size as usize);
        let in_use = match when_full {
            WhenFull::Remove => self.account().bytes(),
            WhenFull::Wait => 0,
        };
        self.memory = MemoryConfig { max_bytes: max_bytes.map(|it| it.max(in_use)), when_full };
    }

    /// Exchanges the weights of the sampler; returns the old ones, to be freed.
    pub(super) fn swap_weights(&mut self, new: NewWeights) -> NewWeights {
        self.contents.sampler.swap_weights(new)
    }

    /// Makes the counters of the limiter agree with the number of items.
    pub(super) fn repair_counters(&mut self, config: &TableConfig) {
        let size = self.contents.items.len() as i64;
        let inserts = self.limiter.inserts().max(size);
        let samples = self.limiter.samples();
        self.limiter =
            RateLimiter::with_counters(config.rate_limiter, inserts, samples, inserts - size);
    }

    /// Whether there may be items with keys of slots that the server never owned.
    pub(super) fn has_foreign_keys(&self) -> bool {
        self.foreign_keys.may_be()
    }

    /// What is known of foreign keys, to look for them.
    pub(super) fn foreign_keys_mut(&mut self) -> &mut ForeignKeys {
        &mut self.foreign_keys
    }

    pub(super) fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// The limiter, to hold and to release it.
    pub(super) fn limiter_mut(&mut self) -> &mut RateLimiter {
        &mut self.limiter
    }

    pub(super) fn len(&self) -> usize {
        self.contents.items.len()
    }

    /// The part of the state that a reset discards, for snapshots.
    pub(super) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The items, read-only.
    pub(super) fn items(&self) -> &Items {
        &self.contents.items
    }

    /// `inserted_at_ns` of the newest item so far. Every item that is inserted later has a larger
    /// one; items that are transferred may not.
    pub(super) fn newest_ns(&self) -> i64 {
        self.newest_ns
    }

    pub(super) fn num_episodes(&self) -> i64 {
        self.contents.episodes.num_present()
    }

    pub(super) fn num_deleted_episodes(&self) -> i64 {
        self.contents.episodes.num_deleted()
    }

    pub(super) fn num_unique_samples(&self) -> i64 {
        self.contents.num_unique_samples
    }

    /// What the remover goes by instead of the priority of an item.
    pub(super) fn removal_priority(&self, handle: Handle) -> Option<f64> {
        self.contents.removal_priority(handle)
    }

    /// Bytes and number of its chunks, and bytes of its items.
    pub(super) fn account(&self) -> &TableAccount {
        &self.contents.account
    }

    /// The account, to book what has changed or to move it.
    pub(super) fn account_mut(&mut self) -> &mut TableAccount {
        &mut self.contents.account
    }

    /// Reads from all picked items in independent steps, so that the processor fetches them in
    /// parallel. Otherwise the reference counting that follows would fetch them one by one.
    fn prefetch(&self, picks: &[Pick]) {
        let keys = picks.iter().fold(0, |keys, pick| {
            keys ^ self.contents.items.get(pick.handle).first_chunk().map_or(0, Chunk::key)
        });
        black_box(keys);
    }

    fn take(&mut self, pick: Pick, min_probability: f64, batch: &mut Batch) {
        let table_size = self.contents.items.len() as i64;
        let removal_priority = self.contents.removal_priority(pick.handle);
        let item = self.contents.items.get_mut(pick.handle);
        record(&mut self.before_images, pick.handle, item, removal_priority);
        if item.times_sampled() == 0 {
            self.contents.num_unique_samples += 1;
        }
        let times_sampled = item.times_sampled().saturating_add(1);
        item.set_times_sampled(times_sampled);
        let trajectory = item.trajectory();
        batch.chunk_bytes += trajectory.chunk_bytes();
        batch.items.push(Sampled {
            key: item.key(),
            priority: item.priority(),
            times_sampled,
            probability: pick.probability,
            table_size,
            inserted_at_ns: item.inserted_at_ns(),
            rate_limited: batch.has_waited && batch.items.is_empty(),
            min_probability,
            epoch: pick.epoch,
            removal_priority: None,
            trajectory,
        });
        // "At least", because an item can be inserted with a count.
        let is_used_up = self.max_times_sampled > 0 && times_sampled >= self.max_times_sampled;
        self.limiter.count_sample();
        if is_used_up {
            self.delete_at(pick.handle, Removal::SampledOut);
        }
    }

    fn update_at(&mut self, handle: Handle, priority: f64) {
        let contents = &mut self.contents;
        let removal_priority = contents.removal_priority(handle);
        contents.largest_priority = contents.largest_priority.max(priority);
        let item = contents.items.get_mut(handle);
        record(&mut self.before_images, handle, item, removal_priority);
        item.set_priority(priority);
        contents.sampler.update(handle, priority);
        if removal_priority.is_none() {
            contents.remover.update(handle, priority);
        }
    }

    fn delete_at(&mut self, handle: Handle, reason: Removal) {
        let contents = &mut self.contents;
        let item = contents.items.remove(handle);
        self.statistics.removed.count(reason, item.times_sampled());
        let removal_priority = contents.removal_priority(handle);
        record(&mut self.before_images, handle, &item, removal_priority);
        if removal_priority.is_some() {
            contents.removal_priorities.remove(&handle);
            contents.account.remove_bytes(REMOVAL_BYTES);
        }
        contents.sampler.remove(handle);
        contents.remover.remove(handle);
        let trajectory = item.into_trajectory();
        contents.episodes.remove(&trajectory);
        contents.account.remove(&trajectory, contents.item_bytes);
        self.garbage.push(trajectory);
        self.limiter.count_delete();
    }
}

/// Saves the before-image of an item that is about to change or was just removed, if a snapshot is
/// being copied.
fn record(
    before: &mut Option<Box<BeforeImages>>,
    handle: Handle,
    item: &Item,
    removal_priority: Option<f64>,
) {
    if let Some(before) = before {
        before.record(handle, item, removal_priority);
    }
}

#[cfg(test)]
impl TableState {
    /// All keys, sorted.
    pub(super) fn keys(&self) -> Vec<u64> {
        self.contents.items.keys()
    }

    /// All keys, oldest first.
    pub(super) fn keys_by_age(&self) -> Vec<u64> {
        let items = &self.contents.items;
        let mut found: Vec<_> = items
            .in_slots(0..items.num_slots())
            .map(|(_, item)| (item.inserted_at_ns(), item.key()))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, key)| key).collect()
    }

    /// Priority and number of samples of an item.
    pub(super) fn peek(&self, key: u64) -> (f64, i32) {
        let item = self.contents.items.get(self.contents.items.find(key).unwrap());
        (item.priority(), item.times_sampled())
    }
}
