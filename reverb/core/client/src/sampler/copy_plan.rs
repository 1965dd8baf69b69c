// SPDX-License-Identifier: Apache-2.0
//! Copy plans: items that differ only in their values are copied without parsing their chunks
//! again.

use std::ops::Range;

use reverb_data::trajectory::Run;
use reverb_data::{ChunkLayout, OneChunkColumns, Trajectory};
use smallvec::SmallVec;

use crate::sampler::large_values::{self, are_large};

/// Number of plans per batch. Most tables hold one kind of item.
const MAX_PLANS: usize = 2;
/// Number of items from which a batch tries to learn a plan. After that, it has too many kinds of
/// items, or items without a plan.
const MAX_ATTEMPTS: usize = 8;

/// Largest number of different layouts among the chunks of one item. An item with more has no
/// plan.
const MAX_LAYOUTS: usize = 16;

/// The plans of one batch.
#[derive(Debug, Default)]
pub struct CopyPlans {
    plans: SmallVec<[CopyPlan; MAX_PLANS]>,
    attempts: usize,
}

impl CopyPlans {
    /// Passes the values to `write`, if an item of the same kind was learned: the column, the
    /// position of the first byte in the item's column, and the bytes, in pieces if they are many.
    /// Returns false, without a call of `write`, if there was none. The values of the `next` item
    /// come into the cache meanwhile.
    #[inline]
    pub fn copy(
        &mut self,
        trajectory: &Trajectory,
        next: Option<&Trajectory>,
        write: impl FnMut(usize, usize, &[u8]),
    ) -> bool {
        let Some(at) = self.plans.iter_mut().position(|plan| plan.matches(trajectory)) else {
            return false;
        };
        self.plans[at].copy(trajectory, next, write);
        true
    }

    /// Learns the kind of an item that fits into the batch.
    pub fn learn(&mut self, trajectory: &Trajectory) {
        if self.attempts < MAX_ATTEMPTS {
            self.attempts += 1;
            if let Some(plan) = CopyPlan::new(trajectory) {
                self.plans.truncate(MAX_PLANS - 1);
                self.plans.insert(0, plan);
            }
        }
    }
}

/// Plan for items with chunks of known layouts.
#[derive(Debug)]
struct CopyPlan {
    /// Different layouts of the item's chunks.
    layouts: SmallVec<[ChunkLayout; 1]>,
    columns: SmallVec<[PlannedColumn; 8]>,
    /// Number of chunks. Together with the layouts and the stored columns, it determines the
    /// copies.
    num_chunks: usize,
    one_chunk_columns: Option<OneChunkColumns>,
    stored_columns: SmallVec<[u8; 64]>,
    /// The layout of each chunk.
    layout_of: SmallVec<[usize; 8]>,
    copies: SmallVec<[ColumnCopy; 8]>,
}

#[derive(Debug)]
struct PlannedColumn {
    tensor: usize,
    num_steps: usize,
    squeeze: bool,
}

/// One run of one column.
#[derive(Debug)]
struct ColumnCopy {
    column: usize,
    /// Position of the first byte in the item's column.
    at: usize,
    chunk: usize,
    place: Range<usize>,
    times: usize,
}

impl CopyPlan {
    fn new(trajectory: &Trajectory) -> Option<Self> {
        let mut layouts: SmallVec<[ChunkLayout; 1]> = SmallVec::new();
        let mut layout_of = SmallVec::new();
        for chunk in trajectory.chunks() {
            let known = layouts.iter().position(|layout| layout.matches(chunk));
            layout_of.push(match known {
                Some(at) => at,
                None if layouts.len() < MAX_LAYOUTS => {
                    layouts.push(ChunkLayout::new(chunk)?);
                    layouts.len() - 1
                }
                None => return None,
            });
        }
        let mut columns = SmallVec::new();
        for column in trajectory.columns() {
            let num_steps = column.num_steps();
            let squeeze = column.squeeze;
            let tensor = column.runs().next()?.slice.tensor;
            columns.push(PlannedColumn { tensor, num_steps, squeeze });
        }
        let mut plan = Self {
            layouts,
            columns,
            num_chunks: 0,
            one_chunk_columns: None,
            stored_columns: SmallVec::new(),
            layout_of,
            copies: SmallVec::new(),
        };
        plan.find_copies(trajectory).then_some(plan)
    }

    /// True if the item is of this kind; `copies` then hold for the item.
    #[inline]
    fn matches(&mut self, trajectory: &Trajectory) -> bool {
        let chunks = trajectory.chunks();
        let columns = trajectory.one_chunk_columns();
        if columns.is_some() && columns == self.one_chunk_columns {
            return self.layouts[self.layout_of[0]].matches(&chunks[0]);
        }
        if chunks.len() == self.num_chunks
            && trajectory.stored_columns() == &self.stored_columns[..]
        {
            let mut pairs = chunks.iter().zip(&self.layout_of);
            return pairs.all(|(chunk, &layout)| self.layouts[layout].matches(chunk));
        }
        // The item has other steps of chunks that are all alike, such as windows of a history.
        let [layout] = &self.layouts[..] else { return false };
        if !chunks.iter().all(|chunk| layout.matches(chunk)) {
            return false;
        }
        self.layout_of.clear();
        self.layout_of.resize(chunks.len(), 0);
        self.find_copies(trajectory)
    }

    /// Finds the copies of an item whose chunks have the layouts of `layout_of`. Returns false if
    /// its columns are of another kind; then no item matches by its stored columns.
    fn find_copies(&mut self, trajectory: &Trajectory) -> bool {
        self.num_chunks = 0;
        self.one_chunk_columns = None;
        self.copies.clear();
        if trajectory.num_columns() != self.columns.len() {
            return false;
        }
        for (i, (column, planned)) in trajectory.columns().zip(&self.columns).enumerate() {
            let mut at = 0_usize;
            let mut num_steps = 0_usize;
            for run in column.runs() {
                let Run { slice, times } = run;
                let layout = &self.layouts[self.layout_of[slice.chunk]];
                let Some(place) = layout.rows(slice.tensor, slice.offset, slice.length) else {
                    return false;
                };
                if slice.tensor != planned.tensor {
                    return false;
                }
                let length = place.len().saturating_mul(times);
                // A peer may repeat values without bytes very often.
                let times = if place.is_empty() { 1 } else { times };
                self.copies.push(ColumnCopy { column: i, at, chunk: slice.chunk, place, times });
                at = at.saturating_add(length);
                num_steps = num_steps.saturating_add(run.num_steps());
            }
            if num_steps != planned.num_steps || column.squeeze != planned.squeeze {
                return false;
            }
        }
        self.num_chunks = trajectory.chunks().len();
        self.one_chunk_columns = trajectory.one_chunk_columns();
        self.stored_columns = SmallVec::from_slice(trajectory.stored_columns());
        true
    }

    #[inline]
    fn copy(
        &self,
        trajectory: &Trajectory,
        next: Option<&Trajectory>,
        mut write: impl FnMut(usize, usize, &[u8]),
    ) {
        let chunks = trajectory.chunks();
        for (i, copy) in self.copies.iter().enumerate() {
            let values = &chunks[copy.chunk].stored()[copy.place.clone()];
            if copy.times > 1 {
                let at = |time: usize| copy.at + time * values.len();
                (0..copy.times).for_each(|time| write(copy.column, at(time), values));
            } else if are_large(values.len()) {
                let following = self.following(i, trajectory, next);
                large_values::write(values, following, |at, piece| {
                    write(copy.column, copy.at + at, piece);
                });
            } else {
                write(copy.column, copy.at, values);
            }
        }
    }

    /// The values that are copied after those of copy `i`, if they are many. Those of the next item
    /// are a guess: it may be of another kind.
    fn following<'t>(
        &self,
        i: usize,
        trajectory: &'t Trajectory,
        next: Option<&'t Trajectory>,
    ) -> &'t [u8] {
        let is_large = |copy: &&ColumnCopy| are_large(copy.place.len());
        let (copy, chunks) = match self.copies[i + 1..].iter().find(is_large) {
            Some(copy) => (Some(copy), Some(trajectory.chunks())),
            None => (self.copies.iter().find(is_large), next.map(Trajectory::chunks)),
        };
        let values = copy
            .zip(chunks)
            .and_then(|(copy, chunks)| chunks.get(copy.chunk)?.stored().get(copy.place.clone()));
        values.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reverb_data::{
        Chunk, ChunkBuilder, DType, SequenceRange, Shape, Tensor, TensorData, TrajectoryBuilder,
    };

    use super::*;

    const STEPS: usize = 3;

    /// A chunk of three steps of two columns.
    fn chunk(key: u64, widths: [usize; 2], compressible: bool) -> Chunk {
        let mut builder = ChunkBuilder::new(false);
        for (tensor, width) in widths.into_iter().enumerate() {
            let noise = |i: usize| (i as u64 + key * 7919).wrapping_mul(0x5851_f42d_4c95_7f2d);
            let value = |i: usize| if compressible { 0 } else { (noise(i) >> 33) as u8 };
            builder.push(&Tensor {
                dtype: DType::UInt8,
                shape: Shape::from_slice(&[STEPS, width]),
                data: TensorData::Bytes((0..STEPS * width).map(|i| value(i + tensor)).collect()),
            });
        }
        builder.finish(key, SequenceRange::default())
    }

    /// `num_steps` of both columns, from a step on in a history of chunks.
    fn window(history: &[Chunk], first: usize, num_steps: usize, swap: bool) -> Trajectory {
        let mut builder = TrajectoryBuilder::new();
        for tensor in if swap { [1, 0] } else { [0, 1] } {
            for step in first..first + num_steps {
                builder.slice(&history[step / STEPS], tensor, step % STEPS, 1);
            }
            builder.end_column(num_steps == 1);
        }
        builder.finish().unwrap()
    }

    fn copied(
        plans: &mut CopyPlans,
        trajectory: &Trajectory,
        next: Option<&Trajectory>,
    ) -> Option<Vec<Vec<u8>>> {
        let mut columns = vec![Vec::new(); trajectory.num_columns()];
        let found = plans.copy(trajectory, next, |i, at, values| {
            assert_eq!(columns[i].len(), at);
            columns[i].extend_from_slice(values);
        });
        found.then_some(columns)
    }

    fn decoded(trajectory: &Trajectory) -> Vec<Vec<u8>> {
        let bytes = |tensor: Tensor| match tensor.data {
            TensorData::Bytes(bytes) => bytes,
            TensorData::Strings(_) => unreachable!(),
        };
        trajectory.decode().unwrap().into_iter().map(bytes).collect()
    }

    proptest! {
        /// A plan copies the same values as decoding, and only for items of the kind that was
        /// learned.
        #[test]
        fn copies_are_what_decoding_gives(
            (first_width, second_width) in (1usize..40, prop_oneof![1usize..40, 1900usize..3000]),
            odd in prop::option::of((0usize..4, any::<bool>())),
            windows in prop::collection::vec((0usize..9, 1usize..4, any::<bool>()), 1..40),
        ) {
            let widths = [first_width, second_width];
            let mut history: Vec<Chunk> = (0..4).map(|i| chunk(i, widths, false)).collect();
            if let Some((at, compressible)) = odd {
                let widths = if compressible { [100, 100] } else { [widths[0] + 1, widths[1]] };
                history[at] = chunk(9, widths, compressible);
            }
            let mut plans = CopyPlans::default();
            let mut learned = Vec::new();
            let items: Vec<Trajectory> = windows
                .iter()
                .map(|&(first, num_steps, swap)| window(&history, first, num_steps, swap))
                .collect();
            for (i, item) in items.iter().enumerate() {
                let num_steps = windows[i].1;
                let next = items.get(i + 1);
                let sizes: Option<Vec<usize>> =
                    item.validate().is_ok().then(|| decoded(item).iter().map(Vec::len).collect());
                let Some(sizes) = sizes else {
                    prop_assert_eq!(copied(&mut plans, item, next), None);
                    continue;
                };
                if let Some(columns) = copied(&mut plans, item, next) {
                    prop_assert_eq!(columns, decoded(item));
                    prop_assert!(learned.contains(&(num_steps, sizes)));
                } else {
                    plans.learn(item);
                    learned.push((num_steps, sizes));
                }
            }
        }
    }

    #[test]
    fn items_of_a_learned_kind_are_copied_wherever_their_steps_are() {
        let history: Vec<Chunk> = (0..4).map(|i| chunk(i, [5, 7], false)).collect();
        let mut plans = CopyPlans::default();
        plans.learn(&window(&history, 0, 3, false));
        for first in 0..9 {
            let item = window(&history, first, 3, false);
            assert_eq!(copied(&mut plans, &item, None), Some(decoded(&item)), "{first}");
        }
        assert_eq!(copied(&mut plans, &window(&history, 0, 2, false), None), None);
        assert_eq!(copied(&mut plans, &window(&history, 0, 3, true), None), None);
        let other = [chunk(1, [5, 8], false)];
        assert_eq!(copied(&mut plans, &window(&other, 0, 3, false), None), None);
    }

    #[test]
    fn a_batch_of_many_kinds_stops_learning() {
        let mut plans = CopyPlans::default();
        for width in 1..=MAX_ATTEMPTS {
            plans.learn(&window(&[chunk(1, [width, 1], false)], 0, 1, false));
        }
        assert_eq!(plans.plans.len(), MAX_PLANS);
        let late = window(&[chunk(1, [50, 1], false)], 0, 1, false);
        plans.learn(&late);
        assert_eq!(copied(&mut plans, &late, None), None);
    }
}
