// SPDX-License-Identifier: Apache-2.0
//! A client: one method per call to a server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reverb_data::{
    Error, ErrorKind, Result, SampleOptions, Sampled, Stacking, TrajectoryBuilder, keep_samples,
    spare_samples,
};
use reverb_wire::Capability;
use reverb_wire::calls::SmallCall;
use reverb_wire::generated::reverb::HoldRateLimiterRequest;
use reverb_wire::transport::{RateLimiterHold, ServerInfo};
use tokio::runtime::Handle;

use crate::sampler::batch::BatchBuilder;
use crate::sampler::batch_column::{BatchColumn, GivenColumn};
use crate::sampler::batch_size::BatchBounds;
use crate::sampler::cursor::SampleCursor;
use crate::sampler::ragged::RaggedForm;
use crate::session::{Connector, Session, Signatures};
use crate::waits::{WaitFor, reported};
use crate::writer::dropped::LastDropped;
use crate::writer::insertion::{IdleStreams, Insertion};

/// A client of one server address. Safe to share between threads.
///
/// Readers and writers keep a reference to the session, not to the client.
#[derive(Debug)]
pub struct Client {
    session: Arc<Session>,
    idle_streams: Arc<IdleStreams>,
    last_dropped: Arc<LastDropped>,
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
        }
    }

    /// Ends questions about a server, and changes of it, when it is silent for so long: for
    /// programs that operate servers. Without that they wait as long as the connection lives. A
    /// frozen server does not make such a change later.
    pub fn give_up_on_silence(&self, limit: Duration) {
        self.session.give_up_on_silence(limit);
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
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

    /// Makes a small call with an encoded request, and again as its row says: `Repeat::Never` fails
    /// at once if no server answers, the others wait for one, at most for the connect timeout. All
    /// take at most `timeout`.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` after `timeout`, `Unavailable` after the connect timeout,
    /// `InvalidArgument` where one server is meant and the address leads to several.
    pub async fn small_call(
        &self,
        call: &'static SmallCall,
        request: Bytes,
        timeout: Option<Duration>,
    ) -> Result<Bytes> {
        let what = || WaitFor::Answer(call.name().to_owned());
        let asked = reported(&self.session, what, self.session.small_call(call, request));
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
        let what = || WaitFor::Answer("ServerInfo".to_owned());
        reported(&self.session, what, self.session.server_info()).await
    }

    /// Signatures of the server's tables, fetched on first use. Waits as `server_info` does.
    pub async fn signatures(&self) -> Result<Arc<Signatures>> {
        let what = || WaitFor::Answer("ServerInfo".to_owned());
        reported(&self.session, what, self.session.signatures()).await
    }

    /// Starts an insert of single steps, with an idle stream or a new one.
    ///
    /// Waits for the signatures of the server's tables the first time, and again if the server may
    /// have been replaced.
    pub async fn start_insert(&self) -> Result<Insertion> {
        let what = || WaitFor::Answer("ServerInfo".to_owned());
        let start = Insertion::start(&self.session, &self.idle_streams);
        reported(&self.session, what, start).await
    }

    /// Deletes items, then updates priorities. Unknown keys are ignored.
    pub async fn mutate_priorities(
        &self,
        table: &str,
        updates: &[(u64, f64)],
        deletes: &[u64],
    ) -> Result<()> {
        let what = || WaitFor::Answer("MutatePriorities".to_owned());
        let mutate = self.session.retrying(|transport| async move {
            transport.mutate_priorities(table, updates, deletes).await
        });
        reported(&self.session, what, mutate).await
    }

    /// Turns the rate limiter of a table of one server off for inserts. Waits for a server to
    /// answer, at most for `connect_timeout`.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if it is off already.
    pub async fn hold_rate_limiter(
        &self,
        request: &HoldRateLimiterRequest,
    ) -> Result<Box<dyn RateLimiterHold>> {
        let what = || WaitFor::Answer("HoldRateLimiter".to_owned());
        let hold = self.session.retrying(|transport| {
            let request = request.clone();
            async move { transport.hold_rate_limiter(request).await }
        });
        reported(&self.session, what, hold).await
    }

    /// Samples items and stacks them. Each wait for the table's rate limiter takes at most
    /// `timeout`.
    ///
    /// If the timeout passes after some items were sampled, a batch that may be partial consists of
    /// those. One that may not be partial is sampled as a whole or not at all, except from a
    /// dm-reverb server or a group; then the error comes with what was sampled. If sampling removes
    /// items, the items that the limiter allows at once are sampled only if they can be stacked,
    /// except from a dm-reverb server.
    ///
    /// `taken` collects the items as they arrive. After an error, or when the future is dropped, it
    /// holds the items sampled so far, after a success those of the batch.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for items that cannot be stacked and for memory that they do not fit,
    /// `RateLimiterTimeout` if no item was sampled in time, `Unimplemented` if the server cannot do
    /// what is asked, `TableNotFound`, `Unavailable`, `DataLoss` for damaged chunks, and
    /// `ResourceExhausted` for a batch of more than `max_bytes`, or without memory.
    pub async fn sample_batch(
        &self,
        request: &BatchRequest<'_>,
        given: Option<Vec<GivenColumn<'_>>>,
        taken: &mut Vec<Sampled>,
    ) -> Result<Vec<BatchColumn>> {
        self.sample_batch_until(request, given, taken, |_| true).await
    }

    /// As `sample_batch`, but a wait ends only when `ends`, which is told why it takes longer than
    /// the timeout, says so. What was sampled by then stays in the batch.
    pub(crate) async fn sample_batch_until(
        &self,
        request: &BatchRequest<'_>,
        given: Option<Vec<GivenColumn<'_>>>,
        taken: &mut Vec<Sampled>,
        ends: impl Fn(&Error) -> bool + Send + Sync,
    ) -> Result<Vec<BatchColumn>> {
        let &BatchRequest {
            table, batch_size, timeout, partial, distinct, ragged, columns, ..
        } = request;
        let mut selects = false;
        if distinct {
            self.session.require(&[Capability::Distinct]).await?;
        }
        if !columns.is_empty() {
            selects = !self.session.capabilities().await?.has(Capability::Columns);
        }
        let stacking = (ragged == RaggedForm::Refuse).then(|| Stacking::new(batch_size));
        let options = SampleOptions { stacking, all_or_nothing: !partial, distinct };
        let mut cursor = SampleCursor::new(self, table, batch_size as u64, timeout)
            .at_once(options)
            .with_columns(columns);
        let bounds = BatchBounds { batch_size, max_bytes: request.max_bytes };
        let mut builder = BatchBuilder::new(bounds, ragged, given);
        while taken.len() < batch_size {
            match cursor.next_many().await {
                Ok(more) if more.is_empty() => break,
                Ok(more) => {
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
            // With the last part nothing is left to wait for.
            if taken.len() < batch_size {
                builder.add(taken);
            }
        }
        cursor.finish();
        builder.finish(taken)
    }
}

/// What a batch shall be.
#[derive(Debug, Clone, Copy)]
pub struct BatchRequest<'a> {
    /// The table.
    pub table: &'a str,
    /// Number of items, at least 1.
    pub batch_size: usize,
    /// Limits every wait for the rate limiter.
    pub timeout: Option<Duration>,
    /// Whether the batch may be smaller, if the timeout passes.
    pub partial: bool,
    /// Whether no item may be in the batch twice.
    pub distinct: bool,
    /// What becomes of items of different lengths.
    pub ragged: RaggedForm,
    /// Its columns, in increasing order; empty: all.
    pub columns: &'a [u32],
    /// Bytes that its columns may take, unless they are in memory of the caller.
    pub max_bytes: usize,
}

/// Adds a part of a batch, in memory that this thread uses again.
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

/// Takes the other columns away.
fn select(samples: &mut [Sampled], columns: &[u32]) -> Result<()> {
    let mut builder = TrajectoryBuilder::new();
    for sampled in samples {
        sampled.trajectory = builder.select(&sampled.trajectory, columns)?;
    }
    Ok(())
}
