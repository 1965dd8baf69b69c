// SPDX-License-Identifier: Apache-2.0
//! How a client reaches a server: over gRPC, or by a call if the server lives in the same process.
//!
//! Both implement [`Transport`] and behave the same. Writers and samplers know nothing else of a
//! server.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use reverb_data::{Chunk, Error, NewItem, Result, Sampled, Stacking};
use tokio::sync::mpsc;

use crate::generated::TableInfo;
use crate::generated::reverb::CheckpointStatusResponse;

/// A future on the heap, so that the traits here can be used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a writer sends at once: chunks, then items that refer to them.
#[derive(Debug, Default)]
pub struct InsertBatch {
    /// Chunks that this stream does not hold yet.
    pub chunks: Vec<Chunk>,
    /// Items, in order.
    pub items: Vec<NewItem>,
    /// Keys of all chunks that the server must still hold after the items; each once.
    pub keep_chunk_keys: Vec<u64>,
}

/// The writing half of an insert stream.
pub trait InsertSink: Send {
    /// Hands a batch over. Waits while the server does not take more (back-pressure).
    fn send(&mut self, batch: InsertBatch) -> BoxFuture<'_, Result<()>>;
}

/// Keys of items as they are confirmed. The last message is an error if the stream failed; the
/// channel just closes if the server ended it in order.
pub type Confirmations = mpsc::UnboundedReceiver<Result<Vec<u64>>>;

/// An open insert stream. Dropping both halves cancels it: what the server has read is still
/// inserted.
pub struct InsertStream {
    /// Where batches go.
    pub sink: Box<dyn InsertSink>,
    /// Where confirmations come from.
    pub confirmations: Confirmations,
}

/// An open sample stream. Dropping it cancels it.
pub trait SampleStream: Send {
    /// Asks for `num_samples` more items (at least 1) of `table`. May be called while earlier
    /// requests are answered; they are answered in order. `timeout` bounds every wait for the rate
    /// limiter; `None` waits for ever and zero makes one immediate attempt.
    ///
    /// With `stacking`, items of one batch that cannot be stacked are not sampled, where sampling
    /// removes items and as far as they would be sampled in one go: `receive` fails, and they stay
    /// in the table. Servers of dm-reverb do not know of it.
    fn request(
        &mut self,
        table: &str,
        num_samples: usize,
        timeout: Option<Duration>,
        stacking: Option<Stacking>,
    ) -> Result<()>;

    /// The next items, at least one. `RateLimiterTimeout` if the timeout passed first.
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>>;
}

/// An open scan of a table. Dropping it cancels it.
pub trait ScanStream: Send {
    /// The next items, oldest first, at least one; none at the end.
    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>>;
}

/// Tables of a server with the id of their configuration.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// Random id, drawn when the server started.
    pub tables_state_id: (u64, u64),
    /// Its tables.
    pub tables: Vec<TableInfo>,
}

/// The calls a server answers.
pub trait Transport: Send + Sync {
    /// Opens an insert stream.
    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>>;

    /// Opens a sample stream.
    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>>;

    /// Opens a scan of a table; it begins with what is in the table when the server learns of it.
    fn open_scan<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<Box<dyn ScanStream>>>;

    /// Deletes, then updates priorities. Unknown keys are ignored.
    fn mutate_priorities<'a>(
        &'a self,
        table: &'a str,
        updates: Vec<(u64, f64)>,
        deletes: Vec<u64>,
    ) -> BoxFuture<'a, Result<()>>;

    /// Empties a table.
    fn reset<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Describes all tables.
    fn server_info(&self) -> BoxFuture<'_, Result<ServerInfo>>;

    /// Saves all tables and returns the path.
    fn checkpoint(&self) -> BoxFuture<'_, Result<String>>;

    /// What became of its checkpoints.
    fn checkpoint_status(&self) -> BoxFuture<'_, Result<CheckpointStatusResponse>>;

    /// Where the server is, for error texts.
    fn address(&self) -> &str;

    /// Whether the server lives in this process.
    fn is_local(&self) -> bool;

    /// Whether calls and streams take turns among several servers, as far as is known by now.
    fn has_several_servers(&self) -> bool {
        false
    }
}

/// The error of a stream that the other side ended although more was expected.
pub fn stream_ended(address: &str) -> Error {
    Error::unavailable(format!("The server at {address} ended the stream."))
}
