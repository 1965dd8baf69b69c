// SPDX-License-Identifier: Apache-2.0
//! State of a table, and the effect of each operation on it.
//!
//! All operations are synchronous and never wait. The same operations with the same seed give the
//! same results. The caller passes the time. [`super::wait_queues`] decides which request is served
//! next, and [`super::Table`] makes callers wait.
//!
//! [`super::snapshot`] copies a state while it changes, and [`super::restore`] makes a state from
//! stored items.

mod anchors;
mod batch;
mod contents;
mod distinct;
mod epochs;
mod growing;
mod limits;
mod recording;
mod sampling;
mod stacked;
#[cfg(test)]
mod testing;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use reverb_data::column_names::ColumnNames;
use reverb_data::rollouts::Refusal;
use reverb_data::{
    Chunk, Counters, MaxPriority, MemoryConfig, NewItem, ServerAccount, StoredItem, TableAccount,
    TableConfig, Totals, Trajectory, is_max_priority,
};
use smallvec::SmallVec;

use super::changes::{ChangeRecorder, Mutation};
use super::episodes::Episodes;
use super::foreign_keys::ForeignKeys;
use super::items::{Item, Items};
use super::statistics::{Removal, Statistics};
use super::step_counts::StepCounts;
use crate::rate_limiter::RateLimiter;
use crate::selector::{Handle, Largest, NewWeights, Pick, Selector};

pub(super) use batch::Batch;
pub use batch::{MAX_SAMPLE_BYTES, MAX_SAMPLE_ITEMS};
pub(super) use contents::{Contents, REMOVAL_BYTES};
pub use growing::Taken;
use recording::{Recording, record};

/// Number of items that are processed together, so that the processor fetches them in parallel.
const BLOCK: usize = 32;

/// A new item as it is stored.
#[inline]
fn new_item(item: NewItem, inserted_at_ns: i64) -> StoredItem {
    let NewItem { key, priority, removal_priority, times_sampled, trajectory, .. } = item;
    StoredItem { key, priority, removal_priority, times_sampled, inserted_at_ns, trajectory }
}

/// The state of a table.
#[derive(Debug)]
pub(super) struct TableState {
    name: Box<str>,
    /// Names of the columns of the signature, for errors; none without a signature.
    column_names: ColumnNames,
    max_size: usize,
    max_times_sampled: i32,
    memory: MemoryConfig,
    max_priority: MaxPriority,
    contents: Contents,
    limiter: RateLimiter,
    rng: SmallRng,
    /// Trajectories of deleted items, freed by the caller after it has released the lock.
    garbage: Vec<Trajectory>,
    picks: Vec<Pick>,
    /// Insertion time of the newest item so far, including removed ones.
    newest_ns: i64,
    /// Set while items are left to evict.
    has_surplus: bool,
    /// What is recorded of changes, if anything.
    recording: Option<Box<Recording>>,
    statistics: Statistics,
    /// Totals before the table was restored.
    restored: Totals,
    foreign_keys: ForeignKeys,
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
            column_names: config
                .signature
                .as_ref()
                .map(|signature| signature.flat.names())
                .unwrap_or_default(),
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
            has_surplus: false,
            recording: None,
            statistics: Statistics::default(),
            restored: counters.totals,
            foreign_keys: ForeignKeys::default(),
        }
    }

    /// Inserts an item. The caller has checked that the limiter allows it.
    ///
    /// If the key exists already, its item is replaced, if this one says so; else only its priority
    /// is updated. Both need the limiter's permission too.
    ///
    /// Returns why an item with rollouts is refused, if it is.
    pub(super) fn insert(&mut self, item: NewItem, now_ns: i64) -> Option<Refusal> {
        debug_assert!(self.limiter.can_insert(1));
        if self.contents.rollouts.is_some() {
            return self.insert_growing(item, now_ns);
        }
        let priority = self.priority_of_new(item.priority);
        if let Some(handle) = self.contents.items.find(item.key) {
            if item.replaces && !self.has_come_before(handle, &item.trajectory) {
                self.replace_at(handle, StoredItem { priority, ..new_item(item, now_ns) });
                return None;
            }
            self.update_at(handle, priority, item.removal_priority);
            self.statistics.priority_updates += 1;
            self.garbage.push(item.trajectory);
            return None;
        }
        self.add_new(StoredItem { priority, ..new_item(item, now_ns) });
        self.limiter.count_insert();
        None
    }

    /// Adds an item that no table had before.
    #[inline]
    fn add_new(&mut self, item: StoredItem) {
        self.statistics.inserts += 1;
        self.statistics.last_insert_ns = item.inserted_at_ns;
        self.add(item);
    }

    /// True if a replacement of this item was applied already, and came again because its
    /// confirmation was lost. A chunk of another one has another key.
    fn has_come_before(&self, handle: Handle, trajectory: &Trajectory) -> bool {
        let first = |it: &Trajectory| it.chunks().first().map(Chunk::key);
        first(&self.contents.items.get(handle).trajectory()) == first(trajectory)
    }

    /// Exchanges an item for a new one with the same key.
    ///
    /// The limiter counts it as an insert, unless the old one had not been sampled as often as an
    /// insert allows, and cannot be any more. Samples that no item allows would block inserts.
    fn replace_at(&mut self, handle: Handle, new: StoredItem) {
        let since_ns = self.since_ns(self.contents.items.get(handle));
        let old = self.remove_at(handle);
        let left_samples = self.max_times_sampled > 0
            && f64::from(old.times_sampled) < self.limiter.config().samples_per_insert;
        self.statistics.removed.count(Removal::Replaced, old.times_sampled);
        self.garbage.push(old.trajectory);
        if left_samples {
            self.limiter.count_transfer();
        } else {
            self.limiter.count_insert();
        }
        self.contents.replaced.note(new.key, since_ns);
        self.add_new(new);
    }

    /// Prepares for inserting these items: memory that each needs is fetched for all together. At
    /// most `ahead` more come after them.
    pub(super) fn fetch_for(&mut self, new: &[NewItem], ahead: usize) {
        let Contents { items, remover, .. } = &self.contents;
        let num_evicted = (items.len() + new.len()).saturating_sub(self.max_size).min(new.len());
        let upcoming = remover.upcoming().take(num_evicted + num_evicted.min(ahead));
        items.fetch(new.iter().map(|item| item.key), num_evicted, upcoming);
        self.garbage.reserve(num_evicted);
    }

    /// Priority of a new item.
    fn priority_of_new(&self, priority: f64) -> f64 {
        if !is_max_priority(priority) {
            return priority;
        }
        self.max_priority().unwrap_or(1.0)
    }

    /// Priority of an item with `MAX_PRIORITY`; `None` if there was no item.
    fn max_priority(&self) -> Option<f64> {
        match self.max_priority {
            MaxPriority::Present => self.contents.largest_present(),
            MaxPriority::Ever => self.largest_ever(),
        }
    }

    /// Largest priority of any item so far, if `MAX_PRIORITY` depends on it.
    pub(super) fn largest_ever(&self) -> Option<f64> {
        let largest = self.contents.largest_priority;
        (self.max_priority == MaxPriority::Ever && largest > f64::NEG_INFINITY).then_some(largest)
    }

    /// Largest priority of the present items, if there are any and the sampler knows it.
    pub(super) fn largest_present(&self) -> Option<f64> {
        match self.contents.sampler.largest() {
            Largest::Unknown => None,
            _ => self.contents.largest_present(),
        }
    }

    /// Adds an item whose key does not exist yet, and evicts what is over the limits; see
    /// [`Self::has_surplus`].
    pub(super) fn add(&mut self, item: StoredItem) {
        // Clocks may be set back, and items of one call have the same time.
        self.newest_ns = item.inserted_at_ns.max(self.newest_ns.saturating_add(1));
        self.put(StoredItem { inserted_at_ns: self.newest_ns, ..item });
        self.evict_surplus();
    }

    /// Adds an item of another table unchanged; its key must be new. The cursor does not move.
    pub(super) fn transfer(&mut self, item: StoredItem) {
        self.newest_ns = self.newest_ns.max(item.inserted_at_ns);
        let handle = self.put(item);
        self.limiter.count_transfer();
        if let Some(recording) = &mut self.recording
            && let Some(before) = &mut recording.before_images
        {
            before.exclude(handle);
        }
        self.evict_surplus();
    }

    fn put(&mut self, item: StoredItem) -> Handle {
        let contents = &mut self.contents;
        contents.account.add(&item.trajectory, contents.item_bytes);
        contents.episodes.add(&item.trajectory);
        self.foreign_keys.note(item.key);
        let StoredItem { key, priority, removal_priority, .. } = item;
        if self.max_priority == MaxPriority::Present && contents.items.len() == 0 {
            contents.largest_priority = f64::NEG_INFINITY;
        }
        contents.largest_priority = contents.largest_priority.max(priority);
        let steps = contents.step_count(&item.trajectory);
        let handle = contents.items.insert(item.into());
        if let Some(removal_priority) = removal_priority {
            contents.keep_removal_priority(handle, removal_priority);
        }
        let (to_sample, to_remove) = (priority, removal_priority.unwrap_or(priority));
        let order = if contents.rollouts.is_some() { self.order_of(key) } else { 0.0 };
        let contents = &mut self.contents;
        let weight =
            |selector: &Selector, weight| if selector.is_by_order() { order } else { weight };
        contents.add_to_sampler(handle, steps, weight(&contents.sampler, to_sample));
        contents.remover.insert(handle, weight(&contents.remover, to_remove));
        if let Some(recording) = &mut self.recording {
            recording.note(Mutation::Added, handle, key);
        }
        handle
    }

    /// Deletes the item that the remover selects; `false` if there is none.
    pub(super) fn evict(&mut self, reason: Removal) -> bool {
        self.picks.clear();
        self.contents.remover.pick_many(&mut self.rng, 1, &mut self.picks);
        let Some(&pick) = self.picks.first() else { return false };
        self.delete_at(pick.handle, reason);
        true
    }

    /// Bytes of an item besides its trajectory.
    pub(super) fn item_bytes(&self) -> u64 {
        self.contents.item_bytes
    }

    /// Deletes the item with this key; `false` if there is none.
    pub(super) fn delete(&mut self, key: u64) -> bool {
        self.remove(key, Removal::Deleted)
    }

    /// Removes the item with this key for this reason; `false` if there is none.
    pub(super) fn remove(&mut self, key: u64, reason: Removal) -> bool {
        if self.rollouts().is_some_and(|rollouts| rollouts.get(key).is_some()) {
            self.leave(key, reason);
            return true;
        }
        let handle = self.contents.items.find(key);
        if let Some(handle) = handle {
            self.delete_at(handle, reason);
        }
        handle.is_some()
    }

    /// Updates the priorities of the items with these keys. The priorities must be checked. Unknown
    /// keys are added to `missing`.
    pub(super) fn update(&mut self, updates: &[(u64, f64)], missing: &mut Vec<u64>) {
        if self.contents.rollouts.is_some() {
            for &(key, priority) in updates {
                self.set_priority_aside(key, priority);
            }
        }
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
                if let Some(recording) = &mut self.recording {
                    let removal_priority = contents.removal_priorities.get(&handle).copied();
                    recording.save(handle, item, removal_priority);
                    recording.note(Mutation::Changed, handle, item.key());
                }
                item.set_priority(priority);
            }
            let priorities = found.iter().map(|&(_, priority)| priority);
            contents.largest_priority = priorities.fold(contents.largest_priority, f64::max);
            contents.sampler.update_many(&found);
            if contents.step_counts.is_some() {
                found.iter().for_each(|&(handle, _)| contents.update_sums(handle));
            }
            if !contents.removal_priorities.is_empty() {
                found.retain(|(handle, _)| !contents.removal_priorities.contains_key(handle));
            }
            contents.remover.update_many(&found);
            self.statistics.priority_updates += num_found;
        }
        if let Some(rollouts) = &self.contents.rollouts {
            missing.retain(|&key| rollouts.get(key).is_none());
        }
    }

    /// Removes all items and sets all counters to zero; statistics continue. Returns the contents
    /// to count and to free, unless a snapshot still needs them.
    pub(super) fn reset(&mut self, config: &TableConfig) -> Option<Contents> {
        self.limiter.reset();
        self.has_surplus = false;
        self.foreign_keys.reset();
        let mut empty = Contents::new(config, self.contents.account.server());
        empty.rollouts = self.rollouts().map(|rollouts| Box::new(rollouts.emptied()));
        if self.contents.step_counts.is_some() {
            empty.step_counts = Some(Box::new(StepCounts::of_no_items()));
        }
        let mut contents = std::mem::replace(&mut self.contents, empty);
        let Some(recording) = &mut self.recording else { return Some(contents) };
        contents.uncommitted = recording.changes.as_mut().map(ChangeRecorder::reset);
        match &mut recording.before_images {
            Some(before) => before.record_reset(contents, &mut self.statistics.removed),
            None => Some(contents),
        }
    }

    /// Statistics so far.
    pub(super) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Totals before the table was restored.
    pub(super) fn restored(&self) -> Totals {
        self.restored
    }

    /// Totals over the life of the table.
    pub(super) fn totals(&self) -> Totals {
        Totals {
            inserts: self.restored.inserts.saturating_add(self.statistics.inserts),
            samples: self.restored.samples.saturating_add(self.statistics.sample_ages.count()),
        }
    }

    /// Statistics, for events outside the state.
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

    /// True if items with foreign keys are possible.
    pub(super) fn has_foreign_keys(&self) -> bool {
        self.foreign_keys.may_be()
    }

    /// Knowledge about foreign keys, for the check of items.
    pub(super) fn foreign_keys_mut(&mut self) -> &mut ForeignKeys {
        &mut self.foreign_keys
    }

    pub(super) fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Rate limiter, to hold and to release it.
    pub(super) fn limiter_mut(&mut self) -> &mut RateLimiter {
        &mut self.limiter
    }

    pub(super) fn len(&self) -> usize {
        self.contents.items.len()
    }

    /// Part of the state that a reset discards, for snapshots.
    pub(super) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The items, read-only.
    pub(super) fn items(&self) -> &Items {
        &self.contents.items
    }

    /// When the key of an item came, as it is known to the scans that have begun since.
    pub(super) fn since_ns(&self, item: &Item) -> i64 {
        self.contents.replaced.since_ns(item)
    }

    /// `inserted_at_ns` of the newest item so far. Items inserted later have a larger one;
    /// transferred items may not.
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

    /// Removal priority of an item, if it has one.
    pub(super) fn removal_priority(&self, handle: Handle) -> Option<f64> {
        self.contents.removal_priority(handle)
    }

    /// Bytes and number of its chunks, and bytes of its items.
    pub(super) fn account(&self) -> &TableAccount {
        &self.contents.account
    }

    /// Account, to book changes or to move it.
    pub(super) fn account_mut(&mut self) -> &mut TableAccount {
        &mut self.contents.account
    }

    /// Updates the priority of an item, and its removal priority if there is a new one.
    fn update_at(&mut self, handle: Handle, priority: f64, new_removal_priority: Option<f64>) {
        let contents = &mut self.contents;
        let removal_priority = contents.removal_priority(handle);
        contents.largest_priority = contents.largest_priority.max(priority);
        let item = contents.items.get_mut(handle);
        record(&mut self.recording, Mutation::Changed, handle, item, removal_priority);
        item.set_priority(priority);
        contents.sampler.update(handle, priority);
        contents.update_sums(handle);
        if let Some(removal_priority) = new_removal_priority {
            contents.keep_removal_priority(handle, removal_priority);
            contents.remover.update(handle, removal_priority);
        } else if removal_priority.is_none() {
            contents.remover.update(handle, priority);
        }
    }

    fn delete_at(&mut self, handle: Handle, reason: Removal) {
        let item = self.remove_at(handle);
        self.statistics.removed.count(reason, item.times_sampled);
        if self.contents.rollouts.is_some() {
            self.forget(item.key, reason);
        }
        self.garbage.push(item.trajectory);
    }

    /// Takes an item out of the items and the selectors, and counts it as a delete.
    fn remove_at(&mut self, handle: Handle) -> StoredItem {
        let contents = &mut self.contents;
        let item = contents.items.remove(handle);
        contents.replaced.forget(item.key());
        let removal_priority = contents.removal_priority(handle);
        record(&mut self.recording, Mutation::Removed, handle, &item, removal_priority);
        if removal_priority.is_some() {
            contents.removal_priorities.remove(&handle);
            contents.account.remove_bytes(REMOVAL_BYTES);
        }
        if let Some(counts) = &mut contents.step_counts {
            counts.set(handle, 0);
        }
        contents.sampler.remove(handle);
        contents.update_sums(handle);
        contents.remover.remove(handle);
        let item = item.into_stored(removal_priority);
        contents.episodes.remove(&item.trajectory);
        contents.account.remove(&item.trajectory, contents.item_bytes);
        self.limiter.count_delete();
        item
    }
}
