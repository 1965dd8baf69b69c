// SPDX-License-Identifier: Apache-2.0
//! Steps of sampled items, one after another. A batch may start and end in the middle of an item.

use std::collections::VecDeque;

use reverb_base::{Error, Result};
use reverb_data::tensor::shape_text;
use reverb_data::trajectory::{Column, Slice};
use reverb_data::{DType, Sampled, Shape, Tensor, TensorData, Trajectory};
use smallvec::SmallVec;

use crate::failure::{Failure, Outcome};
use crate::row_specs::RowSpecs;
use crate::rows::{Infos, Rows};
use crate::tensor::Output;

/// Items with steps that were not returned yet, in order.
#[derive(Default)]
pub(crate) struct StepQueue {
    items: VecDeque<Item>,
    /// Number of returned steps of the first item.
    given: usize,
    /// Number of steps that were not returned.
    left: usize,
    /// Number of steps of the longest item so far.
    longest: usize,
    /// The error of the item after the last one. None of that item's steps can be returned.
    failure: Option<Failure>,
}

struct Item {
    sampled: Sampled,
    steps: usize,
    /// Columns, by index, that were decoded completely because some steps cannot be decoded alone.
    decoded: Vec<Option<Tensor>>,
}

/// A range of steps of the item at a position in the queue.
struct Part {
    item: usize,
    first: usize,
    count: usize,
}

impl StepQueue {
    /// Adds an item. An error in it is reported after all steps before it were returned.
    pub(crate) fn push(&mut self, sampled: Sampled, specs: &RowSpecs) {
        if self.failure.is_some() {
            return;
        }
        match count_steps(&sampled.trajectory, specs) {
            Ok(0) => {}
            Ok(steps) => {
                self.left += steps;
                self.longest = self.longest.max(steps);
                self.items.push_back(Item { sampled, steps, decoded: Vec::new() });
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// True if `take` has a result; with `exact`, true if more items would not change the result.
    pub(crate) fn is_ready(&self, rows: usize, exact: bool) -> bool {
        self.failure.is_some() || self.left >= if exact { rows } else { 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Compares dropped steps with the specs.
    pub(crate) fn check(&self, specs: &RowSpecs) -> Outcome<()> {
        for item in &self.items {
            check_step_specs(&step_specs(&item.sampled.trajectory)?, specs)?;
        }
        Ok(())
    }

    /// Number of additional items that `rows` rows need, unless those are longer than all items so
    /// far. An unneeded item is lost to other readers of a queue.
    pub(crate) fn num_missing_items(&self, rows: usize) -> usize {
        match self.longest {
            0 => 1,
            longest => rows.saturating_sub(self.left).div_ceil(longest),
        }
    }

    /// Returns up to `rows` steps as columns `[steps, ...]`. Steps of different shapes are not
    /// returned together; with `exact` they are an error, and are dropped.
    pub(crate) fn take(&mut self, rows: usize, specs: &RowSpecs, exact: bool) -> Outcome<Rows> {
        if let Some(failure) = &self.failure
            && (self.left == 0 || (exact && self.left < rows))
        {
            return Err(failure.clone());
        }
        let mut parts = self.parts(rows);
        let Some(first) = self.items.front() else { return Rows::none(specs) };
        let step_specs = step_specs(&first.sampled.trajectory)?;
        check_step_specs(&step_specs, specs)?;
        for (i, part) in parts.iter().enumerate() {
            let item = &self.items[part.item];
            let fits = matches_step_specs(item, part, &step_specs);
            if matches!(fits, Ok(true)) {
                continue;
            }
            if i > 0 && !exact {
                // The error of this item is reported after all steps before it were returned.
                parts.truncate(i);
                break;
            }
            fits?;
            let others = self::step_specs(&item.sampled.trajectory)?;
            check_step_specs(&others, specs)?;
            if exact {
                self.skip(&parts);
                return Err(different(&step_specs, &others));
            }
            return Err(mixed().into());
        }
        let taken = self.copy(&parts, step_specs)?;
        self.skip(&parts);
        Ok(taken)
    }

    /// The next steps: `rows` of them, or fewer if there are not enough.
    fn parts(&self, rows: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut missing = rows;
        let mut first = self.given;
        for (item, Item { steps, .. }) in self.items.iter().enumerate() {
            let count = missing.min(steps - first);
            if count == 0 {
                break;
            }
            parts.push(Part { item, first, count });
            missing -= count;
            first = 0;
        }
        parts
    }

    fn copy(&mut self, parts: &[Part], step_specs: StepSpecs) -> Outcome<Rows> {
        let rows = parts.iter().map(|part| part.count).sum();
        let mut columns = step_specs
            .into_iter()
            .map(|(dtype, shape)| StepColumn::new(dtype, shape, rows))
            .collect::<Outcome<SmallVec<[StepColumn; 8]>>>()?;
        let mut infos = Infos::with_capacity(rows);
        for part in parts {
            let Item { sampled, steps, decoded } = &mut self.items[part.item];
            let trajectory = &sampled.trajectory;
            if part.count < *steps {
                decoded.resize(columns.len(), None);
            }
            for (i, (out, column)) in columns.iter_mut().zip(trajectory.columns()).enumerate() {
                if part.count == *steps || is_in_place(trajectory, &column, part)? {
                    out.put(trajectory, &column, part)?;
                    continue;
                }
                if decoded[i].is_none() {
                    decoded[i] = Some(trajectory.decode_column(&column)?);
                }
                out.put_decoded(decoded[i].as_ref(), part)?;
            }
            infos.push(sampled, part.count);
        }
        let columns = columns.into_iter().map(StepColumn::finish).collect::<Outcome<_>>()?;
        Ok(Rows::new(infos, columns, parts.len()))
    }

    /// Removes steps that were returned.
    fn skip(&mut self, parts: &[Part]) {
        for part in parts {
            self.left -= part.count;
            self.given = part.first + part.count;
            if self.given == self.items[0].steps {
                self.items.pop_front();
                self.given = 0;
            }
        }
    }
}

/// Type and shape of one step, for every column.
type StepSpecs = SmallVec<[(DType, Shape); 8]>;

fn step_specs(trajectory: &Trajectory) -> Outcome<StepSpecs> {
    let mut step_specs = StepSpecs::new();
    for column in trajectory.columns() {
        let (dtype, mut shape) = trajectory.column_spec(&column)?;
        shape.remove(0);
        step_specs.push((dtype, shape));
    }
    Ok(step_specs)
}

fn check_step_specs(step_specs: &StepSpecs, specs: &RowSpecs) -> Outcome<()> {
    step_specs
        .iter()
        .enumerate()
        .try_for_each(|(i, (dtype, shape))| specs.check_row(i, *dtype, shape))
}

/// Compares an item's steps with the dtypes and shapes of the batch, before memory is allocated for
/// them.
fn matches_step_specs(item: &Item, part: &Part, step_specs: &StepSpecs) -> Result<bool> {
    let trajectory = &item.sampled.trajectory;
    for (column, (dtype, shape)) in trajectory.columns().zip(step_specs) {
        for slice in slices(&column, part) {
            let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
            if tensor.dtype != *dtype || tensor.row_shape() != &shape[..] {
                return Ok(false);
            }
            tensor.plausible_bytes(slice.length)?;
        }
    }
    Ok(true)
}

/// True if these steps can be copied without decoding others.
fn is_in_place(trajectory: &Trajectory, column: &Column<'_>, part: &Part) -> Result<bool> {
    for slice in slices(column, part) {
        if !trajectory.chunks()[slice.chunk].tensor(slice.tensor)?.has_rows_in_place() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The slices of a column that hold a part's steps.
fn slices(column: &Column<'_>, part: &Part) -> impl Iterator<Item = Slice> {
    let mut skipped = part.first;
    let mut missing = part.count;
    column.slices().filter_map(move |mut slice| {
        let before = skipped.min(slice.length);
        skipped -= before;
        slice.offset += before;
        slice.length = missing.min(slice.length - before);
        missing -= slice.length;
        (slice.length > 0).then_some(slice)
    })
}

fn count_steps(trajectory: &Trajectory, specs: &RowSpecs) -> Outcome<usize> {
    specs.check_num_columns(trajectory)?;
    let mut count = None;
    for (i, column) in trajectory.columns().enumerate() {
        let steps = column.num_steps();
        let expected = *count.get_or_insert(steps);
        if steps != expected {
            return Err(not_timesteps(&specs.table, expected, i, steps));
        }
    }
    Ok(count.unwrap_or(0))
}

pub(crate) fn not_timesteps(table: &str, first: usize, index: usize, steps: usize) -> Failure {
    Failure::invalid_argument(format!(
        "Received an item from table '{table}' that cannot be decomposed into timesteps: its first column has {first} \
         steps and column {index} has {steps}. Read such tables with a TrajectoryDataset.",
    ))
}

fn different(step_specs: &StepSpecs, others: &StepSpecs) -> Failure {
    let unlike = step_specs.iter().zip(others).enumerate().find(|(_, (kind, other))| kind != other);
    let Some((i, ((dtype, shape), (other_dtype, other_shape)))) = unlike else {
        return mixed().into();
    };
    Failure::invalid_argument(format!(
        "The steps of a batch must have the same shapes, but column {i} is {} {} in one and {} {} in another. Use \
         `padded_batch`, or store steps of equal shapes.",
        dtype.name(),
        shape_text(shape),
        other_dtype.name(),
        shape_text(other_shape),
    ))
}

fn mixed() -> Error {
    Error::data_loss("A column mixes chunks of different dtypes or shapes.")
}

/// One column of an unfinished batch of steps.
struct StepColumn {
    shape: Shape,
    data: ColumnData,
}

enum ColumnData {
    /// Memory, and number of bytes written.
    Bytes(Output, usize),
    Strings(Vec<Vec<u8>>),
}

impl StepColumn {
    /// Allocates `rows` steps of a shape.
    fn new(dtype: DType, mut shape: Shape, rows: usize) -> Outcome<Self> {
        shape.insert(0, rows);
        let data = match dtype {
            DType::String => ColumnData::Strings(Vec::new()),
            dtype => ColumnData::Bytes(Output::new(dtype, shape.clone())?, 0),
        };
        Ok(Self { shape, data })
    }

    /// Appends steps of an item.
    fn put(&mut self, trajectory: &Trajectory, column: &Column<'_>, part: &Part) -> Outcome<()> {
        for slice in slices(column, part) {
            let tensor = trajectory.chunks()[slice.chunk].tensor(slice.tensor)?;
            match &mut self.data {
                ColumnData::Strings(strings) => {
                    strings.extend(tensor.string_rows(slice.offset, slice.length)?);
                }
                ColumnData::Bytes(output, written) => {
                    let end = *written + tensor.row_bytes()? * slice.length;
                    let target = output.bytes_mut().get_mut(*written..end).ok_or_else(mixed)?;
                    tensor.copy_rows(slice.offset, slice.length, target)?;
                    *written = end;
                }
            }
        }
        Ok(())
    }

    /// Appends steps of an item with a decoded column.
    fn put_decoded(&mut self, tensor: Option<&Tensor>, part: &Part) -> Outcome<()> {
        let elements = Tensor::num_elements(&self.shape[1..]).unwrap_or(0);
        let steps = part.first * elements..(part.first + part.count) * elements;
        match (&mut self.data, tensor.map(|tensor| (tensor.dtype.size(), &tensor.data))) {
            (ColumnData::Strings(strings), Some((_, TensorData::Strings(decoded)))) => {
                strings.extend_from_slice(decoded.get(steps).ok_or_else(mixed)?);
            }
            (ColumnData::Bytes(output, written), Some((size, TensorData::Bytes(decoded)))) => {
                let steps = decoded.get(steps.start * size..steps.end * size).ok_or_else(mixed)?;
                let end = *written + steps.len();
                let target = output.bytes_mut().get_mut(*written..end).ok_or_else(mixed)?;
                target.copy_from_slice(steps);
                *written = end;
            }
            _ => return Err(mixed().into()),
        }
        Ok(())
    }

    fn finish(self) -> Outcome<Output> {
        match self.data {
            ColumnData::Bytes(output, _) => Ok(output),
            ColumnData::Strings(strings) => Output::strings(self.shape, &strings),
        }
    }
}
