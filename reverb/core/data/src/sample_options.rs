// SPDX-License-Identifier: Apache-2.0
//! Options of a sample request.

use std::time::Instant;

use crate::item::Sampled;
use crate::stacking::Stacking;
use crate::step_window::StepWindow;

/// The epoch that a request samples from, where the sampler makes passes over the whole table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithinEpoch {
    /// A new one, unless no item of the present one was sampled yet.
    New,
    /// The present one if its number is at most this, or the next one if that is. Otherwise the
    /// request ends.
    UpTo(i64),
}

/// Options of a sample request. The default requires nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleOptions {
    /// Batches into which the reader stacks the items, if it does.
    pub stacking: Option<Stacking>,
    /// True if the request gets all its items or an error, after which none counts as sampled.
    pub all_or_nothing: bool,
    /// True if no item may come twice in the request. Implies `all_or_nothing`.
    pub distinct: bool,
    /// If set, the request ends with the epoch, perhaps without any item. Its items must not be
    /// required to be complete or distinct: they are distinct within an epoch.
    pub epoch: Option<WithinEpoch>,
    /// If set, each sample is a window of an item's steps, and items without one are not sampled.
    pub window: Option<StepWindow>,
    /// Begin of the reader's wait for its next item, if an earlier request has timed out and this
    /// one continues the wait.
    pub waits_since: Option<Instant>,
}

impl SampleOptions {
    /// Options of a reader that stacks the items into batches.
    pub fn stacked(stacking: Stacking) -> Self {
        Self { stacking: Some(stacking), ..Self::default() }
    }

    /// Sets the options that others imply.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { all_or_nothing: self.all_or_nothing || self.distinct, ..self }
    }

    /// Options for the rest of a request, after its first `count` items.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        Self { stacking: self.stacking.map(|stacking| stacking.after(count)), ..self }
    }

    /// Options for the rest of a request after these items: the rest is of the same epoch, and its
    /// wait is a new one.
    #[must_use]
    pub fn after_items(self, samples: &[Sampled]) -> Self {
        let mut options = self.after(samples.len());
        options.waits_since = None;
        options.note_epoch(samples);
        options
    }

    /// Restricts the rest of a request to the epoch of its last items.
    pub fn note_epoch(&mut self, samples: &[Sampled]) {
        if let (Some(within), Some(last)) = (&mut self.epoch, samples.last()) {
            *within = WithinEpoch::UpTo(last.epoch);
        }
    }

    /// Options for the rest of a request, if its last `count` items are asked for again.
    #[must_use]
    pub fn before(self, count: usize) -> Self {
        Self { stacking: self.stacking.map(|stacking| stacking.before(count)), ..self }
    }

    /// Number of items of a request of `count` that are sampled under one lock; `several` if the
    /// options do not require more.
    pub fn at_once(self, several: usize, count: usize) -> usize {
        if self.all_or_nothing || self.distinct {
            return count;
        }
        several.max(self.stacking.map_or(0, Stacking::missing)).min(count)
    }
}
