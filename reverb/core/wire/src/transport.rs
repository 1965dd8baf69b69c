// SPDX-License-Identifier: Apache-2.0
//! The transport from a client to a server: over gRPC, or directly if the server is in the same
//! process.
//!
//! Both implement [`Transport`] and behave the same. Writers and samplers use nothing else of a
//! server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::rollouts::Refusal;
use reverb_data::{Chunk, ColumnSpan, ItemCondition, KeySlots, NewItem, SampleOptions, Sampled};
use tokio::sync::mpsc;

use crate::calls::SmallCall;
use crate::capability::Capabilities;
use crate::generated::reverb::{HoldLeasesRequest, HoldRateLimiterRequest};
use crate::generated::{ServerInfoResponse, TableInfo};

/// A boxed future, so that the traits here are object safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One message of a writer: chunks, and items that refer to them.
#[derive(Debug, Default)]
pub struct InsertBatch {
    /// Chunks that the server does not hold for this stream yet.
    pub chunks: Vec<Chunk>,
    /// Items, in order.
    pub items: Vec<NewItem>,
    /// Keys of all chunks that the server must still hold after these items, each once.
    pub keep_chunk_keys: Vec<u64>,
}

/// See [`InsertSink::wait_here`].
pub type WaitHere = Arc<dyn Fn() + Send + Sync>;

/// The sending half of an insert stream.
pub trait InsertSink: Send {
    /// Sends a batch. Waits while the server accepts no more (back-pressure).
    fn send(&mut self, batch: InsertBatch) -> BoxFuture<'_, Result<()>>;

    /// Like `send`, for items whose chunks the server finds by itself, because it is in this
    /// process. Items that it has not inserted yet, or has refused, stay in the list: they are to
    /// be sent again if the stream fails. If this call is dropped before its end, all stay.
    fn give<'a>(&'a mut self, items: &'a mut Vec<NewItem>) -> BoxFuture<'a, Result<()>> {
        self.send(InsertBatch { items: items.clone(), ..InsertBatch::default() })
    }

    /// Items that are sent after this are refused if they wait for so long to be inserted; `None`
    /// for never.
    fn limit_wait(&mut self, max_wait: Option<Duration>);

    /// What a thread calls while it waits for confirmations of what another one may have sent.
    /// `None` if it need not.
    fn wait_here(&self) -> Option<WaitHere>;
}

/// Receives the keys of confirmed items. If the stream failed, the last message is an error. If the
/// server ended it without an error, the channel closes.
pub type Confirmations = mpsc::UnboundedReceiver<Result<Vec<u64>>>;

/// Keys of refused items, and why.
pub type Refusals = Arc<Mutex<Vec<(u64, Refusal)>>>;

/// An open insert stream. Dropping both halves cancels it. Items that the server has read are still
/// inserted.
pub struct InsertStream {
    /// Sends batches.
    pub sink: Box<dyn InsertSink>,
    /// Receives confirmations.
    pub confirmations: Confirmations,
    /// Confirmed items that were refused. One is here before its key is confirmed.
    pub refused: Refusals,
    /// Shard at the other end; `None` if the server is no shard of a group.
    pub shard: Option<ShardRoute>,
    /// Name of the server at the other end, for people; `None` if there is only one.
    pub server: Option<String>,
}

/// Shard at the other end of a stream.
#[derive(Debug, Clone)]
pub struct ShardRoute {
    /// Index in the group.
    pub index: i32,
    /// Slots of the shard: keys of items are drawn from them.
    pub slots: Arc<KeySlots>,
}

/// Purpose of a writer's next insert stream.
#[derive(Debug, Default)]
pub struct NextStream<'a> {
    /// Tables of the items that wait for it.
    pub tables: &'a [String],
    /// Lost stream that it replaces.
    pub lost: Option<LostStream<'a>>,
}

/// An insert stream that was lost.
#[derive(Debug)]
pub struct LostStream<'a> {
    /// Shard of the lost stream.
    pub shard: &'a ShardRoute,
    /// Time of the loss.
    pub since: Instant,
    /// True if the shard has said that it does not come back.
    pub is_final: bool,
}

/// A request for items of a table.
#[derive(Debug, Clone, Copy)]
pub struct SampleRequest<'a> {
    /// The table.
    pub table: &'a str,
    /// Number of items, at least 1.
    pub num_samples: usize,
    /// Limit on every wait for the rate limiter. `None` waits without a limit, and zero makes one
    /// immediate attempt.
    pub timeout: Option<Duration>,
    /// Options of the items. Servers of dm-reverb ignore them.
    ///
    /// With `stacking`, if sampling can remove items from the table, a batch whose items cannot be
    /// stacked is not sampled: `receive` fails, and the items stay in the table. This covers the
    /// items that the table samples in one step.
    pub options: SampleOptions,
    /// Requested columns, in increasing order; empty for all. A server may send all columns anyway.
    pub columns: &'a [u32],
    /// Columns of which only a part of the window is sent; needs a window in the options.
    pub spans: &'a [ColumnSpan],
}

impl<'a> SampleRequest<'a> {
    /// A request for whole items, without options.
    pub fn new(table: &'a str, num_samples: usize, timeout: Option<Duration>) -> Self {
        Self {
            table,
            num_samples,
            timeout,
            options: SampleOptions::default(),
            columns: &[],
            spans: &[],
        }
    }
}

/// An open sample stream. Dropping it cancels it.
pub trait SampleStream: Send {
    /// Requests more items. May be called while earlier requests are pending; requests are answered
    /// in order.
    fn request(&mut self, request: &SampleRequest<'_>) -> Result<()>;

    /// The next items, at least one. None at the end of the epoch, with which a request for items
    /// of an epoch ends. `RateLimiterTimeout` if the timeout passed first.
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>>;
}

/// Choice of what a scan reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanOptions<'a> {
    /// Requested columns, in increasing order; empty for all.
    pub columns: &'a [u32],
    /// Condition of the items.
    pub condition: ItemCondition,
    /// Keys of the items; `None` for all items.
    pub keys: Option<&'a [u64]>,
    /// True for a scan of a group without the shards that do not answer; else all must.
    pub is_partial: bool,
}

impl ScanOptions<'_> {
    /// True if all items are read, with all columns, as servers without these options do.
    pub fn are_default(&self) -> bool {
        self.columns.is_empty() && self.condition == ItemCondition::ALL && self.keys.is_none()
    }
}

/// An open scan of a table. Dropping it cancels it.
pub trait ScanStream: Send {
    /// The next items, at least one; none at the end. Oldest first, or in the order of the keys; a
    /// group returns the items of one shard after those of another.
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>>;
}

/// What a client holds as long as a stream is open.
#[derive(Debug, Clone, PartialEq)]
pub enum HoldRequest {
    /// A rate limiter that is turned off for inserts.
    RateLimiter(HoldRateLimiterRequest),
    /// All leases of a client.
    Leases(HoldLeasesRequest),
}

/// An open hold. Dropping it ends it, a moment later.
pub trait Hold: Send {
    /// Ends it, and waits until that is done.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it has ended earlier, because the server had lost the client.
    fn release(&mut self) -> BoxFuture<'_, Result<()>>;

    /// Completes when it has ended without a release.
    fn lost(&mut self) -> BoxFuture<'_, ()>;
}

/// The tables of a server, with the id of their configuration.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// Random id, drawn when the server started.
    pub tables_state_id: (u64, u64),
    /// Its tables.
    pub tables: Vec<TableInfo>,
    /// Capabilities beyond dm-reverb; of several servers, those that all of them have.
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

/// Several servers among which items are distributed.
pub trait InsertGroup: Send + Sync {
    /// Shards for these items, which are independent of each other: each shard takes the same
    /// number. At least one.
    fn routes<'a>(&'a self, items: &'a [NewItem]) -> BoxFuture<'a, Result<Vec<ShardRoute>>>;

    /// Opens an insert stream to one of these shards, or to another if it cannot be reached.
    fn open_insert_at<'a>(&'a self, route: &'a ShardRoute) -> BoxFuture<'a, Result<InsertStream>>;

    /// Returns true if a writer of these tables should leave its shard: another one is emptier, or
    /// as full with fewer writers. Never waits.
    fn has_better_shard(&self, shard: i32, tables: &[Arc<str>]) -> bool;
}

/// The calls of a server.
pub trait Transport: Send + Sync {
    /// Opens an insert stream.
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>>;

    /// Opens the next insert stream of a writer. In a group it goes to the shard with the most room
    /// in these tables; a replacement goes to the shard of the lost stream, until that shard has
    /// been away for long.
    fn open_next_insert<'a>(&'a self, next: NextStream<'a>) -> BoxFuture<'a, Result<InsertStream>> {
        let _ = next;
        self.open_insert()
    }

    /// Opens a sample stream.
    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>>;

    /// Opens a scan of a table. It includes the items that are in the table when the server
    /// receives the call. Only servers with [`Capability::ChosenItems`] know the options; the
    /// caller checks that.
    ///
    /// [`Capability::ChosenItems`]: crate::Capability::ChosenItems
    fn open_scan<'a>(
        &'a self,
        table: &'a str,
        options: ScanOptions<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn ScanStream>>>;

    /// Deletes items, then updates priorities. Unknown keys are ignored.
    fn mutate_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: &'a [(u64, f64)],
        deletes: &'a [u64],
    ) -> BoxFuture<'a, Result<()>>;

    /// Makes a small call with an encoded request, once. Returns the encoded answer; `Calls::call`
    /// is the typed form.
    fn small_call(&self, call: &'static SmallCall, request: Bytes) -> BoxFuture<'_, Result<Bytes>>;

    /// Begins a hold.
    fn hold(&self, request: HoldRequest) -> BoxFuture<'_, Result<Box<dyn Hold>>>;

    /// The address of the server, for error texts.
    fn address(&self) -> &str;

    /// Returns true if the server is in this process.
    fn is_local(&self) -> bool;

    /// Returns true if no items are lost with a `receive` of a sample stream that is dropped before
    /// it returns: they are never on their way.
    fn may_withdraw(&self) -> bool {
        false
    }

    /// Id of the tables of a server in this process: a server draws another one when it starts.
    /// `None` over a network, and after the server has stopped.
    fn tables_state_id(&self) -> Option<(u64, u64)> {
        None
    }

    /// The group, if this is a transport to one.
    fn insert_group(&self) -> Option<&dyn InsertGroup> {
        None
    }

    /// Returns true if calls and streams are distributed over several servers, as far as is known.
    fn has_several_servers(&self) -> bool {
        false
    }

    /// Returns true if, after this error, none of the servers is going to answer any more: it has
    /// said that it has stopped for good, and there is no other.
    fn has_ended(&self, error: &Error) -> bool {
        error.is_final() && !self.has_several_servers()
    }
}

/// Additional time for the answer to a request, after its timeout.
pub const ANSWER_GRACE: Duration = Duration::from_secs(10);

/// Error of a stream that the other end closed too early.
pub fn stream_ended(address: &str) -> Error {
    Error::unavailable(format!("The server at {address} ended the stream."))
}
