// SPDX-License-Identifier: Apache-2.0
//! Batches of one table that are sampled before they are asked for.
//!
//! A task samples and stacks whole batches until so many are ready. A reader takes what is ready,
//! or waits for the batch that is on its way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_data::{Error, Result, Sampled, keep_samples, spare_samples};
use tokio::sync::Notify;

use crate::client::{BatchRequest, Client};
use crate::sampler::batch_column::BatchColumn;
use crate::sampler::ragged::RaggedForm;

/// After so long a wait for the rate limiter it is known what is waited for. The request is made
/// again then; what it has got stays.
const POLL: Duration = Duration::from_millis(200);

/// What the batches shall be.
#[derive(Debug, Clone)]
pub struct AheadOptions {
    /// The table.
    pub table: String,
    /// Number of items in a batch, at least 1.
    pub batch_size: usize,
    /// Number of batches that are ready or on their way, at least 1.
    pub num_ahead: usize,
    /// Whether no item may be in a batch twice.
    pub distinct: bool,
    /// What becomes of items of different lengths.
    pub ragged: RaggedForm,
    /// Its columns, in increasing order; empty: all.
    pub columns: Vec<u32>,
    /// Bytes that the columns of a batch may take.
    pub max_bytes: usize,
    /// Whether the server is in this process. Then `close` withdraws the request that waits.
    /// Another server could answer it at that moment and its items would be lost, so it runs out,
    /// which takes 0.2 s.
    pub is_local: bool,
}

/// The numbers of a sampled item, without its columns.
#[derive(Debug, Clone, Copy)]
pub struct SampledNumbers {
    /// As in [`Sampled`].
    pub key: u64,
    /// As in [`Sampled`].
    pub priority: f64,
    /// As in [`Sampled`].
    pub times_sampled: i32,
    /// As in [`Sampled`].
    pub probability: f64,
    /// As in [`Sampled`].
    pub table_size: i64,
    /// As in [`Sampled`].
    pub min_probability: f64,
    /// As in [`Sampled`].
    pub epoch: i64,
}

/// A batch that is ready.
#[derive(Debug)]
pub struct ReadyBatch {
    /// Of each item.
    pub numbers: Vec<SampledNumbers>,
    /// Its columns.
    pub columns: Vec<BatchColumn>,
    /// When it became ready.
    pub since: Instant,
}

/// What a reader gets.
#[derive(Debug)]
pub enum NextBatch {
    /// The oldest batch.
    Ready(ReadyBatch),
    /// It is on its way; see [`BatchesAhead::arrival`].
    OnItsWay,
    /// Sampling has failed for good; the first time with the items of a batch that were sampled.
    Failed(Error, Vec<Sampled>),
    /// There are no more: it was closed.
    Ended,
}

/// The batches of one reader. Those that are ready are dropped with it; they count as sampled.
#[derive(Debug)]
pub struct BatchesAhead {
    shared: Arc<Shared>,
    client: Arc<Client>,
}

#[derive(Debug)]
struct Shared {
    options: AheadOptions,
    state: Mutex<State>,
    /// Whether there is something to take, for those who spin.
    has_arrived: AtomicBool,
    /// Notifies all who wait when that becomes true.
    arrival: Notify,
    closing: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<ReadyBatch>,
    is_sampling: bool,
    failure: Option<(Error, Vec<Sampled>)>,
    has_ended: bool,
    /// Why the rate limiter has not allowed the rest of a batch for some time.
    waits_for: Option<Error>,
}

impl BatchesAhead {
    /// Nothing is sampled before the first call of `start` or `next`.
    pub fn new(client: Arc<Client>, options: AheadOptions) -> Self {
        let shared = Shared {
            options,
            state: Mutex::default(),
            has_arrived: AtomicBool::new(false),
            arrival: Notify::new(),
            closing: Notify::new(),
        };
        Self { shared: Arc::new(shared), client }
    }

    /// Starts to sample, if there is room.
    pub fn start(&self) {
        self.start_if_room(&mut self.shared.state.lock());
    }

    /// The oldest batch, and starts to sample others. Never waits.
    pub fn next(&self) -> NextBatch {
        let mut state = self.shared.state.lock();
        let next = if let Some(batch) = state.ready.pop_front() {
            NextBatch::Ready(batch)
        } else if let Some((error, samples)) = &mut state.failure {
            NextBatch::Failed(error.clone(), std::mem::take(samples))
        } else if state.has_ended && !state.is_sampling {
            NextBatch::Ended
        } else {
            NextBatch::OnItsWay
        };
        self.start_if_room(&mut state);
        next
    }

    fn start_if_room(&self, state: &mut State) {
        if !state.is_sampling && state.has_room(&self.shared.options) {
            state.is_sampling = true;
            let task = sample(Arc::clone(&self.shared), Arc::clone(&self.client));
            self.client.session().runtime().spawn(task);
        }
        self.shared.note_arrival(state);
    }

    /// Waits until `next` does not return `OnItsWay`.
    pub async fn arrival(&self) {
        loop {
            // Made before the look, so that it misses nothing.
            let arrival = self.shared.arrival.notified();
            if self.has_arrived() {
                return;
            }
            arrival.await;
        }
    }

    /// Waits for so long at most, and keeps the processor: a small batch comes sooner than a thread
    /// that sleeps is woken.
    pub fn spin(&self, time: Duration) {
        let start = Instant::now();
        while !self.has_arrived() && start.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    /// Whether `next` does not return `OnItsWay`. To be asked after `start`.
    pub fn has_arrived(&self) -> bool {
        self.shared.has_arrived.load(Ordering::Acquire)
    }

    /// Number of batches that are ready.
    pub fn num_ready(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    /// Why the next batch takes long, if that is known: the rate limiter's reason.
    pub fn waits_for(&self) -> Option<Error> {
        self.shared.state.lock().waits_for.clone()
    }

    /// Drops the batches that are ready, and samples no more.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.has_ended = true;
        let ready = std::mem::take(&mut state.ready);
        // Whoever waits until nothing is sampled any more waits for the task alone.
        self.shared.note_arrival(&state);
        drop(state);
        drop(ready);
        self.shared.closing.notify_one();
    }
}

impl Drop for BatchesAhead {
    fn drop(&mut self) {
        self.close();
    }
}

impl State {
    fn has_room(&self, options: &AheadOptions) -> bool {
        self.ready.len() < options.num_ahead && !self.has_ended
    }
}

impl Shared {
    /// Keeps a batch, or why there is none after these samples; returns whether to go on.
    fn put(&self, batch: Result<ReadyBatch>, samples: Vec<Sampled>) -> bool {
        let mut state = self.state.lock();
        match batch {
            Ok(_) if state.has_ended => {}
            Ok(batch) => state.ready.push_back(batch),
            Err(error) => {
                state.failure = (!state.has_ended).then_some((error, samples));
                state.has_ended = true;
            }
        }
        state.waits_for = None;
        state.is_sampling = state.has_room(&self.options);
        self.note_arrival(&state);
        state.is_sampling
    }

    /// Tells whether there is something to take, with the lock held.
    fn note_arrival(&self, state: &State) {
        let has_arrived = !state.ready.is_empty() || !state.is_sampling;
        self.has_arrived.store(has_arrived, Ordering::Release);
    }

    /// Samples the next batch; `None` if it is closed meanwhile.
    async fn batch(
        &self,
        client: &Client,
        samples: &mut Vec<Sampled>,
    ) -> Option<Result<ReadyBatch>> {
        let AheadOptions { table, batch_size, distinct, ragged, columns, max_bytes, .. } =
            &self.options;
        let request = BatchRequest {
            table,
            batch_size: *batch_size,
            timeout: Some(POLL),
            partial: true,
            distinct: *distinct,
            ragged: *ragged,
            columns,
            max_bytes: *max_bytes,
        };
        let ends = |error: &Error| {
            let mut state = self.state.lock();
            state.waits_for = Some(error.clone());
            state.has_ended
        };
        let sampled = tokio::select! {
            biased;
            sampled = client.sample_batch_until(&request, None, samples, ends) => sampled,
            () = self.closing.notified(), if self.options.is_local => return None,
        };
        Some(sampled.map(|columns| {
            let numbers = samples.iter().map(SampledNumbers::from).collect();
            // Here, because the last references to the chunks may be among these.
            keep_samples(std::mem::take(samples));
            ReadyBatch { numbers, columns, since: Instant::now() }
        }))
    }
}

/// The task: samples batches until there is no room, or one fails.
async fn sample(shared: Arc<Shared>, client: Arc<Client>) {
    let mut running = Running { shared: Arc::clone(&shared), has_ended: false };
    while !running.has_ended {
        // A request that was made after `close` could be answered before it is withdrawn.
        if shared.state.lock().has_ended {
            return;
        }
        let mut samples = spare_samples();
        let Some(batch) = shared.batch(&client, &mut samples).await else { return };
        running.has_ended = !shared.put(batch, samples);
        shared.arrival.notify_waiters();
        // Other tasks have their turn.
        tokio::task::yield_now().await;
    }
}

/// The task, as its reader sees it: nobody waits for one that was closed, or has panicked.
struct Running {
    shared: Arc<Shared>,
    has_ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            let error = Error::internal("the task that samples batches ahead has panicked");
            let _ = self.shared.put(Err(error), Vec::new());
            self.shared.arrival.notify_waiters();
        }
    }
}

impl From<&Sampled> for SampledNumbers {
    fn from(sampled: &Sampled) -> Self {
        let Sampled {
            key,
            priority,
            times_sampled,
            probability,
            table_size,
            min_probability,
            epoch,
            ..
        } = *sampled;
        Self { key, priority, times_sampled, probability, table_size, min_probability, epoch }
    }
}
