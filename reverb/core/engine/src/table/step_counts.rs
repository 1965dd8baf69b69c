// SPDX-License-Identifier: Apache-2.0
//! Numbers of steps of the items of a table, and of the windows in them.

use reverb_data::StepWindow;

use super::items::Items;
use super::lengths::Lengths;
use super::visits;
use super::window_sums::WindowSums;
use crate::selector::{Handle, Selector};

/// Number of rare windows whose sums are kept up.
const MAX_SUMS: usize = 4;

/// Number of entries that are counted under one lock.
pub(super) const COUNTED_AT_ONCE: usize = 512;

/// The number of steps of each item from which windows can be cut, by handle; 0 for none.
///
/// A table makes it at the first request for a window, beside other requests, and keeps it from
/// then on. Others have none.
#[derive(Debug, Default)]
pub(super) struct StepCounts {
    counts: Vec<u32>,
    lengths: Lengths,
    /// Number of entries of the table that were counted; all of them once `is_complete`.
    num_counted: usize,
    is_complete: bool,
    /// Sums for the rare windows that were asked for last, the latest first.
    sums: Vec<WindowSums>,
}

impl StepCounts {
    /// Counts of a table without items.
    pub(super) fn of_no_items() -> Self {
        Self { is_complete: true, ..Self::default() }
    }

    /// True if all items are counted.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Counts some of the items that were there before.
    pub(super) fn count_more(&mut self, items: &Items) {
        let begin = self.num_counted;
        self.num_counted = begin + COUNTED_AT_ONCE;
        for (handle, item) in items.piece(begin, COUNTED_AT_ONCE) {
            self.set(handle, item.step_count().common);
        }
        self.is_complete = self.num_counted >= items.num_entries();
    }

    /// Sets the number of steps of an item; 0 for one that was removed.
    pub(super) fn set(&mut self, handle: Handle, steps: u32) {
        let at = handle as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        let before = std::mem::replace(&mut self.counts[at], steps);
        if before > 0 {
            self.lengths.remove(before);
        }
        if steps > 0 {
            self.lengths.add(steps);
        }
    }

    /// Updates the sums after a change of the steps or the weight of an item.
    pub(super) fn update_sums(&mut self, handle: Handle, sampler: &Selector) {
        for sums in &mut self.sums {
            sums.update(handle, &self.counts, sampler, |_| true);
        }
    }

    /// Number of steps of an item.
    pub(super) fn get(&self, handle: Handle) -> u32 {
        self.counts.get(handle as usize).copied().unwrap_or(0)
    }

    /// Number of windows in all items.
    pub(super) fn num_windows(&self, window: StepWindow) -> u64 {
        self.lengths.num_windows(window)
    }

    /// Number of steps of the longest item; one of more than 65,536 counts as that long.
    pub(super) fn longest(&self) -> u32 {
        self.lengths.longest()
    }

    /// True while sums are being made.
    pub(super) fn is_summing(&self, sampler: &Selector) -> bool {
        self.sums.first().is_some_and(|sums| !sums.is_complete(sampler))
    }

    /// True while the sums for this window are being made.
    pub(super) fn is_summing_for(&self, window: StepWindow, sampler: &Selector) -> bool {
        self.sums.first().is_some_and(|sums| sums.window == window && !sums.is_complete(sampler))
    }

    /// Continues to make sums.
    pub(super) fn sum_more(&mut self, sampler: &Selector) {
        if let Some(sums) = self.sums.first_mut() {
            sums.sum_more(&self.counts, sampler);
        }
    }

    /// Sum of the weights of the items that have a window, if it is known.
    pub(super) fn mass(&self, window: StepWindow, sampler: &Selector) -> Option<f64> {
        let known =
            self.sums.iter().find(|sums| sums.window == window && sums.is_complete(sampler));
        known.map(WindowSums::total)
    }

    /// Makes the sums for a window the latest, and begins to make them unless they are known.
    /// Returns true if they are.
    pub(super) fn need_sums(&mut self, window: StepWindow, sampler: &Selector) -> bool {
        if let Some(at) = self.sums.iter().position(|sums| sums.window == window) {
            self.sums[..=at].rotate_right(1);
        } else {
            self.sums.truncate(MAX_SUMS - 1);
            self.sums.insert(0, WindowSums::new(window, sampler));
        }
        self.sums[0].is_complete(sampler)
    }

    /// The latest sums, which are complete, and the numbers of steps that they need.
    pub(super) fn latest_sums(&mut self) -> (&mut WindowSums, &[u32]) {
        (&mut self.sums[0], &self.counts)
    }

    /// Items that have a window, with their number of them.
    pub(super) fn with_windows(
        &self,
        window: StepWindow,
    ) -> impl Iterator<Item = (Handle, u32)> + use<'_> {
        visits::count(self.counts.len());
        let counts = (0..).zip(&self.counts).map(move |(at, &steps)| (at, window.count(steps)));
        counts.filter(|&(_, count)| count > 0)
    }
}
