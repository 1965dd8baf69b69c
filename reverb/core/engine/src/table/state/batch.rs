// SPDX-License-Identifier: Apache-2.0
//! Batch: the items of one sample request, and its end.

use reverb_base::{Error, Result};
use reverb_data::{SampleOptions, Sampled, StepWindow, keep_samples, spare_samples};

/// A sample request is full when the chunks of its items reach this many bytes.
pub const MAX_SAMPLE_BYTES: usize = 1024 * 1024;

/// Maximum number of items of one sample request, for items with very small chunks.
pub const MAX_SAMPLE_ITEMS: usize = 65_536;

/// Items of one sample request so far.
#[derive(Debug)]
pub(in crate::table) struct Batch {
    pub(super) wanted: usize,
    pub(super) chunk_bytes: usize,
    pub(super) items: Vec<Sampled>,
    /// Options of the request.
    pub(super) options: SampleOptions,
    /// Reason why the next batch cannot be sampled: its items cannot be stacked.
    pub(super) refusal: Option<Error>,
    /// True if the epoch that the request is about is over.
    pub(super) has_ended: bool,
    /// True if the request had to wait. Reported with its first item.
    pub(in crate::table) has_waited: bool,
}

impl Batch {
    /// Makes a batch for a request of `wanted` items. The request ends before a batch of the reader
    /// whose items cannot be stacked.
    pub(in crate::table) fn new(wanted: usize, options: SampleOptions) -> Self {
        let wanted = wanted.min(MAX_SAMPLE_ITEMS);
        Self {
            wanted,
            chunk_bytes: 0,
            items: spare_samples(),
            options,
            refusal: None,
            has_ended: false,
            has_waited: false,
        }
    }

    pub(in crate::table) fn is_full(&self) -> bool {
        let SampleOptions { all_or_nothing, .. } = self.options;
        self.items.len() >= self.wanted
            || (self.chunk_bytes >= MAX_SAMPLE_BYTES && !all_or_nothing && self.may_end_here())
    }

    /// True if an end here cuts no batch of the reader.
    fn may_end_here(&self) -> bool {
        self.options.stacking.is_none_or(|stacking| stacking.after(self.items.len()).position == 0)
    }

    /// True if the request is complete: it is full, its epoch is over, or its next batch was
    /// refused.
    pub(in crate::table) fn is_over(&self) -> bool {
        self.is_full() || self.has_ended || self.refusal.is_some()
    }

    pub(in crate::table) fn len(&self) -> usize {
        self.items.len()
    }

    /// Number of samples that it needs under one lock, if it takes all or nothing.
    pub(in crate::table) fn whole(&self) -> Option<usize> {
        self.options.all_or_nothing.then_some(self.wanted)
    }

    /// The window that it asks for.
    pub(in crate::table) fn window(&self) -> Option<StepWindow> {
        self.options.window
    }

    /// Items that were added after the first `first` ones.
    pub(in crate::table) fn since(&self, first: usize) -> &[Sampled] {
        self.items.get(first..).unwrap_or_default()
    }

    /// The sampled items, or the refusal if there are none. No items: the epoch is over.
    pub(in crate::table) fn into_answer(mut self) -> Result<Vec<Sampled>> {
        match self.refusal.take() {
            Some(error) if self.items.is_empty() => Err(error),
            _ => Ok(std::mem::take(&mut self.items)),
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        keep_samples(std::mem::take(&mut self.items));
    }
}
