// SPDX-License-Identifier: Apache-2.0
//! Item templates: common parts of items that are created together.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::tensor::shape_text;
use reverb_data::{DType, Shape, Signature};
use smallvec::SmallVec;

use super::block::BlockRef;
use super::cell::{Cell, CellSpec};

/// Number of an item's blocks up to which they are searched.
const MAX_SEARCHED_BLOCKS: usize = 256;

/// Common parts of items that are created together: everything except keys, priorities and cells.
#[derive(Debug)]
pub(super) struct ItemTemplate {
    table: Arc<str>,
    columns: SmallVec<[ItemColumn; 4]>,
}

/// Cells of an item, in terms of its template.
#[derive(Debug, Clone, Default)]
pub(super) struct ItemCells {
    /// Blocks, some possibly more than once; an item that a template is learned from has each block
    /// once. Most items have one block or two. Both threads count references, so one count for all
    /// columns is faster.
    pub(super) blocks: SmallVec<[BlockRef; 2]>,
    /// Index of the first cell in the first block.
    pub(super) first: u32,
}

impl ItemCells {
    /// True if the blocks are so few that equal ones were found: a template needs that.
    pub(super) fn are_searched(&self) -> bool {
        self.blocks.len() <= MAX_SEARCHED_BLOCKS
    }
}

/// Cells of one column.
#[derive(Debug, Clone)]
struct ItemColumn {
    runs: SmallVec<[Run; 1]>,
    spec: Arc<CellSpec>,
    cell_bytes: usize,
    num_steps: usize,
    squeeze: bool,
}

/// Consecutive cells of one column of a block.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Position of the block among those of the item.
    block: u32,
    /// Position of the column in the block.
    position: u16,
    /// First cell. In the item's first block it counts from the item's first cell, so that items
    /// anywhere in one block are of the same template.
    index: u32,
    length: u32,
}

impl Run {
    fn block(self, cells: &ItemCells) -> &BlockRef {
        &cells.blocks[self.block as usize]
    }

    /// Index of the first cell in the block.
    fn start(self, first: u32) -> u32 {
        if self.block == 0 { first.wrapping_add(self.index) } else { self.index }
    }
}

/// Consecutive cells of one column of a block.
pub(super) struct Slice<'a> {
    pub(super) block: &'a BlockRef,
    /// Position of the column in the block.
    pub(super) position: usize,
    /// First cell.
    pub(super) start: u32,
    pub(super) length: u32,
    /// Bytes of a cell.
    pub(super) cell_bytes: usize,
}

impl ItemTemplate {
    /// The template of an item over these columns, each with a flag for squeezed ones, and the
    /// item's cells.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an empty column, an expired cell, cells of different dtype or shape in
    /// one column, or a squeezed column without exactly one cell.
    pub(super) fn of<'a, C>(
        table: Arc<str>,
        columns: impl Iterator<Item = (C, bool)>,
    ) -> Result<(Arc<Self>, ItemCells)>
    where
        C: ExactSizeIterator<Item = Cell<'a>> + Clone,
    {
        let mut own = ItemCells::default();
        let columns: Result<_> = columns
            .enumerate()
            .map(|(i, (cells, squeeze))| ItemColumn::new(i, cells, squeeze, &mut own))
            .collect();
        Ok((Arc::new(Self { table, columns: columns? }), own))
    }

    /// The same template for another table.
    pub(super) fn for_table(&self, table: Arc<str>) -> Arc<Self> {
        Arc::new(Self { table, columns: self.columns.clone() })
    }

    /// Name of the table.
    pub(super) fn table(&self) -> &Arc<str> {
        &self.table
    }

    /// The cells of an item, if it is of this template and no cell has expired.
    ///
    /// `columns` yields the index of a column in the item, its cells, and a flag for squeezed ones.
    /// Columns may be left out if their cells are in the same rows as those of a given one, as in
    /// the template.
    pub(super) fn find<'a, C>(
        &self,
        columns: impl Iterator<Item = (usize, C, bool)>,
    ) -> Option<ItemCells>
    where
        C: ExactSizeIterator<Item = Cell<'a>>,
    {
        let mut found = ItemCells::default();
        for (index, mut cells, squeeze) in columns {
            let column = &self.columns[index];
            if column.squeeze != squeeze || column.num_steps != cells.len() {
                return None;
            }
            for run in &column.runs {
                for i in 0..run.length {
                    let cell = cells.next()?;
                    if found.blocks.is_empty() {
                        found.first = cell.index;
                    }
                    if i == 0 && run.block as usize == found.blocks.len() {
                        found.blocks.push(cell.block.clone());
                    }
                    let is_next = cell.position == run.position
                        && cell.index == run.start(found.first).wrapping_add(i)
                        && run.block(&found).is_same(cell.block);
                    let is_first_of_other_spec = i == 0 && !is_same(&column.spec, cell.spec());
                    if !is_next || is_first_of_other_spec || cell.is_expired() {
                        return None;
                    }
                }
            }
        }
        Some(found)
    }

    /// Columns of an item of this template, each with a flag for squeezed ones.
    pub(super) fn columns<'a>(
        &'a self,
        cells: &'a ItemCells,
    ) -> impl Iterator<Item = (impl Iterator<Item = Slice<'a>>, bool)> {
        self.columns.iter().map(|column| {
            let slices = column.runs.iter().map(|run| Slice {
                block: run.block(cells),
                position: usize::from(run.position),
                start: run.start(cells.first),
                length: run.length,
                cell_bytes: column.cell_bytes,
            });
            (slices, column.squeeze)
        })
    }

    /// Two columns with their numbers of rows, several in each, of which one has a row more:
    /// `T + 1` and `T`. `None` for other lengths.
    pub(super) fn one_row_more(&self) -> Option<[(usize, usize); 2]> {
        let lengths = || {
            let columns = self.columns.iter().enumerate().filter(|(_, column)| !column.squeeze);
            columns.map(|(index, column)| (index, column.num_steps))
        };
        let longest = lengths().max_by_key(|(_, length)| *length)?;
        let shortest = lengths().min_by_key(|(_, length)| *length)?;
        (shortest.1 > 1 && longest.1 == shortest.1 + 1).then_some([longest, shortest])
    }

    /// Checks the template against the signature of its table.
    pub(super) fn check_signature(&self, signature: &Signature) -> Result<()> {
        let matches = |(spec, column): (&reverb_data::TensorSpec, &ItemColumn)| {
            let cell = &column.spec;
            spec.dtype == cell.dtype
                && spec.shape.as_ref().is_none_or(|dims| {
                    match (column.squeeze, dims.split_first()) {
                        (true, _) => dims_match(dims, &cell.shape),
                        (false, None) => false,
                        (false, Some((steps, dims))) => {
                            steps.is_none_or(|steps| steps == column.num_steps)
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
        let shapes: Vec<(DType, Shape)> = self.columns.iter().map(ItemColumn::spec).collect();
        let columns: Vec<(DType, &[usize])> =
            shapes.iter().map(|(dtype, shape)| (*dtype, shape.as_slice())).collect();
        signature.check(&self.table, &columns)
    }
}

impl ItemColumn {
    fn new<'a>(
        index: usize,
        cells: impl ExactSizeIterator<Item = Cell<'a>> + Clone,
        squeeze: bool,
        item: &mut ItemCells,
    ) -> Result<Self> {
        let Some(first) = cells.clone().next() else {
            return Err(Error::invalid_column(
                "trajectory column ",
                index,
                " is empty; every column needs at least one step",
            ));
        };
        if squeeze && cells.len() != 1 {
            return Err(Error::invalid_column(
                "trajectory column ",
                index,
                &format!(" is squeezed and must have exactly 1 step, got {}", cells.len()),
            ));
        }
        if item.blocks.is_empty() {
            item.first = first.index;
        }
        let num_steps = cells.len();
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        for cell in cells {
            if cell.is_expired() {
                return Err(Error::invalid_column(
                    "trajectory column ",
                    index,
                    " refers to a step that has expired: only the last num_keep_alive_refs steps of the episode can \
                     be used. Raise num_keep_alive_refs or create the item earlier",
                ));
            }
            check_same_spec(index, first, cell)?;
            match runs.last_mut() {
                Some(run)
                    if run.block(item).is_same(cell.block)
                        && run.position == cell.position
                        && run.start(item.first) + run.length == cell.index =>
                {
                    run.length += 1;
                }
                previous => {
                    let previous = previous.map(|run| run.block);
                    let block = index_of(cell.block, item, previous);
                    let base = if block == 0 { item.first } else { 0 };
                    runs.push(Run {
                        block,
                        position: cell.position,
                        index: cell.index.wrapping_sub(base),
                        length: 1,
                    });
                }
            }
        }
        let spec = Arc::clone(first.spec());
        let cell_bytes = first.spec().num_bytes();
        Ok(Self { runs, spec, cell_bytes, num_steps, squeeze })
    }

    /// Dtype and shape of the column.
    fn spec(&self) -> (DType, Shape) {
        let mut shape = self.spec.shape.clone();
        if !self.squeeze {
            shape.insert(0, self.num_steps);
        }
        (self.spec.dtype, shape)
    }
}

/// Position of a block among the blocks of an item; `previous` is that of the column's previous
/// run. Columns mostly refer to the same blocks in the same order.
fn index_of(block: &BlockRef, item: &mut ItemCells, previous: Option<u32>) -> u32 {
    let blocks = &mut item.blocks;
    let likely = match previous {
        None => 0..1,
        Some(previous) => previous..previous + 2,
    };
    let is_it = |&place: &u32| blocks.get(place as usize).is_some_and(|known| known.is_same(block));
    let mut searched =
        if blocks.len() < MAX_SEARCHED_BLOCKS { 0..blocks.len() as u32 } else { 0..0 };
    likely.into_iter().find(is_it).or_else(|| searched.find(is_it)).unwrap_or_else(|| {
        blocks.push(block.clone());
        blocks.len() as u32 - 1
    })
}

fn is_same(one: &Arc<CellSpec>, other: &Arc<CellSpec>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

fn check_same_spec(index: usize, first: Cell<'_>, cell: Cell<'_>) -> Result<()> {
    let expected = first.spec();
    let got = cell.spec();
    if is_same(expected, got) {
        return Ok(());
    }
    let difference = format!(
        " mixes steps of dtype {} and shape {} with steps of dtype {} and shape {}",
        expected.dtype.name(),
        shape_text(&expected.shape),
        got.dtype.name(),
        shape_text(&got.shape),
    );
    Err(Error::invalid_column("trajectory column ", index, &difference))
}

fn dims_match(dims: &[Option<usize>], shape: &[usize]) -> bool {
    dims.len() == shape.len()
        && dims.iter().zip(shape).all(|(dim, &size)| dim.is_none_or(|dim| dim == size))
}

#[cfg(test)]
mod tests;
