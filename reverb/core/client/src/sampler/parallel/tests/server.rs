// SPDX-License-Identifier: Apache-2.0
//! A fake server of one table. The test decides how much it samples; it records all requests.

use std::collections::VecDeque;
use std::time::Instant;

use reverb_data::{Chunk, SequenceRange, TrajectoryBuilder};
use reverb_wire::transport::{BoxFuture, InsertStream, SampleRequest, Transport};
use tokio::runtime::Handle;

use super::super::*;
use crate::sampler::testing;
use crate::session::Connector;
use crate::writer::testing::{unexpected, unexpected_calls};

pub(super) const TABLE: &str = "table";

/// Keys of its items count up from 0 in the order in which they are sampled.
#[derive(Clone)]
pub(super) struct Server {
    state: Arc<Mutex<ServerState>>,
    news: Arc<Notify>,
}

struct ServerState {
    /// Number of items that the rate limiter allows before it blocks.
    allowed: usize,
    /// Number of items sampled so far, which is the key of the next one.
    sampled: u64,
    /// All requests: the number of the stream, and the number of items.
    requests: Vec<(usize, usize)>,
    /// Begin of the wait that the last of them goes on with.
    waits_since: Option<Instant>,
    opened: usize,
    closed: usize,
    /// Errors of the next attempts to open a stream, in order.
    refusals: VecDeque<Error>,
    /// Errors by key: the stream that sampled the key fails before it delivers it.
    failures: VecDeque<(u64, Error)>,
}

impl Server {
    /// A server whose rate limiter allows this many items.
    pub(super) fn allowing(allowed: usize) -> Self {
        let state = ServerState {
            allowed,
            sampled: 0,
            requests: Vec::new(),
            waits_since: None,
            opened: 0,
            closed: 0,
            refusals: VecDeque::new(),
            failures: VecDeque::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), news: Arc::default() }
    }

    /// A server whose rate limiter allows everything.
    pub(super) fn open() -> Self {
        Self::allowing(usize::MAX)
    }

    /// Allows more items.
    pub(super) fn allow(&self, more: usize) {
        self.state.lock().allowed += more;
        self.news.notify_waiters();
    }

    /// Makes the next stream that is opened fail.
    pub(super) fn refuse(&self, error: Error) {
        self.state.lock().refusals.push_back(error);
    }

    /// Makes the stream that samples an item fail, together with all items outstanding on it.
    pub(super) fn fail_at(&self, key: u64, error: Error) {
        self.state.lock().failures.push_back((key, error));
    }

    /// Starts a sampler on this server, with nothing to run before.
    pub(super) fn sampler(&self, options: SamplerOptions) -> Sampler {
        Sampler::start(&self.client(), TABLE, options, async { Ok(false) }, || {})
    }

    pub(super) fn client(&self) -> Client {
        let timeout = Duration::from_secs(10);
        Client::new("scripted:1", Box::new(self.clone()), timeout, Handle::current())
    }

    /// All requests: the number of the stream, and the number of items.
    pub(super) fn requests(&self) -> Vec<(usize, usize)> {
        self.state.lock().requests.clone()
    }

    /// Begin of the wait that the last request goes on with.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.state.lock().waits_since
    }

    /// Number of requested items in total.
    pub(super) fn requested(&self) -> usize {
        self.state.lock().requests.iter().map(|(_, count)| count).sum()
    }

    /// Number of streams that were opened, and number of those that were closed.
    pub(super) fn streams(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.opened, state.closed)
    }
}

impl ServerState {
    /// The response to a request for `outstanding` items, if there is one yet.
    fn answer(&mut self, outstanding: usize) -> Option<Result<Vec<Sampled>>> {
        let count = outstanding.min(self.allowed);
        let last = self.sampled + count as u64;
        let failure = self.failures.front().filter(|(key, _)| (self.sampled..last).contains(key));
        let delivered = failure.map_or(last, |(key, _)| *key);
        if delivered > self.sampled {
            let samples: Vec<_> = (self.sampled..delivered).map(sampled).collect();
            self.take(samples.len());
            return Some(Ok(samples));
        }
        if failure.is_some() {
            let (_, error) = self.failures.pop_front()?;
            // These items were sampled and then lost.
            self.take(count);
            return Some(Err(error));
        }
        None
    }

    fn take(&mut self, count: usize) {
        self.sampled += count as u64;
        if self.allowed != usize::MAX {
            self.allowed -= count;
        }
    }
}

fn sampled(key: u64) -> Sampled {
    let mut builder = TrajectoryBuilder::new();
    builder.slice(&Chunk::from_slice(1, SequenceRange::default(), false, &[0]), 0, 0, 1);
    builder.end_column(false);
    testing::sampled(key, builder.finish().unwrap())
}

struct Stream {
    server: Server,
    number: usize,
    outstanding: usize,
    timeout: Option<Duration>,
}

impl SampleStream for Stream {
    fn request(&mut self, request: &SampleRequest<'_>) -> Result<()> {
        let SampleRequest { table, num_samples: count, timeout, .. } = *request;
        assert_eq!(table, TABLE);
        assert!(count > 0, "a request is for at least one item");
        let mut state = self.server.state.lock();
        state.requests.push((self.number, count));
        state.waits_since = request.options.waits_since;
        drop(state);
        self.outstanding += count;
        self.timeout = timeout;
        Ok(())
    }

    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(async move {
            // A response takes time, in which other workers send requests.
            tokio::task::yield_now().await;
            let limit = self.timeout.unwrap_or(Duration::from_secs(1_000_000));
            let answer = async {
                loop {
                    let mut news = std::pin::pin!(self.server.news.notified());
                    news.as_mut().enable();
                    let answer = self.server.state.lock().answer(self.outstanding);
                    match answer {
                        Some(answer) => return answer,
                        None => news.await,
                    }
                }
            };
            let answer = tokio::time::timeout(limit, answer).await;
            let samples = answer.unwrap_or_else(|_| Err(Error::rate_limiter_timeout("a test")))?;
            self.outstanding -= samples.len();
            Ok(samples)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.server.state.lock().closed += 1;
    }
}

impl Connector for Server {
    fn transport(&self) -> Result<Arc<dyn Transport>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Transport for Server {
    fn open_sample(&self) -> BoxFuture<'_, Result<Box<dyn SampleStream>>> {
        Box::pin(async {
            let mut state = self.state.lock();
            if let Some(error) = state.refusals.pop_front() {
                return Err(error);
            }
            let number = state.opened;
            state.opened += 1;
            let server = self.clone();
            let stream = Stream { server, number, outstanding: 0, timeout: None };
            Ok(Box::new(stream) as Box<dyn SampleStream>)
        })
    }

    fn open_insert(&self) -> BoxFuture<'_, Result<InsertStream>> {
        unexpected()
    }

    unexpected_calls!("scripted:1");
}
