// SPDX-License-Identifier: Apache-2.0
//! The trajectory writer: one history, and items over any of its cells.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::Result;
use reverb_data::ItemPriority;
use smallvec::SmallVec;

use super::capture::cell::{CellRef, CellValue};
use super::capture::column_orders::Matching;
use super::capture::constants::Constants;
use super::capture::history::History;
use super::capture::item::ColumnRefs;
use super::capture::item_maker::ItemMaker;
use super::send::send_queue::SendQueue;
use crate::client::Client;
use crate::session::Signatures;

/// Writes steps of one environment and items over them.
#[derive(Debug)]
pub struct TrajectoryWriter {
    history: Mutex<History>,
    constants: Mutex<Constants>,
    items: ItemMaker,
    queue: Arc<SendQueue>,
}

impl TrajectoryWriter {
    /// Makes a writer whose items can refer to the last `num_keep_alive_refs` values of every
    /// column. `matching` is the rule that assigns columns to those of a table's signature.
    pub fn new(
        client: &Client,
        num_keep_alive_refs: usize,
        signatures: Option<Arc<Signatures>>,
        matching: Matching,
    ) -> Self {
        let history = History::new(num_keep_alive_refs).with_compression(client.compression());
        Self {
            history: Mutex::new(history),
            constants: Mutex::default(),
            items: ItemMaker::new(client.session(), signatures, matching),
            queue: SendQueue::start(client.session(), 1),
        }
    }

    /// The history.
    pub fn history(&self) -> &Mutex<History> {
        &self.history
    }

    /// Cells of values that are in no history, for the next item.
    pub fn constants(&self, values: &mut [CellValue<'_>]) -> Result<SmallVec<[CellRef; 2]>> {
        let history = self.history.lock();
        self.constants.lock().cells(&history, values)
    }

    /// The items in flight.
    pub fn queue(&self) -> &Arc<SendQueue> {
        &self.queue
    }

    /// The rules for its items.
    pub fn items(&self) -> &ItemMaker {
        &self.items
    }

    /// Creates an item. Never waits.
    ///
    /// # Errors
    ///
    /// An error if the writer is closed; those of an item that does not fit its table.
    pub fn create_item(
        &self,
        table: &str,
        priority: impl Into<ItemPriority>,
        columns: &[ColumnRefs<'_>],
    ) -> Result<()> {
        self.queue.check()?;
        self.queue.push(self.items.item(table, priority, columns)?)
    }

    /// Waits until all items are confirmed, then starts a new episode. If that fails or takes
    /// longer than `timeout`, nothing changes.
    pub async fn end_episode(&self, clear_buffers: bool, timeout: Option<Duration>) -> Result<()> {
        self.queue.flush_for("end_episode", 0, timeout).await?;
        self.history.lock().end_episode(clear_buffers);
        self.queue.episode_ended();
        Ok(())
    }
}

impl Drop for TrajectoryWriter {
    fn drop(&mut self) {
        self.queue.delete();
    }
}
