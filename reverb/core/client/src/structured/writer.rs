// SPDX-License-Identifier: Apache-2.0
//! The structured writer: sends the items that its patterns create.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::Result;
use reverb_data::column_names::ColumnNames;
use tokio::runtime::Handle;

use super::config::Configs;
use super::engine::{PatternEngine, PatternItem};
use crate::client::Client;
use crate::session::Session;
use crate::writer::capture::cell::CellValue;
use crate::writer::capture::column_orders::Matching;
use crate::writer::capture::item_maker::ItemMaker;
use crate::writer::send::dropped::LastDropped;
use crate::writer::send::send_queue::SendQueue;

/// Longest time that a caller waits for the items of a writer that it drops.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// Longest time to flush the items of a dropped writer; the rest is abandoned.
const DROP_FLUSH_TIME: Duration = Duration::from_secs(5);

/// Writes steps of one environment; patterns create items from them.
///
/// Dropping it does not block: unconfirmed items are flushed in the background, for a few seconds
/// at most, and before those of the client's next structured writer. A caller that may block calls
/// `settle` first.
#[derive(Debug)]
pub struct StructuredWriter {
    engine: Mutex<PatternEngine>,
    items: ItemMaker,
    queue: Arc<SendQueue>,
    /// The table of each pattern, and the names of its columns.
    tables: Vec<(String, Arc<ColumnNames>)>,
    session: Arc<Session>,
    last_dropped: Arc<LastDropped>,
    runtime: Handle,
}

impl StructuredWriter {
    /// A writer. It connects to the server with the first item; its items are checked once
    /// `learn_signatures` was called.
    pub fn new(client: &Client, configs: Configs) -> Self {
        let queue = SendQueue::start(client.session(), 1);
        queue.begin_after(Arc::clone(client.last_dropped()));
        let tables = configs.configs.iter().map(|config| {
            let names = config.names.clone();
            (config.table().to_owned(), names.unwrap_or_default())
        });
        Self {
            tables: tables.collect(),
            engine: Mutex::new(PatternEngine::new(configs).with_compression(client.compression())),
            items: ItemMaker::new(client.session(), None, Matching::ByPosition),
            queue,
            session: Arc::clone(client.session()),
            last_dropped: Arc::clone(client.last_dropped()),
            runtime: client.runtime().clone(),
        }
    }

    /// True if items are checked against the signatures of their tables.
    pub fn has_signatures(&self) -> bool {
        self.items.has_signatures()
    }

    /// Starts checking items against the signatures of their tables. Fetches them if they are not
    /// known, and waits for a server at most for the connect timeout.
    ///
    /// # Errors
    ///
    /// `Unavailable` if no server answers.
    pub async fn learn_signatures(&self) -> Result<()> {
        let mut signatures = self.session.signatures().await?;
        for (table, _) in &self.tables {
            // A missing table is reported by the server, as for dm-reverb's writer.
            if !signatures.contains_key(table) {
                Arc::make_mut(&mut signatures).insert(table.clone(), None);
            }
        }
        self.items.check_against(signatures);
        // Logs names that differ.
        self.tables
            .iter()
            .try_for_each(|(table, names)| self.items.order_of(table, names).map(|_| ()))
    }

    /// The items in flight.
    pub fn queue(&self) -> &Arc<SendQueue> {
        &self.queue
    }

    /// Sets the paths of a step's leaves for error texts. Call it before the first append.
    pub fn set_paths(&self, paths: Vec<String>) {
        self.engine.lock().set_paths(paths);
    }

    /// Appends a step or a part of one, and creates the items that it completes. Never waits.
    ///
    /// `cells[i]` is the value of leaf `i`, `None` if it has none in this call.
    ///
    /// # Errors
    ///
    /// Those of [`PatternEngine::append`], and the error that ended the insert stream for good.
    pub fn append(&self, cells: Vec<Option<CellValue<'_>>>, partial_step: bool) -> Result<()> {
        self.queue.check()?;
        self.engine.lock().append(cells, partial_step, &mut |item| self.create(item))
    }

    /// Creates the items that the end of the episode completes, waits until all items are
    /// confirmed, and starts a new episode. If that fails or takes longer than `timeout`, the
    /// episode continues.
    pub async fn end_episode(&self, clear_buffers: bool, timeout: Option<Duration>) -> Result<()> {
        self.queue.check()?;
        self.engine.lock().apply_at_end(&mut |item| self.create(item))?;
        self.queue.flush_for("end_episode", 0, timeout).await?;
        self.queue.episode_ended();
        self.engine.lock().end_episode(clear_buffers);
        Ok(())
    }

    /// True if the last append left its step open.
    pub fn step_is_open(&self) -> bool {
        self.engine.lock().step_is_open()
    }

    /// Waits until all items are confirmed or blocked by their tables, at most a second. Call this
    /// before dropping the writer, if the caller may block.
    pub async fn settle(&self) {
        if self.queue.check().is_ok() && self.queue.num_pending() > 0 {
            let _ = tokio::time::timeout(SETTLE_TIME, self.queue.flush_unless_blocked()).await;
        }
    }

    fn create(&self, item: &PatternItem<'_>) -> Result<()> {
        self.queue.push(self.items.item(item.table, item.priority, item.columns)?)
    }
}

impl Drop for StructuredWriter {
    fn drop(&mut self) {
        let queue = Arc::clone(&self.queue);
        if queue.check().is_err() || queue.num_pending() == 0 {
            queue.close();
            return;
        }
        self.last_dropped.set(&queue);
        self.runtime.spawn(flush_and_close(queue, DROP_FLUSH_TIME));
    }
}

/// Flushes the items of a dropped writer, and gives up after `limit`.
async fn flush_and_close(queue: Arc<SendQueue>, limit: Duration) {
    let flushed = tokio::time::timeout(limit, queue.flush_all_but(0)).await;
    if !matches!(flushed, Ok(Ok(()))) {
        tracing::warn!(
            "A structured writer was dropped and {} of its items could not be delivered. Call flush() before the \
             writer goes away. Unfinished: {}.",
            queue.num_pending(),
            queue.describe_queue(),
        );
    }
    queue.close();
}

#[cfg(test)]
mod tests;
