// SPDX-License-Identifier: Apache-2.0
//! Pending items: requested items, in terms of cells.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::{ItemPriority, NewItem};

use super::block::BlockRef;
use super::cell::{Cell, CellRef};
use super::history::History;
use super::item_encoder::ItemEncoder;
use super::item_template::{ItemCells, ItemTemplate, KnownTemplates};

/// The cells of one column of an item.
#[derive(Debug, Clone, Copy)]
pub struct ColumnRefs<'a> {
    /// The cells in order; any order, repeats allowed.
    pub cells: &'a [CellRef],
    /// True if the single cell has no leading dimension.
    pub squeeze: bool,
}

/// The error for an item without steps.
pub(in crate::writer) fn no_steps() -> Error {
    Error::invalid_argument(
        "trajectory must have at least one column with at least one step, all columns are empty",
    )
}

fn check_priority(priority: &ItemPriority) -> Result<()> {
    if priority.is_valid() {
        return Ok(());
    }
    Err(Error::invalid_argument("priority must not be NaN"))
}

/// An item in a writer's queue. Keeps its blocks in memory.
#[derive(Debug)]
pub(crate) struct PendingItem {
    priority: ItemPriority,
    template: Arc<ItemTemplate>,
    cells: ItemCells,
}

impl PendingItem {
    /// Checks the columns, each with a flag for squeezed ones, and records their cells. `check`
    /// runs last.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a NaN priority, no columns, an empty column, an expired cell, cells of
    /// different dtype or shape in one column, or a squeezed column without exactly one cell.
    /// Errors of `check`.
    pub(super) fn new<'a, C>(
        table: Arc<str>,
        priority: ItemPriority,
        columns: impl Iterator<Item = (C, bool)> + Clone,
        check: impl FnOnce(&ItemTemplate) -> Result<()>,
    ) -> Result<Self>
    where
        C: ExactSizeIterator<Item = Cell<'a>> + Clone,
    {
        if columns.clone().all(|(cells, _)| cells.len() == 0) {
            return Err(no_steps());
        }
        check_priority(&priority)?;
        let (template, cells) = ItemTemplate::of(table, columns)?;
        check(&template)?;
        Ok(Self { priority, template, cells })
    }

    /// An item of a known template, if there is one. See `KnownTemplates::find`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a NaN priority.
    pub(super) fn of_known_template<'a, C>(
        known: &KnownTemplates,
        priority: ItemPriority,
        columns: &(impl Iterator<Item = (usize, C, bool)> + Clone),
    ) -> Result<Option<Self>>
    where
        C: ExactSizeIterator<Item = Cell<'a>>,
    {
        check_priority(&priority)?;
        Ok(known.find(columns).map(|(template, cells)| Self { priority, template, cells }))
    }

    /// An item over the whole history of a history, which must have at least one step in every
    /// column. Columns are reordered by `order`, if given.
    pub(crate) fn over_history(
        table: Arc<str>,
        priority: ItemPriority,
        history: &History,
        order: Option<&[usize]>,
    ) -> Result<Self> {
        let columns = (0..history.num_columns()).map(|i| {
            let column = order.map_or(i, |order| order[i]);
            (history.cells(column).map(|(_, cell)| cell), false)
        });
        let (template, cells) = ItemTemplate::of(table, columns)?;
        Ok(Self { priority, template, cells })
    }

    /// An item over the same cells, for another table.
    #[must_use]
    pub(crate) fn for_table(&self, table: Arc<str>) -> Self {
        let (template, cells) = (self.template.for_table(table), self.cells.clone());
        Self { priority: self.priority, template, cells }
    }

    /// Bytes of the cells that no earlier item counted: those it refers to, and those before them
    /// in their blocks.
    pub(crate) fn new_bytes(&self) -> usize {
        let mut sum = 0;
        for slice in self.template.columns(&self.cells).flat_map(|(slices, _)| slices) {
            let new = slice.block.mark_queued(slice.position, slice.start + slice.length);
            if new > 0 {
                sum += new as usize * slice.cell_bytes;
            }
        }
        sum
    }

    /// Adds its template to the known ones.
    pub(super) fn teach(&self, known: &mut KnownTemplates) {
        known.learn(&self.template, &self.cells);
    }

    /// Name of the table.
    pub(crate) fn table(&self) -> &Arc<str> {
        self.template.table()
    }

    /// True if both items are known to refer to the same columns.
    pub(crate) fn refers_to_columns_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.template, &other.template)
    }

    /// Marks the item's columns as referenced. Columns that no item refers to are not sent.
    pub(crate) fn mark_referenced(&self) {
        for (mut slices, _) in self.template.columns(&self.cells) {
            let slice = slices.next().expect("a column has a cell");
            slice.block.columns()[slice.position].mark_referenced();
        }
    }

    /// True if all of its chunks may be encoded now.
    pub(crate) fn is_ready(&self) -> bool {
        self.cells.blocks.iter().all(BlockRef::is_ready)
    }

    /// Freezes its blocks, so that it becomes ready.
    pub(crate) fn freeze(&self) {
        for block in &self.cells.blocks {
            block.freeze();
        }
    }

    /// Encodes blocks that are not encoded yet; returns the item with this key, ready to send.
    pub(in crate::writer) fn encode(
        &self,
        key: u64,
        encoder: &mut ItemEncoder,
        next_key: &mut dyn FnMut() -> u64,
    ) -> Result<NewItem> {
        Ok(NewItem::new(
            key,
            Arc::clone(self.template.table()),
            self.priority,
            encoder.trajectory(&self.template, &self.cells, next_key)?,
        ))
    }

    /// Blocks of the item, some possibly more than once.
    pub(crate) fn blocks(&self) -> &[BlockRef] {
        &self.cells.blocks
    }
}
