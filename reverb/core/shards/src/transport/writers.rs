// SPDX-License-Identifier: Apache-2.0
//! Insert streams: the choice of their shards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reverb_base::{Error, Result};
use reverb_data::{NewItem, is_max_priority};
use reverb_wire::transport::{
    BoxFuture, InsertBatch, InsertSink, InsertStream, NextStream, ShardRoute, WaitHere,
};

use super::even;
use crate::address::Writers;
use crate::group::{Group, View, within};
use crate::member::Member;

/// Smallest number of rows per shard: smaller batches go to one shard each, in rotation.
const MIN_ROWS: usize = 1024;
/// Time that the first item with the largest priority waits for the shards to report that priority.
const HEARING: Duration = Duration::from_secs(1);

/// Opens a stream to the next shard, for items of these tables.
pub(super) async fn open_any(group: &Arc<Group>, tables: &[String]) -> Result<InsertStream> {
    let view = group.view().await?;
    let mut failure = None;
    // One try marks a shard that does not answer as down.
    for _ in 0..view.members.len() {
        let Some(member) = even::next(group, &view, tables).await? else { break };
        match open(group, &view, &member).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.is_gone() => failure = Some(error),
            Err(error) => return Err(error.context(&member.name())),
        }
    }
    Err(failure.unwrap_or_else(|| Error::unavailable(format!("No shard of {}", group.text()))))
}

/// Opens the next stream of a writer, which may replace a lost one.
pub(super) async fn open_next(group: &Arc<Group>, next: NextStream<'_>) -> Result<InsertStream> {
    let NextStream { tables, lost } = next;
    let Some(lost) = lost else { return open_any(group, tables).await };
    let view = group.view().await?;
    let is_patient = lost.since.elapsed() < group.address.failover_after;
    let same = view
        .member(lost.shard.index)
        .filter(|member| !member.is_draining && member.route.is_some());
    if let Some(member) = same.filter(|_| lost.is_final && view.only().is_none()) {
        member.went_down(&Error::stopped_for_good("it has stopped for good"));
    }
    match same {
        Some(member) if is_patient && !member.has_ended() || view.only().is_some() => {
            open(group, &view, member).await
        }
        _ => open_any(group, tables).await,
    }
}

/// Shards for the next rows. The first rows of a client start at the emptiest shard.
pub(super) async fn routes(group: &Arc<Group>, items: &[NewItem]) -> Result<Vec<ShardRoute>> {
    let view = group.view().await?;
    let count = (items.len() / MIN_ROWS).clamp(1, view.members.len());
    if group.address.writers == Writers::Even && group.begins_rows() {
        let tables: BTreeSet<String> = items.iter().map(|item| item.table.to_string()).collect();
        let tables: Vec<String> = tables.into_iter().collect();
        if let Some(first) = even::next(group, &view, &tables).await? {
            group.pass_turns_before(&view, first.index)?;
        }
    }
    let mut routes: Vec<ShardRoute> = Vec::with_capacity(count);
    for member in group.writers(&view, count)? {
        if let Some(route) = &member.route
            && routes.iter().all(|known| known.index != route.index)
        {
            routes.push(route.clone());
        }
    }
    Ok(routes)
}

/// Opens a stream to this shard, or to the next one if it does not answer.
pub(super) async fn open_at(group: &Arc<Group>, route: &ShardRoute) -> Result<InsertStream> {
    let view = group.view().await?;
    if let Some(member) = view.member(route.index).filter(|member| !member.is_down()) {
        match open(group, &view, member).await {
            Err(error) if error.is_gone() && view.only().is_none() => {}
            result => return result,
        }
    }
    open_any(group, &[]).await
}

async fn open(group: &Arc<Group>, view: &View, member: &Arc<Member>) -> Result<InsertStream> {
    let mut stream = match within(async { member.shard()?.open_insert().await }).await {
        Ok(stream) => stream,
        Err(error) => {
            if error.is_gone() && view.only().is_none() {
                member.went_down(&error);
            }
            return Err(error);
        }
    };
    stream.shard.clone_from(&member.route);
    stream.server = view.only().is_none().then(|| member.name());
    member.num_writers.fetch_add(1, Ordering::Relaxed);
    stream.sink = Box::new(CountedSink {
        sink: stream.sink,
        group: Arc::clone(group),
        member: Arc::clone(member),
        members: view.members.clone(),
        needed: None,
    });
    Ok(stream)
}

/// Insert sink: counts as a writer of its shard, and fills in the group's largest priority.
struct CountedSink {
    sink: Box<dyn InsertSink>,
    group: Arc<Group>,
    member: Arc<Member>,
    /// All shards of the group.
    members: Vec<Arc<Member>>,
    /// Table of the last item with the largest priority.
    needed: Option<String>,
}

impl CountedSink {
    /// Largest priority in a table of the group, as last reported. If no shard has reported one,
    /// each shard uses its own.
    fn max_priority(&self, table: &str) -> Option<f64> {
        let known = self.members.iter().filter_map(|member| member.stats(table).now().max_priority);
        known.reduce(f64::max)
    }

    /// Waits until all shards have reported this table, which a client that only writes needs now.
    async fn hear(&mut self, table: &str) {
        if self.members.len() < 2 || self.needed.as_deref() == Some(table) {
            return;
        }
        self.needed = Some(table.to_owned());
        let mut news = self.group.news();
        self.group.need(table);
        let heard = async {
            while self
                .members
                .iter()
                .any(|member| !member.is_down() && !member.stats(table).now().is_heard)
            {
                if news.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(HEARING, heard).await;
    }
}

impl InsertSink for CountedSink {
    fn limit_wait(&mut self, max_wait: Option<Duration>) {
        self.sink.limit_wait(max_wait);
    }

    fn wait_here(&self) -> Option<WaitHere> {
        self.sink.wait_here()
    }

    fn send(&mut self, mut batch: InsertBatch) -> BoxFuture<'_, Result<()>> {
        self.group.writes();
        if !batch.items.iter().any(|item| is_max_priority(item.priority)) {
            return self.sink.send(batch);
        }
        Box::pin(async move {
            for item in &mut batch.items {
                if is_max_priority(item.priority) {
                    self.hear(&item.table).await;
                    if let Some(priority) = self.max_priority(&item.table) {
                        item.priority = priority;
                    }
                }
            }
            self.sink.send(batch).await
        })
    }
}

impl Drop for CountedSink {
    fn drop(&mut self) {
        self.member.num_writers.fetch_sub(1, Ordering::Relaxed);
    }
}
