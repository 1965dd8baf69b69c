// SPDX-License-Identifier: Apache-2.0
//! Stacks items into arrays: every column becomes `[B, T, ...]`, decoded in place.

use reverb_base::{Error, ErrorKind, Result};
use reverb_data::Sampled;
use reverb_data::stacking::different_columns;

use crate::sampler::batch_column::{BatchColumn, ColumnRows, GivenColumn, check_num_given};
use crate::sampler::batch_size::{self, BatchBounds, TakenBytes, no_room};
use crate::sampler::column_plan::ColumnPlan;
use crate::sampler::copy_plan::CopyPlans;
use crate::sampler::fetch_ahead::fetched_ahead;
use crate::sampler::known_chunks::KnownCopies;
use crate::sampler::odd_item::naming_odd_item;
use crate::sampler::ragged::{self, RaggedForm};

/// Largest batch whose memory is taken when its first items have come, without a look at the rest.
const MAX_APPENDED_BYTES: usize = 1 << 30;

/// Stacks items that arrive in several parts, each part while the next is being sampled.
#[derive(Debug)]
pub(crate) struct BatchBuilder<'m> {
    bounds: BatchBounds,
    ragged: RaggedForm,
    /// Memory of the caller, until the first item.
    given: Option<Vec<GivenColumn<'m>>>,
    /// Empty before the first item.
    columns: Vec<ColumnRows<'m>>,
    plans: CopyPlans,
    /// Remaining bytes for strings.
    room: usize,
    /// Number of stacked items.
    num_rows: usize,
    /// Error of the first item that could not be stacked, which ends the batch.
    failure: Option<Error>,
}

impl<'m> BatchBuilder<'m> {
    /// Makes a builder for at most `batch_size` items, in the caller's memory if given.
    pub(crate) fn new(
        bounds: BatchBounds,
        ragged: RaggedForm,
        given: Option<Vec<GivenColumn<'m>>>,
    ) -> Self {
        let columns = Vec::new();
        let plans = CopyPlans::default();
        let room = bounds.max_bytes;
        Self { bounds, ragged, given, columns, plans, room, num_rows: 0, failure: None }
    }

    /// Adds the new items of `samples`. Errors are returned by `finish`.
    pub(crate) fn add(&mut self, samples: &[Sampled]) {
        let new = &samples[self.num_rows..];
        if self.failure.is_none() && self.may_begin(new, ColumnPlan::MAX_UNCHECKED_BYTES) {
            self.failure = self.stack(new, self.bounds.batch_size).err();
        }
    }

    /// Adds items that need not stay. Returns false if that is not possible: then the batch can be
    /// made, or the error found, only with all items.
    pub(crate) fn append(&mut self, new: &[Sampled]) -> bool {
        self.may_begin(new, MAX_APPENDED_BYTES) && self.stack(new, self.bounds.batch_size).is_ok()
    }

    /// The columns of what was appended.
    pub(crate) fn into_columns(self) -> Vec<BatchColumn> {
        let num_rows = self.num_rows;
        self.columns.into_iter().map(|column| column.finish(num_rows)).collect()
    }

    /// The columns of the batch of all `samples`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with the column and both shapes if they differ, or if the caller's memory
    /// does not fit; `DataLoss` for damaged chunks; `ResourceExhausted` if the batch exceeds its
    /// limit or the available memory.
    pub(crate) fn finish(mut self, samples: &[Sampled]) -> Result<Vec<BatchColumn>> {
        if !self.ragged.is_stacked() {
            return ragged::assemble(samples, self.bounds, self.ragged, self.given);
        }
        let stacked = match self.failure.take() {
            Some(error) => Err(error),
            None => self.stack(&samples[self.num_rows..], samples.len()),
        };
        stacked.map_err(|error| match self.ragged {
            RaggedForm::Squeezed if error.kind() == ErrorKind::InvalidArgument => {
                not_single(samples).unwrap_or_else(|| naming_odd_item(error, samples, false))
            }
            _ => naming_odd_item(error, samples, false),
        })?;
        Ok(self.into_columns())
    }

    /// True if memory for all items may be taken before they are there: it has begun, or all of
    /// them, if they are like the first, take at most `max_bytes`. Items of different lengths need
    /// memory that is known only when all are there.
    fn may_begin(&self, samples: &[Sampled], max_bytes: usize) -> bool {
        if !self.ragged.is_stacked() {
            return false;
        }
        if !self.columns.is_empty() || self.given.is_some() {
            return true;
        }
        let Some(first) = samples.first() else { return false };
        let item_bytes = first.trajectory.columns().try_fold(0usize, |bytes, column| {
            bytes.checked_add(ColumnPlan::new(&first.trajectory, &column).ok()?.item_bytes)
        });
        item_bytes
            .and_then(|bytes| bytes.checked_mul(self.bounds.batch_size))
            .is_some_and(|bytes| bytes <= max_bytes.min(self.bounds.max_bytes))
    }

    /// Adds new items. The first ones allocate memory for `capacity` items.
    fn stack(&mut self, new: &[Sampled], capacity: usize) -> Result<()> {
        let Some(first) = new.first() else { return Ok(()) };
        let num_items = self.num_rows + new.len();
        let mut num_bytes = None;
        let added = self.add_rows(new, capacity, &mut num_bytes);
        batch_size::explain(added, self.bounds, RaggedForm::Refuse, || {
            let lengths = first.trajectory.columns().map(|column| column.num_steps());
            let longest = (first.key, lengths.max().unwrap_or(0));
            TakenBytes { num_items, longest, num_bytes, may_grow: false }
        })
    }

    fn add_rows(
        &mut self,
        new: &[Sampled],
        capacity: usize,
        num_bytes: &mut Option<usize>,
    ) -> Result<()> {
        if self.columns.is_empty() {
            self.make_room(new, capacity, num_bytes)?;
        }
        let Self { columns, plans, num_rows, room, .. } = self;
        let mut copies = KnownCopies::default();
        for (i, sampled) in fetched_ahead(new).enumerate() {
            let row = *num_rows;
            let trajectory = &sampled.trajectory;
            *num_rows += 1;
            let next = new.get(i + 1).map(|next| &next.trajectory);
            let write = |i: usize, at, values: &[u8]| columns[i].put_values(row, at, values);
            if plans.copy(trajectory, next, write) {
                continue;
            }
            if trajectory.num_columns() != columns.len() {
                return Err(different_columns(columns.len(), trajectory.num_columns()));
            }
            let learns = row + 1 < capacity;
            let mut is_known = true;
            for (i, (rows, column)) in columns.iter_mut().zip(trajectory.columns()).enumerate() {
                if rows.find_known(i, row, trajectory, &column, &mut copies) {
                    continue;
                }
                is_known = false;
                rows.put(i, row, trajectory, &column, room)?;
                // The layouts of the first item are part of its plan.
                if learns && row > 0 {
                    rows.learn(trajectory, &column);
                }
            }
            if copies.are_many() {
                copies.make(|i, row, at, values| columns[i].put_values(row, at, values));
            }
            if learns && !is_known {
                plans.learn(trajectory);
            }
        }
        copies.make(|i, row, at, values| columns[i].put_values(row, at, values));
        Ok(())
    }

    /// Allocates `num_bytes` for `capacity` items like the first, or uses the caller's memory.
    fn make_room(
        &mut self,
        samples: &[Sampled],
        capacity: usize,
        num_bytes: &mut Option<usize>,
    ) -> Result<()> {
        let Some(first) = samples.first() else { return Ok(()) };
        let trajectory = &first.trajectory;
        let given = self.given.take();
        let is_squeezed = self.ragged == RaggedForm::Squeezed;
        // The caller's memory fits the whole batch, even if fewer items come.
        let capacity = if given.is_some() { self.bounds.batch_size } else { capacity };
        if let Some(given) = &given {
            check_num_given(given, trajectory.num_columns())?;
        }
        let mut plans: Vec<ColumnPlan> = Vec::with_capacity(trajectory.num_columns());
        for column in trajectory.columns() {
            let plan = ColumnPlan::new(trajectory, &column)?;
            plans.push(if is_squeezed { plan.squeezed()? } else { plan });
        }
        let of_column = |plan: &ColumnPlan| plan.item_bytes.saturating_mul(capacity);
        if given.is_none() {
            let total = plans.iter().map(of_column).fold(0, usize::saturating_add);
            *num_bytes = Some(total);
            self.room = self.room.checked_sub(total).ok_or_else(no_room)?;
            if total > ColumnPlan::MAX_UNCHECKED_BYTES {
                let mut all = samples.iter();
                all.try_for_each(|sampled| ColumnPlan::check_item(&plans, &sampled.trajectory))?;
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

/// The error for items that cannot be squeezed: the first column with another number of steps than
/// one, and its lengths.
#[cold]
fn not_single(samples: &[Sampled]) -> Option<Error> {
    let num_columns = samples.first()?.trajectory.num_columns();
    let lengths = |at: usize| {
        samples.iter().filter_map(move |sampled| {
            Some((sampled.key, sampled.trajectory.columns().nth(at)?.num_steps()))
        })
    };
    let at = (0..num_columns).find(|&at| lengths(at).any(|(_, length)| length != 1))?;
    let (key, longest) = lengths(at).max_by_key(|&(_, length)| length)?;
    let shortest = lengths(at).map(|(_, length)| length).min()?;
    let range = if shortest == longest {
        format!("{longest} steps in every item")
    } else {
        format!("{shortest} to {longest} steps, {longest} in item {key}")
    };
    Some(Error::invalid_column(
        "squeeze=True is for items of one step, but column ",
        at,
        &format!(" has {range}. Sample without squeeze."),
    ))
}

#[cfg(test)]
pub(in crate::sampler) mod tests;
