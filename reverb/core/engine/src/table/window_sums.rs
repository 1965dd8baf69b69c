// SPDX-License-Identifier: Apache-2.0
//! Sums of the weights of the items that have a certain window, where few of them have it.

use reverb_data::StepWindow;

use super::visits;
use crate::selector::{Handle, Selector};
use crate::sum_tree::{Descent, SumTree};

/// Number of adjacent handles with one sum.
const GROUP: usize = 16;

/// Number of handles that are summed under one lock; few in tests, so that there are many pieces.
const SUMMED_AT_ONCE: usize = if cfg!(test) { 2 * GROUP } else { 8192 };

/// Sums of weights by group of handles: half a byte an item. They are made beside other requests,
/// and follow every change from the beginning.
#[derive(Debug)]
pub(super) struct WindowSums {
    pub(super) window: StepWindow,
    sums: SumTree,
    /// Number of handles that were summed; later ones are left out of changes.
    num_summed: usize,
    is_complete: bool,
    /// Version of the sampler's weights.
    version: u64,
}

impl WindowSums {
    pub(super) fn new(window: StepWindow, sampler: &Selector) -> Self {
        let version = sampler.weights_version();
        Self { window, sums: SumTree::new(), num_summed: 0, is_complete: false, version }
    }

    /// True if they are made of the present weights of all items.
    pub(super) fn is_complete(&self, sampler: &Selector) -> bool {
        self.is_complete && self.version == sampler.weights_version()
    }

    /// Sum of the weights.
    pub(super) fn total(&self) -> f64 {
        self.sums.total()
    }

    /// Sums the weights of the next handles.
    pub(super) fn sum_more(&mut self, steps: &[u32], sampler: &Selector) {
        if self.version != sampler.weights_version() {
            *self = Self::new(self.window, sampler);
        }
        let end = self.num_summed + SUMMED_AT_ONCE;
        for group in self.num_summed / GROUP..end.min(steps.len()).div_ceil(GROUP) {
            self.sums.set(group, self.sum_of(group, steps, sampler, |_| true));
        }
        self.num_summed = end;
        self.is_complete = end >= steps.len();
    }

    /// Updates the sums after a change of an item, without those that `counts` leaves out.
    pub(super) fn update(
        &mut self,
        handle: Handle,
        steps: &[u32],
        sampler: &Selector,
        counts: impl Fn(Handle) -> bool,
    ) {
        if self.is_complete || (handle as usize) < self.num_summed {
            let group = handle as usize / GROUP;
            self.sums.set(group, self.sum_of(group, steps, sampler, counts));
        }
    }

    /// The item whose span contains a point below the total; none if all weights are 0.
    pub(super) fn find(
        &self,
        point: f64,
        steps: &[u32],
        sampler: &Selector,
        counts: impl Fn(Handle) -> bool,
    ) -> Option<Handle> {
        let mut points = [Descent::from(point)];
        self.sums.find(&mut points);
        let [Descent { mut rest, index }] = points;
        let mut last = None;
        for (handle, weight) in self.weights(index, steps, sampler, counts) {
            last = Some(handle);
            if rest < weight {
                break;
            }
            rest -= weight;
        }
        // Rounding may have moved the point past the end.
        last
    }

    fn sum_of(
        &self,
        group: usize,
        steps: &[u32],
        sampler: &Selector,
        counts: impl Fn(Handle) -> bool,
    ) -> f64 {
        self.weights(group, steps, sampler, counts).map(|(_, weight)| weight).sum()
    }

    /// Items of a group that have the window and a weight.
    fn weights(
        &self,
        group: usize,
        steps: &[u32],
        sampler: &Selector,
        counts: impl Fn(Handle) -> bool,
    ) -> impl Iterator<Item = (Handle, f64)> {
        visits::count(GROUP);
        let begin = (group * GROUP).min(steps.len());
        let end = (begin + GROUP).min(steps.len());
        let items = (begin as Handle..).zip(&steps[begin..end]);
        items.filter_map(move |(handle, &steps)| {
            let num_windows = self.window.count(steps);
            if num_windows == 0 || !counts(handle) {
                return None;
            }
            let weight = sampler.weight_for_windows(handle, num_windows);
            (weight > 0.0).then_some((handle, weight))
        })
    }
}
