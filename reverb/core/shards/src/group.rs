// SPDX-License-Identifier: Apache-2.0
//! A group of shards: who is in it, and how each of them is.

mod find;
mod tend;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rand::Rng;
use reverb_data::{Error, GroupSampling, KeyGenerator, Result};
use reverb_wire::generated::deepmind::reverb::TableInfo;
use reverb_wire::generated::reverb::{DirectoryRequest, ShardMap};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::address::{GroupAddress, SampleFrom, Writers};
use crate::foreign::ForeignKeys;
use crate::member::{Dial, Member};
use crate::slot_map::SlotMap;
use crate::turns::Turns;

pub(crate) use find::within;
pub(crate) use tend::take;

/// How long a shard may take for what it answers at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// So long after its last message a writer counts as one that writes.
const WRITING: Duration = Duration::from_secs(3);

/// The group as it is now. A change makes a new view.
#[derive(Debug)]
pub(crate) struct View {
    /// The map that the shards agree on; `None` for a plain list of servers.
    pub(crate) map: Option<ShardMap>,
    pub(crate) slots: SlotMap,
    /// By their indices.
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) samplings: HashMap<String, GroupSampling>,
    /// What the first shard says of its tables; the signatures of all are like these.
    pub(crate) tables: Vec<TableInfo>,
}

impl View {
    pub(crate) fn epoch(&self) -> i64 {
        self.map.as_ref().map_or(0, |map| map.epoch)
    }

    /// The tables as the program gave them to the group, where that is known.
    pub(crate) fn given(&self) -> &[TableInfo] {
        self.map.as_ref().map_or(&[], |map| &map.tables)
    }

    pub(crate) fn member(&self, index: i32) -> Option<&Arc<Member>> {
        self.members.iter().find(|member| member.index == index)
    }

    /// The only member of a group of one: it needs no help.
    pub(crate) fn only(&self) -> Option<&Arc<Member>> {
        match &self.members[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Where a table is sampled, as its first server said.
    pub(crate) fn sampling(&self, table: &str) -> Option<GroupSampling> {
        self.samplings.get(table).copied()
    }
}

/// The shards behind one address. Connects on first use.
pub struct Group {
    /// As it was given.
    text: String,
    pub(crate) address: GroupAddress,
    dial: Box<dyn Dial>,
    runtime: Handle,
    view: RwLock<Option<Arc<View>>>,
    /// Only one caller looks for the shards.
    finding: tokio::sync::Mutex<()>,
    /// The tables whose sizes and masses somebody needs.
    interest: Mutex<BTreeSet<String>>,
    /// The tables that writers of this client write to, if these are to fill evenly.
    written: Mutex<BTreeSet<String>>,
    /// When one of them has sent something, in milliseconds since `began`; 0: never.
    written_at: AtomicU64,
    began: Instant,
    /// Changes with everything that is heard.
    news: watch::Sender<u64>,
    turns: Mutex<Turns>,
    /// Whether rows were sent, whose shards come in turn.
    has_rows: AtomicBool,
    /// Keys whose priority nobody could set, or that nobody had to delete.
    missed_updates: AtomicU64,
    /// Where items with keys of other shards' slots were sampled.
    foreign: Mutex<ForeignKeys>,
}

impl Group {
    /// Makes a group; it connects on first use.
    pub fn new(
        text: &str,
        address: GroupAddress,
        dial: Box<dyn Dial>,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            text: text.to_owned(),
            address,
            dial,
            runtime,
            view: RwLock::new(None),
            finding: tokio::sync::Mutex::new(()),
            interest: Mutex::default(),
            written: Mutex::default(),
            written_at: AtomicU64::new(0),
            began: Instant::now(),
            news: watch::Sender::new(0),
            turns: Mutex::new(Turns::new(random())),
            has_rows: AtomicBool::new(false),
            missed_updates: AtomicU64::new(0),
            foreign: Mutex::default(),
        })
    }

    /// The address as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The view, if the shards were found already.
    pub(crate) fn found(&self) -> Option<Arc<View>> {
        self.view.read().clone()
    }

    /// The view. Looks for the shards first.
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

    /// Says it once if a limiter cannot move what it allows between the shards.
    fn warn_if_not_coordinated(&self, view: &View, table: &str) {
        let Some(info) = view.tables.iter().find(|it| it.name == table) else { return };
        let limiter = info.rate_limiter_info.unwrap_or_default();
        let is_bounded = limiter.min_diff > -f64::MAX || limiter.max_diff < f64::MAX;
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

    /// Makes this the view, and looks after its members.
    fn install(self: &Arc<Self>, view: &Arc<View>) {
        let old = self.view.write().replace(Arc::clone(view));
        if view.members.len() > 1 || view.map.is_some() {
            for member in &view.members {
                let is_known = old
                    .as_ref()
                    .is_some_and(|old| old.members.iter().any(|known| Arc::ptr_eq(known, member)));
                if !is_known {
                    let tending = tend::tend(Arc::downgrade(self), Arc::downgrade(member));
                    member.set_task(self.runtime.spawn(tending).abort_handle());
                }
            }
        }
        self.tell();
    }

    /// Ends what runs for it.
    pub(crate) fn close(&self) {
        if let Some(view) = self.view.write().take() {
            view.members.iter().for_each(|member| member.end_task());
        }
    }

    /// Wakes those who wait for news.
    pub(crate) fn tell(&self) {
        self.news.send_modify(|number| *number += 1);
    }

    /// Tells when something was heard.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// From now on the shards tell how this table changes.
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

    /// From now on the shards are asked how full these tables are, while somebody writes.
    pub(crate) fn fills<'a>(&self, tables: impl Iterator<Item = &'a str>) {
        let mut written = self.written.lock();
        for table in tables {
            if !written.contains(table) {
                written.insert(table.to_owned());
            }
        }
    }

    /// A writer sends something.
    pub(crate) fn writes(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        self.written_at.store(now.max(1), Ordering::Relaxed);
    }

    /// Whether shards are to be asked how full they are: somebody writes, and goes on at another
    /// one if that is emptier.
    pub(crate) fn is_writing(&self) -> bool {
        let at = Duration::from_millis(self.written_at.load(Ordering::Relaxed));
        let is_even = self.address.writers == Writers::Even;
        is_even && !at.is_zero() && self.began.elapsed() < at + WRITING
    }

    /// What a shard is asked for: a newer map, and how full it is.
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

    /// An item was sampled at a shard that does not own the slot of its key.
    pub(crate) fn remember(&self, key: u64, shard: i32) {
        self.foreign.lock().remember(key, shard);
    }

    /// Where such an item was sampled, if that is remembered.
    pub(crate) fn recall(&self, key: u64) -> Option<i32> {
        self.foreign.lock().recall(key)
    }

    pub(crate) fn missed(&self, keys: usize) {
        self.missed_updates.fetch_add(keys as u64, Ordering::Relaxed);
    }

    /// Keys of updates and deletes that no shard had.
    pub fn num_missed_updates(&self) -> u64 {
        self.missed_updates.load(Ordering::Relaxed)
    }

    /// The shards that take items: those that answer, if there are any.
    pub(crate) fn takers<'a>(&self, view: &'a View) -> Result<Vec<&'a Arc<Member>>> {
        let usable = |is_strict: bool| -> Vec<&'a Arc<Member>> {
            let members = view.members.iter().filter(|it| it.route.is_some() && !it.is_draining);
            members.filter(|it| !is_strict || !it.is_down()).collect()
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

    /// The shards that take the next `count` writers or rows, without a look at how full they are.
    pub(crate) fn writers(&self, view: &View, count: usize) -> Result<Vec<Arc<Member>>> {
        let mut members = self.takers(view)?;
        match self.address.writers {
            Writers::Even | Writers::RoundRobin => {}
            Writers::Local => {
                let near: Vec<&Arc<Member>> =
                    members.iter().copied().filter(|it| is_near(it)).collect();
                if !near.is_empty() {
                    members = near;
                }
            }
            Writers::LeastLoaded => {
                let mut chosen = Vec::with_capacity(count);
                for _ in 0..count {
                    let pick = || members[random_below(members.len())];
                    let (a, b) = (pick(), pick());
                    let load = |it: &Arc<Member>| it.num_writers.load(Ordering::Relaxed);
                    chosen.push(Arc::clone(if load(b) < load(a) { b } else { a }));
                }
                return Ok(chosen);
            }
        }
        let weights = weights(&members);
        let mut turns = self.turns.lock();
        Ok((0..count).map(|_| Arc::clone(members[turns.next(&weights)])).collect())
    }

    /// Whether the next rows are the first ones; asked once.
    pub(crate) fn begins_rows(&self) -> bool {
        !self.has_rows.load(Ordering::Relaxed) && !self.has_rows.swap(true, Ordering::Relaxed)
    }

    /// Lets turns pass until the next one is that of this shard.
    pub(crate) fn pass_turns_before(&self, view: &View, index: i32) -> Result<()> {
        self.turns.lock().pass_before(index, &weights(&self.takers(view)?));
        Ok(())
    }

    /// The members that are sampled.
    pub(crate) fn sampled<'a>(&self, view: &'a View) -> Vec<&'a Arc<Member>> {
        let all: Vec<&Arc<Member>> = view.members.iter().collect();
        match self.address.sample_from {
            SampleFrom::All => all,
            SampleFrom::Local => {
                let near: Vec<&Arc<Member>> =
                    all.iter().copied().filter(|it| is_near(it)).collect();
                if near.is_empty() { all } else { near }
            }
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("address", &self.text).finish_non_exhaustive()
    }
}

fn weights(members: &[&Arc<Member>]) -> Vec<(i32, f64)> {
    members.iter().map(|it| (it.index, it.weight)).collect()
}

/// Whether a shard is on this machine, as far as its address tells.
pub(crate) fn is_near(member: &Member) -> bool {
    let host = member.address.rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_start_matches("grpcs://").trim_start_matches("grpc://");
    member.address.starts_with("unix:")
        || host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|it: std::net::IpAddr| it.is_loopback())
        || host == own_host()
        || member.shard().is_ok_and(|it| it.is_local())
}

fn own_host() -> &'static str {
    static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    })
}

/// A number in `[0, 1)`.
pub(crate) fn random() -> f64 {
    (KeyGenerator::new().next_key() >> 11) as f64 / (1_u64 << 53) as f64
}

fn random_below(n: usize) -> usize {
    rand::rng().random_range(0..n)
}
