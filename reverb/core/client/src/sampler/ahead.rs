// SPDX-License-Identifier: Apache-2.0
//! Batches of one table that are sampled in advance.
//!
//! A task samples and stacks whole batches until a number of them are ready. A reader takes a ready
//! batch, or waits for the next one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::column_names::ColumnNames;
use reverb_data::{ColumnSpan, Sampled, SampledWindow, StepWindow, keep_samples, spare_samples};
use tokio::sync::Notify;

use crate::client::{BatchRequest, Client};
use crate::sampler::batch_column::BatchColumn;
use crate::sampler::ragged::RaggedForm;

/// Interval at which a blocked request is repeated to learn its reason. Items that arrived stay.
const POLL: Duration = Duration::from_millis(200);

/// Options of the batches.
#[derive(Debug, Clone)]
pub struct AheadOptions {
    /// Name of the table.
    pub table: String,
    /// Number of items in a batch, at least 1.
    pub batch_size: usize,
    /// Number of batches that are ready or being sampled, at least 1.
    pub num_ahead: usize,
    /// True if no item may be in a batch twice.
    pub distinct: bool,
    /// Treatment of items of different lengths.
    pub ragged: RaggedForm,
    /// Requested columns, in increasing order; empty: all.
    pub columns: Vec<u32>,
    /// Window of each item's steps, and the columns of which only a part of it is requested.
    pub window: Option<(StepWindow, Vec<ColumnSpan>)>,
    /// Names of these columns for errors; `None`: their positions.
    pub names: Option<Arc<ColumnNames>>,
    /// Largest number of bytes of a batch's columns.
    pub max_bytes: usize,
}

/// The numbers of a sampled item, without its columns.
#[derive(Debug, Clone, Copy)]
pub struct SampledNumbers {
    /// Key of the item.
    pub key: u64,
    /// Priority of the item.
    pub priority: f64,
    /// Number of times that the item was sampled.
    pub times_sampled: i32,
    /// Probability with which the item was sampled.
    pub probability: f64,
    /// Number of items in the table.
    pub table_size: i64,
    /// Smallest sampling probability of an item in the table.
    pub min_probability: f64,
    /// Number of complete passes over the items; see [`Sampled`].
    pub epoch: i64,
    /// Window of its steps.
    pub window: SampledWindow,
}

/// A batch that is ready.
#[derive(Debug)]
pub struct ReadyBatch {
    /// Numbers of each item.
    pub numbers: Vec<SampledNumbers>,
    /// Columns of the batch.
    pub columns: Vec<BatchColumn>,
    /// Time when the batch became ready.
    pub since: Instant,
}

/// Result of asking for a batch.
#[derive(Debug)]
pub enum NextBatch {
    /// The oldest ready batch.
    Ready(ReadyBatch),
    /// The next batch is being sampled; see [`BatchesAhead::arrival`].
    OnItsWay,
    /// Sampling has failed for good. The first such result has the sampled items of the unfinished
    /// batch.
    Failed(Error, Vec<Sampled>),
    /// Sampling was closed.
    Ended,
}

/// The batches of one reader. Ready batches are dropped with it, and count as sampled.
#[derive(Debug)]
pub struct BatchesAhead {
    shared: Arc<Shared>,
    client: Arc<Client>,
}

#[derive(Debug)]
struct Shared {
    options: AheadOptions,
    state: Mutex<State>,
    /// Set while there is a result to take, for threads that spin.
    has_arrived: AtomicBool,
    /// Notifies waiting readers when that flag is set.
    arrival: Notify,
    closing: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<ReadyBatch>,
    is_sampling: bool,
    failure: Option<(Error, Vec<Sampled>)>,
    has_ended: bool,
    /// Reason why the rate limiter has blocked the next batch for some time.
    waits_for: Option<Error>,
}

impl BatchesAhead {
    /// Makes the reader. Nothing is sampled before the first call of `start` or `next`.
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

    /// Starts sampling, if there is room.
    pub fn start(&self) {
        self.start_if_room(&mut self.shared.state.lock());
    }

    /// Takes the oldest batch, and starts sampling others. Never waits.
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

    /// Waits while `next` would return `OnItsWay`.
    pub async fn arrival(&self) {
        loop {
            // Created before the check, so that no notification is missed.
            let arrival = self.shared.arrival.notified();
            if self.has_arrived() {
                return;
            }
            arrival.await;
        }
    }

    /// Spins for at most this time: a small batch arrives sooner than a sleeping thread wakes.
    pub fn spin(&self, time: Duration) {
        let start = Instant::now();
        while !self.has_arrived() && start.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    /// True if `next` would not return `OnItsWay`. Call `start` first.
    pub fn has_arrived(&self) -> bool {
        self.shared.has_arrived.load(Ordering::Acquire)
    }

    /// Number of batches that are ready.
    pub fn num_ready(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    /// The rate limiter's reason for a long wait, if known.
    pub fn waits_for(&self) -> Option<Error> {
        self.shared.state.lock().waits_for.clone()
    }

    /// Drops ready batches, and stops sampling. A pending request is withdrawn if that loses no
    /// items, and else times out, after at most 0.2 s.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.has_ended = true;
        let ready = std::mem::take(&mut state.ready);
        // Callers that wait for the end of sampling wait for the task alone.
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
    /// Stores a batch, or the error and the sampled items. Returns true if sampling should
    /// continue.
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

    /// Updates the flag of an available result; the lock is held.
    fn note_arrival(&self, state: &State) {
        let has_arrived = !state.ready.is_empty() || !state.is_sampling;
        self.has_arrived.store(has_arrived, Ordering::Release);
    }

    /// Samples the next batch; `None` if sampling was closed meanwhile.
    async fn batch(
        &self,
        client: &Client,
        samples: &mut Vec<Sampled>,
    ) -> Option<Result<ReadyBatch>> {
        let AheadOptions {
            table,
            batch_size,
            distinct,
            ragged,
            columns,
            window,
            names,
            max_bytes,
            ..
        } = &self.options;
        let request = BatchRequest {
            table,
            batch_size: *batch_size,
            timeout: Some(POLL),
            partial: true,
            distinct: *distinct,
            epoch: None,
            window: window.as_ref().map(|(window, _)| *window),
            spans: window.as_ref().map_or(&[], |(_, spans)| spans),
            ragged: *ragged,
            columns,
            names: names.as_deref(),
            max_bytes: *max_bytes,
        };
        let ends = |error: &Error| {
            let mut state = self.state.lock();
            state.waits_for = Some(error.clone());
            state.has_ended
        };
        let withdrawn = async {
            self.closing.notified().await;
            let transport = client.session().transport();
            if !transport.is_ok_and(|transport| transport.may_withdraw()) {
                // Items of an answer under way would be lost. The request times out.
                std::future::pending::<()>().await;
            }
        };
        let sampled = tokio::select! {
            biased;
            sampled = client.sample_batch_until(&request, None, samples, ends) => sampled,
            () = withdrawn => return None,
        };
        Some(sampled.map(|columns| {
            let numbers = samples.iter().map(SampledNumbers::from).collect();
            // Dropped here, because these may be the last references to the chunks.
            keep_samples(std::mem::take(samples));
            ReadyBatch { numbers, columns, since: Instant::now() }
        }))
    }
}

/// The task: samples batches until there is no room or one fails.
async fn sample(shared: Arc<Shared>, client: Arc<Client>) {
    let mut running = Running { shared: Arc::clone(&shared), has_ended: false };
    while !running.has_ended {
        // A request after `close` could be answered before it is withdrawn.
        if shared.state.lock().has_ended {
            return;
        }
        let mut samples = spare_samples();
        let Some(batch) = shared.batch(&client, &mut samples).await else { return };
        running.has_ended = !shared.put(batch, samples);
        shared.arrival.notify_waiters();
        // Lets other tasks run.
        tokio::task::yield_now().await;
    }
}

/// Guard of the task: readers stop waiting for a task that was closed or has panicked.
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
    #[inline]
    fn from(sampled: &Sampled) -> Self {
        let Sampled {
            key,
            priority,
            times_sampled,
            probability,
            table_size,
            min_probability,
            epoch,
            window,
            ..
        } = *sampled;
        Self {
            key,
            priority,
            times_sampled,
            probability,
            table_size,
            min_probability,
            epoch,
            window,
        }
    }
}
