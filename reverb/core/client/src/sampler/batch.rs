// SPDX-License-Identifier: Apache-2.0
//! Stacks items into arrays: every column becomes `[B, T, ...]`, decoded in place.

use reverb_data::stacking::different_columns;
use reverb_data::{Error, Result, Sampled};

use crate::sampler::batch_column::{BatchColumn, ColumnRows, GivenColumn, check_num_given};
use crate::sampler::column_plan::ColumnPlan;
use crate::sampler::copy_plan::CopyPlans;
use crate::sampler::fetch_ahead::fetched_ahead;
use crate::sampler::ragged::{self, RaggedForm};

/// Stacks items that arrive in several parts, each part while the next is on its way.
#[derive(Debug)]
pub(crate) struct BatchBuilder<'m> {
    /// Number of items that are wanted.
    batch_size: usize,
    ragged: RaggedForm,
    /// The memory of the caller, until the first item.
    given: Option<Vec<GivenColumn<'m>>>,
    /// Empty before the first item.
    columns: Vec<ColumnRows<'m>>,
    plans: CopyPlans,
    /// Number of items that are stacked.
    num_rows: usize,
    /// The first item that could not be stacked ends the batch.
    failure: Option<Error>,
}

/// Batches that would take more are not stacked before it is known how many items there are.
const MAX_EARLY_BYTES: usize = 64 << 20;

impl<'m> BatchBuilder<'m> {
    /// A builder for a batch of at most `batch_size` items, in memory of the caller if it is given.
    pub(crate) fn new(
        batch_size: usize,
        ragged: RaggedForm,
        given: Option<Vec<GivenColumn<'m>>>,
    ) -> Self {
        let (columns, plans) = (Vec::new(), CopyPlans::default());
        Self { batch_size, ragged, given, columns, plans, num_rows: 0, failure: None }
    }

    /// Adds those of `samples` that were not added yet. An error comes with `finish`.
    pub(crate) fn add(&mut self, samples: &[Sampled]) {
        // How much memory items of different lengths take is known when all are there.
        if self.ragged == RaggedForm::Refuse && self.failure.is_none() && self.is_small(samples) {
            self.failure = self.stack(samples, self.batch_size).err();
        }
    }

    /// The columns of the batch of all `samples`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the column and both shapes where they differ, or where the
    /// memory of the caller does not fit; `DataLoss` for damaged chunks.
    pub(crate) fn finish(mut self, samples: &[Sampled]) -> Result<Vec<BatchColumn>> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        if self.ragged != RaggedForm::Refuse {
            return ragged::assemble(samples, self.batch_size, self.ragged, self.given);
        }
        self.stack(samples, samples.len())?;
        Ok(self.columns.into_iter().map(|column| column.finish(samples.len())).collect())
    }

    /// Whether there is room for the whole batch if all items are like the first.
    fn is_small(&self, samples: &[Sampled]) -> bool {
        if !self.columns.is_empty() || self.given.is_some() {
            return true;
        }
        let Some(first) = samples.first() else { return false };
        let item_bytes = first.trajectory.columns().try_fold(0usize, |bytes, column| {
            bytes.checked_add(ColumnPlan::new(&first.trajectory, &column).ok()?.item_bytes)
        });
        item_bytes
            .and_then(|bytes| bytes.checked_mul(self.batch_size))
            .is_some_and(|bytes| bytes <= MAX_EARLY_BYTES)
    }

    /// Adds the rest of `samples`. The first ones make room for `capacity` items.
    fn stack(&mut self, samples: &[Sampled], capacity: usize) -> Result<()> {
        let Some(first) = samples.first() else { return Ok(()) };
        if self.columns.is_empty() {
            let trajectory = &first.trajectory;
            // The memory of the caller is for the whole batch, even if fewer items come.
            let capacity = if self.given.is_some() { self.batch_size } else { capacity };
            let mut given = self.given.take();
            if let Some(given) = &given {
                check_num_given(given, trajectory.num_columns())?;
            }
            let mut given = given.iter_mut().flat_map(|given| given.drain(..));
            let mut columns = Vec::with_capacity(trajectory.num_columns());
            for column in trajectory.columns() {
                columns.push(ColumnRows::new(trajectory, &column, capacity, given.next())?);
            }
            self.columns = columns;
        }
        let Self { columns, plans, num_rows, .. } = self;
        for sampled in fetched_ahead(&samples[*num_rows..]) {
            let (row, trajectory) = (*num_rows, &sampled.trajectory);
            *num_rows += 1;
            if plans.copy(trajectory, |i, at, values| columns[i].put_values(row, at, values)) {
                continue;
            }
            if trajectory.num_columns() != columns.len() {
                return Err(different_columns(columns.len(), trajectory.num_columns()));
            }
            for (i, (rows, column)) in columns.iter_mut().zip(trajectory.columns()).enumerate() {
                rows.put(i, trajectory, &column)?;
            }
            if row + 1 < capacity {
                plans.learn(trajectory);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(in crate::sampler) mod tests;
