// SPDX-License-Identifier: Apache-2.0
//! The trajectory writer: one history, and items over any of its cells.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::Result;
use smallvec::SmallVec;

use super::cell::{CellRef, CellValue};
use super::column_orders::Matching;
use super::constants::Constants;
use super::item_queue::ItemQueue;
use super::lane::Lane;
use crate::client::Client;
use crate::session::Signatures;

/// Writes steps of one environment and items over them.
#[derive(Debug)]
pub struct TrajectoryWriter {
    lane: Mutex<Lane>,
    constants: Mutex<Constants>,
    queue: ItemQueue,
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
        let lane = Lane::new(num_keep_alive_refs).with_compression(client.compression());
        Self {
            lane: Mutex::new(lane),
            constants: Mutex::default(),
            queue: ItemQueue::new(client.session(), signatures, matching),
        }
    }

    /// The history.
    pub fn lane(&self) -> &Mutex<Lane> {
        &self.lane
    }

    /// Cells of values that are in no history, for the next item.
    pub fn constants(&self, values: &mut [CellValue<'_>]) -> Result<SmallVec<[CellRef; 2]>> {
        self.constants.lock().cells(&self.lane.lock(), values)
    }

    /// The items in flight.
    pub fn queue(&self) -> &ItemQueue {
        &self.queue
    }

    /// Waits until all items are confirmed, then starts a new episode. If that fails or takes
    /// longer than `timeout`, nothing changes.
    pub async fn end_episode(&self, clear_buffers: bool, timeout: Option<Duration>) -> Result<()> {
        self.queue.flush_for("end_episode", 0, timeout).await?;
        self.lane.lock().end_episode(clear_buffers);
        self.queue.episode_ended();
        Ok(())
    }

    /// Like `close`, when the program has deleted the writer: the log counts what is lost.
    pub fn delete(&self) {
        self.queue.report_deleted();
        self.close();
    }

    /// Stops at once; unconfirmed items are abandoned.
    pub fn close(&self) {
        self.queue.send_queue().close();
    }
}

impl Drop for TrajectoryWriter {
    fn drop(&mut self) {
        self.delete();
    }
}
