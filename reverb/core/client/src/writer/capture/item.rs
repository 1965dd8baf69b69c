// SPDX-License-Identifier: Apache-2.0
//! Pending items: requested items, in terms of cells.
//!
//! The face of this room: `send` queues pending items, asks whether they are ready, and encodes
//! them. It knows blocks only as what keeps chunks in memory.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::{ItemPriority, NewItem};

use super::block::BlockRef;
use super::cell::CellRef;
use super::history::History;
use super::item_encoder::ItemEncoder;
use super::item_template::{ItemCells, ItemTemplate};

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

/// An item in a writer's queue. Keeps its blocks in memory.
#[derive(Debug)]
pub(crate) struct PendingItem {
    priority: ItemPriority,
    template: Arc<ItemTemplate>,
    cells: ItemCells,
}

impl PendingItem {
    /// The cells of an item, of this template.
    pub(super) fn new(
        priority: ItemPriority,
        template: Arc<ItemTemplate>,
        cells: ItemCells,
    ) -> Self {
        Self { priority, template, cells }
    }

    /// An item over a whole history, which must have at least one step in every column. Columns are
    /// reordered by `order`, if given.
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
        let template = self.template.for_table(table);
        let cells = self.cells.clone();
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
        let trajectory = encoder.trajectory(&self.template, &self.cells, next_key)?;
        Ok(NewItem::new(key, Arc::clone(self.template.table()), self.priority, trajectory))
    }

    /// Blocks of the item, some possibly more than once.
    pub(crate) fn blocks(&self) -> &[BlockRef] {
        &self.cells.blocks
    }
}
