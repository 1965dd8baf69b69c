// SPDX-License-Identifier: Apache-2.0
//! The trajectory writer: one history, items over any of its cells.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_data::{Error, KeyGenerator, Result};

pub use super::item::ColumnRefs;
use super::item::PendingItem;
use super::lane::Lane;
use super::sender::Sender;
use crate::client::{Client, Signatures};

/// What all writers with histories share: the queue of items and what they are checked against.
#[derive(Debug)]
pub struct ItemQueue {
    sender: Arc<Sender>,
    keys: Mutex<KeyGenerator>,
    signatures: Option<Arc<Signatures>>,
    address: String,
    /// The tables used so far: their names are shared by all items.
    tables: Mutex<Vec<Arc<str>>>,
}

impl ItemQueue {
    /// A queue; with `signatures` every item is checked against its table's.
    pub fn new(client: &Arc<Client>, signatures: Option<Arc<Signatures>>) -> Self {
        Self {
            sender: Sender::start(Arc::clone(client)),
            keys: Mutex::default(),
            signatures,
            address: client.address().to_owned(),
            tables: Mutex::default(),
        }
    }

    /// The sender behind it.
    pub fn sender(&self) -> &Arc<Sender> {
        &self.sender
    }

    /// Queues an item. Never waits.
    pub fn create_item(
        &self,
        table: &str,
        priority: f64,
        columns: &[ColumnRefs<'_>],
    ) -> Result<()> {
        self.sender.push(self.prepare(table, priority, columns)?)
    }

    /// An item that was checked and is not queued yet.
    pub fn prepare(
        &self,
        table: &str,
        priority: f64,
        columns: &[ColumnRefs<'_>],
    ) -> Result<PendingItem> {
        let table = self.table_name(table);
        let key = self.keys.lock().next_key();
        let item = PendingItem::new(key, Arc::clone(&table), priority, columns)?;
        self.sender.check()?;
        if let Some(signatures) = &self.signatures {
            match signatures.get(&*table) {
                None => return Err(self.unknown_table(&table, signatures)),
                Some(Some(signature)) => item.check_signature(signature)?,
                Some(None) => {}
            }
        }
        Ok(item)
    }

    /// Waits until at most `max_pending` items are unconfirmed, after completing the chunks of all but that many.
    pub async fn flush(&self, max_pending: usize, timeout: Option<Duration>) -> Result<()> {
        self.flush_for("flush", max_pending, timeout).await
    }

    /// As `flush`, for a call that errors are to name.
    pub async fn flush_for(
        &self,
        operation: &str,
        max_pending: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        self.sender.check()?;
        self.sender.freeze_blocks(max_pending);
        let done = self.sender.wait_until_pending(max_pending);
        let Some(timeout) = timeout else { return done.await };
        match tokio::time::timeout(timeout, done).await {
            Ok(result) => result,
            Err(_) => {
                Err(Error::deadline_exceeded(operation, timeout, &self.sender.describe_wait()))
            }
        }
    }

    fn table_name(&self, name: &str) -> Arc<str> {
        let mut tables = self.tables.lock();
        if let Some(known) = tables.iter().find(|known| ***known == *name) {
            return Arc::clone(known);
        }
        tables.push(Arc::from(name));
        Arc::clone(&tables[tables.len() - 1])
    }

    fn unknown_table(&self, table: &str, signatures: &Signatures) -> Error {
        let mut known: Vec<&str> = signatures.keys().map(String::as_str).collect();
        known.sort_unstable();
        Error::invalid_argument(format!(
            "Unable to create an item in table '{table}': the server at {} has no table of that name. Its tables are: {}.",
            self.address,
            known.join(", "),
        ))
    }
}

/// Writes steps of one environment and items over them.
#[derive(Debug)]
pub struct TrajectoryWriter {
    lane: Mutex<Lane>,
    queue: ItemQueue,
}

impl TrajectoryWriter {
    /// A writer that can refer to the last `num_keep_alive_refs` values of every column.
    pub fn new(
        client: &Arc<Client>,
        num_keep_alive_refs: usize,
        signatures: Option<Arc<Signatures>>,
    ) -> Self {
        Self {
            lane: Mutex::new(Lane::new(num_keep_alive_refs)),
            queue: ItemQueue::new(client, signatures),
        }
    }

    /// The history.
    pub fn lane(&self) -> &Mutex<Lane> {
        &self.lane
    }

    /// The items on their way.
    pub fn queue(&self) -> &ItemQueue {
        &self.queue
    }

    /// Waits until all items are confirmed, then begins a new episode. If that fails or takes longer than `timeout`
    /// nothing changes.
    pub async fn end_episode(&self, clear_buffers: bool, timeout: Option<Duration>) -> Result<()> {
        self.queue.flush_for("end_episode", 0, timeout).await?;
        self.lane.lock().end_episode(clear_buffers);
        Ok(())
    }

    /// Stops at once; what is not confirmed is abandoned.
    pub fn close(&self) {
        self.queue.sender().close();
    }
}

impl Drop for TrajectoryWriter {
    fn drop(&mut self) {
        self.close();
    }
}
