// SPDX-License-Identifier: Apache-2.0
//! A prefetching sampler: several workers fill one queue, so that items are available when they are
//! needed. The TensorFlow datasets are built on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::{SampleOptions, Sampled, Stacking, StepWindow};
use reverb_wire::Capability;
use reverb_wire::transport::{SampleRequest, SampleStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::client::Client;
use crate::retry::Backoff;
use crate::session::Session;

/// Number of items in flight from which a worker requests half of them at a time: the server
/// samples one half while the consumer uses the other. With fewer, it requests all of them after
/// all were taken, so that a caller can rely on the number of sampled items.
const MIN_OVERLAP: usize = 32;

/// Minimum pause before a timed-out request is repeated while no caller waits for it.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(5);

/// Options of a sampler. The defaults are those of dm-reverb's datasets.
#[derive(Debug, Clone)]
pub struct SamplerOptions {
    /// Maximum number of items in total; `None` for no limit.
    pub max_samples: Option<u64>,
    /// Maximum number of items that one worker has requested and the consumer has not taken. At
    /// least 1.
    pub max_in_flight_samples_per_worker: usize,
    /// Number of workers; each has its own stream. At least 1.
    pub num_workers: usize,
    /// Number of items after which a worker opens a new stream, possibly to another server. At
    /// least 1.
    pub max_samples_per_stream: u64,
    /// Longest time that the rate limiter may block while a caller waits; `None` for no timeout.
    pub rate_limiter_timeout: Option<Duration>,
    /// Size of the batches into which the consumer stacks the items, if their shapes may differ.
    /// With one worker, a table that removes sampled items keeps batches that cannot be stacked.
    pub batch_size: Option<usize>,
    /// Window of each item's steps that is fetched; `None` for whole items.
    pub window: Option<StepWindow>,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            max_samples: None,
            max_in_flight_samples_per_worker: 100,
            num_workers: 1,
            max_samples_per_stream: 10_000,
            rate_limiter_timeout: None,
            batch_size: None,
            window: None,
        }
    }
}

impl SamplerOptions {
    /// Number of workers that can be used.
    fn effective_workers(&self) -> usize {
        let batches = self.max_samples.map_or(u64::MAX, |max_samples| {
            max_samples / self.max_in_flight_samples_per_worker as u64
        });
        self.num_workers.max(1).min(usize::try_from(batches.max(1)).unwrap_or(usize::MAX))
    }
}

/// Result of `Sampler::take`.
#[derive(Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// Some items.
    Some,
    /// No items yet.
    Nothing,
    /// There are no more items.
    End,
}

/// Fetches items of one table in the background, from its creation until it is dropped.
pub struct Sampler {
    shared: Arc<Shared>,
    supervisor: AbortHandle,
}

struct Shared {
    session: Arc<Session>,
    table: Arc<str>,
    options: SamplerOptions,
    /// Maximum number of items in flight or waiting to be taken.
    capacity: usize,
    /// Items in one request.
    request: usize,
    state: Mutex<State>,
    /// Notifies workers that there may be room for a request.
    room: Notify,
    on_ready: Box<dyn Fn() + Send + Sync>,
}

struct State {
    ready: VecDeque<Sampled>,
    /// Items requested and not received yet.
    outstanding: usize,
    /// Items that were handed out and still count as in flight.
    handed_out: usize,
    /// Items that may still be requested.
    unrequested: u64,
    /// Items that the consumer's batch still lacks since the last `take`.
    lacking: usize,
    /// Position of the next requested item in its batch, if batches are checked before they are
    /// sampled.
    stacked: Option<Stacking>,
    /// True if the last `take` did not return enough items.
    is_awaited: bool,
    end: Option<End>,
}

enum Reservation {
    /// Number of items to request, and their position for the table's check.
    Made(usize, Option<Stacking>),
    NoRoom,
    /// All items were requested, or the sampler has ended.
    NothingToDo,
}

#[derive(Clone)]
enum End {
    /// The rate limiter's timeout passed while the consumer waited.
    TimedOut,
    /// The next items cannot be stacked. The error is returned once, after the items sampled
    /// before.
    Refused(Option<Error>),
    Failed(Error),
    Closed,
}

impl Sampler {
    /// Starts fetching. `before` runs first, and returns true if the table removes sampled items;
    /// if it fails, the sampler fails. `on_ready` is called on any thread when the result of `take`
    /// may have changed; it must not block.
    pub fn start(
        client: &Client,
        table: &str,
        options: SamplerOptions,
        before: impl Future<Output = Result<bool>> + Send + 'static,
        on_ready: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let per_worker = options.max_in_flight_samples_per_worker.max(1);
        let state = State {
            ready: VecDeque::new(),
            outstanding: 0,
            handed_out: 0,
            unrequested: options.max_samples.unwrap_or(u64::MAX),
            lacking: 0,
            stacked: None,
            is_awaited: false,
            end: None,
        };
        let runtime = client.runtime().clone();
        let shared = Arc::new(Shared {
            session: Arc::clone(client.session()),
            table: table.into(),
            capacity: per_worker.saturating_mul(options.effective_workers()),
            request: if per_worker < MIN_OVERLAP { per_worker } else { per_worker / 2 },
            options,
            state: Mutex::new(state),
            room: Notify::new(),
            on_ready: Box::new(on_ready),
        });
        let supervisor = runtime.spawn(supervise(Arc::clone(&shared), before)).abort_handle();
        Self { shared, supervisor }
    }

    /// Takes up to `max` items that have arrived. Never waits.
    ///
    /// With `accumulate`, the caller collects `max` items for one batch, and the missing ones are
    /// requested at once. Without it, the items count as in flight until the next call.
    ///
    /// # Errors
    ///
    /// The error that ended the sampler, on every later call too. The reason why the next batch
    /// cannot be stacked, once; after that, the outcome is `End`.
    pub fn take(
        &self,
        max: usize,
        accumulate: bool,
        out: &mut Vec<Sampled>,
    ) -> Result<TakeOutcome> {
        let mut state = self.shared.state.lock();
        if let Some(End::Failed(error)) = &state.end {
            return Err(error.clone());
        }
        if accumulate {
            state.handed_out = 0;
        } else if self.shared.is_used_up(&state) {
            state.handed_out = 0;
            self.shared.room.notify_waiters();
        }
        let count = if accumulate { max } else { self.shared.hand_out(&state, max) };
        let count = count.min(state.ready.len());
        out.extend(state.ready.drain(..count));
        if accumulate {
            state.lacking = max - count;
        } else {
            state.handed_out += count;
            if count == 1 && state.handed_out >= self.shared.per_worker() {
                // The caller uses the last item of a request, so the next request may be sent.
                state.handed_out = 0;
            }
        }
        if count > 0 || accumulate {
            self.shared.room.notify_waiters();
        }
        state.is_awaited = if accumulate { count < max } else { count == 0 };
        if count > 0 {
            return Ok(TakeOutcome::Some);
        }
        if let Some(End::Refused(refusal)) = &mut state.end
            && let Some(error) = refusal.take()
        {
            return Err(error);
        }
        let is_finished = state.unrequested == 0 && state.outstanding == 0;
        Ok(if is_finished || state.end.is_some() { TakeOutcome::End } else { TakeOutcome::Nothing })
    }

    /// The error that ended the sampler, if it failed.
    pub fn failure(&self) -> Option<Error> {
        match &self.shared.state.lock().end {
            Some(End::Failed(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// Stops fetching, and drops the items that were not taken.
    pub fn close(&self) {
        self.supervisor.abort();
        self.shared.finish(End::Closed);
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn per_worker(&self) -> usize {
        self.options.max_in_flight_samples_per_worker.max(1)
    }

    /// True if a caller that asks for more has used all items that it got before.
    ///
    /// Usually it has. With few items in flight, the next request is sent only after the last item
    /// is used.
    fn is_used_up(&self, state: &State) -> bool {
        let per_worker = self.per_worker();
        per_worker >= MIN_OVERLAP || state.handed_out >= per_worker || state.ready.is_empty()
    }

    /// Number of items to hand out at once to a caller that uses them one by one.
    ///
    /// With few items in flight, the last item of a request is handed out alone: the next request
    /// is sent when that item is taken, not earlier.
    fn hand_out(&self, state: &State, max: usize) -> usize {
        let per_worker = self.per_worker();
        if per_worker >= MIN_OVERLAP {
            return max;
        }
        let left = per_worker - state.handed_out.min(per_worker - 1);
        max.min((left - 1).max(1))
    }

    /// Waits until there is room for a request; returns the number of items to request. `None` if
    /// nothing is left to do.
    async fn reserve(&self, limit: u64) -> Option<(usize, Option<Stacking>)> {
        loop {
            let mut notified = std::pin::pin!(self.room.notified());
            notified.as_mut().enable();
            match self.try_reserve(limit) {
                Reservation::Made(count, stacking) => return Some((count, stacking)),
                Reservation::NothingToDo => return None,
                Reservation::NoRoom => notified.await,
            }
        }
    }

    fn try_reserve(&self, limit: u64) -> Reservation {
        let mut state = self.state.lock();
        if state.end.is_some() || state.unrequested == 0 {
            return Reservation::NothingToDo;
        }
        let in_flight = state.outstanding + state.ready.len() + state.handed_out;
        // All items that the consumer's batch lacks are requested at once.
        let lacking = state.lacking.saturating_sub(state.outstanding + state.ready.len());
        let room = (self.capacity + state.lacking).saturating_sub(in_flight);
        let mut wanted = self.request.max(lacking.min(room));
        if let Some(next) = state.stacked {
            match whole_batches(next, wanted.min(room)) {
                Some(count) => wanted = count,
                None => return Reservation::NoRoom,
            }
        }
        if room < wanted && (room as u64) < state.unrequested {
            return Reservation::NoRoom;
        }
        let count = (wanted as u64).min(limit).min(state.unrequested) as usize;
        state.outstanding += count;
        if state.unrequested != u64::MAX {
            state.unrequested -= count as u64;
        }
        let stacking = state.stacked;
        state.stacked = stacking.map(|position| position.after(count));
        Reservation::Made(count, stacking)
    }

    fn received(&self, samples: Vec<Sampled>) {
        let mut state = self.state.lock();
        state.outstanding = state.outstanding.saturating_sub(samples.len());
        if state.end.is_none() {
            state.ready.extend(samples);
        }
        drop(state);
        (self.on_ready)();
    }

    /// Returns items that were requested and will not arrive.
    fn lost(&self, count: usize) {
        let mut state = self.state.lock();
        state.outstanding = state.outstanding.saturating_sub(count);
        if state.unrequested != u64::MAX {
            state.unrequested += count as u64;
        }
        state.stacked = state.stacked.map(|next| next.before(count));
    }

    fn finish(&self, end: End) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            if matches!(end, End::Failed(_) | End::Closed) {
                state.ready.clear();
            }
            state.end = Some(end);
        }
        drop(state);
        self.room.notify_waiters();
        (self.on_ready)();
    }

    fn is_awaited(&self) -> bool {
        let state = self.state.lock();
        state.is_awaited && state.ready.is_empty()
    }
}

/// Number of items to request if up to `wanted` are allowed: up to the end of a batch, so that the
/// table can check a batch before it removes any item. `None` if `wanted` is less than a whole
/// batch, or than the rest of a started batch.
fn whole_batches(next: Stacking, wanted: usize) -> Option<usize> {
    let more = wanted.checked_sub(next.missing())?;
    Some(wanted - more % next.batch_size)
}

async fn supervise(shared: Arc<Shared>, before: impl Future<Output = Result<bool>> + Send) {
    match before.await {
        // Several workers share the items of a batch, so no table can check a whole batch.
        Ok(true) if shared.options.effective_workers() == 1 => {
            let batch_size = shared.options.batch_size;
            shared.state.lock().stacked = batch_size.map(Stacking::new);
        }
        Ok(_) => {}
        Err(error) => {
            shared.finish(End::Failed(error));
            return;
        }
    }
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..shared.options.effective_workers() {
        workers.spawn(work(Arc::clone(&shared)));
    }
    while let Some(worker) = workers.join_next().await {
        match worker {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.kind() == ErrorKind::RateLimiterTimeout => {
                shared.finish(End::TimedOut);
            }
            Ok(Err(error)) => shared.finish(End::Failed(error)),
            Err(panic) => shared.finish(End::Failed(Error::internal(format!(
                "a worker of a sampler ended: {panic}"
            )))),
        }
        if shared.state.lock().end.is_some() {
            // The other workers are no longer needed; dropping the set cancels them.
            return;
        }
    }
    // All items were fetched; the consumer may not know that these were the last.
    (shared.on_ready)();
}

/// The worker: fetches until nothing is left to request.
async fn work(shared: Arc<Shared>) -> Result<()> {
    let mut backoff = Backoff::new(&shared.session);
    let mut stream: Option<OpenStream> = None;
    let timeout = shared.options.rate_limiter_timeout.unwrap_or(Duration::MAX);
    loop {
        let limit = shared.options.max_samples_per_stream;
        let left = stream.as_ref().map_or(limit, |stream| limit.saturating_sub(stream.received));
        if left == 0 {
            stream = None;
            continue;
        }
        let Some((count, stacking)) = shared.reserve(left).await else { return Ok(()) };
        backoff.begin();
        let mut missing = count;
        while missing > 0 {
            let rest = stacking.map(|stacking| stacking.after(count - missing));
            let fetched = fetch(&shared, &mut stream, &mut missing, rest, &mut backoff).await;
            let Err(error) = fetched else { continue };
            stream = None;
            if rest.is_some() && error.kind() == ErrorKind::InvalidArgument {
                shared.lost(missing);
                shared.finish(End::Refused(Some(error)));
                return Ok(());
            }
            if error.kind() == ErrorKind::RateLimiterTimeout && !shared.is_awaited() {
                // No caller is waiting, so the timeout is not reported; the wait restarts.
                tokio::time::sleep(SHORTEST_TIMEOUT.saturating_sub(timeout)).await;
                continue;
            }
            if let Err(error) = backoff.pause(&shared.session, error).await {
                shared.lost(missing);
                return Err(error);
            }
        }
    }
}

struct OpenStream {
    stream: Box<dyn SampleStream>,
    received: u64,
}

/// Fetches `missing` items over one stream, and decrements it as they arrive.
async fn fetch(
    shared: &Shared,
    stream: &mut Option<OpenStream>,
    missing: &mut usize,
    stacking: Option<Stacking>,
    backoff: &mut Backoff,
) -> Result<()> {
    let window = shared.options.window;
    let open = if let Some(open) = stream {
        open
    } else {
        if window.is_some() {
            shared.session.require(&[Capability::Windows]).await?;
        }
        let opened = shared.session.transport()?.open_sample().await?;
        backoff.connected();
        stream.insert(OpenStream { stream: opened, received: 0 })
    };
    let timeout = shared.options.rate_limiter_timeout;
    let unanswered = shared.session.unanswered();
    let mut waits_since = unanswered.take(&shared.table);
    let request = SampleRequest {
        options: SampleOptions { stacking, window, waits_since, ..SampleOptions::default() },
        ..SampleRequest::new(&shared.table, *missing, timeout)
    };
    open.stream.request(&request)?;
    while *missing > 0 {
        let received = open.stream.receive().await;
        let samples = received.inspect_err(|error| {
            unanswered.leave(&shared.table, waits_since, timeout, error);
        })?;
        waits_since = None;
        backoff.answered();
        open.received += samples.len() as u64;
        *missing = missing.saturating_sub(samples.len());
        shared.received(samples);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
