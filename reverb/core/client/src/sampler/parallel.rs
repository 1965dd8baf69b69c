// SPDX-License-Identifier: Apache-2.0
//! A sampler that fetches without being asked: several workers fill one queue, so that items are
//! there when they are wanted. What the datasets of TensorFlow stand on.

mod stacked;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_data::{Error, ErrorKind, Result, Sampled, Stacking};
use reverb_wire::transport::SampleStream;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::client::Client;
use crate::retry::Backoff;
use crate::session::Session;
use stacked::StackedRequests;

/// From this many items in flight on, a worker asks for half of them at a time: the server works on
/// one half while the other is used. Below, it asks for all of them once all were taken, and who
/// counts on it finds the table as expected.
const MIN_OVERLAP: usize = 32;

/// A shorter timeout is tried again this seldom while nobody waits for its outcome.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(5);

/// How a sampler fetches. The defaults are those of the original's datasets.
#[derive(Debug, Clone)]
pub struct SamplerOptions {
    /// Items it gives in all; `None` for no limit.
    pub max_samples: Option<u64>,
    /// Items that one worker may have asked for and that were not taken. At least 1.
    pub max_in_flight_samples_per_worker: usize,
    /// Workers, each with a stream of its own. At least 1.
    pub num_workers: usize,
    /// After this many items a worker opens a new stream, perhaps to another server. At least 1.
    pub max_samples_per_stream: u64,
    /// How long the table's rate limiter may let nothing through while somebody waits; `None` for
    /// ever.
    pub rate_limiter_timeout: Option<Duration>,
    /// Items that the consumer stacks into a batch, if their shapes may differ. With one worker, a
    /// table that removes what it samples keeps batches that cannot be stacked.
    pub batch_size: Option<usize>,
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
        }
    }
}

impl SamplerOptions {
    /// Workers that have something to do.
    fn effective_workers(&self) -> usize {
        let batches = self.max_samples.map_or(u64::MAX, |max_samples| {
            max_samples / self.max_in_flight_samples_per_worker as u64
        });
        self.num_workers.max(1).min(usize::try_from(batches.max(1)).unwrap_or(usize::MAX))
    }
}

/// What `Sampler::take` found.
#[derive(Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// Items.
    Some,
    /// Nothing yet.
    Nothing,
    /// There will be no more.
    End,
}

/// Fetches items of one table in the background, from the moment it is made until it is dropped.
pub struct Sampler {
    shared: Arc<Shared>,
    supervisor: AbortHandle,
}

struct Shared {
    session: Arc<Session>,
    table: String,
    options: SamplerOptions,
    /// Items that may be on their way or waiting to be taken.
    capacity: usize,
    /// Items in one request.
    request: usize,
    state: Mutex<State>,
    /// Workers wait for room here.
    room: Notify,
    on_ready: Box<dyn Fn() + Send + Sync>,
}

struct State {
    ready: VecDeque<Sampled>,
    /// Items asked for that have not come.
    outstanding: usize,
    /// Items that were handed out and still count as in flight.
    handed_out: usize,
    /// Items that may still be asked for.
    unrequested: u64,
    /// Items that the consumer lacks beyond those on their way: it waits for a whole batch.
    lacking: usize,
    /// Present where batches are checked before they are sampled.
    stacked: Option<StackedRequests>,
    /// Whether the consumer came back empty-handed.
    is_awaited: bool,
    end: Option<End>,
}

enum Reservation {
    /// This many items may be asked for, and how the table checks them.
    Made(usize, Option<Stacking>),
    NoRoom,
    /// All were asked for, or nobody wants more.
    NothingToDo,
}

#[derive(Clone)]
enum End {
    /// The rate limiter's timeout passed while somebody waited.
    TimedOut,
    /// The next items cannot be stacked. The reason is reported once, after what was sampled
    /// before.
    Refused(Option<Error>),
    Failed(Error),
    Closed,
}

impl Sampler {
    /// Starts fetching. `before` comes first, and says whether the table removes what it samples;
    /// if it fails, so does the sampler. `on_ready` is called, on any thread, when `take` may have
    /// something new to tell; it must not wait.
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
            table: table.to_owned(),
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

    /// Takes up to `max` items that are here. Never waits.
    ///
    /// With `accumulate` the caller collects `max` items for one batch: what is still missing is
    /// asked for at once. Otherwise items count as in flight until the caller comes for more.
    ///
    /// # Errors
    ///
    /// Why the sampler failed; from then on always. Why the next batch cannot be stacked, once;
    /// then it is the end.
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
                // The caller works on the last one of a request: now the next may leave.
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

    /// Why the sampler failed, if it did.
    pub fn failure(&self) -> Option<Error> {
        match &self.shared.state.lock().end {
            Some(End::Failed(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// Stops fetching. What was fetched and not taken is dropped.
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

    /// Whether a caller who comes for more is done with what it got before.
    ///
    /// It always is; but where few items are in flight, the next request leaves only when all items
    /// of one are used.
    fn is_used_up(&self, state: &State) -> bool {
        let per_worker = self.per_worker();
        per_worker >= MIN_OVERLAP || state.handed_out >= per_worker || state.ready.is_empty()
    }

    /// How many items a caller may get at once who works on them one by one.
    ///
    /// Where few are in flight, the last one of a request is given alone: the next request leaves
    /// when that one is taken, and not when those before it are.
    fn hand_out(&self, state: &State, max: usize) -> usize {
        let per_worker = self.per_worker();
        if per_worker >= MIN_OVERLAP {
            return max;
        }
        let left = per_worker - state.handed_out.min(per_worker - 1);
        max.min((left - 1).max(1))
    }

    /// Waits until there is room for a request, and says how many items to ask for; `None` when
    /// there is nothing more to do.
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
        // While the consumer collects a batch, all that it lacks is asked for in one go.
        let lacking = state.lacking.saturating_sub(state.outstanding + state.ready.len());
        let room = (self.capacity + state.lacking).saturating_sub(in_flight);
        let mut wanted = self.request.max(lacking.min(room));
        if let Some(stacked) = &state.stacked {
            match stacked.count(wanted.min(room)) {
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
        let stacking = state.stacked.as_mut().map(|stacked| stacked.asked(count));
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

    /// Gives back what was asked for and will not come.
    fn lost(&self, count: usize) {
        let mut state = self.state.lock();
        state.outstanding = state.outstanding.saturating_sub(count);
        if state.unrequested != u64::MAX {
            state.unrequested += count as u64;
        }
        if let Some(stacked) = &mut state.stacked {
            stacked.lost(count);
        }
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

async fn supervise(shared: Arc<Shared>, before: impl Future<Output = Result<bool>> + Send) {
    match before.await {
        // Several workers share the items of a batch, so no table sees a whole one.
        Ok(true) if shared.options.effective_workers() == 1 => {
            let batch_size = shared.options.batch_size;
            shared.state.lock().stacked = batch_size.map(StackedRequests::new);
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
            // The others are of no use any more; dropping the set ends them.
            return;
        }
    }
    // All items were fetched, and perhaps nobody knew.
    (shared.on_ready)();
}

/// Fetches until nothing is left to ask for.
async fn work(shared: Arc<Shared>) -> Result<()> {
    let mut backoff = Backoff::new(shared.session.address(), shared.session.connect_timeout());
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
                // Nobody is waiting, so nobody is to be told; the wait begins anew.
                tokio::time::sleep(SHORTEST_TIMEOUT.saturating_sub(timeout)).await;
                continue;
            }
            if let Err(error) = backoff.pause(error).await {
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

/// Fetches `missing` items over one stream, and counts it down as they come.
async fn fetch(
    shared: &Shared,
    stream: &mut Option<OpenStream>,
    missing: &mut usize,
    stacking: Option<Stacking>,
    backoff: &mut Backoff,
) -> Result<()> {
    let open = if let Some(open) = stream {
        open
    } else {
        let opened = shared.session.transport()?.open_sample().await?;
        backoff.connected();
        stream.insert(OpenStream { stream: opened, received: 0 })
    };
    let timeout = shared.options.rate_limiter_timeout;
    open.stream.request(&shared.table, *missing, timeout, stacking)?;
    while *missing > 0 {
        let samples = open.stream.receive().await?;
        backoff.answered();
        open.received += samples.len() as u64;
        *missing = missing.saturating_sub(samples.len());
        shared.received(samples);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
