// SPDX-License-Identifier: Apache-2.0
//! What a reader asks of the items of a request, beside their number.

use crate::stacking::Stacking;

/// What a reader asks of the items of a request, beside their number. The default asks for nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleOptions {
    /// How the reader stacks the items into batches, if it does.
    pub stacking: Option<Stacking>,
    /// All items of the request or an error, after which none counts as sampled.
    pub all_or_nothing: bool,
    /// No item twice in the request, which implies `all_or_nothing`.
    pub distinct: bool,
}

impl SampleOptions {
    /// Of a reader that stacks the items into batches.
    pub fn stacked(stacking: Stacking) -> Self {
        Self { stacking: Some(stacking), ..Self::default() }
    }

    /// With what they imply.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { all_or_nothing: self.all_or_nothing || self.distinct, ..self }
    }

    /// For the rest of a request, after `count` items of it.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        Self { stacking: self.stacking.map(|stacking| stacking.after(count)), ..self }
    }

    /// For the rest of a request, as before its last `count` items.
    #[must_use]
    pub fn before(self, count: usize) -> Self {
        Self { stacking: self.stacking.map(|stacking| stacking.before(count)), ..self }
    }

    /// How many items of a request of `count` are sampled under one lock, if a table would give
    /// `several` at a time otherwise.
    pub fn at_once(self, several: usize, count: usize) -> usize {
        if self.all_or_nothing || self.distinct {
            return count;
        }
        several.max(self.stacking.map_or(0, Stacking::missing)).min(count)
    }
}
