// SPDX-License-Identifier: Apache-2.0
//! Numbers of steps of the items of a table, and of the windows in them.

use reverb_data::StepWindow;

use super::items::Items;
use crate::selector::Handle;

/// Number of windows whose sums are kept up. A request for another one visits all items once.
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
    /// Number of entries of the table that were counted; all of them once `is_complete`.
    num_counted: usize,
    is_complete: bool,
    /// Windows that were asked for, the latest first, with their number in all items.
    sums: Vec<(StepWindow, u64)>,
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
        let entries = self.num_counted..self.num_counted + COUNTED_AT_ONCE;
        self.num_counted = entries.end;
        for (handle, item) in items.in_entries(entries) {
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
        for (window, sum) in &mut self.sums {
            *sum = *sum + u64::from(window.count(steps)) - u64::from(window.count(before));
        }
    }

    /// Number of steps of an item.
    pub(super) fn get(&self, handle: Handle) -> u32 {
        self.counts.get(handle as usize).copied().unwrap_or(0)
    }

    /// Number of windows in all items.
    pub(super) fn num_windows(&mut self, window: StepWindow) -> u64 {
        match self.sums.iter().position(|(known, _)| *known == window) {
            Some(0) => {}
            Some(at) => self.sums[..=at].rotate_right(1),
            None => {
                self.sums.truncate(MAX_SUMS - 1);
                let counts = self.counts.iter().map(|&steps| u64::from(window.count(steps)));
                self.sums.insert(0, (window, counts.sum()));
            }
        }
        self.sums[0].1
    }

    /// Number of steps of the longest item.
    pub(super) fn longest(&self) -> u32 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// Items that have a window, with their number of them.
    pub(super) fn with_windows(
        &self,
        window: StepWindow,
    ) -> impl Iterator<Item = (Handle, u32)> + use<'_> {
        let counts = (0..).zip(&self.counts).map(move |(at, &steps)| (at, window.count(steps)));
        counts.filter(|&(_, count)| count > 0)
    }
}
