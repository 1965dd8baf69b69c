// SPDX-License-Identifier: Apache-2.0
//! One sample stream over all shards.
//!
//! The shard of an item is drawn here, by the masses of the shards; the item is drawn by the shard.
//! The probability of an item is the product of both. It is exact even if the masses are out of
//! date, because it is computed from the shares that were used.
//!
//! Tables that sample in a fixed order (queues, stacks, heaps) have that order in each shard only.
//! Sampling can remove items from a shard, so no shard is asked for more than was requested.
//! Requests go to the shards that have items, and after a short time to others.

mod answers;
mod parked;
mod shard_stream;
mod window_mass;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::{GroupSampling, SampleOptions, Sampled, Stacking, StepWindow};
use reverb_wire::transport::{BoxFuture, SampleRequest, SampleStream};

use crate::group::{Group, View, within};
use crate::member::{Member, State};
use crate::plan::{Candidate, Plan};
use crate::shares::Shares;
use crate::table_stats::TableStats;

use answers::Received;
use parked::Parked;
use shard_stream::{Part, Request, ShardStream};

/// Time that a shard of an ordered table gets before others are asked too.
const ORDERED_PATIENCE: Duration = Duration::from_millis(50);
/// The same after a long wait, which a shard shows except between two requests.
const STARVED_PATIENCE: Duration = Duration::from_millis(200);
/// Share of a wait for which a shard without items is asked at once.
const PATIENCE_SHARE: u32 = 20;
/// Time limit for other tables: the shard's items may have left since it reported its mass.
const SHARD_PATIENCE: Duration = Duration::from_secs(2);
/// Wait of the caller from which on a shard is asked again and again although no shard has items.
const STARVED: Duration = Duration::from_secs(1);
/// Time that the first request waits for the masses of all shards.
const FIRST_NEWS: Duration = Duration::from_secs(1);

/// Next step before another request can be divided.
enum Next {
    /// Wait for answers: no shard can be asked for more now.
    Listen,
    /// Wait until the shards have reported their masses.
    Hear,
    /// Open the streams of these shards.
    Open(Vec<usize>),
    /// Wait until a shard has items.
    Wait,
}

/// A sample stream over the shards of a group.
pub(crate) struct GroupSampleStream {
    group: Arc<Group>,
    view: Arc<View>,
    table: String,
    sampling: GroupSampling,
    shares: Shares,
    shards: Vec<ShardStream>,
    /// Statistics of the table at all shards, including those that are not sampled.
    sizes: Vec<(Arc<Member>, Arc<TableStats>)>,
    /// True after the wait for the masses.
    has_heard: bool,
    receiving: FuturesUnordered<BoxFuture<'static, Received>>,
    /// Requests, or their remainders, that were not sent to any shard yet.
    unasked: VecDeque<Request>,
    /// Division of the first of them, kept while streams are opened.
    plan: Option<Plan>,
    /// A request that waits at one shard for a window that no shard has.
    parked: Option<Parked>,
    /// Failure of a shard, reported after the answers of the other shards.
    failure: Option<Error>,
    /// Begin of the caller's wait for its next items, however often shards are asked for them.
    waits_since: Instant,
}

impl GroupSampleStream {
    pub(crate) fn new(group: Arc<Group>, view: Arc<View>) -> Self {
        Self {
            group,
            view,
            table: String::new(),
            sampling: GroupSampling::Ordered,
            shares: Shares::new(rand::random()),
            shards: Vec::new(),
            sizes: Vec::new(),
            has_heard: false,
            receiving: FuturesUnordered::new(),
            unasked: VecDeque::new(),
            plan: None,
            parked: None,
            failure: None,
            waits_since: Instant::now(),
        }
    }

    /// Starts with a table, or starts over with the shards of another view.
    fn begin(&mut self, table: &str, view: Arc<View>) -> Result<()> {
        let Some(sampling) = view.sampling(table) else {
            let known: Vec<String> = view.tables.iter().map(|table| table.name.clone()).collect();
            return Err(Error::table_not_found(table, &known));
        };
        self.group.need(table);
        table.clone_into(&mut self.table);
        self.sampling = sampling;
        let mut old = std::mem::take(&mut self.shards);
        self.shards = self
            .group
            .sampled(&view)
            .into_iter()
            .map(|member| {
                let same = old.iter().position(|shard| Arc::ptr_eq(&shard.member, member));
                let stream = same.and_then(|at| old[at].stream.take());
                ShardStream {
                    member: Arc::clone(member),
                    stats: member.stats(table),
                    stream,
                    share: 0.0,
                    parts: VecDeque::new(),
                    is_receiving: false,
                    window: None,
                }
            })
            .collect();
        self.sizes =
            view.members.iter().map(|member| (Arc::clone(member), member.stats(table))).collect();
        self.view = view;
        self.has_heard = false;
        self.plan = None;
        self.parked = None;
        Ok(())
    }

    fn has_outstanding(&self) -> bool {
        self.shards.iter().any(|shard| !shard.parts.is_empty())
    }

    /// Divides a request among the shards; `None` if no shard can be asked for items now.
    fn divide(&mut self, count: usize, window: Option<StepWindow>) -> Option<Plan> {
        let candidates: Vec<Candidate> =
            self.shards.iter_mut().map(|shard| shard.as_candidate(window)).collect();
        if self.sampling == GroupSampling::Ordered {
            return Plan::in_turn(&candidates, count, &mut self.shares);
        }
        let part = self.part();
        let max_shards = self.group.address.max_shards_per_batch;
        Plan::by_mass(&candidates, count, max_shards, part, &mut self.shares)
    }

    /// Part of the group that the sampled shards stand for: one of several learners with a local
    /// shard each stands for an equal part.
    fn part(&self) -> f64 {
        self.shards.len() as f64 / self.view.members.len() as f64
    }

    fn is_heard(&self) -> bool {
        self.shards.iter().all(|shard| shard.member.is_down() || shard.stats.now().is_heard)
    }

    /// Waits a limited time for the shards to report their masses.
    async fn hear(&mut self) {
        let mut news = self.group.news();
        let shards: Vec<(Arc<Member>, Arc<TableStats>)> = self
            .shards
            .iter()
            .map(|shard| (Arc::clone(&shard.member), Arc::clone(&shard.stats)))
            .collect();
        let is_heard =
            || shards.iter().all(|(member, stats)| member.is_down() || stats.now().is_heard);
        let heard = async { while !is_heard() && news.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(FIRST_NEWS, heard).await;
        self.has_heard = true;
    }

    /// Sends requests to shards as far as possible without waiting.
    fn ask(&mut self) -> Result<Next> {
        while let Some(request) = self.unasked.front().cloned() {
            if let Some(view) = self.group.found().filter(|view| !Arc::ptr_eq(view, &self.view))
                && !self.has_outstanding()
            {
                let table = self.table.clone();
                self.begin(&table, view)?;
            }
            if !self.has_heard && !self.is_heard() {
                return Ok(Next::Hear);
            }
            let window = request.options.window;
            let plan = self.plan.take().or_else(|| self.divide(request.count, window));
            let Some(plan) = plan else {
                if let Some(error) = window.and_then(|window| self.no_window(window)) {
                    return Err(error);
                }
                if self.has_outstanding() {
                    return Ok(Next::Listen);
                }
                self.plan = match window {
                    Some(window) => self.park(request.count, window),
                    None => self.ask_in_vain(request.count),
                };
                if self.plan.is_none() {
                    return Ok(Next::Wait);
                }
                continue;
            };
            let asked = || self.shards.iter().zip(&plan.counts).enumerate();
            // A stream whose answer is pending cannot send a request.
            if asked().any(|(_, (shard, &count))| count > 0 && shard.is_receiving) {
                self.plan = Some(plan);
                return Ok(Next::Listen);
            }
            let closed =
                asked().filter(|(_, (shard, count))| **count > 0 && shard.stream.is_none());
            let closed: Vec<usize> = closed.map(|(i, _)| i).collect();
            if !closed.is_empty() {
                self.plan = Some(plan);
                return Ok(Next::Open(closed));
            }
            let num_asked = plan.num_items();
            match self.unasked.front_mut() {
                Some(rest) if rest.count > num_asked => rest.count -= num_asked,
                _ => drop(self.unasked.pop_front()),
            }
            for (shard, &share) in self.shards.iter_mut().zip(&plan.shares) {
                shard.share = share;
            }
            for (i, (count, share)) in plan.counts.into_iter().zip(plan.shares).enumerate() {
                if count > 0 {
                    self.ask_shard(i, count, share, &request);
                }
            }
            if num_asked < request.count {
                return Ok(Next::Listen);
            }
        }
        Ok(Next::Listen)
    }

    /// Error if no shard has the window and no insert will bring one.
    fn no_window(&mut self, window: StepWindow) -> Option<Error> {
        let mut error = None;
        for shard in self.shards.iter_mut().filter(|shard| !shard.member.is_down()) {
            let stats = shard.stats.now();
            let known = shard.window_mass(window);
            if !known.is_hopeless(&stats) {
                return None;
            }
            error = known.missing(&stats).cloned();
        }
        error
    }

    fn ask_shard(&mut self, i: usize, count: usize, share: f64, request: &Request) {
        // A shard without items, or without a window, would wait for one while others get some.
        let shard = &mut self.shards[i];
        let is_doubtful = match request.options.window {
            Some(window) => !shard.window_mass(window).is_there(),
            None => shard.stats.now().size == 0,
        };
        let patience = match self.is_parked_at(i) {
            true if self.can_withdraw() => None,
            false if self.sampling == GroupSampling::Ordered || is_doubtful => {
                let share = self.waits_since.elapsed() / PATIENCE_SHARE;
                Some(share.clamp(ORDERED_PATIENCE, STARVED_PATIENCE))
            }
            _ => Some(SHARD_PATIENCE),
        };
        let left =
            request.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.into_iter().chain(patience).min();
        let asked = SampleRequest {
            options: SampleOptions {
                stacking: request.options.stacking.map(|_| Stacking::new(count)),
                // Other shards can give the items that one shard lacks.
                all_or_nothing: false,
                waits_since: Some(self.waits_since),
                ..request.options
            },
            columns: &request.columns,
            spans: &request.spans,
            ..SampleRequest::new(&self.table, count, timeout)
        };
        let shard = &mut self.shards[i];
        shard.parts.push_back(Part { request: Request { count, ..request.clone() }, share });
        let asked = match &mut shard.stream {
            Some(stream) => stream.request(&asked),
            None => Err(Error::unavailable("its stream is lost")),
        };
        if let Err(error) = asked {
            self.lost(i, &error);
        }
    }

    /// Opens the streams of these shards at the same time. A failure divides the request anew.
    async fn open(&mut self, shards: Vec<usize>) {
        let opened = join_all(shards.into_iter().map(|i| {
            let member = Arc::clone(&self.shards[i].member);
            async move { (i, within(async { member.shard()?.open_sample().await }).await) }
        }))
        .await;
        for (i, opened) in opened {
            match opened {
                Ok(stream) => self.shards[i].stream = Some(stream),
                Err(error) if error.is_gone() => {
                    self.shards[i].member.went_down(&error);
                    self.plan = None;
                }
                Err(error) => {
                    self.failure = Some(error.context(&self.shards[i].member.name()));
                    self.unasked.clear();
                    self.plan = None;
                }
            }
        }
    }

    /// Waits until a shard reports an item that can be sampled.
    async fn wait_for_items(&mut self) -> Result<()> {
        if self.shards.iter().all(|shard| shard.member.is_down()) {
            let down = self.shards.iter().find_map(|shard| match shard.member.state() {
                State::Down(error) => Some(
                    error.context(&format!("No shard can be sampled: {}", shard.member.name())),
                ),
                _ => None,
            });
            return Err(down.unwrap_or_else(|| Error::unavailable("No shard can be sampled.")));
        }
        let deadline = self.unasked.front().and_then(|request| request.deadline);
        let mut news = self.group.news();
        let patience = deadline.map_or(ORDERED_PATIENCE, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(ORDERED_PATIENCE)
        });
        let _ = tokio::time::timeout(patience, news.changed()).await;
        let window = self.unasked.front().and_then(|request| request.options.window);
        if let Some(window) = window
            && deadline.is_some_and(|deadline| deadline <= Instant::now())
        {
            let none = self.shards.iter_mut().find_map(|shard| {
                let stats = shard.stats.now();
                shard.window_mass(window).missing(&stats).cloned()
            });
            let none = none.filter(|error| error.kind() == ErrorKind::RateLimiterTimeout);
            if let Some(error) = none {
                return Err(error);
            }
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now())
            && self.shards.iter().all(|shard| shard.stats.now().size == 0)
        {
            return Err(Error::rate_limiter_timeout(&format!(
                "Table {} is empty in all {} shards of {}.",
                self.table,
                self.shards.len(),
                self.group.text()
            )));
        }
        Ok(())
    }

    async fn next_items(&mut self) -> Result<Vec<Sampled>> {
        loop {
            let is_refused = |error: &Error| error.kind() != ErrorKind::RateLimiterTimeout;
            if self.failure.as_ref().is_some_and(is_refused) {
                // After a failure other than a timeout, nothing more is requested.
                self.unasked.clear();
                self.plan = None;
            }
            match self.ask() {
                Ok(Next::Listen) => {}
                Ok(Next::Hear) => {
                    self.hear().await;
                    continue;
                }
                Ok(Next::Open(shards)) => {
                    self.open(shards).await;
                    continue;
                }
                Ok(Next::Wait) if self.failure.is_some() => self.unasked.clear(),
                Ok(Next::Wait) => {
                    self.wait_for_items().await?;
                    continue;
                }
                Err(error) => {
                    self.unasked.clear();
                    self.failure = Some(error);
                }
            }
            self.listen();
            if self.receiving.is_empty() {
                if let Some(error) = self.failure.take() {
                    self.unasked.clear();
                    return Err(error);
                }
                if self.unasked.is_empty() {
                    return Err(Error::internal("nothing was requested from the group"));
                }
                continue;
            }
            let Some(received) = self.next_answer().await else { continue };
            let mut items = self.take(received);
            // Answers of other shards that arrived meanwhile.
            while let Some(Some(received)) = self.receiving.next().now_or_never() {
                items.extend(self.take(received));
            }
            if !items.is_empty() {
                self.waits_since = Instant::now();
                return Ok(items);
            }
        }
    }
}

impl SampleStream for GroupSampleStream {
    fn request(&mut self, request: &SampleRequest<'_>) -> Result<()> {
        let SampleRequest { table, num_samples, timeout, options, columns, spans } = *request;
        if options.epoch.is_some() {
            self.failure = Some(Error::invalid_argument(
                "Epochs are of one server: the shards of a group do not end theirs together. Use the \
                 address of one shard, or sample without epochs.",
            ));
            return Ok(());
        }
        if table != self.table || self.shards.is_empty() {
            let view = Arc::clone(&self.view);
            if let Err(error) = self.begin(table, view) {
                // The error comes with the answer, as from a single server.
                self.failure = Some(error);
                return Ok(());
            }
        }
        let now = Instant::now();
        if self.unasked.is_empty() && !self.has_outstanding() {
            self.waits_since = options.waits_since.unwrap_or(now);
        }
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        let columns = columns.into();
        let spans = spans.into();
        self.unasked.push_back(Request { count: num_samples, deadline, options, columns, spans });
        // Requests leave at once, so that the shards work while the caller does.
        if let Err(error) = self.ask() {
            self.unasked.clear();
            self.failure = Some(error);
        }
        Ok(())
    }

    fn receive(&mut self) -> BoxFuture<'_, Result<Vec<Sampled>>> {
        Box::pin(self.next_items())
    }
}
