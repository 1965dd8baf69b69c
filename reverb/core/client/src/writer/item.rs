// SPDX-License-Identifier: Apache-2.0
//! Pending items: what the caller asked for, in terms of cells.

use std::sync::Arc;

use reverb_data::tensor::shape_text;
use reverb_data::{DType, Error, NewItem, Result, Shape, Signature, TrajectoryBuilder};
use smallvec::SmallVec;

use super::block::{Block, BlockColumn};
use super::cell::CellRef;
use super::lane::Lane;

/// The cells of one column of an item.
#[derive(Debug, Clone, Copy)]
pub struct ColumnRefs<'a> {
    /// The cells in order; any order, repeats allowed.
    pub cells: &'a [CellRef],
    /// Whether the single cell has no leading dimension.
    pub squeeze: bool,
}

/// The error for an item without steps.
pub(super) fn no_steps() -> Error {
    Error::invalid_argument(
        "trajectory must have at least one column with at least one step, all columns are empty",
    )
}

/// Consecutive cells of one column of a block.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// The block's position among those of the item.
    block: u32,
    /// The column's position in the block.
    position: u16,
    /// The first cell.
    index: u32,
    length: u32,
}

impl Run {
    fn block(self, blocks: &Blocks) -> &Arc<Block> {
        &blocks[self.block as usize]
    }

    fn column(self, blocks: &Blocks) -> &BlockColumn {
        &self.block(blocks).columns()[usize::from(self.position)]
    }
}

/// The blocks of an item; one may appear more than once. Most items are of one block: counting
/// references to it once for all columns is faster, because two threads do it.
type Blocks = SmallVec<[Arc<Block>; 1]>;

#[derive(Debug, Clone)]
struct ItemColumn {
    runs: SmallVec<[Run; 1]>,
    squeeze: bool,
}

/// An item in a writer's queue. Keeps its blocks in memory.
#[derive(Debug)]
pub(crate) struct PendingItem {
    key: u64,
    table: Arc<str>,
    priority: f64,
    blocks: Blocks,
    columns: SmallVec<[ItemColumn; 4]>,
}

impl PendingItem {
    /// Checks the columns, each with whether it is squeezed, and records their cells.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a NaN priority, no columns, an empty column, an expired cell, cells of
    /// different dtype or shape in one column, or a squeezed column that does not have exactly one
    /// cell.
    pub(crate) fn new<'a, C>(
        key: u64,
        table: Arc<str>,
        priority: f64,
        columns: impl Iterator<Item = (C, bool)> + Clone,
    ) -> Result<Self>
    where
        C: ExactSizeIterator<Item = &'a CellRef> + Clone,
    {
        if columns.clone().all(|(cells, _)| cells.len() == 0) {
            return Err(no_steps());
        }
        if priority.is_nan() {
            return Err(Error::invalid_argument("priority must not be NaN"));
        }
        let mut blocks = Blocks::new();
        let columns: Result<_> = columns
            .enumerate()
            .map(|(i, (cells, squeeze))| ItemColumn::new(i, cells, squeeze, &mut blocks))
            .collect();
        Ok(Self { key, table, priority, columns: columns?, blocks })
    }

    /// An item over the whole history of a lane, which must have at least one step in every column.
    pub(crate) fn over_history(
        key: u64,
        table: Arc<str>,
        priority: f64,
        lane: &Lane,
    ) -> Result<Self> {
        let mut blocks = Blocks::new();
        let cells = |i| lane.cells(i).map(|(_, cell)| cell);
        let columns: Result<_> = (0..lane.num_columns())
            .map(|i| ItemColumn::new(i, cells(i), false, &mut blocks))
            .collect();
        Ok(Self { key, table, priority, columns: columns?, blocks })
    }

    /// An item over the same cells, for another table.
    #[must_use]
    pub(crate) fn for_table(&self, key: u64, table: Arc<str>) -> Self {
        let (blocks, columns) = (self.blocks.clone(), self.columns.clone());
        Self { key, table, priority: self.priority, blocks, columns }
    }

    /// Checks the item against its table's signature.
    pub(crate) fn check_signature(&self, signature: &Signature) -> Result<()> {
        let matches = |(spec, column): (&reverb_data::TensorSpec, &ItemColumn)| {
            let cell = &column.runs[0].column(&self.blocks).spec;
            spec.dtype == cell.dtype
                && spec.shape.as_ref().is_none_or(|dims| {
                    match (column.squeeze, dims.split_first()) {
                        (true, _) => dims_match(dims, &cell.shape),
                        (false, None) => false,
                        (false, Some((steps, dims))) => {
                            steps.is_none_or(|steps| steps == column.num_steps())
                                && dims_match(dims, &cell.shape)
                        }
                    }
                })
        };
        if signature.0.len() == self.columns.len()
            && signature.0.iter().zip(&self.columns).all(matches)
        {
            return Ok(());
        }
        let shapes: Vec<(DType, Shape)> =
            self.columns.iter().map(|it| it.spec(&self.blocks)).collect();
        let columns: Vec<(DType, &[usize])> =
            shapes.iter().map(|(dtype, shape)| (*dtype, shape.as_slice())).collect();
        signature.check(&self.table, &columns)
    }

    /// Bytes of the cells that no earlier item came with: those it refers to, and those before them
    /// in their blocks.
    pub(crate) fn new_bytes(&self) -> usize {
        let bytes = |run: &Run| {
            let end = run.index + run.length;
            let new = run.block(&self.blocks).mark_queued(usize::from(run.position), end);
            new as usize * run.column(&self.blocks).spec.num_bytes()
        };
        self.runs().map(bytes).sum()
    }

    /// Name of its table.
    pub(crate) fn table(&self) -> &Arc<str> {
        &self.table
    }

    /// Marks the item's columns as referenced. Columns that no item refers to are not sent.
    pub(crate) fn mark_referenced(&self) {
        for column in &self.columns {
            column.runs[0].column(&self.blocks).mark_referenced();
        }
    }

    /// Whether all its chunks may be encoded now.
    pub(crate) fn is_ready(&self) -> bool {
        self.blocks.iter().all(|block| block.is_ready())
    }

    /// Freezes the blocks it refers to, so that it becomes ready.
    pub(crate) fn freeze(&self) {
        for block in &self.blocks {
            block.freeze();
        }
    }

    /// Encodes blocks that are not encoded yet; returns the item to send.
    pub(crate) fn resolve(
        &self,
        builder: &mut TrajectoryBuilder,
        next_key: &mut dyn FnMut() -> u64,
    ) -> Result<NewItem> {
        for column in &self.columns {
            for run in &column.runs {
                let position = usize::from(run.position);
                let (chunk, tensor) = run.block(&self.blocks).chunk_of(position, next_key);
                builder.slice(chunk, tensor, run.index as usize, run.length as usize);
            }
            builder.end_column(column.squeeze);
        }
        Ok(NewItem {
            key: self.key,
            table: Arc::clone(&self.table),
            priority: self.priority,
            times_sampled: 0,
            trajectory: builder.finish()?,
        })
    }

    /// The blocks it refers to; a block may appear more than once.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.iter()
    }

    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.columns.iter().flat_map(|column| &column.runs)
    }
}

fn dims_match(dims: &[Option<usize>], shape: &[usize]) -> bool {
    dims.len() == shape.len()
        && dims.iter().zip(shape).all(|(dim, &size)| dim.is_none_or(|dim| dim == size))
}

impl ItemColumn {
    fn new<'a>(
        index: usize,
        cells: impl ExactSizeIterator<Item = &'a CellRef> + Clone,
        squeeze: bool,
        blocks: &mut Blocks,
    ) -> Result<Self> {
        let Some(first) = cells.clone().next() else {
            return Err(Error::invalid_argument(format!(
                "trajectory column {index} is empty; every column needs at least one step"
            )));
        };
        if squeeze && cells.len() != 1 {
            return Err(Error::invalid_argument(format!(
                "trajectory column {index} is squeezed and must have exactly 1 step, got {}",
                cells.len()
            )));
        }
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        for cell in cells {
            if cell.is_expired() {
                return Err(Error::invalid_argument(format!(
                    "trajectory column {index} refers to a step that has expired: only the last \
                     num_keep_alive_refs steps of the episode can be used. Raise num_keep_alive_refs or create the \
                     item earlier"
                )));
            }
            check_same_spec(index, first, cell)?;
            match runs.last_mut() {
                Some(run)
                    if Arc::ptr_eq(run.block(blocks), &cell.block)
                        && run.position == cell.position
                        && run.index + run.length == cell.index =>
                {
                    run.length += 1;
                }
                previous => {
                    let previous = previous.map(|run| run.block);
                    runs.push(Run {
                        block: place_of(&cell.block, blocks, previous),
                        position: cell.position,
                        index: cell.index,
                        length: 1,
                    });
                }
            }
        }
        Ok(Self { runs, squeeze })
    }

    fn num_steps(&self) -> usize {
        self.runs.iter().map(|run| run.length as usize).sum()
    }

    fn spec(&self, blocks: &Blocks) -> (DType, Shape) {
        let cell = &self.runs[0].column(blocks).spec;
        let mut shape = cell.shape.clone();
        if !self.squeeze {
            shape.insert(0, self.num_steps());
        }
        (cell.dtype, shape)
    }
}

/// The position of a block among the blocks of an item; `previous` is that of the column's run
/// before. Columns mostly refer to the same blocks in the same order, so these are not searched.
fn place_of(block: &Arc<Block>, blocks: &mut Blocks, previous: Option<u32>) -> u32 {
    let likely = match previous {
        None => 0..1,
        Some(previous) => previous..previous + 2,
    };
    let is_it =
        |&place: &u32| blocks.get(place as usize).is_some_and(|known| Arc::ptr_eq(known, block));
    likely.into_iter().find(is_it).unwrap_or_else(|| {
        blocks.push(Arc::clone(block));
        blocks.len() as u32 - 1
    })
}

fn check_same_spec(index: usize, first: &CellRef, cell: &CellRef) -> Result<()> {
    let (expected, got) = (first.spec(), cell.spec());
    if Arc::ptr_eq(expected, got) || expected == got {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "trajectory column {index} mixes steps of dtype {} and shape {} with steps of dtype {} and shape {}",
        expected.dtype.name(),
        shape_text(&expected.shape),
        got.dtype.name(),
        shape_text(&got.shape),
    )))
}

#[cfg(test)]
mod tests {
    use super::super::cell::CellValue;
    use super::*;

    #[test]
    fn columns_of_the_same_blocks_refer_to_each_block_once() {
        let mut lane = Lane::new(2);
        (0..2).for_each(|column| _ = lane.add_column(column, None));
        // A block of the first two steps, and another one.
        for step in [1, 2, 3] {
            let bytes = [step];
            let value = || CellValue::Bytes { dtype: DType::UInt8, shape: &[], bytes: &bytes };
            lane.append(&mut [(0, value()), (1, value())], false).unwrap();
        }
        let item = PendingItem::over_history(1, "table".into(), 1.0, &lane).unwrap();
        let blocks: Vec<u32> = item.runs().map(|run| run.block).collect();
        assert_eq!((blocks, item.blocks.len()), (vec![0, 1, 0, 1], 2));
    }
}
