// SPDX-License-Identifier: Apache-2.0
//! Reads the items of one table of a checkpoint, block by block.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::{Sampled, StoredItem};

use crate::blocks::Blocks;
use crate::progress::Progress;
use crate::stored::{ChunkMap, Stored};

/// Reads the items of one table, in the order of the file.
///
/// The first call reads all chunks and keeps them in memory, because items may refer to any of
/// them.
#[derive(Debug)]
pub struct ItemCursor {
    stored: Arc<Stored>,
    table: usize,
    table_size: i64,
    opened: Option<(Arc<ChunkMap>, Option<Blocks>)>,
}

impl ItemCursor {
    /// A cursor over the table of this name.
    ///
    /// # Errors
    ///
    /// `TableNotFound` if the checkpoint has no such table.
    pub fn new(stored: &Arc<Stored>, table: &str) -> Result<Self> {
        let tables = stored.tables();
        let Some(at) = tables.iter().position(|known| known.name() == table) else {
            let known: Vec<String> = tables.iter().map(|table| table.name().to_owned()).collect();
            return Err(Error::table_not_found(table, &known));
        };
        let counters = tables[at].counters();
        let table_size = counters.inserts - counters.deletes;
        Ok(Self { stored: Arc::clone(stored), table: at, table_size, opened: None })
    }

    /// Reads the next items: at least one, or none at the end. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// `DataLoss` with the file and the position if it is damaged.
    pub fn next_items(&mut self) -> Result<Vec<Sampled>> {
        let progress = Arc::new(Progress::default());
        let Some((chunks, blocks)) = &mut self.opened else {
            let chunks = Arc::new(self.stored.chunks(&progress, Ok)?);
            let first = self.stored.items_in_tables(&chunks)?;
            self.opened = Some((chunks, self.stored.item_blocks(&progress)));
            let items = self.of_table(first);
            return if items.is_empty() { self.next_items() } else { Ok(items) };
        };
        let Some(reader) = blocks else { return Ok(Vec::new()) };
        let chunks = Arc::clone(chunks);
        while let Some(block) = reader.next()? {
            let items = self.stored.items_of(&block, &chunks)?;
            if items.iter().any(|(table, _)| *table == self.table) {
                return Ok(self.of_table(items));
            }
        }
        self.stored.check_num_items(reader.num_records())?;
        *blocks = None;
        Ok(Vec::new())
    }

    fn of_table(&self, items: Vec<(usize, StoredItem)>) -> Vec<Sampled> {
        let own = items.into_iter().filter(|(table, _)| *table == self.table);
        own.map(|(_, item)| item.into_scanned(self.table_size)).collect()
    }
}
