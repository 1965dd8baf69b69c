// SPDX-License-Identifier: Apache-2.0
//! A client: one method per call to a server.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::codec::Compression;
use reverb_data::column_names::ColumnNames;
use reverb_data::{
    ColumnSpan, SampleOptions, Sampled, Stacking, StepWindow, TrajectoryBuilder, WithinEpoch,
    keep_samples, spare_samples,
};
use reverb_wire::Capability;
use reverb_wire::calls::SmallCall;
use reverb_wire::generated::reverb::HoldRateLimiterRequest;
use reverb_wire::transport::{Hold, HoldRequest, ServerInfo};
use tokio::runtime::Handle;

use crate::leases::Leases;
use crate::sampler::batch::BatchBuilder;
use crate::sampler::batch_column::{BatchColumn, GivenColumn};
use crate::sampler::batch_size::BatchBounds;
use crate::sampler::cursor::SampleCursor;
use crate::sampler::ragged::RaggedForm;
use crate::sampler::size_so_far::SizeSoFar;
use crate::session::{Connector, Session, Signatures};
use crate::waits::{WaitFor, reported};
use crate::writer::insertion::{IdleStreams, Insertion};
use crate::writer::send::dropped::LastDropped;

/// Time limit for reading the settings of a table on the way to an error.
const TABLE_LOOKUP: Duration = Duration::from_millis(500);

/// A client of one server address. Safe to share between threads.
///
/// Readers and writers keep a reference to the session, not to the client.
#[derive(Debug)]
pub struct Client {
    session: Arc<Session>,
    idle_streams: Arc<IdleStreams>,
    last_dropped: Arc<LastDropped>,
    leases: Arc<Leases>,
    compression: Compression,
}

impl Client {
    /// Makes a client; it connects on first use. `connect_timeout` bounds how long any call waits
    /// while no server answers.
    pub fn new(
        address: &str,
        connector: Box<dyn Connector>,
        connect_timeout: Duration,
        runtime: Handle,
    ) -> Self {
        let session = Session::new(address, connector, connect_timeout, runtime);
        Self {
            session: Arc::new(session),
            idle_streams: Arc::default(),
            last_dropped: Arc::default(),
            leases: Arc::default(),
            compression: Compression::Auto,
        }
    }

    /// The same client, with the same connections, whose inserts and writers compress like this.
    #[must_use]
    pub fn with_compression(&self, compression: Compression) -> Self {
        Self {
            session: Arc::clone(&self.session),
            idle_streams: Arc::clone(&self.idle_streams),
            last_dropped: Arc::clone(&self.last_dropped),
            leases: Arc::clone(&self.leases),
            compression,
        }
    }

    /// Compression of its inserts and of its writers' chunks.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Sets the time after which calls about a silent server fail, for programs that operate
    /// servers. Without it, such calls wait as long as the connection lives. A frozen server does
    /// not make a change later.
    pub fn give_up_on_silence(&self, limit: Duration) {
        self.session.give_up_on_silence(limit);
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Its leases on items with rollouts.
    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }

    /// The structured writer that was dropped last, if it still has items.
    pub(crate) fn last_dropped(&self) -> &Arc<LastDropped> {
        &self.last_dropped
    }

    /// The address as it was given.
    pub fn address(&self) -> &str {
        self.session.address()
    }

    /// The runtime of the client's tasks.
    pub fn runtime(&self) -> &Handle {
        self.session.runtime()
    }

    /// Makes a call that waits for nothing but its answer, and reports its wait under this name.
    async fn answer_to<T>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        reported(&self.session, || WaitFor::Answer(name), pin!(call)).await
    }

    /// Makes a small call with an encoded request. Retries as the call's row says: with
    /// `Repeat::Never` it fails at once if no server answers, other calls wait for a server, at
    /// most for the connect timeout. All calls take at most `timeout`.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` after `timeout`, `Unavailable` after the connect timeout,
    /// `InvalidArgument` for a call to a single server if the address leads to several.
    pub async fn small_call(
        &self,
        call: &'static SmallCall,
        request: Bytes,
        timeout: Option<Duration>,
    ) -> Result<Bytes> {
        let asked = self.answer_to(call.name(), self.session.small_call(call, request));
        let Some(timeout) = timeout else { return asked.await };
        match tokio::time::timeout(timeout, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::deadline_exceeded(
                &call.method_name(),
                timeout,
                &format!("a server to answer at {}", self.address()),
            )),
        }
    }

    /// Describes all tables, and refreshes the cached signatures. Waits for a server to answer, at
    /// most for the connect timeout.
    pub async fn server_info(&self) -> Result<ServerInfo> {
        self.answer_to("ServerInfo", self.session.server_info()).await
    }

    /// Signatures of the server's tables, fetched on first use. Waits like `server_info`.
    pub async fn signatures(&self) -> Result<Arc<Signatures>> {
        self.answer_to("ServerInfo", self.session.signatures()).await
    }

    /// Starts an insert of single steps, with an idle stream or a new one.
    ///
    /// Waits for the signatures of the server's tables the first time, and again if the server may
    /// have been replaced.
    pub async fn start_insert(&self) -> Result<Insertion> {
        Insertion::start(&self.session, &self.idle_streams, self.compression).await
    }

    /// Deletes items, then updates priorities. Unknown keys are ignored.
    pub async fn mutate_priorities(
        &self,
        table: &str,
        updates: &[(u64, f64)],
        deletes: &[u64],
    ) -> Result<()> {
        let mutate = self.session.retrying(|transport| async move {
            transport.mutate_priorities(table, updates, deletes).await
        });
        self.answer_to("MutatePriorities", mutate).await
    }

    /// Turns the rate limiter of a table of one server off for inserts. Waits for a server to
    /// answer, at most for `connect_timeout`.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if it is off already.
    pub async fn hold_rate_limiter(
        &self,
        request: HoldRateLimiterRequest,
    ) -> Result<Box<dyn Hold>> {
        let request = HoldRequest::RateLimiter(request);
        let hold = self.session.retrying(|transport| {
            let request = request.clone();
            async move { transport.hold(request).await }
        });
        self.answer_to("HoldRateLimiter", hold).await
    }

    /// Samples items and stacks them. Each wait for the table's rate limiter takes at most
    /// `timeout`.
    ///
    /// If the timeout passes after some items were sampled, a batch that may be partial consists of
    /// them. A batch that may not be partial is sampled completely or not at all, except from a
    /// dm-reverb server or a group; then the error comes with the sampled items. If sampling
    /// removes items, items that cannot be stacked are not sampled, except from a dm-reverb server.
    ///
    /// `taken` collects the items as they arrive. After an error, or when the future is dropped, it
    /// holds the items sampled so far; after a success, the items of the batch.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for items that cannot be stacked or do not fit the given memory,
    /// `RateLimiterTimeout` if no item was sampled in time, `Unimplemented` if the server lacks a
    /// requested feature, `TableNotFound`, `Unavailable`, `DataLoss` for damaged chunks, and
    /// `ResourceExhausted` for a batch of more than `max_bytes`, or without memory.
    pub async fn sample_batch(
        &self,
        request: &BatchRequest<'_>,
        given: Option<Vec<GivenColumn<'_>>>,
        taken: &mut Vec<Sampled>,
    ) -> Result<Vec<BatchColumn>> {
        self.sample_batch_until(request, given, taken, |_| true).await
    }

    /// Like `sample_batch`, but at each timeout `ends` receives the reason and decides whether to
    /// stop waiting. Items sampled by then stay in the batch.
    pub(crate) async fn sample_batch_until(
        &self,
        request: &BatchRequest<'_>,
        given: Option<Vec<GivenColumn<'_>>>,
        taken: &mut Vec<Sampled>,
        ends: impl Fn(&Error) -> bool + Send + Sync,
    ) -> Result<Vec<BatchColumn>> {
        match self.sample_columns_until(request, given, taken, ends).await {
            Err(error) => Err(self.with_column_name(request, error).await),
            sampled => sampled,
        }
    }

    /// Names the column of an error, as the request does or else the signature of the table. The
    /// column keeps its position if the server has to be asked for it and does not answer at once.
    pub(crate) async fn with_column_name(&self, request: &BatchRequest<'_>, error: Error) -> Error {
        if let Some(names) = request.names {
            return error.with_column(|index| names.label(index));
        }
        if error.column().is_none() || !request.columns.is_empty() {
            return error;
        }
        let signatures = tokio::time::timeout(TABLE_LOOKUP, self.session().signatures()).await;
        let Ok(Ok(signatures)) = signatures else { return error };
        match signatures.get(request.table).and_then(Option::as_ref) {
            Some(signature) => error.with_column(|index| signature.names().label(index)),
            None => error,
        }
    }

    async fn sample_columns_until(
        &self,
        request: &BatchRequest<'_>,
        given: Option<Vec<GivenColumn<'_>>>,
        taken: &mut Vec<Sampled>,
        ends: impl Fn(&Error) -> bool + Send + Sync,
    ) -> Result<Vec<BatchColumn>> {
        let &BatchRequest {
            table,
            batch_size,
            timeout,
            partial,
            distinct,
            epoch,
            window,
            spans,
            ragged,
            columns,
            ..
        } = request;
        let mut selects = false;
        if distinct {
            self.session.require(&[Capability::Distinct]).await?;
        }
        if epoch.is_some() {
            self.session.require(&[Capability::Epochs]).await?;
        }
        if !columns.is_empty() {
            selects = !self.session.capabilities().await?.has(Capability::Columns);
        }
        let stacking = ragged.is_stacked().then(|| Stacking::new(batch_size));
        let all_or_nothing = !partial && epoch.is_none();
        let options = SampleOptions {
            stacking,
            all_or_nothing,
            distinct,
            epoch,
            window,
            ..SampleOptions::default()
        };
        let mut cursor = SampleCursor::new(self, table, batch_size as u64, timeout)
            .at_once(options)
            .with_columns(columns)
            .with_spans(spans);
        let bounds = BatchBounds { batch_size, max_bytes: request.max_bytes };
        let mut size = given.is_none().then(|| SizeSoFar::new(bounds, ragged));
        // Without a timeout the batch will be whole.
        let is_whole = epoch.is_none() && (timeout.is_none() || all_or_nothing);
        let mut builder = BatchBuilder::new(bounds, ragged, given);
        while taken.len() < batch_size {
            match cursor.next_many().await {
                Ok(more) if more.is_empty() => break,
                Ok(more) => {
                    if epoch.is_some() && has_epoch_begun_anew(taken, &more) {
                        taken.clear();
                    }
                    let first = taken.len();
                    add_samples(taken, more, batch_size);
                    if selects {
                        select(&mut taken[first..], columns)?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::RateLimiterTimeout => {
                    if !ends(&error) {
                        continue;
                    }
                    if partial && !taken.is_empty() {
                        break;
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
            // After the last part there is nothing to wait for.
            if taken.len() < batch_size && epoch.is_none() {
                builder.add(taken);
                let num_items = if is_whole { batch_size } else { taken.len() };
                if let Some(Err(error)) = size.as_mut().map(|size| size.check(taken, num_items)) {
                    if self.keeps_sampled_items(table).await {
                        return Err(error);
                    }
                    // The items that were taken out of the table come with the error.
                    size = None;
                }
            }
        }
        cursor.finish();
        builder.finish(taken)
    }

    /// True if sampling removes no item of a table; false if the server does not say so at once.
    async fn keeps_sampled_items(&self, table: &str) -> bool {
        let info = tokio::time::timeout(TABLE_LOOKUP, self.session.server_info()).await;
        let Ok(Ok(info)) = info else { return false };
        info.tables.iter().any(|known| known.name == table && known.max_times_sampled <= 0)
    }
}

/// A request for one batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchRequest<'a> {
    /// Name of the table.
    pub table: &'a str,
    /// Number of items, at least 1.
    pub batch_size: usize,
    /// Limits every wait for the rate limiter.
    pub timeout: Option<Duration>,
    /// True if a timeout may return a smaller batch.
    pub partial: bool,
    /// True if no item may be in the batch twice.
    pub distinct: bool,
    /// The epoch of the items. The batch ends with it, perhaps without any item.
    pub epoch: Option<WithinEpoch>,
    /// Window of each item's steps.
    pub window: Option<StepWindow>,
    /// Columns of which only a part of the window is requested, in increasing order.
    pub spans: &'a [ColumnSpan],
    /// Treatment of items of different lengths.
    pub ragged: RaggedForm,
    /// Requested columns, in increasing order; empty: all.
    pub columns: &'a [u32],
    /// Names of these columns for errors; `None`: their positions.
    pub names: Option<&'a ColumnNames>,
    /// Largest number of bytes of the columns, except in memory of the caller.
    pub max_bytes: usize,
}

/// Returns true if the next items are of an earlier epoch: the server was started again, so the
/// items taken come again.
fn has_epoch_begun_anew(taken: &[Sampled], more: &[Sampled]) -> bool {
    matches!((taken.last(), more.first()), (Some(last), Some(next)) if next.epoch != last.epoch)
}

/// Adds a part of a batch. Its memory is used again by this thread.
fn add_samples(taken: &mut Vec<Sampled>, mut more: Vec<Sampled>, batch_size: usize) {
    if taken.is_empty() && more.len() >= batch_size {
        *taken = more;
        return;
    }
    if taken.capacity() == 0 {
        *taken = spare_samples();
    }
    taken.append(&mut more);
    keep_samples(more);
}

/// Removes the columns that were not requested.
fn select(samples: &mut [Sampled], columns: &[u32]) -> Result<()> {
    let mut builder = TrajectoryBuilder::new();
    for sampled in samples {
        sampled.trajectory = builder.select(&sampled.trajectory, columns)?;
    }
    Ok(())
}
