// SPDX-License-Identifier: Apache-2.0
//! Session: state that a client shares with its readers and writers, such as cached signatures.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::{NewItem, Signature, is_max_priority};
use reverb_wire::calls::{Call, InGroup, Repeat, SmallCall};
use reverb_wire::convert::signature::flatten_signature;
use reverb_wire::generated::ServerInfoRequest;
use reverb_wire::generated::reverb::StatusRequest;
use reverb_wire::presence::{ServerClock, silent, while_it_answers};
use reverb_wire::transport::{
    InsertStream, NextStream, SampleStream, ScanOptions, ScanStream, ServerInfo, Transport,
};
use reverb_wire::{Calls, Capabilities, Capability};
use tokio::runtime::Handle;

use crate::absence::Absence;
use crate::retry::Backoff;
use crate::unanswered::Unanswered;
use crate::waits::Waits;

/// Selects the transport to a server on every use: a server may have started in this process
/// meanwhile.
pub trait Connector: Send + Sync {
    /// The transport to use now.
    fn transport(&self) -> Result<Arc<dyn Transport>>;

    /// True if the address is known to lead to several servers. Checked before every call, so it
    /// should not create a transport if that is expensive.
    fn has_several_servers(&self) -> bool {
        self.transport().is_ok_and(|transport| transport.has_several_servers())
    }

    /// True if the address leads to a group of shards.
    fn leads_to_group(&self) -> bool {
        false
    }

    /// True if, after this error, no server of the address is going to answer any more.
    fn has_ended(&self, error: &Error) -> bool {
        self.transport().is_ok_and(|transport| transport.has_ended(error))
    }

    /// True if calls carry a token. Then the server may hide some of its tables.
    fn has_token(&self) -> bool {
        false
    }
}

/// Signatures of a server's tables; a table without one maps to `None`.
pub type Signatures = HashMap<String, Option<Arc<Signature>>>;

/// Access to the servers of one address. Safe to share between threads.
pub(crate) struct Session {
    address: Arc<str>,
    connector: Box<dyn Connector>,
    connect_timeout: Duration,
    /// Time after which a silent server fails status calls and changes; unset: as long as its
    /// connection lives. Groups have limits of their own.
    silence: OnceLock<Duration>,
    runtime: Handle,
    waits: Waits,
    unanswered: Unanswered,
    absence: Arc<Absence>,
    signatures: Mutex<Option<CachedSignatures>>,
    /// An open sample stream with no outstanding request.
    idle_sample_stream: Mutex<Option<Box<dyn SampleStream>>>,
}

struct CachedSignatures {
    tables_state_id: (u64, u64),
    tables: Arc<Signatures>,
    /// Names of the tables with rollouts.
    with_rollouts: Vec<String>,
    capabilities: Arc<Capabilities>,
}

impl CachedSignatures {
    /// True if the signatures come from this server with these tables; rights may change the
    /// tables.
    fn is_of(&self, info: &ServerInfo) -> bool {
        self.tables_state_id == info.tables_state_id
            && self.tables.len() == info.tables.len()
            && info.tables.iter().all(|table| self.tables.contains_key(&table.name))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Session {
    /// Makes a session; it connects on first use. `connect_timeout` bounds how long any call waits
    /// while no server answers.
    pub(crate) fn new(
        address: &str,
        connector: Box<dyn Connector>,
        connect_timeout: Duration,
        runtime: Handle,
    ) -> Self {
        Self {
            address: address.into(),
            connector,
            connect_timeout,
            silence: OnceLock::new(),
            runtime,
            waits: Waits::of_this_process(),
            unanswered: Unanswered::default(),
            absence: Arc::default(),
            signatures: Mutex::new(None),
            idle_sample_stream: Mutex::new(None),
        }
    }

    /// The address as it was given.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Time that a call waits while no server answers.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Sets the time after which calls about a silent server fail. Only the first value counts.
    pub(crate) fn give_up_on_silence(&self, limit: Duration) {
        let _ = self.silence.set(limit);
    }

    /// The address, shared.
    pub(crate) fn shared_address(&self) -> Arc<str> {
        Arc::clone(&self.address)
    }

    /// The waits of this process, where long ones are reported.
    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Waits of its readers that have timed out and may continue.
    pub(crate) fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    /// The runtime of the client's tasks.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The transport to use now.
    pub(crate) fn transport(&self) -> Result<Arc<dyn Transport>> {
        self.connector.transport()
    }

    /// Describes all tables, and refreshes the cached signatures. Waits for a server to answer, at
    /// most for `connect_timeout`.
    pub(crate) async fn server_info(&self) -> Result<ServerInfo> {
        let info = self.asking(|transport| async move { transport.server_info().await }).await?;
        self.remember_signatures(&info)?;
        Ok(info)
    }

    /// As `server_info`, with one attempt.
    pub(crate) async fn server_info_once(&self) -> Result<ServerInfo> {
        let info = self.transport()?.server_info().await?;
        self.remember_signatures(&info)?;
        Ok(info)
    }

    /// Makes a small call with an encoded request, and retries as its row says.
    pub(crate) async fn small_call(
        &self,
        call: &'static SmallCall,
        request: Bytes,
    ) -> Result<Bytes> {
        let is_for_one = match call.group {
            InGroup::Merge | InGroup::Only => false,
            InGroup::Own => !self.leads_to_group(),
            InGroup::Refused => true,
        };
        if is_for_one && (self.leads_to_group() || self.has_several_servers()) {
            return Err(call.refused_by_group(&self.address));
        }
        let asks_for = (call.asks_for)(&request);
        if !asks_for.is_empty() {
            self.require(asks_for).await?;
        }
        let request = &request;
        let make = |transport: Arc<dyn Transport>, request: Bytes| async move {
            transport.small_call(call, request).await
        };
        let answer = match call.repeat {
            Repeat::Never => {
                let transport = self.transport()?;
                let begin = |_| make(Arc::clone(&transport), request.clone());
                let then = "It may be stopped or frozen, and may have done it or not";
                self.while_it_answers(&transport, begin, "", then).await
            }
            Repeat::Question => self.asking(|transport| make(transport, request.clone())).await,
            Repeat::Change { .. } => {
                let change = |transport, ns| make(transport, call.with_deadline(request, ns));
                self.changing(change).await
            }
        }?;
        if call.row.path == ServerInfoRequest::PATH
            && let Ok(info) = ServerInfoRequest::decode_answer(answer.clone())
        {
            self.remember_signatures(&info.into())?;
        }
        Ok(answer)
    }

    /// Opens an insert stream without retries. The flag is true if the server is in this process.
    pub(crate) async fn open_insert(&self, next: NextStream<'_>) -> Result<(InsertStream, bool)> {
        let transport = self.transport()?;
        let stream = transport.open_next_insert(next).await?;
        Ok((stream, transport.is_local()))
    }

    /// Opens a sample stream, or takes the idle one. The flag is true for an idle one, which may be
    /// stale.
    pub(crate) async fn open_sample(&self) -> Result<(Box<dyn SampleStream>, bool)> {
        let idle = self.idle_sample_stream.lock().take();
        // The name may resolve to more servers now than when the stream became idle.
        if let Some(stream) = idle.filter(|_| !self.has_several_servers()) {
            return Ok((stream, true));
        }
        let stream = self.transport()?.open_sample().await?;
        Ok((stream, false))
    }

    /// Opens a scan of a table once, without retries.
    pub(crate) async fn open_scan(
        &self,
        table: &str,
        options: ScanOptions<'_>,
    ) -> Result<Box<dyn ScanStream>> {
        self.transport()?.open_scan(table, options).await
    }

    /// Keeps a stream without outstanding requests for the next reader.
    ///
    /// With several servers, every call goes to the next one, so no stream is kept.
    pub(crate) fn keep_idle(&self, stream: Box<dyn SampleStream>) {
        if !self.has_several_servers() {
            *self.idle_sample_stream.lock() = Some(stream);
        }
    }

    /// True if the address is known to lead to several servers, which get calls and streams in
    /// rotation.
    pub(crate) fn has_several_servers(&self) -> bool {
        self.connector.has_several_servers()
    }

    /// The absence of a server that does not answer.
    pub(crate) fn absence(&self) -> &Arc<Absence> {
        &self.absence
    }

    /// True if, after this error, no server of the address is going to answer any more.
    pub(crate) fn has_ended(&self, error: &Error) -> bool {
        self.connector.has_ended(error)
    }

    /// True if the address leads to a group of shards.
    pub(crate) fn leads_to_group(&self) -> bool {
        self.connector.leads_to_group()
    }

    /// True if calls carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.connector.has_token()
    }

    /// Signatures of the server's tables, fetched on first use. Waits like `server_info`.
    pub(crate) async fn signatures(&self) -> Result<Arc<Signatures>> {
        if let Some(cached) = &*self.signatures.lock() {
            return Ok(Arc::clone(&cached.tables));
        }
        self.server_info().await?;
        let cached = self.signatures.lock();
        let cached =
            cached.as_ref().ok_or_else(|| Error::internal("signatures were not cached"))?;
        Ok(Arc::clone(&cached.tables))
    }

    /// Features of the server beyond dm-reverb, fetched on first use. Waits like `server_info`.
    pub(crate) async fn capabilities(&self) -> Result<Arc<Capabilities>> {
        if let Some(cached) = &*self.signatures.lock() {
            return Ok(Arc::clone(&cached.capabilities));
        }
        self.server_info().await?;
        let cached = self.signatures.lock();
        Ok(cached.as_ref().map(|cached| Arc::clone(&cached.capabilities)).unwrap_or_default())
    }

    /// Checks that the server has these features beyond dm-reverb. Fetched on first use, and again
    /// before an error, because the server may have been replaced. Waits like `server_info`.
    ///
    /// # Errors
    ///
    /// `Unimplemented` with the missing feature.
    pub(crate) async fn require(&self, capabilities: &[Capability]) -> Result<()> {
        let check = |known: &Capabilities| {
            capabilities.iter().try_for_each(|&wanted| known.require(wanted, &self.address))
        };
        if check(&*self.capabilities().await?).is_ok() {
            return Ok(());
        }
        check(&self.server_info().await?.capabilities)
    }

    /// Checks that the server supports the priorities of these items. Waits like `require`.
    ///
    /// # Errors
    ///
    /// `Unimplemented` for `MAX_PRIORITY` and removal priorities if the server does not support
    /// them.
    pub(crate) async fn check_priorities(&self, items: &[NewItem]) -> Result<()> {
        let max = items.iter().any(|item| is_max_priority(item.priority));
        let removal = items.iter().any(|item| item.removal_priority.is_some());
        match (max, removal) {
            (false, false) => Ok(()),
            (true, false) => self.require(&[Capability::MaxPriority]).await,
            (false, true) => self.require(&[Capability::RemovalPriority]).await,
            (true, true) => {
                self.require(&[Capability::MaxPriority, Capability::RemovalPriority]).await
            }
        }
    }

    /// Checks that none of these items is for a table with rollouts.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` that names the table.
    pub(crate) fn check_plain(&self, items: &[NewItem]) -> Result<()> {
        let cached = self.signatures.lock();
        let Some(cached) = &*cached else { return Ok(()) };
        for table in items.chunk_by(|a, b| a.table == b.table).map(|items| &items[0].table) {
            if cached.with_rollouts.iter().any(|name| **name == **table) {
                return Err(Error::failed_precondition(format!(
                    "Table {table} has rollouts, whose items have random keys; use insert_item with \
                     a name."
                )));
            }
        }
        Ok(())
    }

    /// True if the cached signatures belong to the tables with this id.
    pub(crate) fn knows_tables(&self, tables_state_id: (u64, u64)) -> bool {
        let cached = self.signatures.lock();
        cached.as_ref().is_some_and(|cached| cached.tables_state_id == tables_state_id)
    }

    fn remember_signatures(&self, info: &ServerInfo) -> Result<()> {
        let mut cached = self.signatures.lock();
        if cached.as_ref().is_some_and(|cached| cached.is_of(info)) {
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
        let with_rollouts = info.tables.iter().filter(|table| table.rollouts.is_some());
        *cached = Some(CachedSignatures {
            tables_state_id: info.tables_state_id,
            tables: Arc::new(tables),
            with_rollouts: with_rollouts.map(|table| table.name.clone()).collect(),
            capabilities: Arc::new(info.capabilities.clone()),
        });
        Ok(())
    }

    /// Makes a call that needs no work at the server. Retries like `retrying`.
    pub(crate) async fn asking<T, F>(&self, ask: impl Fn(Arc<dyn Transport>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let ask = &ask;
        self.retrying(|transport| async move { self.answer_of(ask(transport), "").await }).await
    }

    /// Makes a change at a server that answers. `change` receives a deadline for its start by the
    /// server's clock, or 0 for none. Retries like `retrying`.
    pub(crate) async fn changing<T, F>(
        &self,
        change: impl Fn(Arc<dyn Transport>, i64) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let change = &change;
        self.retrying(|transport| async move {
            let begin = |ns| change(Arc::clone(&transport), ns);
            let refuses = "It may be stopped or frozen, and refuses the change when it goes on";
            self.while_it_answers(&transport, begin, ", so nothing was changed", refuses).await
        })
        .await
    }

    /// Begins with work at a server, and waits for it as long as the server answers, if this client
    /// gives up on silent servers. `begin` receives a deadline by the server's clock, or 0. `so`
    /// and `then` end the errors of a server that did not answer before, and that fell silent
    /// later.
    async fn while_it_answers<T, F>(
        &self,
        transport: &Arc<dyn Transport>,
        begin: impl FnOnce(i64) -> F,
        so: &str,
        then: &str,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        if self.silence.get().is_none() || self.leads_to_group() {
            return begin(0).await;
        }
        let status = || transport.call(StatusRequest { with_streams: false });
        let clock = match self.answer_of(status(), so).await {
            Ok(status) => ServerClock::reported(status.now_ns),
            Err(error) if error.is_transient() || error.kind() == ErrorKind::Unavailable => {
                return Err(error);
            }
            // The server runs dm-reverb, or the caller has no right to ask. The work itself will
            // fail then.
            Err(_) => return begin(0).await,
        };
        let working = begin(clock.not_after_ns());
        let done = while_it_answers(working, || async { status().await.map(drop) });
        done.await.map_err(|error| {
            if error.kind() != ErrorKind::Unavailable || error.is_transient() {
                return error;
            }
            Error::unavailable(format!(
                "The server at {} does not answer any more ({}). {then}.",
                self.address,
                error.message(),
            ))
            .lasting()
        })
    }

    /// The server's answer, or an error if it is silent.
    async fn answer_of<T>(&self, asked: impl Future<Output = Result<T>>, then: &str) -> Result<T> {
        match self.silence.get() {
            Some(&limit) if !self.leads_to_group() => {
                tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| {
                    let why = silent(limit);
                    Err(Error::unavailable(format!(
                        "The server at {} does not answer ({}){then}. It may be stopped or frozen.",
                        self.address,
                        why.message(),
                    ))
                    .lasting())
                })
            }
            _ => asked.await,
        }
    }

    /// Retries a call while the server cannot be reached.
    pub(crate) async fn retrying<T, F>(&self, call: impl Fn(Arc<dyn Transport>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut backoff = Backoff::new(self);
        loop {
            let result = match self.transport() {
                Ok(transport) => call(transport).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(value) => {
                    backoff.answered();
                    return Ok(value);
                }
                Err(error) => backoff.pause(self, error).await?,
            }
        }
    }
}
