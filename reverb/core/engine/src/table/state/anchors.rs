// SPDX-License-Identifier: Apache-2.0
//! Sampling of windows: items without one are drawn again, and each window is a random one of its
//! item.
//!
//! Item `i` with the probability `p_i` and `n_i` windows: a window of it has the probability
//! `p_i / n_i / S`, where `S` is the sum over the items that have windows. A sampler that is
//! uniform over steps draws an item again with the probability that a step of it is no anchor, so
//! that each window of the table has the same probability.
//!
//! Nothing is counted before all of it is drawn.

use rand::Rng;
use reverb_data::step_window::different_lengths;
use reverb_data::{Error, SampledWindow, StepWindow};

use super::{Batch, TableState};
use crate::selector::{Handle, Pick};

/// Number of draws of a request that may find no window, before the items that have one are listed.
const TRIES: usize = 64;

/// Items that have a window and a weight.
#[derive(Default)]
pub(super) struct Listed {
    /// Each with its weight.
    pub(super) items: Vec<(Handle, f64)>,
    /// Sum of the weights up to each item.
    sums: Vec<f64>,
}

impl TableState {
    /// True if windows can be cut out of all items without visiting them first.
    pub(in crate::table) fn knows_steps(&self) -> bool {
        self.contents.step_counts.as_ref().is_some_and(|counts| counts.is_complete())
    }

    /// Counts the steps of some items; to be called until `knows_steps`.
    pub(in crate::table) fn count_steps(&mut self) {
        let contents = &mut self.contents;
        contents.step_counts.get_or_insert_default().count_more(&contents.items);
    }

    pub(super) fn num_windows_of(&self, window: StepWindow, handle: Handle) -> u32 {
        window.count(self.contents.steps_of(handle))
    }

    /// True if there may be a window to sample. If there is none and never will be,
    /// `batch.refusal` has the reason.
    pub(super) fn may_have_window(&mut self, window: StepWindow, batch: &mut Batch) -> bool {
        if self.contents.sampler.is_ordered() || !self.limiter.can_sample(1) {
            return true;
        }
        let num_windows = self.contents.step_counts.get_or_insert_default().num_windows(window);
        if num_windows == 0 {
            self.refuse_if_hopeless(window, batch);
        }
        num_windows > 0
    }

    /// Sets the refusal of a request for a window, if no insert will ever bring one.
    fn refuse_if_hopeless(&self, window: StepWindow, batch: &mut Batch) {
        let why = if self.len() >= self.max_size {
            "The table is full"
        } else if !self.limiter.can_insert(1) {
            "Inserts wait until items were sampled"
        } else {
            return;
        };
        let error = Error::invalid_argument(format!(
            "{} {why}. Ask for a shorter window or for padding, or store longer items.",
            self.no_window(window)
        ));
        batch.refusal = Some(error.without_window());
    }

    /// True if an item that may be sampled has a window.
    pub(in crate::table) fn has_window(&self, window: StepWindow) -> bool {
        !self.list(window).items.is_empty()
    }

    /// Sentence about a table without a window.
    pub(in crate::table) fn no_window(&self, window: StepWindow) -> String {
        let longest = self.contents.step_counts.as_ref().map_or(0, |counts| counts.longest());
        if longest == 0
            && let Some(error) =
                self.contents.items.in_entries(0..self.contents.items.num_entries()).find_map(
                    |(_, item)| {
                        different_lengths(item.key(), &item.trajectory(), &self.column_names)
                    },
                )
        {
            return error.message().to_owned();
        }
        format!(
            "No item of table {} has a {}; the longest has {longest}.",
            self.name,
            window.told()
        )
    }

    /// Picks items that have a window, as often as the sampler would pick any. Fewer, and
    /// `batch.refusal`, if the next item of an ordered sampler has none; none if no item with a
    /// window has weight.
    pub(super) fn pick_windows(
        &mut self,
        window: StepWindow,
        count: usize,
        batch: &mut Batch,
        picks: &mut Vec<Pick>,
    ) {
        let first = picks.len();
        self.contents.sampler.pick_many(&mut self.rng, count, picks);
        if self.contents.sampler.is_ordered() {
            return self.stop_before_short_item(window, batch, picks);
        }
        let mut listed = None;
        let mut tries = 0;
        for at in first..picks.len() {
            while !self.accepts(window, picks[at].handle) {
                tries += 1;
                let redrawn = if tries <= TRIES {
                    // The sampler is not empty: it adds one at the end.
                    self.contents.sampler.pick_many(&mut self.rng, 1, picks);
                    picks.pop()
                } else {
                    let listed = listed.get_or_insert_with(|| self.list(window));
                    self.pick_listed(listed)
                };
                let Some(redrawn) = redrawn else {
                    picks.truncate(first);
                    self.refuse_if_hopeless(window, batch);
                    return;
                };
                picks[at] = redrawn;
                if tries > TRIES {
                    break;
                }
            }
        }
        self.set_window_probabilities(window, &mut picks[first..]);
    }

    /// Sets the probabilities of items that were chosen for their windows, if the sampler is
    /// uniform over steps: its own ones are those before items were drawn again.
    pub(super) fn set_window_probabilities(&mut self, window: StepWindow, picks: &mut [Pick]) {
        if !self.contents.sampler.is_over_steps() {
            return;
        }
        let counts = self.contents.step_counts.get_or_insert_default();
        let num_windows = counts.num_windows(window);
        for pick in picks {
            let count = window.count(counts.get(pick.handle));
            pick.probability = f64::from(count) / num_windows as f64;
        }
    }

    /// Takes picks back from the first item on that has no window.
    fn stop_before_short_item(
        &mut self,
        window: StepWindow,
        batch: &mut Batch,
        picks: &mut Vec<Pick>,
    ) {
        let is_short = |pick: &Pick| self.num_windows_of(window, pick.handle) == 0;
        let Some(at) = picks.iter().position(is_short) else { return };
        batch.refusal = Some(self.is_short(window, picks[at].handle));
        for pick in picks.drain(at..).rev() {
            self.contents.sampler.unpick(pick);
        }
    }

    /// Error for an item of an ordered sampler.
    pub(super) fn is_short(&self, window: StepWindow, handle: Handle) -> Error {
        let item = self.contents.items.get(handle);
        different_lengths(item.key(), &item.trajectory(), &self.column_names).unwrap_or_else(|| {
            Error::invalid_argument(format!(
                "Item {}, the next of table {}, has no {}: it has {}. Ask for a shorter window or \
                 for padding, or choose a sampler that draws at random.",
                item.key(),
                self.name,
                window.told(),
                self.contents.steps_of(handle)
            ))
        })
    }

    /// True if the item is taken: it has a window and, if the sampler is uniform over steps, a
    /// random step of it is an anchor.
    pub(super) fn accepts(&mut self, window: StepWindow, handle: Handle) -> bool {
        let steps = self.contents.steps_of(handle);
        let count = window.count(steps);
        if !self.contents.sampler.is_over_steps() || count == 0 || count == steps {
            return count > 0;
        }
        self.rng.random_range(0..steps) < count
    }

    /// The weight of an item with this many windows.
    fn weight(&self, handle: Handle, num_windows: u32) -> f64 {
        if self.contents.sampler.is_over_steps() {
            f64::from(num_windows)
        } else {
            self.contents.sampler.probability_of(handle)
        }
    }

    pub(super) fn list(&self, window: StepWindow) -> Listed {
        let mut listed = Listed::default();
        let mut sum = 0.0;
        let Some(counts) = &self.contents.step_counts else { return listed };
        for (handle, count) in counts.with_windows(window) {
            let weight = self.weight(handle, count);
            if weight > 0.0 {
                sum += weight;
                listed.items.push((handle, weight));
                listed.sums.push(sum);
            }
        }
        listed
    }

    fn pick_listed(&mut self, listed: &Listed) -> Option<Pick> {
        let &total = listed.sums.last()?;
        let point = self.rng.random::<f64>() * total;
        let at = listed.sums.partition_point(|&sum| sum <= point).min(listed.items.len() - 1);
        let (handle, _) = listed.items[at];
        Some(Pick { handle, probability: self.contents.sampler.probability_of(handle), epoch: 0 })
    }

    /// A random window of an item.
    pub(super) fn draw_window(&mut self, window: StepWindow, handle: Handle) -> SampledWindow {
        let count = self.num_windows_of(window, handle);
        debug_assert!(count > 0, "items without a window are not taken");
        let anchor = window.first_anchor() + self.rng.random_range(0..count.max(1));
        SampledWindow { start: anchor as i32 - window.before as i32, count }
    }
}

#[cfg(test)]
mod tests;
