// SPDX-License-Identifier: Apache-2.0
//! Reads items of a table one after another, in batches that grow.
//!
//! The first request asks for one item, the next for one, then for 2, 4, ... up to [`MAX_BATCH`],
//! and never for more than the caller wants in total. A caller that takes a few items causes hardly
//! any prefetch; a caller that takes thousands needs one round trip per hundreds of items. The next
//! request is sent when the last item of a small batch is taken, or half of a large one.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use reverb_base::{Error, Result};
use reverb_data::{ColumnSpan, SampleOptions, Sampled, StepWindow};
use reverb_wire::Capability;
use reverb_wire::transport::{SampleRequest, SampleStream};

use crate::client::Client;
use crate::retry::Backoff;
use crate::session::Session;
use crate::waits::{WaitFor, reported};

/// Maximum number of items per request.
const MAX_BATCH: usize = 256;
/// For batches of at least this size, the next one is fetched when half of this one is taken.
const MIN_OVERLAP: usize = 16;
/// A batch stops growing when its chunks would take more than this.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Fetches a fixed number of items of one table.
pub struct SampleCursor {
    session: Arc<Session>,
    table: Arc<str>,
    /// Items not requested yet.
    unrequested: u64,
    /// Items requested and not received yet.
    outstanding: usize,
    ready: VecDeque<Sampled>,
    batch: usize,
    /// Number of remaining items at which the next request is sent: 0 while batches are small, half
    /// a batch later. The server then fetches while the caller works.
    refill_at: usize,
    requests: u64,
    timeout: Option<Duration>,
    /// Options of the requests.
    options: SampleOptions,
    /// True if all items are requested at once.
    is_at_once: bool,
    /// Requested columns; empty: all.
    columns: Vec<u32>,
    /// Requested parts of windows.
    spans: Vec<ColumnSpan>,
    stream: Option<Box<dyn SampleStream>>,
    /// True if the stream was idle and has not answered since: it may be stale.
    may_be_stale: bool,
    backoff: Backoff,
}

impl SampleCursor {
    /// A cursor over `num_samples` items; nothing is requested yet. `timeout` bounds every wait for
    /// the rate limiter.
    pub fn new(client: &Client, table: &str, num_samples: u64, timeout: Option<Duration>) -> Self {
        let backoff = Backoff::new(client.session());
        Self {
            session: Arc::clone(client.session()),
            table: table.into(),
            unrequested: num_samples,
            outstanding: 0,
            ready: VecDeque::new(),
            batch: 1,
            refill_at: 0,
            requests: 0,
            timeout,
            options: SampleOptions::default(),
            is_at_once: false,
            columns: Vec::new(),
            spans: Vec::new(),
            stream: None,
            may_be_stale: false,
            backoff,
        }
    }

    /// Requests all items at once, with these options. Items that are to be stacked are sampled
    /// only if they can be, if the server supports that check; see [`SampleRequest::options`].
    #[must_use]
    pub fn at_once(mut self, options: SampleOptions) -> Self {
        self.batch = usize::try_from(self.unrequested).unwrap_or(usize::MAX).max(1);
        self.is_at_once = true;
        self.options = options;
        self
    }

    /// Requests only these columns, in increasing order. Servers of dm-reverb send all columns.
    #[must_use]
    pub fn with_columns(mut self, columns: &[u32]) -> Self {
        self.columns = columns.to_vec();
        self
    }

    /// Requests a window of each item, with only these parts of some columns.
    #[must_use]
    pub fn with_window(mut self, window: StepWindow, spans: &[ColumnSpan]) -> Self {
        self.options.window = Some(window);
        self.with_spans(spans)
    }

    /// Requests only these parts of a window, which the options have.
    #[must_use]
    pub fn with_spans(mut self, spans: &[ColumnSpan]) -> Self {
        self.spans = spans.to_vec();
        self
    }

    /// An item that has already arrived. Taking the last one sends the next request.
    pub fn take_ready(&mut self) -> Option<Sampled> {
        let sampled = self.ready.pop_front()?;
        if self.outstanding == 0 && self.ready.len() <= self.refill_at {
            self.prefetch();
        }
        Some(sampled)
    }

    /// The next item, or `None` after the last. Waits for the table's rate limiter and for the
    /// server.
    pub async fn next(&mut self) -> Result<Option<Sampled>> {
        loop {
            if let Some(sampled) = self.take_ready() {
                return Ok(Some(sampled));
            }
            if self.outstanding == 0 && self.unrequested == 0 {
                return Ok(None);
            }
            self.fetch().await?;
        }
    }

    /// All items that arrive together, at least one; empty after the last.
    pub async fn next_many(&mut self) -> Result<Vec<Sampled>> {
        if self.ready.is_empty() && (self.outstanding > 0 || self.unrequested > 0) {
            self.fetch().await?;
        }
        Ok(std::mem::take(&mut self.ready).into())
    }

    /// Withdraws a pending request, if there is one; `next` repeats it. Items under way are lost.
    pub fn withdraw(&mut self) {
        if self.outstanding > 0 {
            self.request_again();
        }
    }

    /// Returns the stream to the session, if nothing is outstanding.
    pub fn finish(mut self) {
        self.release();
    }

    /// Text about what `next` is waiting for.
    pub fn describe_wait(&self) -> String {
        format!("items of table '{}' at {}", self.table, self.session.address())
    }

    fn prefetch(&mut self) {
        if self.unrequested == 0 {
            self.release();
        } else if let Some(stream) = &mut self.stream {
            let num = self.batch.min(usize::try_from(self.unrequested).unwrap_or(usize::MAX));
            self.options.waits_since = self.session.unanswered().take(&self.table);
            let request = SampleRequest {
                options: self.options,
                columns: &self.columns,
                spans: &self.spans,
                ..SampleRequest::new(&self.table, num, self.timeout)
            };
            // If the stream cannot take the request, `fetch` opens a new one.
            if stream.request(&request).is_ok() {
                self.requested(num);
            } else {
                self.stream = None;
            }
        }
    }

    fn requested(&mut self, num: usize) {
        self.unrequested -= num as u64;
        self.outstanding += num;
        self.options = self.options.after(num);
        self.requests += 1;
        if self.requests > 1 {
            self.batch = (self.batch * 2).min(MAX_BATCH.max(num));
        }
    }

    async fn fetch(&mut self) -> Result<()> {
        let session = Arc::clone(&self.session);
        let table = Arc::clone(&self.table);
        let what = || WaitFor::Samples(Arc::clone(&table));
        reported(&session, what, pin!(self.fetch_items())).await
    }

    /// Waits for items, and reconnects as often as necessary.
    async fn fetch_items(&mut self) -> Result<()> {
        self.backoff.begin();
        while self.ready.is_empty() {
            match self.fetch_once().await {
                Ok(samples) if samples.is_empty() => {
                    // The epoch is over, and with it the request.
                    self.backoff.answered();
                    (self.unrequested, self.outstanding) = (0, 0);
                    return Ok(());
                }
                Ok(samples) => {
                    self.options.waits_since = None;
                    self.options.note_epoch(&samples);
                    self.may_be_stale = false;
                    self.backoff.answered();
                    self.outstanding = self.outstanding.saturating_sub(samples.len());
                    // Also brings the headers of the items' chunks into the cache, for items that
                    // are decoded one by one.
                    if self.unrequested > 0 || !self.is_at_once {
                        let bytes: usize = samples.iter().map(|s| s.trajectory.chunk_bytes()).sum();
                        let fitting = MAX_BATCH_BYTES / (bytes / samples.len().max(1)).max(1);
                        self.batch = self.batch.min(fitting.max(1));
                    }
                    self.refill_at =
                        if samples.len() < MIN_OVERLAP { 0 } else { samples.len() / 2 };
                    self.ready = samples.into();
                }
                Err(error) => {
                    let since = self.options.waits_since;
                    self.session.unanswered().leave(&self.table, since, self.timeout, &error);
                    self.request_again();
                    if std::mem::take(&mut self.may_be_stale) && error.is_transient() {
                        continue;
                    }
                    self.backoff.pause(&self.session, error).await?;
                }
            }
        }
        Ok(())
    }

    /// Makes outstanding items due for a request on another stream.
    fn request_again(&mut self) {
        self.unrequested += self.outstanding as u64;
        self.options = self.options.before(self.outstanding);
        self.outstanding = 0;
        self.stream = None;
    }

    async fn fetch_once(&mut self) -> Result<Vec<Sampled>> {
        if self.stream.is_none() {
            if self.options.window.is_some() {
                self.session.require(&[Capability::Windows]).await?;
            }
            let (stream, was_idle) = self.session.open_sample().await?;
            self.stream = Some(stream);
            self.may_be_stale = was_idle;
            self.backoff.connected();
        }
        if self.outstanding == 0 {
            self.prefetch();
        }
        let Some(stream) = &mut self.stream else {
            return Err(Error::unavailable("the sample stream was lost"));
        };
        stream.receive().await
    }

    fn release(&mut self) {
        if self.outstanding == 0
            && let Some(stream) = self.stream.take()
        {
            self.session.keep_idle(stream);
        }
    }
}
