// SPDX-License-Identifier: Apache-2.0
//! A group of shards: its members, their health, and the choice among them.

mod discovery;
mod health;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rand::Rng;
use reverb_base::process::host_name;
use reverb_base::{Error, Result};
use reverb_data::GroupSampling;
use reverb_wire::convert::table_info::to_settings;
use reverb_wire::generated::deepmind::reverb::TableInfo;
use reverb_wire::generated::reverb::{DirectoryRequest, ShardMap};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::address::{GroupAddress, SampleFrom, Writers};
use crate::key_cache::ForeignKeyCache;
use crate::member::{Connect, Member};
use crate::slot_map::SlotMap;
use crate::weighted_round_robin::WeightedRoundRobin;

pub(crate) use discovery::within;
pub(crate) use health::take;

/// Time limit for calls that a shard answers without waiting.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Name of this machine.
static OWN_HOST: LazyLock<String> = LazyLock::new(host_name);

/// Time after its last message in which a writer counts as active.
const WRITING: Duration = Duration::from_secs(3);

/// Immutable snapshot of the group. Every change installs a new view.
#[derive(Debug)]
pub(crate) struct View {
    /// Map that the shards agree on; `None` for a plain list of servers.
    pub(crate) map: Option<ShardMap>,
    pub(crate) slots: SlotMap,
    /// Members, sorted by index.
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) samplings: HashMap<String, GroupSampling>,
    /// Tables of the first shard that answered. The signatures are the same at all shards.
    pub(crate) tables: Vec<TableInfo>,
}

impl View {
    pub(crate) fn epoch(&self) -> i64 {
        self.map.as_ref().map_or(0, |map| map.epoch)
    }

    /// Tables with the settings of the whole group, or empty if the group has no map.
    pub(crate) fn given(&self) -> &[TableInfo] {
        self.map.as_ref().map_or(&[], |map| &map.tables)
    }

    pub(crate) fn member(&self, index: i32) -> Option<&Arc<Member>> {
        self.members.iter().find(|member| member.index == index)
    }

    /// The only member of a group of one, which needs no merging of answers.
    pub(crate) fn only(&self) -> Option<&Arc<Member>> {
        match &self.members[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Sampling rule of a table, as reported by the first shard that answered.
    pub(crate) fn sampling(&self, table: &str) -> Option<GroupSampling> {
        self.samplings.get(table).copied()
    }
}

/// Shards behind one address. Connects on first use.
pub struct Group {
    /// Address as given by the program.
    text: String,
    pub(crate) address: GroupAddress,
    connect: Box<dyn Connect>,
    runtime: Handle,
    view: RwLock<Option<Arc<View>>>,
    /// Lock of the discovery: one caller searches at a time.
    finding: tokio::sync::Mutex<()>,
    /// Tables whose sizes and masses are needed.
    interest: Mutex<BTreeSet<String>>,
    /// Tables that `writers=even` writers of this client write to.
    written: Mutex<BTreeSet<String>>,
    /// Time of the last message of such a writer, in milliseconds since `began`; 0: never.
    written_at: AtomicU64,
    began: Instant,
    /// Counter that grows with every report of a shard.
    news: watch::Sender<u64>,
    rotation: Mutex<WeightedRoundRobin>,
    /// True after the first rows were sent.
    has_rows: AtomicBool,
    /// Keys of updates and deletes that no shard had.
    missed_updates: AtomicU64,
    /// Shards of sampled keys whose slots belong to other shards.
    foreign: Mutex<ForeignKeyCache>,
}

impl Group {
    /// Makes a group; it connects on first use.
    pub fn new(
        text: &str,
        address: GroupAddress,
        connect: Box<dyn Connect>,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            text: text.to_owned(),
            address,
            connect,
            runtime,
            view: RwLock::new(None),
            finding: tokio::sync::Mutex::new(()),
            interest: Mutex::default(),
            written: Mutex::default(),
            written_at: AtomicU64::new(0),
            began: Instant::now(),
            news: watch::Sender::new(0),
            rotation: Mutex::new(WeightedRoundRobin::new(rand::random())),
            has_rows: AtomicBool::new(false),
            missed_updates: AtomicU64::new(0),
            foreign: Mutex::default(),
        })
    }

    /// Address as given by the program.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The view, if the shards have been found.
    pub(crate) fn found(&self) -> Option<Arc<View>> {
        self.view.read().clone()
    }

    /// The view. Finds the shards first if necessary.
    pub(crate) async fn view(self: &Arc<Self>) -> Result<Arc<View>> {
        if let Some(view) = self.found() {
            return Ok(view);
        }
        let _only = self.finding.lock().await;
        if let Some(view) = self.found() {
            return Ok(view);
        }
        let view = Arc::new(self.find().await?);
        self.install(&view);
        Ok(view)
    }

    /// Warns once if the servers cannot share the room of a bounded rate limiter.
    fn warn_if_not_coordinated(&self, view: &View, table: &str) {
        let Some(info) = view.tables.iter().find(|table_info| table_info.name == table) else {
            return;
        };
        let limiter = to_settings(info).rate_limiter;
        let is_bounded = limiter.has_min() || limiter.has_max();
        if view.map.is_none() && view.members.len() > 1 && is_bounded {
            tracing::warn!(
                peer = self.text(),
                table,
                "the servers of this group do not know of each other, so each has a part of what the \
                 rate limiter allows for good, and learners and writers may wait for each other. \
                 Start them with --shard-index, --num-shards and --group-address, or run a \
                 reverb.cluster.Coordinator"
            );
        }
    }

    /// Replaces the view, and starts a health task for each new member.
    fn install(self: &Arc<Self>, view: &Arc<View>) {
        let old = self.view.write().replace(Arc::clone(view));
        if view.members.len() > 1 || view.map.is_some() {
            for member in &view.members {
                let is_known = old
                    .as_ref()
                    .is_some_and(|old| old.members.iter().any(|known| Arc::ptr_eq(known, member)));
                if !is_known {
                    let tending = health::watch(Arc::downgrade(self), Arc::downgrade(member));
                    member.set_task(self.runtime.spawn(tending).abort_handle());
                }
            }
        }
        self.notify();
    }

    /// Ends the health tasks.
    pub(crate) fn close(&self) {
        if let Some(view) = self.view.write().take() {
            view.members.iter().for_each(|member| member.end_task());
        }
    }

    /// Wakes all subscribers of news.
    pub(crate) fn notify(&self) {
        self.news.send_modify(|number| *number += 1);
    }

    /// Subscribes to reports of the shards.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Starts reports of this table by all shards.
    pub(crate) fn need(&self, table: &str) {
        if self.interest.lock().insert(table.to_owned())
            && let Some(view) = self.found()
        {
            self.warn_if_not_coordinated(&view, table);
            view.members.iter().for_each(|member| member.look.notify_one());
        }
    }

    pub(crate) fn needed_tables(&self) -> Vec<String> {
        self.interest.lock().iter().cloned().collect()
    }

    /// Starts polling of these tables' fill levels, while a writer is active.
    pub(crate) fn fills<'a>(&self, tables: impl Iterator<Item = &'a str>) {
        let mut written = self.written.lock();
        for table in tables {
            if !written.contains(table) {
                written.insert(table.to_owned());
            }
        }
    }

    /// Marks the writers of this client as active.
    pub(crate) fn writes(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        self.written_at.store(now.max(1), Ordering::Relaxed);
    }

    /// True if fill levels are needed: a writer is active and may move to an emptier shard.
    pub(crate) fn is_writing(&self) -> bool {
        let at = Duration::from_millis(self.written_at.load(Ordering::Relaxed));
        let is_even = self.address.writers == Writers::Even;
        is_even && !at.is_zero() && self.began.elapsed() < at + WRITING
    }

    /// The request that polls a member: for a newer map and, if needed, for fill levels.
    pub(crate) fn directory_request(&self) -> DirectoryRequest {
        let is_writing = self.is_writing();
        let tables =
            if is_writing { self.written.lock().iter().cloned().collect() } else { Vec::new() };
        DirectoryRequest {
            known_epoch: self.found().map_or(0, |view| view.epoch()),
            tables,
            writer_places: Vec::new(),
        }
    }

    /// Remembers the shard at which a foreign key was sampled.
    pub(crate) fn remember(&self, key: u64, shard: i32) {
        self.foreign.lock().remember(key, shard);
    }

    /// The shard at which a foreign key was sampled, if remembered.
    pub(crate) fn recall(&self, key: u64) -> Option<i32> {
        self.foreign.lock().recall(key)
    }

    pub(crate) fn missed(&self, keys: usize) {
        self.missed_updates.fetch_add(keys as u64, Ordering::Relaxed);
    }

    /// Number of keys in updates and deletes that no shard had.
    pub fn num_missed_updates(&self) -> u64 {
        self.missed_updates.load(Ordering::Relaxed)
    }

    /// Shards that accept items: those that are up, or all that are not draining if none is up.
    pub(crate) fn takers<'a>(&self, view: &'a View) -> Result<Vec<&'a Arc<Member>>> {
        let usable = |is_strict: bool| -> Vec<&'a Arc<Member>> {
            let members =
                view.members.iter().filter(|member| member.route.is_some() && !member.is_draining);
            members.filter(|member| !is_strict || !member.is_down()).collect()
        };
        let mut members = usable(true);
        if members.is_empty() {
            members = usable(false);
        }
        if members.is_empty() {
            return Err(Error::failed_precondition(format!(
                "No shard of {} takes items: all are draining.",
                self.text
            )));
        }
        Ok(members)
    }

    /// Shards for the next `count` writers or rows. Ignores fill levels.
    pub(crate) fn writers(&self, view: &View, count: usize) -> Result<Vec<Arc<Member>>> {
        let mut members = self.takers(view)?;
        match self.address.writers {
            Writers::Even | Writers::RoundRobin => {}
            Writers::Local => {
                members = near_or_all(members);
            }
            Writers::LeastLoaded => {
                let mut chosen = Vec::with_capacity(count);
                for _ in 0..count {
                    let pick = || members[rand::rng().random_range(0..members.len())];
                    let a = pick();
                    let b = pick();
                    let load = |member: &Arc<Member>| member.num_writers.load(Ordering::Relaxed);
                    chosen.push(Arc::clone(if load(b) < load(a) { b } else { a }));
                }
                return Ok(chosen);
            }
        }
        let weights = weights(&members);
        let mut rotation = self.rotation.lock();
        Ok((0..count).map(|_| Arc::clone(members[rotation.next(&weights)])).collect())
    }

    /// True on the first call only: for the first rows of this client.
    pub(crate) fn begins_rows(&self) -> bool {
        !self.has_rows.load(Ordering::Relaxed) && !self.has_rows.swap(true, Ordering::Relaxed)
    }

    /// Advances the rotation until this shard is next.
    pub(crate) fn pass_turns_before(&self, view: &View, index: i32) -> Result<()> {
        self.rotation.lock().pass_before(index, &weights(&self.takers(view)?));
        Ok(())
    }

    /// Members that items are sampled from.
    pub(crate) fn sampled<'a>(&self, view: &'a View) -> Vec<&'a Arc<Member>> {
        let all = view.members.iter().collect();
        match self.address.sample_from {
            SampleFrom::All => all,
            SampleFrom::Local => near_or_all(all),
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("address", &self.text).finish_non_exhaustive()
    }
}

/// The shards on this machine, or all if there are none.
fn near_or_all(all: Vec<&Arc<Member>>) -> Vec<&Arc<Member>> {
    let near: Vec<_> = all.iter().copied().filter(|member| is_near(member)).collect();
    if near.is_empty() { all } else { near }
}

fn weights(members: &[&Arc<Member>]) -> Vec<(i32, f64)> {
    members.iter().map(|member| (member.index, member.weight)).collect()
}

/// True if the shard is on this machine, as far as its address shows.
pub(crate) fn is_near(member: &Member) -> bool {
    let host = member.address.rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_start_matches("grpcs://").trim_start_matches("grpc://");
    member.address.starts_with("unix:")
        || host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        || host == *OWN_HOST
        || member.shard().is_ok_and(|shard| shard.is_local())
}
