// SPDX-License-Identifier: Apache-2.0
//! A client: the address of a server, and the calls one can make to it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_data::{Error, ErrorKind, Result, Sampled, Signature};
use reverb_wire::convert::signature::flatten_signature;
use reverb_wire::generated::reverb::CheckpointStatusResponse;
use reverb_wire::transport::{
    BoxFuture, InsertStream, SampleStream, ScanStream, ServerInfo, Transport,
};
use tokio::runtime::Handle;

use crate::retry::Backoff;
use crate::sampler::batch::Batch;
use crate::sampler::cursor::SampleCursor;

/// Finds the way to a server at the moment it is needed: a server may have started in this process meanwhile.
pub trait Connector: Send + Sync {
    /// The transport to use now.
    fn transport(&self) -> Result<Arc<dyn Transport>>;

    /// Whether it leads to several servers, as far as is known by now. Asked before every call, so
    /// it makes no transport where that costs something.
    fn has_several_servers(&self) -> bool {
        self.transport().is_ok_and(|transport| transport.has_several_servers())
    }
}

/// Signatures of a server's tables; a table without one maps to `None`.
pub type Signatures = HashMap<String, Option<Arc<Signature>>>;

/// A client of one server address. Safe to share between threads.
pub struct Client {
    address: String,
    connector: Box<dyn Connector>,
    connect_timeout: Duration,
    runtime: Handle,
    signatures: Mutex<Option<CachedSignatures>>,
    /// A sample stream that is open and has nothing outstanding.
    idle_sample_stream: Mutex<Option<Box<dyn SampleStream>>>,
}

struct CachedSignatures {
    tables_state_id: (u64, u64),
    tables: Arc<Signatures>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Client {
    /// A client; nothing is connected yet. `connect_timeout` bounds how long any call waits while no server answers.
    pub fn new(
        address: &str,
        connector: Box<dyn Connector>,
        connect_timeout: Duration,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            address: address.to_owned(),
            connector,
            connect_timeout,
            runtime,
            signatures: Mutex::new(None),
            idle_sample_stream: Mutex::new(None),
        })
    }

    /// The address as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How long a call waits while no server answers.
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Where the client's tasks run.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The way to the server, as of now.
    pub fn transport(&self) -> Result<Arc<dyn Transport>> {
        self.connector.transport()
    }

    /// Describes all tables. Waits for a server to answer, at most `connect_timeout`; refreshes the signature cache.
    pub async fn server_info(&self) -> Result<ServerInfo> {
        let info = self.retrying(|transport| async move { transport.server_info().await }).await?;
        self.remember_signatures(&info)?;
        Ok(info)
    }

    /// Deletes items, then updates priorities. Unknown keys are ignored.
    pub async fn mutate_priorities(
        &self,
        table: &str,
        updates: Vec<(u64, f64)>,
        deletes: Vec<u64>,
    ) -> Result<()> {
        self.retrying(|transport| {
            let (updates, deletes) = (updates.clone(), deletes.clone());
            async move { transport.mutate_priorities(table, updates, deletes).await }
        })
        .await
    }

    /// Empties a table of one server.
    pub async fn reset(&self, table: &str) -> Result<()> {
        self.retrying(|transport| async move { transport.reset(table).await }).await
    }

    /// Makes one server save all tables; returns the path. Fails at once if no server answers.
    pub async fn checkpoint(&self) -> Result<String> {
        self.transport()?.checkpoint().await
    }

    /// What became of the checkpoints of one server. Waits for a server to answer, at most `connect_timeout`.
    pub async fn checkpoint_status(&self) -> Result<CheckpointStatusResponse> {
        self.retrying(|transport| async move { transport.checkpoint_status().await }).await
    }

    /// Samples `batch_size` items and stacks them. Waits for the table's rate limiter, each time `timeout` at most.
    ///
    /// If the timeout passes after some items were sampled, those are the batch. Where sampling removes items, those
    /// that the limiter allows in one go are sampled only if they can be stacked, unless the server is one of
    /// dm-reverb.
    ///
    /// `taken` gets the items as they come: after an error it has what was sampled, and so it has when the future is
    /// dropped. After a success it is empty.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for items that cannot be stacked, `RateLimiterTimeout` if no item was sampled in time,
    /// `TableNotFound`, `Unavailable`, and `DataLoss` for damaged chunks.
    pub async fn sample_batch(
        self: &Arc<Self>,
        table: &str,
        batch_size: usize,
        timeout: Option<Duration>,
        taken: &mut Vec<Sampled>,
    ) -> Result<Batch> {
        let mut cursor =
            SampleCursor::new(Arc::clone(self), table, batch_size as u64, timeout).stacked();
        while taken.len() < batch_size {
            match cursor.next_many().await {
                Ok(more) if more.is_empty() => break,
                Ok(more) if taken.is_empty() => *taken = more,
                Ok(more) => taken.extend(more),
                Err(error)
                    if !taken.is_empty() && error.kind() == ErrorKind::RateLimiterTimeout =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        cursor.finish();
        let batch = Batch::assemble(taken)?;
        taken.clear();
        Ok(batch)
    }

    /// Opens an insert stream once, without retries. Also says whether the server lives in this process.
    pub async fn open_insert(&self) -> Result<(InsertStream, bool)> {
        let transport = self.transport()?;
        Ok((transport.open_insert().await?, transport.is_local()))
    }

    /// Opens a sample stream, or takes the idle one. The flag says whether it was idle: it may be stale then.
    pub async fn open_sample(&self) -> Result<(Box<dyn SampleStream>, bool)> {
        let idle = self.idle_sample_stream.lock().take();
        // A name may stand for more servers than it did when the stream was kept.
        if let Some(stream) = idle.filter(|_| !self.has_several_servers()) {
            return Ok((stream, true));
        }
        let stream = self.transport()?.open_sample().await?;
        Ok((stream, false))
    }

    /// Opens a scan of a table once, without retries.
    pub async fn open_scan(&self, table: &str) -> Result<Box<dyn ScanStream>> {
        self.transport()?.open_scan(table).await
    }

    /// Gives a stream back on which nothing is outstanding.
    ///
    /// With several servers every call is to go to the next one, so nothing is kept then.
    pub fn give_back(&self, stream: Box<dyn SampleStream>) {
        if !self.has_several_servers() {
            *self.idle_sample_stream.lock() = Some(stream);
        }
    }

    /// Whether the address means several servers, as far as is known by now; calls and streams take turns among them.
    pub fn has_several_servers(&self) -> bool {
        self.connector.has_several_servers()
    }

    /// Signatures of the server's tables, fetched on first use. Waits as `server_info` does.
    pub async fn signatures(&self) -> Result<Arc<Signatures>> {
        if let Some(cached) = &*self.signatures.lock() {
            return Ok(Arc::clone(&cached.tables));
        }
        self.server_info().await?;
        let cached = self.signatures.lock();
        let cached =
            cached.as_ref().ok_or_else(|| Error::internal("signatures were not cached"))?;
        Ok(Arc::clone(&cached.tables))
    }

    /// Whether `signatures` are what this client knows of the server now.
    pub fn is_current(&self, signatures: &Arc<Signatures>) -> bool {
        let cached = self.signatures.lock();
        cached.as_ref().is_some_and(|cached| Arc::ptr_eq(&cached.tables, signatures))
    }

    fn remember_signatures(&self, info: &ServerInfo) -> Result<()> {
        let mut cached = self.signatures.lock();
        if cached.as_ref().is_some_and(|cached| cached.tables_state_id == info.tables_state_id) {
            return Ok(());
        }
        let mut tables = Signatures::new();
        for table in &info.tables {
            let signature = match &table.signature {
                None => None,
                Some(value) => Some(Arc::new(flatten_signature(value)?)),
            };
            tables.insert(table.name.clone(), signature);
        }
        *cached = Some(CachedSignatures {
            tables_state_id: info.tables_state_id,
            tables: Arc::new(tables),
        });
        Ok(())
    }

    /// Repeats a call while the server cannot be reached.
    async fn retrying<T, F>(&self, call: impl Fn(Arc<dyn Transport>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut backoff = Backoff::new(&self.address, self.connect_timeout);
        loop {
            let result = match self.transport() {
                Ok(transport) => call(transport).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(value) => return Ok(value),
                Err(error) => backoff.pause(error).await?,
            }
        }
    }
}

/// A future that a binding can wait for.
pub type ClientFuture<'a, T> = BoxFuture<'a, Result<T>>;
