// SPDX-License-Identifier: Apache-2.0
//! Contents of a table: its items, with the indexes over them.

use hashbrown::HashMap;
use reverb_data::{ServerAccount, StepCount, TableAccount, TableConfig, Trajectory};

use super::growing::GROWING_BYTES;
use crate::selector::{Handle, Largest, RestorePoint, Selector};
use crate::table::changes::Changes;
use crate::table::episodes::Episodes;
use crate::table::items::{self, AllItems, Items};
use crate::table::replaced::Replaced;
use crate::table::rollouts::Rollouts;
use crate::table::statistics::{Removal, Removed};
use crate::table::step_counts::StepCounts;

/// Bytes of a removal priority in its map: a handle, a number and a control byte, at a load of
/// about two thirds.
pub(in crate::table) const REMOVAL_BYTES: u64 = 26;

/// Part of the state that a reset discards.
#[derive(Debug)]
pub(in crate::table) struct Contents {
    pub(in crate::table) items: Items,
    pub(super) sampler: Selector,
    pub(super) remover: Selector,
    pub(super) episodes: Episodes,
    pub(super) num_unique_samples: i64,
    /// Numbers of steps, from the first request for a window on, or if the sampler goes by them.
    pub(super) step_counts: Option<Box<StepCounts>>,
    pub(in crate::table) replaced: Replaced,
    /// Removal priorities of items that have one.
    pub(super) removal_priorities: HashMap<Handle, f64>,
    /// Largest priority of any item since the table was empty, or since the beginning.
    pub(super) largest_priority: f64,
    pub(super) account: TableAccount,
    /// Bytes of an item besides its trajectory: its entry in the list, and those in indexes.
    pub(super) item_bytes: u64,
    /// Changes that no commit has, to be freed with the items.
    pub(super) uncommitted: Option<Changes>,
    /// Where each item is, in a table whose items have rollouts.
    pub(super) rollouts: Option<Box<Rollouts>>,
}

impl Contents {
    pub(super) fn new(config: &TableConfig, server: &ServerAccount) -> Self {
        let selector = if config.rollouts.is_some() { Selector::by_order } else { Selector::new };
        let sampler = selector(&config.sampler);
        let remover = selector(&config.remover);
        Self {
            // One more than `max_size`: an item is added before another one is evicted.
            items: Items::new(config.max_size as usize + 1),
            item_bytes: items::ITEM_BYTES + sampler.item_bytes() + remover.item_bytes(),
            step_counts: sampler.is_over_steps().then(|| Box::new(StepCounts::of_no_items())),
            sampler,
            remover,
            episodes: Episodes::default(),
            num_unique_samples: 0,
            replaced: Replaced::default(),
            removal_priorities: HashMap::new(),
            largest_priority: f64::NEG_INFINITY,
            account: TableAccount::open(server),
            uncommitted: None,
            rollouts: config.rollouts.clone().map(|settings| Box::new(Rollouts::new(settings))),
        }
    }

    /// Removal priority of an item, if it has one.
    pub(in crate::table) fn removal_priority(&self, handle: Handle) -> Option<f64> {
        if self.removal_priorities.is_empty() {
            return None;
        }
        self.removal_priorities.get(&handle).copied()
    }

    /// Stores the removal priority of an item, without telling the remover.
    pub(super) fn keep_removal_priority(&mut self, handle: Handle, priority: f64) {
        if self.removal_priorities.insert(handle, priority).is_none() {
            self.account.add_bytes(REMOVAL_BYTES);
        }
    }

    /// Number of steps of an item from which windows can be cut.
    pub(super) fn steps_of(&self, handle: Handle) -> u32 {
        self.step_counts.as_ref().map_or(0, |counts| counts.get(handle))
    }

    /// Numbers of steps of an item, if anything depends on them.
    pub(super) fn step_count(&self, trajectory: &Trajectory) -> Option<StepCount> {
        self.step_counts.as_ref().map(|_| StepCount::of(trajectory))
    }

    /// Adds a new item to the sampler.
    pub(super) fn add_to_sampler(
        &mut self,
        handle: Handle,
        steps: Option<StepCount>,
        priority: f64,
    ) {
        let weight = self.note_steps(handle, steps, priority);
        self.sampler.insert(handle, weight);
        self.update_sums(handle);
    }

    /// Puts an item back that was removed.
    pub(super) fn put_back_into_sampler(
        &mut self,
        handle: Handle,
        steps: Option<StepCount>,
        priority: f64,
        point: RestorePoint,
    ) {
        let weight = self.note_steps(handle, steps, priority);
        self.sampler.put_back(handle, weight, point);
        self.update_sums(handle);
    }

    /// Updates what depends on the steps or the weight of an item, after it came, changed or left.
    #[inline]
    pub(super) fn update_sums(&mut self, handle: Handle) {
        if let Some(counts) = &mut self.step_counts {
            counts.update_sums(handle, &self.sampler);
        }
    }

    /// Stores the number of steps of an item, and returns what the sampler weighs it by.
    #[inline]
    fn note_steps(&mut self, handle: Handle, steps: Option<StepCount>, priority: f64) -> f64 {
        let (Some(counts), Some(steps)) = (&mut self.step_counts, steps) else { return priority };
        counts.set(handle, steps.common);
        if self.sampler.is_over_steps() { f64::from(steps.longest) } else { priority }
    }

    /// Largest priority of the present items. Removed items count too if the sampler has no
    /// weights, or has exponent 0.
    pub(super) fn largest_present(&self) -> Option<f64> {
        if self.items.len() == 0 {
            return None;
        }
        Some(match self.sampler.largest() {
            Largest::Item(handle) => self.items.get(handle).priority(),
            Largest::Zero => 0.0,
            Largest::Unknown => self.largest_priority,
        })
    }

    /// All items, counted as removed by a reset. Visits every item.
    pub(in crate::table) fn as_removed(&self) -> Removed {
        let mut removed = Removed::default();
        for (_, item) in self.items.all(AllItems::OutsideTheLock) {
            removed.count(Removal::Reset, item.times_sampled());
        }
        for item in self.rollouts.iter().flat_map(|rollouts| rollouts.kept().items.values()) {
            if !item.is_in_items() {
                removed.count(Removal::Reset, item.values.times_sampled);
            }
        }
        removed
    }
}

impl Drop for Contents {
    /// Chunks may live on elsewhere, so they must not refer to this table's account any more.
    fn drop(&mut self) {
        for (_, item) in self.items.all(AllItems::OutsideTheLock) {
            self.account.remove(&item.trajectory(), self.item_bytes);
        }
        if let Some(rollouts) = &self.rollouts {
            rollouts.trajectories().for_each(|aside| self.account.remove(aside, 0));
            self.account.remove_bytes(rollouts.len() as u64 * GROWING_BYTES);
        }
        self.account.remove_bytes(self.removal_priorities.len() as u64 * REMOVAL_BYTES);
    }
}
