// SPDX-License-Identifier: Apache-2.0
//! How a client reaches a server: over gRPC, or directly if the server is in the same process.
//!
//! Both implement [`Transport`] and behave the same. Writers and samplers use nothing else of a
//! server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reverb_data::{Chunk, Error, KeySlots, NewItem, Result, SampleOptions, Sampled};
use tokio::sync::mpsc;

use crate::calls::SmallCall;
use crate::capability::Capabilities;
use crate::generated::reverb::HoldRateLimiterRequest;
use crate::generated::{ServerInfoResponse, TableInfo};

/// A boxed future, so that the traits here are object safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a writer sends in one message: chunks, and items that refer to them.
#[derive(Debug, Default)]
pub struct InsertBatch {
    /// Chunks that the server does not hold for this stream yet.
    pub chunks: Vec<Chunk>,
    /// Items, in order.
    pub items: Vec<NewItem>,
    /// Keys of all chunks that the server must still hold after these items, each once.
    pub keep_chunk_keys: Vec<u64>,
}

/// The sending half of an insert stream.
pub trait InsertSink: Send {
    /// Sends a batch. Waits while the server accepts no more (back-pressure).
    fn send(&mut self, batch: InsertBatch) -> BoxFuture<'_, Result<()>>;
}

/// Receives the keys of confirmed items. If the stream failed, the last message is an error. If the
/// server ended it without an error, the channel closes.
pub type Confirmations = mpsc::UnboundedReceiver<Result<Vec<u64>>>;

/// An open insert stream. Dropping both halves cancels it. Items that the server has read are still
/// inserted.
pub struct InsertStream {
    /// Sends batches.
    pub sink: Box<dyn InsertSink>,
    /// Receives confirmations.
    pub confirmations: Confirmations,
    /// The shard that it leads to; `None` if the server is no shard of a group.
    pub shard: Option<ShardRoute>,
    /// Which of several servers it leads to, for people; `None` if there is one.
    pub server: Option<String>,
}

/// The shard that a stream leads to.
#[derive(Debug, Clone)]
pub struct ShardRoute {
    /// Its place in the group.
    pub index: i32,
    /// Its slots: keys of items are drawn from them.
    pub slots: Arc<KeySlots>,
}

/// What a writer needs its next insert stream for.
#[derive(Debug, Default)]
pub struct NextStream<'a> {
    /// The tables of the items that wait for it.
    pub tables: &'a [String],
    /// The stream that it replaces.
    pub lost: Option<LostStream<'a>>,
}

/// An insert stream that was lost.
#[derive(Debug)]
pub struct LostStream<'a> {
    /// Where it led to.
    pub shard: &'a ShardRoute,
    /// When it was lost.
    pub since: Instant,
}

/// A request for items of a table.
#[derive(Debug, Clone, Copy)]
pub struct SampleRequest<'a> {
    /// The table.
    pub table: &'a str,
    /// How many items, at least 1.
    pub num_samples: usize,
    /// Limits every wait for the rate limiter. `None` waits without a limit, and zero makes one
    /// immediate attempt.
    pub timeout: Option<Duration>,
    /// What is asked of the items. Servers of dm-reverb ignore it.
    ///
    /// With `stacking`, if sampling can remove items from the table, a batch whose items cannot be
    /// stacked is not sampled: `receive` fails, and the items stay in the table. This covers the
    /// items that the table samples in one step.
    pub options: SampleOptions,
    /// The only columns that the items shall have, in increasing order; empty: all. A server may
    /// send all in spite of that.
    pub columns: &'a [u32],
}

impl<'a> SampleRequest<'a> {
    /// A request for whole items, of which nothing else is asked.
    pub fn new(table: &'a str, num_samples: usize, timeout: Option<Duration>) -> Self {
        Self { table, num_samples, timeout, options: SampleOptions::default(), columns: &[] }
    }
}

/// An open sample stream. Dropping it cancels it.
pub trait SampleStream: Send {
    /// Requests more items. May be called while earlier requests are pending; requests are answered
    /// in order.
    fn request(&mut self, request: &SampleRequest<'_>) -> Result<()>;

    /// The next items, at least one. `RateLimiterTimeout` if the timeout passed first.
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>>;
}

/// An open scan of a table. Dropping it cancels it.
pub trait ScanStream: Send {
    /// The next items, oldest first, at least one; none at the end.
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>>;
}

/// A rate limiter that is off. Dropping it turns the limiter on again, a moment later.
pub trait RateLimiterHold: Send {
    /// Turns the limiter on again, and waits until that is done.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it was turned on earlier, because the server had lost the client.
    fn release(&mut self) -> BoxFuture<'_, Result<()>>;
}

/// The tables of a server, with the id of their configuration.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// Random id, drawn when the server started.
    pub tables_state_id: (u64, u64),
    /// Its tables.
    pub tables: Vec<TableInfo>,
    /// What it does beyond dm-reverb. Of several servers, what all of them do.
    pub capabilities: Capabilities,
}

impl From<ServerInfoResponse> for ServerInfo {
    fn from(answer: ServerInfoResponse) -> Self {
        let id = answer.tables_state_id.unwrap_or_default();
        Self {
            tables_state_id: (id.high, id.low),
            tables: answer.table_info,
            capabilities: Capabilities::from_names(answer.capabilities),
        }
    }
}

/// Several servers over which items are spread.
pub trait InsertGroup: Send + Sync {
    /// The shards that take these items, which need nothing of each other: each takes as many as
    /// the others. At least one.
    fn routes<'a>(&'a self, items: &'a [NewItem]) -> BoxFuture<'a, Result<Vec<ShardRoute>>>;

    /// Opens an insert stream to one of these shards, or to another if it cannot be reached.
    fn open_insert_at<'a>(&'a self, route: &'a ShardRoute) -> BoxFuture<'a, Result<InsertStream>>;

    /// Whether a writer of these tables shall leave its shard: another one is emptier, or as full
    /// with fewer writers. Never waits.
    fn has_better_place(&self, shard: i32, tables: &[Arc<str>]) -> bool;
}

/// The calls of a server.
pub trait Transport: Send + Sync {
    /// Opens an insert stream.
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>>;

    /// Opens the next insert stream of a writer. In a group it leads to the shard with the most
    /// room in these tables; instead of a stream that was lost, to the same shard as that one,
    /// until that shard has been away for long.
    fn open_next_insert<'a>(&'a self, next: NextStream<'a>) -> BoxFuture<'a, Result<InsertStream>> {
        let _ = next;
        self.open_insert()
    }

    /// Opens a sample stream.
    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>>;

    /// Opens a scan of a table. It includes the items that are in the table when the server
    /// receives the call.
    fn open_scan<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<Box<dyn ScanStream>>>;

    /// Deletes items, then updates priorities. Unknown keys are ignored.
    fn mutate_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: &'a [(u64, f64)],
        deletes: &'a [u64],
    ) -> BoxFuture<'a, Result<()>>;

    /// Makes a small call with an encoded request, once. Returns the encoded answer; `Calls::call`
    /// has the messages.
    fn small_call(&self, call: &'static SmallCall, request: Bytes) -> BoxFuture<'_, Result<Bytes>>;

    /// Turns the rate limiter of a table off for inserts.
    fn hold_rate_limiter(
        &self,
        request: HoldRateLimiterRequest,
    ) -> BoxFuture<'_, Result<Box<dyn RateLimiterHold>>>;

    /// The address of the server, for error texts.
    fn address(&self) -> &str;

    /// Whether the server is in this process.
    fn is_local(&self) -> bool;

    /// The id of the tables of a server of this process: a server draws another one when it starts.
    /// `None` over a network, and after the server has stopped.
    fn tables_state_id(&self) -> Option<(u64, u64)> {
        None
    }

    /// The group, if this leads to one.
    fn insert_group(&self) -> Option<&dyn InsertGroup> {
        None
    }

    /// Whether calls and streams are distributed over several servers, as far as known by now.
    fn has_several_servers(&self) -> bool {
        false
    }
}

/// The error of a stream that the other end closed too early.
pub fn stream_ended(address: &str) -> Error {
    Error::unavailable(format!("The server at {address} ended the stream."))
}
