// SPDX-License-Identifier: Apache-2.0
//! The trajectory writer: one history, items over any of its cells.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_data::{Error, ErrorKind, KeyGenerator, Result};
use reverb_wire::generated::deepmind::reverb::{RateLimiterCallStats, TableInfo};

pub use super::item::ColumnRefs;
use super::item::PendingItem;
use super::lane::Lane;
use super::sender::Sender;
use crate::client::{Client, Signatures};

/// How long a deadline's error may wait for the numbers of the rate limiters that it tells.
const LIMITER_LOOKUP: Duration = Duration::from_millis(100);

/// What all writers with histories share: the queue of items and what they are checked against.
#[derive(Debug)]
pub struct ItemQueue {
    sender: Arc<Sender>,
    keys: Mutex<KeyGenerator>,
    signatures: Option<Arc<Signatures>>,
    client: Arc<Client>,
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
            client: Arc::clone(client),
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
        let item = PendingItem::new(self.next_key(), Arc::clone(&table), priority, columns)?;
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
                Err(Error::deadline_exceeded(operation, timeout, &self.describe_wait().await))
            }
        }
    }

    /// What a flush is waiting for, in words, with the numbers of the rate limiters if the server is quick to tell.
    async fn describe_wait(&self) -> String {
        let waiting = self.sender.describe_wait();
        if self.sender.was_lost() {
            return waiting;
        }
        let tables = self.sender.waiting_tables();
        let info = async { self.client.transport()?.server_info().await };
        let limiters = match tokio::time::timeout(LIMITER_LOOKUP, info).await {
            Ok(Ok(info)) => describe_limiters(&info.tables, &tables),
            _ => "The server does not tell their numbers at the moment".to_owned(),
        };
        format!("{waiting}. A table confirms an item once its rate limiter lets it in. {limiters}")
    }

    /// The key of the next item.
    pub(super) fn next_key(&self) -> u64 {
        self.keys.lock().next_key()
    }

    fn table_name(&self, name: &str) -> Arc<str> {
        let mut tables = self.tables.lock();
        if let Some(known) = tables.iter().find(|known| ***known == *name) {
            return Arc::clone(known);
        }
        tables.push(Arc::from(name));
        Arc::clone(&tables[tables.len() - 1])
    }

    pub(super) fn unknown_table(&self, table: &str, signatures: &Signatures) -> Error {
        let mut known: Vec<&str> = signatures.keys().map(String::as_str).collect();
        known.sort_unstable();
        Error::new(
            ErrorKind::TableNotFound,
            format!(
                "Unable to create an item in table '{table}': the server at {} has no table of that name. Its tables are: {}.",
                self.client.address(),
                known.join(", "),
            ),
        )
    }
}

fn describe_limiters(infos: &[TableInfo], tables: &[String]) -> String {
    let describe = |name: &String| match infos.iter().find(|info| info.name == *name) {
        Some(info) => describe_limiter(info),
        None => format!("Table {name}: the server has none of that name"),
    };
    let texts: Vec<String> = tables.iter().map(describe).collect();
    texts.join("; ")
}

fn describe_limiter(info: &TableInfo) -> String {
    let limiter = info.rate_limiter_info.unwrap_or_default();
    let completed = |stats: Option<RateLimiterCallStats>| stats.unwrap_or_default().completed;
    let bound = |number: f64| {
        if number.abs() >= f64::MAX { "none".to_owned() } else { number.to_string() }
    };
    format!(
        "Table {}: {} item(s), max_size {}, min_size_to_sample {}, {} insert(s), {} sample(s), samples_per_insert {}, \
         min_diff {}, max_diff {}",
        info.name,
        info.current_size,
        info.max_size,
        limiter.min_size_to_sample,
        completed(limiter.insert_stats),
        completed(limiter.sample_stats),
        limiter.samples_per_insert,
        bound(limiter.min_diff),
        bound(limiter.max_diff),
    )
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
