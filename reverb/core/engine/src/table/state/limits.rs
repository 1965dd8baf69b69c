// SPDX-License-Identifier: Apache-2.0
//! Limits of a table in items and bytes: checks, evictions, and changes of the limits.

use std::sync::Arc;
use std::time::Instant;

use reverb_data::{MemoryConfig, NewItem, StoredItem, TableConfig, Trajectory, WhenFull};

use super::{Contents, REMOVAL_BYTES, TableState};
use crate::selector::Handle;
use crate::table::items::AllItems;
use crate::table::statistics::Removal;

/// Number of items that one insert evicts. The rest is evicted under further locks, before the next
/// insert: an item may be as large as thousands of others.
const EVICTED_AT_ONCE: usize = if cfg!(test) { 2 } else { 512 };

impl TableState {
    /// True if the bytes of an item have room now.
    pub(in crate::table) fn has_room_for(&self, item: &NewItem) -> bool {
        let freed = || {
            let handle = self.contents.items.find(item.key)?;
            // A new priority takes no room.
            Some(if item.replaces { self.would_free(handle) } else { u64::MAX })
        };
        self.has_room_for_trajectory(&item.trajectory, item.removal_priority, 0)
            || freed().is_some_and(|freed| {
                self.has_room_for_trajectory(&item.trajectory, item.removal_priority, freed)
            })
    }

    /// Bytes that the table has fewer without this item.
    fn would_free(&self, handle: Handle) -> u64 {
        let Contents { items, account, item_bytes, .. } = &self.contents;
        let removal_bytes = self.contents.removal_priority(handle).map_or(0, |_| REMOVAL_BYTES);
        account.would_remove(&items.get(handle).trajectory(), item_bytes + removal_bytes)
    }

    /// True if an item with a new key may be added.
    pub(in crate::table) fn has_room_for_stored(&self, item: &StoredItem) -> bool {
        self.has_room_for_trajectory(&item.trajectory, item.removal_priority, 0)
    }

    /// True if these bytes have room when the table has freed others.
    fn has_room_for_trajectory(
        &self,
        trajectory: &Trajectory,
        removal_priority: Option<f64>,
        freed: u64,
    ) -> bool {
        let MemoryConfig { max_bytes: Some(max_bytes), when_full: WhenFull::Wait } = self.memory
        else {
            return true;
        };
        let Contents { account, item_bytes, .. } = &self.contents;
        let item_bytes = item_bytes + removal_priority.map_or(0, |_| REMOVAL_BYTES);
        // Items that are there need room to grow.
        let limit = if self.contents.rollouts.is_some() { max_bytes / 4 * 3 } else { max_bytes };
        let bytes = account.bytes() + account.would_add(trajectory, item_bytes);
        bytes.saturating_sub(freed) <= limit
    }

    /// Reason why an item has to leave, if any.
    fn is_too_large(&self) -> Option<Removal> {
        let has_too_many_bytes = || match self.memory {
            MemoryConfig { max_bytes: Some(max_bytes), when_full: WhenFull::Remove } => {
                self.contents.account.bytes() > max_bytes
            }
            _ => false,
        };
        if self.num_present() > self.max_size {
            return Some(Removal::Full);
        }
        has_too_many_bytes().then_some(Removal::Bytes)
    }

    /// Evicts items until the table is within its limits, or has to continue under another lock.
    pub(in crate::table) fn evict_surplus(&mut self) {
        // The new item may be selected too: a Lifo remover evicts it at once.
        let mut left = EVICTED_AT_ONCE;
        while let Some(reason) = self.is_too_large() {
            if left == 0 || !self.evict(reason) {
                self.has_surplus = left == 0;
                return;
            }
            left -= 1;
        }
        self.has_surplus = false;
    }

    /// True if [`Self::evict_surplus`] has more to do.
    pub(in crate::table) fn has_surplus(&self) -> bool {
        self.has_surplus
    }

    /// Changes the settings, which must be valid. A table that is too large may not grow;
    /// [`Self::shrink`] removes the surplus.
    pub(in crate::table) fn configure(&mut self, config: &TableConfig) {
        self.max_times_sampled = config.max_times_sampled;
        self.contents.sampler.configure(&config.sampler);
        self.contents.items.set_limit(config.max_size as usize + 1);
        self.limit_to_what_is_there(config);
        if let (Some(rollouts), Some(settings)) = (self.rollouts_mut(), &config.rollouts)
            && rollouts.settings() != settings
        {
            rollouts.configure(Arc::clone(settings), Instant::now());
        }
        if *self.limiter.config() != config.rate_limiter {
            self.limiter.configure(config.rate_limiter);
        }
    }

    /// Evicts at most `max_items` surplus items after a change. Returns true if none is left.
    pub(in crate::table) fn shrink(&mut self, config: &TableConfig, max_items: usize) -> bool {
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
        if is_done {
            // Removed items, and items that may be sampled less often now.
            self.count_impossible_samples(config.max_times_sampled);
        }
        is_done
    }

    /// Counts samples as taken that the limiter allows and no item does, because items are gone
    /// that were not sampled as often as they may be. Otherwise inserts would wait for these
    /// samples for ever.
    ///
    /// Walks through all items, unless they are sampled once.
    pub(in crate::table) fn count_impossible_samples(&mut self, max_times_sampled: i32) {
        if !self.limiter.bounds().has_min() {
            return;
        }
        let left = match i64::from(max_times_sampled) {
            ..1 => return,
            1 => self.len() as i64,
            limit => {
                let items = self.contents.items.all(AllItems::SamplesLeft);
                // Every item allows at least one more sample, with which it leaves.
                items.map(|(_, item)| (limit - i64::from(item.times_sampled())).max(1)).sum()
            }
        };
        self.limiter.limit_to(left);
    }

    /// Sets the limits in force: the settings, or the present size if that is larger.
    fn limit_to_what_is_there(&mut self, config: &TableConfig) {
        let MemoryConfig { max_bytes, when_full } = config.memory;
        self.max_size = self.len().max(config.max_size as usize);
        let in_use = match when_full {
            WhenFull::Remove => self.account().bytes(),
            WhenFull::Wait => 0,
        };
        self.has_surplus = false;
        self.memory =
            MemoryConfig { max_bytes: max_bytes.map(|limit| limit.max(in_use)), when_full };
    }
}
