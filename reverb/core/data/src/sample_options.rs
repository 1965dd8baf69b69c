// SPDX-License-Identifier: Apache-2.0
//! Options of a sample request.

use crate::stacking::Stacking;

/// Options of a sample request. The default requires nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleOptions {
    /// Batches into which the reader stacks the items, if it does.
    pub stacking: Option<Stacking>,
    /// True if the request gets all its items or an error, after which none counts as sampled.
    pub all_or_nothing: bool,
    /// True if no item may come twice in the request. Implies `all_or_nothing`.
    pub distinct: bool,
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
