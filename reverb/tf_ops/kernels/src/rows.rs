// SPDX-License-Identifier: Apache-2.0
//! Conversion of sampled items to an op's outputs: stacked, and decoded directly into memory that
//! TensorFlow takes over.

use reverb_base::{Error, Result};
use reverb_client::{ColumnPlan, CopyPlans, fetched_ahead};
use reverb_data::stacking::different_columns;
use reverb_data::trajectory::Column;
use reverb_data::{DType, Sampled, Shape, Tensor, Trajectory};
use smallvec::SmallVec;

use crate::failure::Outcome;
use crate::kernel::Context;
use crate::row_specs::RowSpecs;
use crate::tensor::Output;
use crate::windows::Windows;

/// The five vectors of sample info.
pub(crate) struct Infos {
    keys: Vec<u64>,
    probabilities: Vec<f64>,
    table_sizes: Vec<i64>,
    priorities: Vec<f64>,
    times_sampled: Vec<i32>,
}

impl Infos {
    pub(crate) fn with_capacity(rows: usize) -> Self {
        Self {
            keys: Vec::with_capacity(rows),
            probabilities: Vec::with_capacity(rows),
            table_sizes: Vec::with_capacity(rows),
            priorities: Vec::with_capacity(rows),
            times_sampled: Vec::with_capacity(rows),
        }
    }

    /// Adds `rows` rows of one item.
    pub(crate) fn push(&mut self, sampled: &Sampled, rows: usize) {
        for _ in 0..rows {
            self.keys.push(sampled.key);
            self.probabilities.push(sampled.probability);
            self.table_sizes.push(sampled.table_size);
            self.priorities.push(sampled.priority);
            self.times_sampled.push(sampled.times_sampled);
        }
    }

    /// Sets five outputs, starting at `first`.
    fn set_outputs(&self, context: &mut Context, first: usize) -> Outcome<()> {
        let shape = || Shape::from_slice(&[self.keys.len()]);
        let eight =
            |values: &[f64]| values.iter().map(|value| value.to_ne_bytes()).collect::<Vec<_>>();
        let keys = self.keys.iter().map(|value| value.to_ne_bytes());
        let sizes = self.table_sizes.iter().map(|value| value.to_ne_bytes());
        let times = self.times_sampled.iter().map(|value| value.to_ne_bytes());
        let probabilities = eight(&self.probabilities);
        let priorities = eight(&self.priorities);
        context.set_output(first, Output::numbers(DType::UInt64, shape(), keys)?)?;
        context.set_output(
            first + 1,
            Output::numbers(DType::Float64, shape(), probabilities.into_iter())?,
        )?;
        context.set_output(first + 2, Output::numbers(DType::Int64, shape(), sizes)?)?;
        context.set_output(
            first + 3,
            Output::numbers(DType::Float64, shape(), priorities.into_iter())?,
        )?;
        context.set_output(first + 4, Output::numbers(DType::Int32, shape(), times)?)
    }
}

/// Rows that can be passed to TensorFlow.
pub(crate) struct Rows {
    infos: Infos,
    columns: Vec<Output>,
    windows: Option<Windows>,
    /// Number of items in the rows.
    pub(crate) num_items: usize,
}

impl Rows {
    /// Rows of `num_items` items.
    pub(crate) fn new(infos: Infos, columns: Vec<Output>, num_items: usize) -> Self {
        Self { infos, columns, windows: None, num_items }
    }

    /// No rows, in the form that the specs require.
    pub(crate) fn none(specs: &RowSpecs) -> Outcome<Self> {
        let columns = specs.columns.iter().map(|(dtype, shape)| {
            let dims = shape.iter().flatten().map(|dim| dim.unwrap_or(0));
            let shape: Shape = std::iter::once(0).chain(dims).collect();
            match dtype {
                DType::String => Output::strings(shape, &[] as &[&[u8]]),
                _ => Output::new(*dtype, shape),
            }
        });
        let columns = columns.collect::<Outcome<_>>()?;
        let infos = Infos::with_capacity(0);
        let windows = Windows::of(specs.window, &[]);
        Ok(Self { infos, columns, windows, num_items: 0 })
    }

    /// Sets all outputs: the five vectors of sample info, the columns, and those of windows.
    pub(crate) fn set_outputs(self, context: &mut Context) -> Outcome<()> {
        self.infos.set_outputs(context, 0)?;
        let end = 5 + self.columns.len();
        for (i, column) in self.columns.into_iter().enumerate() {
            context.set_output(5 + i, column)?;
        }
        self.windows.map_or(Ok(()), |windows| windows.set_outputs(context, end))
    }

    /// Stacks whole items: columns become `[B, T, ...]`. Stops before an item whose shape differs
    /// from the first; with `exact` that is an error.
    pub(crate) fn of_items(samples: &[Sampled], specs: &RowSpecs, exact: bool) -> Outcome<Self> {
        let Some(first) = samples.first() else { return Self::none(specs) };
        let plans = column_plans(&first.trajectory, specs)?;
        let rows = num_checked(&plans, samples, exact)?;
        let mut columns = Columns::new(plans, rows)?;
        let mut infos = Infos::with_capacity(rows);
        let mut plans = CopyPlans::default();
        for (row, sampled) in fetched_ahead(&samples[..rows]).enumerate() {
            let trajectory = &sampled.trajectory;
            let next = samples[..rows].get(row + 1).map(|next| &next.trajectory);
            let write = |i, at, values: &[u8]| columns.put_values(i, row, at, values);
            if !plans.copy(trajectory, next, write) {
                if let Some(misfit) = columns.put(row, trajectory)? {
                    if exact {
                        return Err(misfit.into());
                    }
                    break;
                }
                plans.learn(trajectory);
            }
            infos.push(sampled, 1);
        }
        let num_items = infos.keys.len();
        let windows = Windows::of(specs.window, &samples[..num_items]);
        Ok(Self { infos, columns: columns.finish(num_items)?, windows, num_items })
    }
}

/// The plans of the columns of items like this one.
fn column_plans(trajectory: &Trajectory, specs: &RowSpecs) -> Outcome<Plans> {
    specs.check_num_columns(trajectory)?;
    let mut plans = Plans::new();
    for (i, column) in trajectory.columns().enumerate() {
        let plan = ColumnPlan::new(trajectory, &column)?;
        specs.check_column(i, plan.dtype, &plan.item_shape, plan.squeeze)?;
        plans.push(plan);
    }
    Ok(plans)
}

/// Number of items that memory is allocated for. If that is much memory, only the items before the
/// first invalid or different one count; with `exact` such an item is an error.
fn num_checked(plans: &Plans, samples: &[Sampled], exact: bool) -> Result<usize> {
    let item_bytes = plans.iter().map(|plan| plan.item_bytes).fold(0, usize::saturating_add);
    if item_bytes.saturating_mul(samples.len()) <= ColumnPlan::MAX_UNCHECKED_BYTES {
        return Ok(samples.len());
    }
    for (row, Sampled { trajectory, .. }) in samples.iter().enumerate() {
        match ColumnPlan::check_item(plans, trajectory) {
            Err(error) if exact || row == 0 => return Err(error),
            Err(_) => return Ok(row),
            Ok(()) => {}
        }
    }
    Ok(samples.len())
}

type Plans = SmallVec<[ColumnPlan; 8]>;

/// The columns of an unfinished batch of items.
struct Columns(SmallVec<[(ColumnPlan, ColumnData); 8]>);

enum ColumnData {
    Bytes(Output),
    Strings(Vec<Vec<u8>>),
}

impl Columns {
    /// Allocates this many rows.
    fn new(plans: Plans, rows: usize) -> Outcome<Self> {
        let mut columns = SmallVec::new();
        for plan in plans {
            let data = match plan.dtype {
                DType::String => ColumnData::Strings(Vec::new()),
                dtype => ColumnData::Bytes(Output::new(dtype, plan.batch_shape(rows))?),
            };
            columns.push((plan, data));
        }
        Ok(Self(columns))
    }

    /// Writes an item. Returns an error if its shapes differ from the first.
    fn put(&mut self, row: usize, trajectory: &Trajectory) -> Result<Option<Error>> {
        if trajectory.num_columns() != self.0.len() {
            return Ok(Some(different_columns(self.0.len(), trajectory.num_columns())));
        }
        for (i, ((plan, data), column)) in self.0.iter_mut().zip(trajectory.columns()).enumerate() {
            if !data.write(plan, row, trajectory, &column)? {
                return Ok(Some(plan.mismatch(i, trajectory, &column)));
            }
        }
        Ok(None)
    }

    /// Writes the values of a column of an item with the planned shapes.
    #[inline]
    fn put_values(&mut self, index: usize, row: usize, at: usize, values: &[u8]) {
        let (plan, ColumnData::Bytes(output)) = &mut self.0[index] else {
            unreachable!("strings have no layout")
        };
        let begin = row * plan.item_bytes + at;
        output.bytes_mut()[begin..begin + values.len()].copy_from_slice(values);
    }

    /// The first `rows` rows.
    fn finish(self, rows: usize) -> Outcome<Vec<Output>> {
        let outputs = self.0.into_iter().map(|(plan, data)| match data {
            ColumnData::Bytes(mut output) => {
                output.truncate(rows);
                Ok(output)
            }
            ColumnData::Strings(mut strings) => {
                let shape = plan.batch_shape(rows);
                strings.truncate(Tensor::num_elements(&shape).unwrap_or(0));
                Output::strings(shape, &strings)
            }
        });
        outputs.collect()
    }
}

impl ColumnData {
    fn write(
        &mut self,
        plan: &ColumnPlan,
        row: usize,
        trajectory: &Trajectory,
        column: &Column<'_>,
    ) -> Result<bool> {
        match self {
            Self::Strings(strings) => {
                plan.append_strings(trajectory, column, strings, &mut { usize::MAX })
            }
            Self::Bytes(output) => {
                let range = row * plan.item_bytes..(row + 1) * plan.item_bytes;
                plan.write(trajectory, column, &mut output.bytes_mut()[range])
            }
        }
    }
}
