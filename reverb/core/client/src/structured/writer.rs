// SPDX-License-Identifier: Apache-2.0
//! The structured writer: what the patterns find goes to the server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_data::Result;
use tokio::runtime::Handle;

use super::config::Configs;
use super::engine::{PatternEngine, PatternItem};
use crate::client::Client;
use crate::writer::cell::CellValue;
use crate::writer::item_queue::ItemQueue;
use crate::writer::send_queue::SendQueue;

/// How long the items of a dropped writer may take to be confirmed before they are abandoned.
const DROP_FLUSH_TIME: Duration = Duration::from_secs(5);

/// Writes steps of one environment; patterns make items of them.
///
/// Dropping it does not wait: what is not confirmed yet is sent in the background, for a few
/// seconds at the most.
#[derive(Debug)]
pub struct StructuredWriter {
    engine: Mutex<PatternEngine>,
    queue: ItemQueue,
    runtime: Handle,
}

impl StructuredWriter {
    /// A writer for serialized `StructuredWriterConfig` messages. The server is not contacted
    /// before the first item.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no config, or that says which one is invalid and why.
    pub fn new(client: &Client, configs: &[Vec<u8>]) -> Result<Self> {
        let engine = PatternEngine::new(Configs::decode(configs)?);
        Ok(Self {
            engine: Mutex::new(engine),
            queue: ItemQueue::new(client.session(), None),
            runtime: client.runtime().clone(),
        })
    }

    /// The items on their way.
    pub fn queue(&self) -> &ItemQueue {
        &self.queue
    }

    /// Tells what errors shall call the leaves of a step. To be called before the first append.
    pub fn set_paths(&self, paths: Vec<String>) {
        self.engine.lock().set_paths(paths);
    }

    /// Appends a step, or a part of one, and creates the items that are complete now. Never waits.
    ///
    /// `cells[i]` is the value of leaf `i`, `None` if it has none in this call.
    ///
    /// # Errors
    ///
    /// Those of [`PatternEngine::append`], and those that ended the stream to the server for good.
    pub fn append(&self, cells: Vec<Option<CellValue<'_>>>, partial_step: bool) -> Result<()> {
        self.queue.send_queue().check()?;
        self.engine.lock().append(cells, partial_step, &mut |item| self.create(item))
    }

    /// Waits until at most `max_pending` items are unconfirmed. A `timeout` of zero does not wait
    /// at all.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` that says what it waited for; the error that ended the stream to the
    /// server for good.
    pub async fn flush(&self, max_pending: usize, timeout: Option<Duration>) -> Result<()> {
        self.queue.flush(max_pending, timeout).await
    }

    /// Creates the items that the end of the episode makes complete, waits until all are confirmed,
    /// and begins a new episode. If that fails or takes longer than `timeout` the episode goes on.
    pub async fn end_episode(&self, clear_buffers: bool, timeout: Option<Duration>) -> Result<()> {
        self.queue.send_queue().check()?;
        self.engine.lock().apply_at_end(&mut |item| self.create(item))?;
        self.queue.flush_for("end_episode", 0, timeout).await?;
        self.engine.lock().end_episode(clear_buffers);
        Ok(())
    }

    /// Whether the last append left its step open.
    pub fn step_is_open(&self) -> bool {
        self.engine.lock().step_is_open()
    }

    /// Stops at once; what is not confirmed is abandoned.
    pub fn close(&self) {
        self.queue.send_queue().close();
    }

    fn create(&self, item: &PatternItem<'_>) -> Result<()> {
        self.queue.create_item(item.table, item.priority, item.columns)
    }
}

impl Drop for StructuredWriter {
    fn drop(&mut self) {
        let queue = Arc::clone(self.queue.send_queue());
        if queue.check().is_err() || queue.num_pending() == 0 {
            queue.close();
            return;
        }
        self.runtime.spawn(flush_and_close(queue, DROP_FLUSH_TIME));
    }
}

/// Sends what a dropped writer left behind, and gives up after `limit`.
async fn flush_and_close(queue: Arc<SendQueue>, limit: Duration) {
    queue.freeze_blocks(0);
    let flushed = tokio::time::timeout(limit, queue.wait_until_pending(0)).await;
    if !matches!(flushed, Ok(Ok(()))) {
        log::warn!(
            "A structured writer was dropped and {} of its items could not be delivered. Call flush() before the \
             writer goes away. Unfinished: {}.",
            queue.num_pending(),
            queue.describe_wait(),
        );
    }
    queue.close();
}

#[cfg(test)]
mod tests;
