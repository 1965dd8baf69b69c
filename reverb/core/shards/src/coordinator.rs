// SPDX-License-Identifier: Apache-2.0
//! Coordinator: moves the windows of a group's rate limiters to shards with blocked callers.
//!
//! A coordinator holds no state of its own, so another one may take over at any time. The newer one
//! has the larger term, and shards refuse orders with a smaller term.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::RateLimiterConfig;
use reverb_wire::Calls as _;
use reverb_wire::convert::table_info::to_settings;
use reverb_wire::generated::deepmind::reverb::TableInfo;
use reverb_wire::generated::reverb::{SetRateLimiterRequest, SetRateLimiterResponse};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::group::{Group, View};
use crate::member::Member;
use crate::table_stats::Stats;
use crate::tables::together;
use crate::windows::{Order, Report, Window, Windows};

/// Interval between rounds while no caller is blocked.
const INTERVAL: Duration = Duration::from_millis(100);
/// Shortest interval between two rounds.
const MIN_INTERVAL: Duration = Duration::from_millis(2);
/// Time in which a shard must carry out an order; a slower shard counts as lost.
const ORDER_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two attempts to find the shards.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Handle of a running coordinator, which stops when the handle is dropped.
#[derive(Debug)]
pub struct Coordinator {
    group: Arc<Group>,
    is_frozen: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Coordinator {
    /// Starts a coordinator. It waits without limit for the shards to appear.
    pub fn start(group: Arc<Group>, runtime: &Handle) -> Self {
        let is_frozen = Arc::new(AtomicBool::new(false));
        let task = runtime.spawn(run(Arc::clone(&group), Arc::clone(&is_frozen))).abort_handle();
        Self { group, is_frozen, task }
    }

    /// Freezes windows, or lets them grow. While frozen, the sum of all cursors stays in its
    /// bounds.
    pub fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::Relaxed);
        self.group.notify();
    }

    /// True until a coordinator with a larger term takes over.
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.task.abort();
        self.group.close();
    }
}

/// Windows of all tables whose rate limiter has a bound.
struct Books {
    term: i64,
    tables: BTreeMap<String, Windows>,
    bounds: BTreeMap<String, RateLimiterConfig>,
    /// Server id of each shard in the last round.
    servers: HashMap<i32, u64>,
}

async fn run(group: Arc<Group>, is_frozen: Arc<AtomicBool>) {
    let term = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut books = Books {
        term: i64::try_from(term.as_nanos()).unwrap_or(i64::MAX),
        tables: BTreeMap::new(),
        bounds: BTreeMap::new(),
        servers: HashMap::new(),
    };
    let mut news = group.news();
    let mut seen: Option<Arc<View>> = None;
    loop {
        let view = match group.view().await {
            Ok(view) => view,
            Err(error) => {
                tracing::debug!(peer = group.text(), %error, "no shard answers the coordinator");
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        if seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &view)) {
            match bounds_of(&view).await {
                Ok(bounds) => books.begin(&group, &view, bounds),
                Err(error) => {
                    tracing::debug!(peer = group.text(), %error, "the tables are not known");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    continue;
                }
            }
            seen = Some(Arc::clone(&view));
        }
        news.borrow_and_update();
        if let Err(error) = books.round(&view, is_frozen.load(Ordering::Relaxed)).await {
            tracing::warn!(peer = group.text(), %error, "the coordinator of a group ends");
            return;
        }
        tokio::time::sleep(MIN_INTERVAL).await;
        let _ = tokio::time::timeout(INTERVAL, news.changed()).await;
    }
}

/// Rate-limiter bounds of the tables of the whole group.
async fn bounds_of(view: &View) -> Result<BTreeMap<String, RateLimiterConfig>> {
    let mut parts: Vec<Vec<TableInfo>> = Vec::new();
    let asked = view.members.iter().map(|member| async {
        let shard = member.shard()?;
        crate::group::within(shard.server_info()).await
    });
    let mut failure = None;
    for answer in join_all(asked).await {
        match answer {
            Ok(info) => parts.push(info.tables),
            Err(error) => failure = Some(error),
        }
    }
    // Without a map, the bounds of the group are the sums over all shards, so none may be missing.
    if let Some(error) = failure
        && (parts.is_empty() || view.given().is_empty())
    {
        return Err(error);
    }
    let tables = together(&parts, view.given());
    let bounds = tables.iter().filter(|table| table.rate_limiter_info.is_some());
    Ok(bounds.map(|table| (table.name.clone(), to_settings(table).rate_limiter)).collect())
}

impl Books {
    /// Adopts another view: its shards and its bounds.
    fn begin(&mut self, group: &Group, view: &View, bounds: BTreeMap<String, RateLimiterConfig>) {
        for (table, bounds) in &bounds {
            group.need(table);
            if self.bounds.get(table) != Some(bounds) {
                let indices = view.members.iter().map(|member| member.index);
                self.tables.insert(table.clone(), Windows::new(*bounds, indices));
            }
        }
        self.tables.retain(|table, _| bounds.contains_key(table));
        self.bounds = bounds;
        for windows in self.tables.values_mut() {
            let known: Vec<i32> = windows.indices().collect();
            for index in known.iter().filter(|index| view.member(**index).is_none()) {
                windows.remove(*index);
            }
            view.members.iter().for_each(|member| windows.add(member.index));
        }
    }

    /// Asks all shards for their cursors, and moves windows where that helps.
    async fn round(&mut self, view: &View, is_frozen: bool) -> Result<()> {
        for member in &view.members {
            let Some(id) = member.server_id() else { continue };
            if self.servers.insert(member.index, id).is_some_and(|before| before != id) {
                self.tables.values_mut().for_each(|windows| windows.replace(member.index));
            }
        }
        for (table, windows) in &mut self.tables {
            windows.freeze(is_frozen);
            for member in &view.members {
                let stats = member.stats(table).now();
                if member.is_down() || !stats.is_heard {
                    windows.lose(member.index);
                    continue;
                }
                windows.report(member.index, report_of(&stats));
            }
            let orders = windows.shrinks();
            carry_out(view, table, windows, self.term, orders).await?;
            let orders = windows.grows();
            carry_out(view, table, windows, self.term, orders).await?;
        }
        Ok(())
    }
}

/// Sends orders to all shards at the same time.
async fn carry_out(
    view: &View,
    table: &str,
    windows: &mut Windows,
    term: i64,
    orders: Vec<Order>,
) -> Result<()> {
    for order in &orders {
        windows.sent(order);
    }
    let sent = orders.iter().filter_map(|order| {
        let member = view.member(order.shard)?;
        Some(async move { (member, send(member, table, order.window, term).await) })
    });
    for (member, answer) in join_all(sent).await {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.kind() == ErrorKind::FailedPrecondition => return Err(error),
            Err(error) => {
                let shard = member.index;
                tracing::debug!(shard, %error, "a shard did not take its window");
                windows.lose(shard);
                continue;
            }
        };
        let Some(now) = answer.table else {
            windows.lose(member.index);
            continue;
        };
        let window =
            Window { low: now.min_diff, high: now.max_diff, min_size: now.min_size_to_sample };
        let before = Window {
            low: answer.previous_min_diff,
            high: answer.previous_max_diff,
            min_size: match answer.previous_min_size_to_sample {
                // The server does not report the number.
                0 => i64::MAX,
                size => size,
            },
        };
        let stats = member.stats(table);
        stats.watched(&now);
        windows.answered(member.index, window, before, report_of(&stats.now()));
    }
    Ok(())
}

fn report_of(stats: &Stats) -> Report {
    let Stats { cursor, size, insert_waits, sample_waits, .. } = *stats;
    Report { cursor, size, insert_waits, sample_waits }
}

async fn send(
    member: &Member,
    table: &str,
    window: Window,
    term: i64,
) -> Result<SetRateLimiterResponse> {
    let request = SetRateLimiterRequest {
        table: table.to_owned(),
        min_diff: window.low,
        max_diff: window.high,
        min_size_to_sample: window.min_size,
        restore: false,
        term,
    };
    let shard = member.shard()?;
    match tokio::time::timeout(ORDER_TIMEOUT, shard.call(request)).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::unavailable("it did not answer in time")),
    }
}
