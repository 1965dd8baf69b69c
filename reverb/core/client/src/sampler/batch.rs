// SPDX-License-Identifier: Apache-2.0
//! Stacks items into arrays: every column becomes `[B, T, ...]`, decoded in place.

use reverb_data::stacking::different_columns;
use reverb_data::{Error, Result, Sampled};

use crate::sampler::batch_column::{BatchColumn, ColumnRows, GivenColumn, check_num_given};
use crate::sampler::batch_size::{self, BatchBounds, TakenBytes, no_room};
use crate::sampler::column_plan::ColumnPlan;
use crate::sampler::copy_plan::CopyPlans;
use crate::sampler::fetch_ahead::fetched_ahead;
use crate::sampler::ragged::{self, RaggedForm};

/// Stacks items that arrive in several parts, each part while the next is on its way.
#[derive(Debug)]
pub(crate) struct BatchBuilder<'m> {
    bounds: BatchBounds,
    ragged: RaggedForm,
    /// The memory of the caller, until the first item.
    given: Option<Vec<GivenColumn<'m>>>,
    /// Empty before the first item.
    columns: Vec<ColumnRows<'m>>,
    plans: CopyPlans,
    /// Bytes that strings may take yet.
    room: usize,
    /// Number of items that are stacked.
    num_rows: usize,
    /// The first item that could not be stacked ends the batch.
    failure: Option<Error>,
}

impl<'m> BatchBuilder<'m> {
    /// A builder for a batch of at most `batch_size` items, in memory of the caller if it is given.
    pub(crate) fn new(
        bounds: BatchBounds,
        ragged: RaggedForm,
        given: Option<Vec<GivenColumn<'m>>>,
    ) -> Self {
        let (columns, plans, room) = (Vec::new(), CopyPlans::default(), bounds.max_bytes);
        Self { bounds, ragged, given, columns, plans, room, num_rows: 0, failure: None }
    }

    /// Adds those of `samples` that were not added yet. An error comes with `finish`.
    pub(crate) fn add(&mut self, samples: &[Sampled]) {
        // How much memory items of different lengths take is known when all are there.
        if self.ragged == RaggedForm::Refuse && self.failure.is_none() && self.is_small(samples) {
            self.failure = self.stack(samples, self.bounds.batch_size).err();
        }
    }

    /// The columns of the batch of all `samples`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the column and both shapes where they differ, or where the
    /// memory of the caller does not fit; `DataLoss` for damaged chunks; `ResourceExhausted` if the
    /// batch would take more than it may, or than there is.
    pub(crate) fn finish(mut self, samples: &[Sampled]) -> Result<Vec<BatchColumn>> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        if self.ragged != RaggedForm::Refuse {
            return ragged::assemble(samples, self.bounds, self.ragged, self.given);
        }
        self.stack(samples, samples.len())?;
        Ok(self.columns.into_iter().map(|column| column.finish(samples.len())).collect())
    }

    /// Whether the whole batch may take memory before all of its items are there and checked, if
    /// all are like the first.
    fn is_small(&self, samples: &[Sampled]) -> bool {
        if !self.columns.is_empty() || self.given.is_some() {
            return true;
        }
        let Some(first) = samples.first() else { return false };
        let item_bytes = first.trajectory.columns().try_fold(0usize, |bytes, column| {
            bytes.checked_add(ColumnPlan::new(&first.trajectory, &column).ok()?.item_bytes)
        });
        item_bytes.and_then(|bytes| bytes.checked_mul(self.bounds.batch_size)).is_some_and(
            |bytes| bytes <= ColumnPlan::MAX_UNCHECKED_BYTES.min(self.bounds.max_bytes),
        )
    }

    /// Adds the rest of `samples`. The first ones make room for `capacity` items.
    fn stack(&mut self, samples: &[Sampled], capacity: usize) -> Result<()> {
        let Some(first) = samples.first() else { return Ok(()) };
        let mut num_bytes = None;
        let added = self.add_rows(samples, capacity, &mut num_bytes);
        batch_size::explain(added, self.bounds, RaggedForm::Refuse, || {
            let lengths = first.trajectory.columns().map(|column| column.num_steps());
            let longest = (first.key, lengths.max().unwrap_or(0));
            TakenBytes { num_items: samples.len(), longest, num_bytes }
        })
    }

    fn add_rows(
        &mut self,
        samples: &[Sampled],
        capacity: usize,
        num_bytes: &mut Option<usize>,
    ) -> Result<()> {
        if self.columns.is_empty() {
            self.make_room(samples, capacity, num_bytes)?;
        }
        let Self { columns, plans, num_rows, room, .. } = self;
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
                rows.put(i, trajectory, &column, room)?;
            }
            if row + 1 < capacity {
                plans.learn(trajectory);
            }
        }
        Ok(())
    }

    /// Takes memory for `capacity` items that are like the first one, or that of the caller.
    /// `num_bytes` is what they take.
    fn make_room(
        &mut self,
        samples: &[Sampled],
        capacity: usize,
        num_bytes: &mut Option<usize>,
    ) -> Result<()> {
        let Some(first) = samples.first() else { return Ok(()) };
        let trajectory = &first.trajectory;
        let given = self.given.take();
        // The memory of the caller is for the whole batch, even if fewer items come.
        let capacity = if given.is_some() { self.bounds.batch_size } else { capacity };
        if let Some(given) = &given {
            check_num_given(given, trajectory.num_columns())?;
        }
        let mut plans: Vec<ColumnPlan> = Vec::with_capacity(trajectory.num_columns());
        for column in trajectory.columns() {
            plans.push(ColumnPlan::new(trajectory, &column)?);
        }
        let of_column = |plan: &ColumnPlan| plan.item_bytes.saturating_mul(capacity);
        if given.is_none() {
            let total = plans.iter().map(of_column).fold(0, usize::saturating_add);
            *num_bytes = Some(total);
            self.room = self.room.checked_sub(total).ok_or_else(no_room)?;
            if total > ColumnPlan::MAX_UNCHECKED_BYTES {
                let mut all = samples.iter();
                all.try_for_each(|it| ColumnPlan::check_item(&plans, &it.trajectory))?;
            }
        }
        let mut given = given.into_iter().flatten();
        let mut columns = Vec::with_capacity(plans.len());
        for plan in plans {
            let num_bytes = of_column(&plan);
            columns.push(ColumnRows::new(plan, capacity, num_bytes, given.next())?);
        }
        self.columns = columns;
        Ok(())
    }
}

#[cfg(test)]
pub(in crate::sampler) mod tests;
