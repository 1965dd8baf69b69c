// SPDX-License-Identifier: Apache-2.0
//! Sampling of windows: items without one are drawn again, and each window is a random one of its
//! item.
//!
//! Item `i` with the probability `p_i` and `n_i` windows: a window of it has the probability
//! `p_i / n_i / S`, where `S` is the sum over the items that have windows. A sampler that is
//! uniform over steps draws an item again with the probability that a step of it is no anchor, so
//! that each window of the table has the same probability.
//!
//! Nothing is counted before all of it is drawn. Where few items have the window, they are chosen
//! by sums of their weights ([`super::super::window_sums`]). A request that needs sums which are
//! not there yet takes nothing: it waits while they are made, in pieces and beside others.

use rand::Rng;
use reverb_base::Error;
use reverb_data::step_window::different_lengths;
use reverb_data::{SampledWindow, StepWindow};

use super::{Batch, Contents, TableState};
use crate::selector::{Handle, Pick};
use crate::table::step_counts::COUNTED_AT_ONCE;

/// Number of draws of a request that may find no window, before it needs the sums.
const TRIES: usize = 64;

/// Items that have a window, for a sampler whose weights all change with every insert.
#[derive(Default)]
pub(super) struct Listed {
    /// Each with its weight.
    pub(super) items: Vec<(Handle, f64)>,
    /// Sum of the weights up to each item.
    sums: Vec<f64>,
}

/// The few items that have a window.
enum Few {
    /// By the latest sums.
    Summed,
    Listed(Listed),
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

    /// True while a request waits for sums.
    pub(in crate::table) fn has_pieces(&self) -> bool {
        let Contents { step_counts, sampler, .. } = &self.contents;
        step_counts.as_ref().is_some_and(|counts| counts.is_summing(sampler))
    }

    /// Does some of that work; to be called until there is no more.
    pub(in crate::table) fn do_piece(&mut self) {
        let Contents { step_counts, sampler, .. } = &mut self.contents;
        if let Some(counts) = step_counts {
            counts.sum_more(sampler);
        }
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
        let Contents { step_counts, sampler, .. } = &mut self.contents;
        let counts = step_counts.get_or_insert_default();
        if counts.num_windows(window) > 0 {
            return !counts.is_summing_for(window, sampler);
        }
        self.refuse_if_hopeless(window, batch);
        false
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

    /// False if no item that may be sampled has a window.
    pub(in crate::table) fn has_window(&self, window: StepWindow) -> bool {
        let Contents { step_counts, sampler, .. } = &self.contents;
        step_counts.as_ref().is_some_and(|counts| {
            counts.num_windows(window) > 0
                && counts.mass(window, sampler).is_none_or(|mass| mass > 0.0)
        })
    }

    /// Sentence about a table without a window.
    pub(in crate::table) fn no_window(&self, window: StepWindow) -> String {
        let longest = self.contents.step_counts.as_ref().map_or(0, |counts| counts.longest());
        if longest == 0
            && let Some(error) =
                self.contents.items.piece(0, COUNTED_AT_ONCE).find_map(|(_, item)| {
                    different_lengths(item.key(), &item.trajectory(), &self.column_names)
                })
        {
            return error.message().to_owned();
        }
        format!(
            "No item of table {} has a {}; the longest has {longest}.",
            self.name,
            window.description()
        )
    }

    /// Picks items that have a window, as often as the sampler would pick any. Fewer, and
    /// `batch.refusal`, if the next item of an ordered sampler has none; none if no item with a
    /// window has weight, or if the request has to wait for sums.
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
        let mut few = None;
        let mut tries = 0;
        for at in first..picks.len() {
            while !self.accepts(window, picks[at].handle) {
                tries += 1;
                if tries <= TRIES {
                    // The sampler is not empty: it adds one at the end.
                    self.contents.sampler.pick_many(&mut self.rng, 1, picks);
                    picks.swap_remove(at);
                    continue;
                }
                if few.is_none() {
                    few = self.few(window);
                }
                let Some(redrawn) = few.as_ref().map(|few| self.pick_of(few)) else {
                    picks.truncate(first);
                    return;
                };
                let Some(redrawn) = redrawn else {
                    picks.truncate(first);
                    self.refuse_if_hopeless(window, batch);
                    return;
                };
                picks[at] = redrawn;
                break;
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
                window.description(),
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

    /// The few items that have the window; none if the request has to wait for their sums.
    fn few(&mut self, window: StepWindow) -> Option<Few> {
        if !self.contents.sampler.has_own_weights() {
            return Some(Few::Listed(self.list(window)));
        }
        self.has_sums(window).then_some(Few::Summed)
    }

    /// Returns true if the sums for a window are there. Begins to make them otherwise.
    pub(super) fn has_sums(&mut self, window: StepWindow) -> bool {
        let Contents { step_counts, sampler, .. } = &mut self.contents;
        step_counts.get_or_insert_default().need_sums(window, sampler)
    }

    /// Lists the items that have a window, where the sampler has no own weights.
    pub(super) fn list(&self, window: StepWindow) -> Listed {
        let mut listed = Listed::default();
        let mut sum = 0.0;
        let Some(counts) = &self.contents.step_counts else { return listed };
        for (handle, _) in counts.with_windows(window) {
            let weight = self.contents.sampler.probability_of(handle);
            if weight > 0.0 {
                sum += weight;
                listed.items.push((handle, weight));
                listed.sums.push(sum);
            }
        }
        listed
    }

    fn pick_of(&mut self, few: &Few) -> Option<Pick> {
        let handle = match few {
            Few::Summed => self.find_summed(|_| true),
            Few::Listed(listed) => {
                let &total = listed.sums.last()?;
                let point = self.rng.random::<f64>() * total;
                let at = listed.sums.partition_point(|&sum| sum <= point);
                Some(listed.items[at.min(listed.items.len() - 1)].0)
            }
        };
        handle.map(|handle| self.pick_at(handle))
    }

    /// Chooses an item by the latest sums, among those that `counts` leaves in.
    pub(super) fn find_summed(&mut self, counts: impl Fn(Handle) -> bool) -> Option<Handle> {
        let Contents { step_counts, sampler, .. } = &mut self.contents;
        let (sums, steps) = step_counts.as_mut()?.latest_sums();
        let total = sums.total();
        let point = (total > 0.0).then(|| self.rng.random::<f64>() * total)?;
        sums.find(point, steps, sampler, counts)
    }

    /// The choice of an item that was found by its window.
    pub(super) fn pick_at(&self, handle: Handle) -> Pick {
        Pick { handle, probability: self.contents.sampler.probability_of(handle), epoch: 0 }
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
