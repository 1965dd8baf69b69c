// SPDX-License-Identifier: Apache-2.0
//! Size of a batch whose items are still arriving.

use reverb_base::Result;
use reverb_data::Sampled;

use crate::sampler::batch_size::{self, BatchBounds, TakenBytes, no_room};
use crate::sampler::ragged::RaggedForm;

/// Least number of bytes of a batch, by the items that are there and the dtypes and shapes of the
/// first one. It refuses a batch that is too large before the rest of it is gathered.
#[derive(Debug)]
pub(crate) struct SizeSoFar {
    bounds: BatchBounds,
    form: RaggedForm,
    columns: Vec<ColumnSize>,
    /// Key of the item with the longest column, and its number of steps.
    longest: (u64, usize),
    num_measured: usize,
}

#[derive(Debug)]
struct ColumnSize {
    step_bytes: usize,
    longest: usize,
    total: usize,
}

impl SizeSoFar {
    pub(crate) fn new(bounds: BatchBounds, form: RaggedForm) -> Self {
        Self { bounds, form, columns: Vec::new(), longest: (0, 0), num_measured: 0 }
    }

    /// Adds the new items of `samples`, of a batch that will have at least `num_items`.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if the batch will exceed its limit; `DataLoss` for a damaged first item.
    pub(crate) fn check(&mut self, samples: &[Sampled], num_items: usize) -> Result<()> {
        let Some(first) = samples.first() else { return Ok(()) };
        if self.columns.is_empty() {
            for column in first.trajectory.columns() {
                let checked = first.trajectory.checked_column(&column)?;
                let steps = checked.shape.first().map_or(1, |&length| length.max(1));
                let step_bytes = checked.num_bytes / steps;
                self.columns.push(ColumnSize { step_bytes, longest: 0, total: 0 });
            }
        }
        // Items that are stacked are all like the first one.
        let end = if self.form.is_stacked() { 1 } else { samples.len() };
        for sampled in samples.get(self.num_measured..end).unwrap_or_default() {
            for (size, column) in self.columns.iter_mut().zip(sampled.trajectory.columns()) {
                let steps = column.num_steps();
                size.longest = size.longest.max(steps);
                size.total = size.total.saturating_add(steps);
                if steps > self.longest.1 {
                    self.longest = (sampled.key, steps);
                }
            }
        }
        self.num_measured = end;
        let num_bytes = self.columns.iter().map(|column| column.num_bytes(self.form, num_items));
        let num_bytes = num_bytes.fold(0, usize::saturating_add);
        if num_bytes <= self.bounds.max_bytes {
            return Ok(());
        }
        batch_size::explain(Err(no_room()), self.bounds, self.form, || TakenBytes {
            num_items,
            longest: self.longest,
            num_bytes: Some(num_bytes),
            may_grow: true,
        })
    }
}

impl ColumnSize {
    fn num_bytes(&self, form: RaggedForm, num_items: usize) -> usize {
        let steps = match form {
            RaggedForm::Packed => self.total,
            RaggedForm::Padded(_) | RaggedForm::Refuse | RaggedForm::Squeezed => {
                self.longest.saturating_mul(num_items)
            }
        };
        steps.saturating_mul(self.step_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::batch::tests::{WIDTHS, chunk, sampled};

    /// Items with these numbers of steps.
    fn items(lengths: &[u64]) -> Vec<Sampled> {
        let chunks = |length| (1..=length).map(|key| chunk(key, false)).collect::<Vec<_>>();
        lengths.iter().map(|&length| sampled(length, &chunks(length))).collect()
    }

    fn refuses(form: RaggedForm, lengths: &[u64], num_items: usize, steps: usize) {
        let samples = items(lengths);
        let max_bytes = steps * (WIDTHS[0] + WIDTHS[1]);
        for (max_bytes, fits) in [(max_bytes, true), (max_bytes - 1, false)] {
            let mut size = SizeSoFar::new(BatchBounds { batch_size: 9, max_bytes }, form);
            for end in 1..samples.len() {
                size.check(&samples[..end], end).unwrap();
            }
            let checked = size.check(&samples, num_items);
            assert_eq!(checked.is_ok(), fits, "{checked:?}");
        }
    }

    #[test]
    fn items_that_are_still_to_come_are_as_long_as_the_longest() {
        refuses(RaggedForm::Refuse, &[2], 9, 18);
        refuses(RaggedForm::Padded(1), &[2, 5, 1], 9, 45);
    }

    #[test]
    fn packed_items_that_are_still_to_come_count_for_nothing() {
        refuses(RaggedForm::Packed, &[2, 5, 1], 9, 8);
    }
}
