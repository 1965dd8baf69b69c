// SPDX-License-Identifier: Apache-2.0
//! One sample stream over all shards.
//!
//! Which shard an item comes from is decided here, by the masses of the shards; which item of the
//! shard, by the shard. The probability of an item is the product of both, and is exact also if the
//! masses are out of date: then other items come, and their probabilities say so.
//!
//! Tables that sample in an order of their own (queues, stacks, heaps) have that order in each
//! shard only. Nothing is asked of a shard beyond what was requested, because what it samples may
//! be gone from it. So requests go to the shards that have items, for a short time, and then to
//! others.

mod lane;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use reverb_data::{
    Error, ErrorKind, GroupSampling, Result, SampleOptions, Sampled, Stacking, slot_of,
};
use reverb_wire::transport::{BoxFuture, SampleRequest, SampleStream};

use crate::facts::TableFacts;
use crate::group::{Group, View, random, within};
use crate::member::{Member, State};
use crate::plan::{Candidate, Plan};
use crate::shares::Shares;

use lane::{Lane, Part, Request};

/// How long a shard may take to give items of an ordered table before others are asked too.
const ORDERED_PATIENCE: Duration = Duration::from_millis(50);
/// The same for other tables: the items of the shard may have left since it told its mass.
const SHARD_PATIENCE: Duration = Duration::from_secs(2);
/// How long the first request waits to hear the masses of all shards.
const FIRST_NEWS: Duration = Duration::from_secs(1);

type Received = (usize, Box<dyn SampleStream>, Result<Vec<Sampled>>);

/// What has to happen before the next request can be divided.
enum Next {
    /// Nothing: the shards have been asked for all that can be asked now.
    Listen,
    /// The shards tell their masses.
    Hear,
    /// These lanes get a stream.
    Open(Vec<usize>),
    /// Some shard has items.
    Wait,
}

/// A stream over the shards of a group.
pub(crate) struct GroupSampleStream {
    group: Arc<Group>,
    view: Arc<View>,
    table: String,
    sampling: GroupSampling,
    shares: Shares,
    lanes: Vec<Lane>,
    /// The table, as all shards know it, sampled here or not.
    sizes: Vec<(Arc<Member>, Arc<TableFacts>)>,
    /// Whether the masses were waited for.
    has_heard: bool,
    receiving: FuturesUnordered<BoxFuture<'static, Received>>,
    /// Requests, or what is left of them, that no shard was asked for yet.
    unasked: VecDeque<Request>,
    /// How the first of them is divided, while streams are opened.
    plan: Option<Plan>,
    /// Why a shard did not give all it was asked for. It is told when the others have.
    failure: Option<Error>,
}

impl GroupSampleStream {
    pub(crate) fn new(group: Arc<Group>, view: Arc<View>) -> Self {
        Self {
            group,
            view,
            table: String::new(),
            sampling: GroupSampling::Ordered,
            shares: Shares::new(random()),
            lanes: Vec::new(),
            sizes: Vec::new(),
            has_heard: false,
            receiving: FuturesUnordered::new(),
            unasked: VecDeque::new(),
            plan: None,
            failure: None,
        }
    }

    /// Begins with a table, or with the shards of another view.
    fn begin(&mut self, table: &str, view: Arc<View>) -> Result<()> {
        let Some(sampling) = view.sampling(table) else {
            let known: Vec<String> = view.tables.iter().map(|it| it.name.clone()).collect();
            return Err(Error::table_not_found(table, &known));
        };
        self.group.need(table);
        table.clone_into(&mut self.table);
        self.sampling = sampling;
        let mut old = std::mem::take(&mut self.lanes);
        self.lanes = self
            .group
            .sampled(&view)
            .into_iter()
            .map(|member| {
                let same = old.iter().position(|lane| Arc::ptr_eq(&lane.member, member));
                let stream = same.and_then(|at| old[at].stream.take());
                Lane {
                    member: Arc::clone(member),
                    facts: member.facts(table),
                    stream,
                    share: 0.0,
                    parts: VecDeque::new(),
                    is_receiving: false,
                }
            })
            .collect();
        self.sizes =
            view.members.iter().map(|member| (Arc::clone(member), member.facts(table))).collect();
        self.view = view;
        self.has_heard = false;
        self.plan = None;
        Ok(())
    }

    fn has_outstanding(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.parts.is_empty())
    }

    /// Divides a request among the lanes; `None` if none can be asked for items now.
    fn divide(&mut self, count: usize) -> Option<Plan> {
        let candidates: Vec<Candidate> = self.lanes.iter().map(Lane::as_candidate).collect();
        if self.sampling == GroupSampling::Ordered {
            return Plan::in_turn(&candidates, count, &mut self.shares);
        }
        // The local shard of one of several learners stands for its part of the group.
        let part = self.lanes.len() as f64 / self.view.members.len() as f64;
        let max_shards = self.group.address.max_shards_per_batch;
        Plan::by_mass(&candidates, count, max_shards, part, &mut self.shares)
    }

    fn is_heard(&self) -> bool {
        self.lanes.iter().all(|lane| lane.member.is_down() || lane.facts.now().is_heard)
    }

    /// Waits until the shards have told their masses, for a moment at most.
    async fn hear(&mut self) {
        let mut news = self.group.news();
        let lanes: Vec<(Arc<Member>, Arc<TableFacts>)> = self
            .lanes
            .iter()
            .map(|lane| (Arc::clone(&lane.member), Arc::clone(&lane.facts)))
            .collect();
        let is_heard =
            || lanes.iter().all(|(member, facts)| member.is_down() || facts.now().is_heard);
        let heard = async { while !is_heard() && news.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(FIRST_NEWS, heard).await;
        self.has_heard = true;
    }

    /// Asks the shards for what was requested, as far as that needs no waiting.
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
            let plan = self.plan.take().or_else(|| self.divide(request.count));
            let Some(plan) = plan else {
                return Ok(if self.has_outstanding() { Next::Listen } else { Next::Wait });
            };
            let asked = || self.lanes.iter().zip(&plan.counts).enumerate();
            // A stream that is listened to takes no request; its answer comes first.
            if asked().any(|(_, (lane, &count))| count > 0 && lane.is_receiving) {
                self.plan = Some(plan);
                return Ok(Next::Listen);
            }
            let closed = asked().filter(|(_, (lane, count))| **count > 0 && lane.stream.is_none());
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
            for (lane, &share) in self.lanes.iter_mut().zip(&plan.shares) {
                lane.share = share;
            }
            for (i, (count, share)) in plan.counts.into_iter().zip(plan.shares).enumerate() {
                if count > 0 {
                    self.ask_lane(i, count, share, &request);
                }
            }
            if num_asked < request.count {
                return Ok(Next::Listen);
            }
        }
        Ok(Next::Listen)
    }

    fn ask_lane(&mut self, i: usize, count: usize, share: f64, request: &Request) {
        let patience =
            if self.sampling == GroupSampling::Ordered { ORDERED_PATIENCE } else { SHARD_PATIENCE };
        let left = request.deadline.map(|it| it.saturating_duration_since(Instant::now()));
        let timeout = Some(left.map_or(patience, |left| left.min(patience)));
        let asked = SampleRequest {
            options: SampleOptions {
                stacking: request.options.stacking.map(|_| Stacking::new(count)),
                // What one shard cannot give, others may have.
                all_or_nothing: false,
                ..request.options
            },
            columns: &request.columns,
            ..SampleRequest::new(&self.table, count, timeout)
        };
        let lane = &mut self.lanes[i];
        let deadline = request.deadline;
        let (options, columns) = (request.options, Arc::clone(&request.columns));
        lane.parts.push_back(Part { missing: count, share, deadline, options, columns });
        let asked = match &mut lane.stream {
            Some(stream) => stream.request(&asked),
            None => Err(Error::unavailable("its stream is lost")),
        };
        if let Err(error) = asked {
            self.lost(i, &error);
        }
    }

    /// Opens the streams of these lanes, all at once. Where that fails, the request is divided
    /// anew.
    async fn open(&mut self, lanes: Vec<usize>) {
        let opened = join_all(lanes.into_iter().map(|i| {
            let member = Arc::clone(&self.lanes[i].member);
            async move { (i, within(async { member.shard()?.open_sample().await }).await) }
        }))
        .await;
        for (i, opened) in opened {
            match opened {
                Ok(stream) => self.lanes[i].stream = Some(stream),
                Err(error) if error.is_transient() => {
                    self.lanes[i].member.went_down(&error);
                    self.plan = None;
                }
                Err(error) => {
                    self.failure = Some(error.context(&self.lanes[i].member.name()));
                    self.unasked.clear();
                    self.plan = None;
                }
            }
        }
    }

    /// A shard does not give what it was asked for: the others are asked, in the shares that they
    /// have without it.
    fn lost(&mut self, i: usize, error: &Error) {
        self.plan = None;
        let lane = &mut self.lanes[i];
        lane.stream = None;
        if error.is_transient() {
            lane.member.went_down(error);
        }
        for part in std::mem::take(&mut lane.parts) {
            self.unasked.push_back(part.into_request());
        }
    }

    /// No shard has an item that can be sampled: waits until one says that it has.
    async fn wait_for_items(&mut self) -> Result<()> {
        if self.lanes.iter().all(|lane| lane.member.is_down()) {
            let down = self.lanes.iter().find_map(|lane| match lane.member.state() {
                State::Down(error) => {
                    Some(error.context(&format!("No shard can be sampled: {}", lane.member.name())))
                }
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
        if deadline.is_some_and(|deadline| deadline <= Instant::now())
            && self.lanes.iter().all(|lane| lane.facts.now().size == 0)
        {
            return Err(Error::rate_limiter_timeout(&format!(
                "Table {} is empty in all {} shards of {}.",
                self.table,
                self.lanes.len(),
                self.group.text()
            )));
        }
        Ok(())
    }

    /// Begins to wait for the answers of all shards that owe one.
    fn listen(&mut self) {
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            if lane.parts.is_empty() || lane.is_receiving {
                continue;
            }
            if let Some(mut stream) = lane.stream.take() {
                lane.is_receiving = true;
                self.receiving.push(Box::pin(async move {
                    let received = stream.receive().await;
                    (i, stream, received)
                }));
            }
        }
    }

    /// The smallest probability of an item of the group: a shard's, times the share of the shard. 0
    /// as long as a shard has not told its own.
    fn min_probability(&self) -> f64 {
        let asked = self.lanes.iter().filter(|lane| lane.share > 0.0);
        let all = asked.map(|lane| lane.share * lane.facts.now().min_probability.unwrap_or(0.0));
        all.reduce(f64::min).unwrap_or(0.0)
    }

    /// Takes an answer. Returns its items, with the probabilities of the group. After an error the
    /// answers of the other shards come first: their items have been sampled, and may have left.
    fn take(&mut self, (i, stream, received): Received) -> Vec<Sampled> {
        let lane = &mut self.lanes[i];
        lane.is_receiving = false;
        match received {
            Ok(mut samples) => {
                lane.stream = Some(stream);
                lane.facts.sampled(&samples, self.sampling);
                let mut left = samples.len();
                let mut at = 0;
                while left > 0 {
                    let Some(part) = lane.parts.front_mut() else { break };
                    let count = left.min(part.missing);
                    for sampled in &mut samples[at..at + count] {
                        sampled.probability *= part.share;
                        sampled.min_probability *= part.share;
                    }
                    part.missing -= count;
                    at += count;
                    left -= count;
                    if part.missing == 0 {
                        lane.parts.pop_front();
                    }
                }
                let index = lane.member.index;
                let living = self.sizes.iter().filter(|(member, _)| !member.is_down());
                let size: i64 = living.map(|(_, facts)| facts.now().size).sum();
                let min_probability = self.min_probability();
                for sampled in &mut samples {
                    sampled.table_size = size;
                    sampled.min_probability = min_probability;
                    if self.view.slots.owner(slot_of(sampled.key)) != index {
                        self.group.remember(sampled.key, index);
                    }
                }
                samples
            }
            Err(error) if error.kind() == ErrorKind::RateLimiterTimeout => {
                // The stream goes on; the request that timed out is over.
                lane.stream = None;
                drop(stream);
                let part = lane.parts.pop_front();
                let rest: Vec<Part> = lane.parts.drain(..).collect();
                let is_over = |deadline: Option<Instant>| {
                    deadline.is_some_and(|deadline| deadline <= Instant::now())
                };
                for part in part.into_iter().chain(rest) {
                    if is_over(part.deadline) {
                        let name = self.lanes[i].member.name();
                        let count = self.lanes.len();
                        // The text begins with what happened, as that of a single server.
                        self.failure = Some(error.clone().followed_by(&format!(
                            "These are the numbers of {name}, one of {count} shards."
                        )));
                        continue;
                    }
                    // What the shard does not give now, others may have.
                    self.unasked.push_back(part.into_request());
                }
                Vec::new()
            }
            Err(error) if error.is_transient() => {
                drop(stream);
                self.lost(i, &error);
                Vec::new()
            }
            Err(error) => {
                lane.parts.clear();
                self.failure = Some(error.context(&lane.member.name()));
                Vec::new()
            }
        }
    }

    async fn next_items(&mut self) -> Result<Vec<Sampled>> {
        loop {
            let is_refused = |error: &Error| error.kind() != ErrorKind::RateLimiterTimeout;
            if self.failure.as_ref().is_some_and(is_refused) {
                // Nothing more is asked for.
                self.unasked.clear();
                self.plan = None;
            }
            match self.ask() {
                Ok(Next::Listen) => {}
                Ok(Next::Hear) => {
                    self.hear().await;
                    continue;
                }
                Ok(Next::Open(lanes)) => {
                    self.open(lanes).await;
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
            let Some(received) = self.receiving.next().await else { continue };
            let mut items = self.take(received);
            // What has come from others meanwhile.
            while let Some(Some(received)) = self.receiving.next().now_or_never() {
                items.extend(self.take(received));
            }
            if !items.is_empty() {
                return Ok(items);
            }
        }
    }
}

impl SampleStream for GroupSampleStream {
    fn request(&mut self, request: &SampleRequest<'_>) -> Result<()> {
        let SampleRequest { table, num_samples, timeout, options, columns } = *request;
        if table != self.table || self.lanes.is_empty() {
            let view = Arc::clone(&self.view);
            if let Err(error) = self.begin(table, view) {
                // As from a server: the answer says it.
                self.failure = Some(error);
                return Ok(());
            }
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let columns = columns.into();
        self.unasked.push_back(Request { count: num_samples, deadline, options, columns });
        // What needs no waiting is done at once, so that the shards work while the caller does.
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
