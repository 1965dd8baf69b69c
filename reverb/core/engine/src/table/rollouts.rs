// SPDX-License-Identifier: Apache-2.0
//! Items with rollouts: where each of them is on its way from a prompt to a trained item.
//!
//! ```text
//! open <-> open, leased -> settled <-> settled, leased -> ready <-> ready, leased -> trained
//! ```
//!
//! Only ready items that nobody holds are in [`Items`](super::items::Items), so only they are
//! sampled, scanned and evicted. All others are *aside*: here alone. Every item of the table has an
//! entry here. `state/growing.rs` moves items from one place to the other; this file keeps the
//! lists, the leases, the version and the backlog, and touches no item of the table.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use reverb_base::{Error, Result};
use reverb_data::rollouts::{
    LeaseId, OnStale, Outcome, Part, Piece, Rollout, RolloutSettings, RolloutsInfo, SequenceInfo,
    Stage, StoredGrowing, join, lay_out,
};
use reverb_data::{StoredItem, Trajectory};

use super::ages::{Age, Ages, Pace};
use super::statistics::{Removal, Removed};

/// Number of keys of inserts, and of ended leases of a holder, that are known for repeats.
const NUM_KNOWN: usize = 1024;

/// A client holds an item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) since: Instant,
    /// How many versions had been set by then.
    num_versions: u64,
}

/// Items of one kind that can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Takes {
    /// Open ones.
    Open,
    /// Settled ones that lack a column.
    Lacking(u32),
    /// Ready ones.
    Ready,
}

/// An item with rollouts.
#[derive(Debug, Clone)]
pub struct Growing {
    /// Name that the program gave it; empty for none.
    pub name: Box<str>,
    /// Number of its insert in the table.
    pub order: u64,
    /// How far it is.
    pub stage: Stage,
    /// Number of times that it was lost or became stale.
    pub attempts: u32,
    /// Those of them that were given up for lack of memory. They do not count for `max_attempts`.
    pub given_up: u32,
    /// Version of the table when it was first taken as an open item.
    pub opened_at: Option<i64>,
    /// Its rollouts so far, by number.
    pub rollouts: Vec<Rollout>,
    /// What it has; empty while it is in `Items`.
    pub pieces: Vec<Piece>,
    /// Columns that all its sequences have; empty while it is open.
    pub columns: Box<[u32]>,
    /// Its sequences; empty while it is open.
    pub sequences: Arc<[SequenceInfo]>,
    /// Priority, and other values of an item.
    pub values: GrowingValues,
    /// Who holds it.
    pub(super) lease: Option<Lease>,
    /// Its age as [`Ages`] counts it.
    pub(super) age: Option<Age>,
}

/// Values of an item that is aside.
#[derive(Debug, Clone, Copy)]
pub struct GrowingValues {
    /// Its priority.
    pub priority: f64,
    /// Priority for the remover, instead of `priority`.
    pub removal_priority: Option<f64>,
    /// Number of times it was sampled.
    pub times_sampled: i32,
    /// Wall time of its insertion, nanoseconds since 1970.
    pub inserted_at_ns: i64,
}

impl GrowingValues {
    pub(super) fn of(item: &StoredItem) -> Self {
        let StoredItem { priority, removal_priority, times_sampled, inserted_at_ns, .. } = *item;
        Self { priority, removal_priority, times_sampled, inserted_at_ns }
    }

    /// An item with these values.
    pub(super) fn with(self, key: u64, trajectory: Trajectory) -> StoredItem {
        let Self { priority, removal_priority, times_sampled, inserted_at_ns } = self;
        StoredItem { key, priority, removal_priority, times_sampled, inserted_at_ns, trajectory }
    }
}

impl Growing {
    /// Oldest version of the policy in it; `None` for a bare prompt.
    pub fn oldest(&self) -> Option<i64> {
        let made = self.rollouts.iter().filter(|it| !matches!(it.outcome, Outcome::Failed(_)));
        made.map(|rollout| rollout.versions.oldest).min().or(self.opened_at)
    }

    /// Its age; `None` for a bare prompt, and for what a learner has taken.
    fn age_now(&self) -> Option<Age> {
        let is_ready = self.stage == Stage::Ready;
        let oldest = self.oldest().filter(|_| !is_ready || self.lease.is_none())?;
        Some(Age { oldest, is_ready })
    }

    /// Number of attempts that count for `max_attempts`.
    pub(super) fn lost_attempts(&self) -> u32 {
        self.attempts.saturating_sub(self.given_up)
    }

    /// Number of rollouts with this outcome.
    pub fn count(&self, is_it: impl Fn(&Outcome) -> bool) -> u32 {
        self.rollouts.iter().filter(|rollout| is_it(&rollout.outcome)).count() as u32
    }

    /// True if the item is in `Items`.
    pub(super) fn is_in_items(&self) -> bool {
        self.stage == Stage::Ready && self.lease.is_none()
    }

    /// Places of the columns of an open item.
    pub fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = self.pieces.iter().flat_map(|it| it.parts.to_vec()).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// What an item that is aside has: an open one each column for itself, others joined.
    pub(super) fn trajectory(&self) -> Option<Trajectory> {
        match self.stage {
            Stage::Ready => Some(self.pieces.first()?.trajectory.clone()),
            Stage::Settled => Some(join(&self.pieces).ok()?.trajectory),
            Stage::Open => lay_out(&self.pieces).ok(),
        }
    }

    /// The item for a checkpoint, in which nobody holds it.
    fn to_stored(&self, key: u64) -> StoredGrowing {
        let is_aside = self.stage != Stage::Ready;
        StoredGrowing {
            key,
            name: self.name.clone(),
            order: self.order,
            stage: self.stage,
            attempts: self.attempts,
            given_up: self.given_up,
            // Nobody has begun with a bare prompt.
            opened_at: self.opened_at.filter(|_| !self.rollouts.is_empty()),
            rollouts: self.rollouts.clone(),
            sequences: Arc::clone(&self.sequences),
            aside: lay_out(&self.pieces)
                .ok()
                .filter(|_| is_aside)
                .map(|trajectory| (self.values.with(key, trajectory), self.parts().into())),
        }
    }

    /// Client that holds it.
    pub fn holder(&self) -> Option<u64> {
        self.lease.map(|lease| lease.id.holder)
    }
}

/// What a checkpoint stores of a table's rollouts. A cut shares it until the next change.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Version of the policy.
    pub version: i64,
    /// Items taken since the version was set.
    pub taken: u64,
    /// Name of the item that was inserted last.
    pub newest: Box<str>,
    /// Order number of the next item.
    pub next_order: u64,
    /// All items of the table by key.
    pub items: HashMap<u64, Arc<Growing>>,
}

impl Kept {
    /// All items in the order of their inserts, for a checkpoint.
    pub fn to_stored(&self) -> Vec<StoredGrowing> {
        let all = self.items.iter().map(|(&key, item)| item.to_stored(key));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable_by_key(|item| item.order);
        all
    }

    /// Ready items that clients hold. A checkpoint has them as free ones.
    pub(super) fn ready_held(&self) -> Vec<StoredItem> {
        let held =
            self.items.iter().filter(|(_, it)| it.stage == Stage::Ready && it.lease.is_some());
        let stored =
            |(&key, item): (&u64, &Arc<Growing>)| Some(item.values.with(key, item.trajectory()?));
        held.filter_map(stored).collect()
    }
}

/// The rollouts of a table.
#[derive(Debug)]
pub(super) struct Rollouts {
    settings: Arc<RolloutSettings>,
    kept: Arc<Kept>,
    by_name: HashMap<Box<str>, u64>,
    by_order: BTreeMap<u64, u64>,
    /// Order numbers of open and settled items that nobody holds.
    free: BTreeMap<Takes, BTreeSet<u64>>,
    leases: HashMap<LeaseId, Vec<u64>>,
    /// Numbers of ended leases by holder.
    ended: HashMap<u64, VecDeque<u64>>,
    /// Keys of the last inserts.
    inserted: VecDeque<u64>,
    /// Number of ready items that are held.
    num_ready_held: u64,
    /// Number of those that were taken since the version was set.
    num_taken_held: u64,
    /// How often the version was set.
    num_versions: u64,
    /// Number of items in each stage.
    num_in: [u64; 3],
    /// Order numbers of open items, also of held ones.
    open: BTreeSet<u64>,
    /// Ages of items that no learner has taken.
    ages: Ages,
    /// Names of clients with a stream for leases, by their numbers.
    holders: HashMap<u64, Arc<str>>,
    /// Items that left before the table was restored, by the name of the reason.
    left_before: BTreeMap<Box<str>, u64>,
    /// Items that left as failed, and that became stale, since the version was set.
    left_since_version: (u64, u64),
    /// Time of the last rollout that was accepted.
    pub(super) last_rollout: Option<Instant>,
    /// Order of the next item whose staleness is checked.
    pub(super) stale_from: Option<u64>,
    /// When the time that a client may hold an open item was changed.
    timed_from: Option<Instant>,
}

impl Rollouts {
    pub(super) fn new(settings: Arc<RolloutSettings>) -> Self {
        Self::with(settings, 0)
    }

    fn with(settings: Arc<RolloutSettings>, version: i64) -> Self {
        let kept = Kept {
            version,
            taken: 0,
            newest: Box::default(),
            next_order: 1,
            items: HashMap::new(),
        };
        Self {
            settings,
            kept: Arc::new(kept),
            by_name: HashMap::new(),
            by_order: BTreeMap::new(),
            free: BTreeMap::new(),
            leases: HashMap::new(),
            ended: HashMap::new(),
            inserted: VecDeque::new(),
            num_ready_held: 0,
            num_taken_held: 0,
            num_versions: 0,
            num_in: [0; 3],
            open: BTreeSet::new(),
            ages: Ages::default(),
            holders: HashMap::new(),
            left_before: BTreeMap::new(),
            left_since_version: (0, 0),
            last_rollout: None,
            stale_from: None,
            timed_from: None,
        }
    }

    /// Those of the same table without items. The version stays: generators have it.
    pub(super) fn emptied(&self) -> Self {
        Self {
            holders: self.holders.clone(),
            left_before: self.left_before.clone(),
            last_rollout: self.last_rollout,
            ..Self::with(Arc::clone(&self.settings), self.kept.version)
        }
    }

    pub(super) fn settings(&self) -> &Arc<RolloutSettings> {
        &self.settings
    }

    /// Changes the settings. All items are checked if others may be too stale now, and what clients
    /// hold counts its time from now on if the time is another one.
    pub(super) fn configure(&mut self, settings: Arc<RolloutSettings>, now: Instant) {
        let before = std::mem::replace(&mut self.settings, settings);
        let staleness = |it: &RolloutSettings| (it.max_staleness, it.on_stale);
        if staleness(&before) != staleness(&self.settings) {
            self.stale_from = Some(0);
        }
        if before.open_timeout != self.settings.open_timeout {
            self.timed_from = Some(now);
        }
    }

    /// All that a checkpoint stores.
    pub(super) fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    pub(super) fn kept_mut(&mut self) -> &mut Kept {
        Arc::make_mut(&mut self.kept)
    }

    /// Number of items of the table.
    pub(super) fn len(&self) -> usize {
        self.kept.items.len()
    }

    pub(super) fn get(&self, key: u64) -> Option<&Growing> {
        self.kept.items.get(&key).map(|item| &**item)
    }

    /// The item with this key, to change it. What lists go by must not change.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Growing> {
        self.kept
            .items
            .contains_key(&key)
            .then(|| self.kept_mut().items.get_mut(&key))?
            .map(Arc::make_mut)
    }

    /// Key of the item with this name.
    pub(super) fn named(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    /// True if an item with this key was inserted lately; it may have left.
    pub(super) fn was_inserted(&self, key: u64) -> bool {
        self.inserted.contains(&key)
    }

    /// Items that the backlog counts.
    pub(super) fn backlog(&self) -> u64 {
        self.len() as u64 - self.num_ready_held + self.kept.taken
    }

    pub(super) fn info(&self) -> RolloutsInfo {
        let Kept { version, taken, ref newest, .. } = *self.kept;
        let mut info = RolloutsInfo {
            version,
            taken,
            newest: newest.clone(),
            backlog: self.backlog(),
            leased: self.leases.values().map(|keys| keys.len() as u64).sum(),
            ..RolloutsInfo::default()
        };
        [info.open, info.settled, info.ready] = self.num_in;
        info.ready_held = self.num_ready_held;
        info.taken_held = self.num_taken_held;
        info
    }

    /// True if one more item fits into the backlog.
    pub(super) fn has_backlog_room(&self) -> bool {
        self.settings.backlog().is_none_or(|most| self.backlog() < most)
    }

    /// Adds an item. It is in no list of free ones yet.
    pub(super) fn add(&mut self, key: u64, mut item: Growing) {
        let kept = self.kept_mut();
        item.order = kept.next_order;
        kept.next_order += 1;
        kept.newest.clone_from(&item.name);
        self.put(key, item);
        if self.inserted.len() == NUM_KNOWN {
            self.inserted.pop_front();
        }
        self.inserted.push_back(key);
    }

    /// Adds an item with its order.
    pub(super) fn put(&mut self, key: u64, item: Growing) {
        if !item.name.is_empty() {
            self.by_name.insert(item.name.clone(), key);
        }
        self.by_order.insert(item.order, key);
        self.num_in[item.stage as usize] += 1;
        if item.stage == Stage::Open {
            self.open.insert(item.order);
        }
        self.kept_mut().items.insert(key, Arc::new(item));
        self.count_age(key);
    }

    /// Forgets an item that leaves the table; returns it.
    pub(super) fn remove(&mut self, key: u64) -> Option<Arc<Growing>> {
        self.end_lease_of(key);
        self.unlist(key);
        let item = self.kept_mut().items.remove(&key)?;
        if self.by_name.get(&item.name) == Some(&key) {
            self.by_name.remove(&item.name);
        }
        self.by_order.remove(&item.order);
        self.open.remove(&item.order);
        if let Some(age) = item.age {
            self.ages.remove(age, item.order);
        }
        self.num_in[item.stage as usize] -= 1;
        Some(item)
    }

    /// Moves an item that nobody holds to another stage. It is in no list yet.
    pub(super) fn set_stage(&mut self, key: u64, stage: Stage) {
        let Some(item) = self.get_mut(key) else { return };
        let before = std::mem::replace(&mut item.stage, stage);
        let order = item.order;
        self.num_in[before as usize] -= 1;
        self.num_in[stage as usize] += 1;
        if stage == Stage::Open {
            self.open.insert(order);
        } else {
            self.open.remove(&order);
        }
        self.count_age(key);
    }

    /// Counts the age of an item, whose stage, lease or rollouts have changed.
    pub(super) fn count_age(&mut self, key: u64) {
        let Some(item) = self.get(key) else { return };
        let (before, now, order) = (item.age, item.age_now(), item.order);
        if before == now {
            return;
        }
        if let Some(age) = before {
            self.ages.remove(age, order);
        }
        if let Some(age) = now {
            self.ages.insert(age, order);
        }
        if let Some(item) = self.get_mut(key) {
            item.age = now;
        }
    }

    /// Lists of an item that nobody holds.
    fn lists_of(&self, item: &Growing) -> Vec<Takes> {
        match item.stage {
            _ if item.lease.is_some() => Vec::new(),
            Stage::Open => vec![Takes::Open],
            Stage::Ready => Vec::new(),
            Stage::Settled => {
                let is_missing = |column: &u32| !item.columns.contains(column);
                (0..self.settings.num_columns).filter(is_missing).map(Takes::Lacking).collect()
            }
        }
    }

    /// Adds an item to the lists of free ones.
    pub(super) fn list(&mut self, key: u64) {
        let Some(item) = self.get(key) else { return };
        let (order, lists) = (item.order, self.lists_of(item));
        for takes in lists {
            self.free.entry(takes).or_default().insert(order);
        }
        self.count_age(key);
    }

    /// Removes it from these lists, before it changes.
    pub(super) fn unlist(&mut self, key: u64) {
        let Some(item) = self.get(key) else { return };
        let (order, lists) = (item.order, self.lists_of(item));
        for takes in lists {
            if let Some(list) = self.free.get_mut(&takes) {
                list.remove(&order);
            }
        }
    }

    /// Keys of the first `num` free items of a kind; not of ready ones.
    pub(super) fn first_free(&self, takes: Takes, num: usize) -> Vec<u64> {
        let orders = self.free.get(&takes).into_iter().flatten().take(num);
        orders.map(|order| self.by_order[order]).collect()
    }

    /// Number of free items of a kind; not of ready ones.
    pub(super) fn num_free(&self, takes: Takes) -> usize {
        self.free.get(&takes).map_or(0, BTreeSet::len)
    }

    /// Items of a lease that is in force.
    pub(super) fn held_by(&self, id: LeaseId) -> Option<&[u64]> {
        self.leases.get(&id).map(|keys| &**keys)
    }

    /// # Errors
    ///
    /// `FailedPrecondition` for the number of a lease that has ended.
    pub(super) fn check_lease(&self, id: LeaseId) -> Result<()> {
        if self.ended.get(&id.holder).is_some_and(|ended| ended.contains(&id.number)) {
            // Clients repeat what was cancelled.
            return Err(Error::failed_precondition(format!(
                "Lease {} of this client has ended.",
                id.number
            )));
        }
        Ok(())
    }

    /// A client holds an item from now on. The item is in no list, and nobody else's. A ready one
    /// is taken for the present version.
    pub(super) fn lease(&mut self, key: u64, id: LeaseId, since: Instant) {
        self.end_lease_of(key);
        self.unlist(key);
        let num_versions = self.num_versions;
        let Some(item) = self.get_mut(key) else { return };
        item.lease = Some(Lease { id, since, num_versions });
        let is_taken = u64::from(item.stage == Stage::Ready);
        self.num_ready_held += is_taken;
        self.num_taken_held += is_taken;
        self.kept_mut().taken += is_taken;
        self.leases.entry(id).or_default().push(key);
        self.count_age(key);
    }

    /// Nobody holds an item from now on. It is in no list yet.
    pub(super) fn end_lease_of(&mut self, key: u64) {
        let Some(item) = self.get(key) else { return };
        let Some(Lease { id, .. }) = item.lease else { return };
        let (is_ready, is_counted) = (item.stage == Stage::Ready, self.is_counted(item));
        self.num_ready_held -= u64::from(is_ready);
        self.num_taken_held -= u64::from(is_counted);
        if let Some(item) = self.get_mut(key) {
            item.lease = None;
        }
        if let Some(keys) = self.leases.get_mut(&id) {
            keys.retain(|&held| held != key);
            if keys.is_empty() {
                self.leases.remove(&id);
            }
        }
        self.count_age(key);
    }

    /// True for a ready item that a client has taken since the version was set.
    fn is_counted(&self, item: &Growing) -> bool {
        let is_of_version = |lease: Lease| lease.num_versions == self.num_versions;
        item.stage == Stage::Ready && item.lease.is_some_and(is_of_version)
    }

    /// An item that a client holds, and gives back or loses, does not count as taken any more.
    pub(super) fn give_back(&mut self, key: u64) {
        if self.get(key).is_some_and(|item| self.is_counted(item)) {
            let kept = self.kept_mut();
            kept.taken = kept.taken.saturating_sub(1);
        }
    }

    /// Sets the version of the policy. Nothing is taken for it yet.
    pub(super) fn begin_version(&mut self, version: i64) {
        self.num_versions += 1;
        self.num_taken_held = 0;
        self.left_since_version = (0, 0);
        let kept = self.kept_mut();
        kept.version = version;
        kept.taken = 0;
    }

    /// Ends the number of a lease: it takes nothing from now on.
    pub(super) fn close_lease(&mut self, id: LeaseId) {
        let ended = self.ended.entry(id.holder).or_default();
        if ended.contains(&id.number) {
            return;
        }
        if ended.len() == NUM_KNOWN {
            ended.pop_front();
        }
        ended.push_back(id.number);
    }

    /// Leases of a client.
    pub(super) fn leases_of(&self, holder: u64) -> Vec<LeaseId> {
        self.leases.keys().copied().filter(|id| id.holder == holder).collect()
    }

    /// Forgets the name and the ended leases of a client that is gone.
    pub(super) fn forget_holder(&mut self, holder: u64) {
        self.ended.remove(&holder);
        self.holders.remove(&holder);
    }

    /// Notes the name of a client that may take items.
    pub(super) fn name_holder(&mut self, holder: u64, name: Arc<str>) {
        self.holders.insert(holder, name);
    }

    /// Name of a client that holds items, for people.
    pub(super) fn name_of(&self, holder: u64) -> Arc<str> {
        let name = self.holders.get(&holder).filter(|name| !name.is_empty());
        name.map_or_else(|| format!("client {holder:x}").into(), Arc::clone)
    }

    /// The open item that was inserted first.
    pub(super) fn oldest_open(&self) -> Option<&Growing> {
        self.get(*self.by_order.get(self.open.first()?)?)
    }

    /// Key of the newest item with rollouts that no learner has: a free one before a held one.
    pub(super) fn newest_with_rollouts(&self) -> Option<u64> {
        let is_taken = |it: &Growing| it.stage == Stage::Ready && it.lease.is_some();
        let has_rollouts =
            |key: &u64| self.get(*key).is_some_and(|it| !it.rollouts.is_empty() && !is_taken(it));
        let is_free = |key: &u64| self.get(*key).is_some_and(|item| item.lease.is_none());
        let mut newest = self.by_order.values().rev().copied().filter(has_rollouts);
        let first = newest.next()?;
        Some(std::iter::once(first).chain(newest).find(is_free).unwrap_or(first))
    }

    /// Number of open items that clients hold.
    pub(super) fn num_open_held(&self) -> u64 {
        (self.open.len() - self.num_free(Takes::Open)) as u64
    }

    /// Number of settled items that clients hold. Visits all items that are held.
    pub(super) fn num_settled_held(&self) -> u64 {
        let held = self.leases.values().flatten();
        held.filter(|key| self.get(**key).is_some_and(|it| it.stage == Stage::Settled)).count()
            as u64
    }

    /// Columns that free settled items lack.
    pub(super) fn lacking_columns(&self) -> impl Iterator<Item = u32> {
        self.free.iter().filter_map(|(takes, list)| match takes {
            Takes::Lacking(column) if !list.is_empty() => Some(*column),
            _ => None,
        })
    }

    /// The lease on items of this stage that has lasted longest, and their number.
    pub(super) fn oldest_lease(&self, stage: Stage) -> Option<(Lease, usize)> {
        let first = |(_, keys): (&LeaseId, &Vec<u64>)| {
            let item = self.get(*keys.first()?).filter(|item| item.stage == stage)?;
            Some((item.lease?, keys.len()))
        };
        self.leases.iter().filter_map(first).min_by_key(|(lease, _)| lease.since)
    }

    /// Notes how many items had left before the table was restored.
    pub(super) fn restore_left(&mut self, left: &[(Box<str>, u64)]) {
        self.left_before = left.iter().cloned().collect();
    }

    /// Numbers of items that left since the table was first made.
    pub(super) fn left(&self, removed: &Removed) -> Vec<(Box<str>, u64)> {
        let mut left = self.left_before.clone();
        for reason in Removal::ALL {
            *left.entry(reason.name().into()).or_default() += removed.of(reason);
        }
        left.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Items that left as failed, and that became stale, since the version was set.
    pub(super) fn left_since_version(&self) -> (u64, u64) {
        self.left_since_version
    }

    /// Counts an item that leaves as failed.
    pub(super) fn count_failed(&mut self) {
        self.left_since_version.0 += 1;
    }

    /// Counts an item that is too stale.
    pub(super) fn count_stale(&mut self) {
        self.left_since_version.1 += 1;
    }

    /// Keys of open items that one client holds since this time or before; of settled ones, too, if
    /// others wait for them. None if the time that a client has was changed later.
    pub(super) fn open_since(&self, time: Instant) -> Vec<u64> {
        if self.timed_from.is_some_and(|from| from > time) {
            return Vec::new();
        }
        let keys = self.leases.values().flatten().copied();
        let is_late = |&key: &u64| {
            self.get(key).is_some_and(|item| {
                self.has_limited_hold(item) && item.lease.is_some_and(|it| it.since <= time)
            })
        };
        keys.filter(is_late).collect()
    }

    fn has_limited_hold(&self, item: &Growing) -> bool {
        match item.stage {
            Stage::Open => true,
            Stage::Settled => self.settings.on_stale == OnStale::Wait,
            Stage::Ready => false,
        }
    }

    fn pace(&self) -> Option<Pace> {
        Pace::new(&self.settings, self.kept.version, self.kept.taken)
    }

    /// Number of ready items that may be taken now without making others too stale. None while
    /// items that are too stale by a new version are still to be made again.
    pub(super) fn num_fresh_enough(&self) -> usize {
        let is_staler = |oldest| self.stale_from.is_some() && self.is_staler(oldest);
        if self.ages.oldest_ready().is_some_and(is_staler) {
            return 0;
        }
        self.pace().map_or(usize::MAX, |pace| self.ages.num_takable(pace).0)
    }

    /// Keys of the ready items, oldest tokens first, if they are taken in this order.
    pub(super) fn oldest_ready(&self, num: usize) -> Option<Vec<u64>> {
        let waits = self.settings.on_stale == OnStale::Wait;
        waits.then(|| self.ages.ready().take(num).map(|order| self.by_order[&order]).collect())
    }

    /// The oldest item that is not ready, and how many that are not ready allow no more takes; if
    /// some do.
    pub(super) fn oldest_unready(&self) -> Option<(&Growing, usize)> {
        let (_, because) = self.ages.num_takable(self.pace()?);
        let num = self.ages.num_unready(because?);
        let oldest = self.by_order.get(&self.ages.oldest_unready()?)?;
        Some((self.get(*oldest)?, num))
    }

    /// Keys of the next items whose staleness is to be checked, at most `num`.
    pub(super) fn next_to_check(&mut self, num: usize) -> Vec<u64> {
        let Some(from) = self.stale_from else { return Vec::new() };
        let next: Vec<(u64, u64)> =
            self.by_order.range(from..).take(num).map(|(&order, &key)| (order, key)).collect();
        self.stale_from = next.last().filter(|_| next.len() == num).map(|(order, _)| order + 1);
        next.into_iter().map(|(_, key)| key).collect()
    }

    /// True if a rollout that comes now would make its item too stale.
    pub(super) fn is_too_old(&self, rollout: &Rollout) -> bool {
        self.is_staler(rollout.versions.or_of_table(self.kept.version).oldest)
    }

    /// True if an item of this age is staler than allowed.
    pub(super) fn is_stale(&self, item: &Growing) -> bool {
        item.oldest().is_some_and(|oldest| self.is_staler(oldest))
    }

    /// True if what this version made is staler than allowed. With `OnStale::Keep` nothing is.
    /// With `OnStale::Wait` it happens if the version makes a leap, such as after a restart.
    fn is_staler(&self, oldest: i64) -> bool {
        let most = self.settings.max_staleness;
        let most = most.filter(|_| self.settings.on_stale != OnStale::Keep);
        most.is_some_and(|most| self.kept.version.saturating_sub(oldest) > i64::from(most))
    }

    /// What is aside, to be freed with the table.
    pub(super) fn trajectories(&self) -> impl Iterator<Item = &Trajectory> {
        self.kept.items.values().flat_map(|item| &item.pieces).map(|piece| &piece.trajectory)
    }
}

#[cfg(test)]
mod checks {
    use super::*;

    impl Rollouts {
        /// Every list says the same.
        pub(in crate::table) fn check(&self) {
            assert_eq!(self.by_order.len(), self.len());
            let (mut held, mut counted) = (0, 0);
            for (&key, item) in &self.kept.items {
                assert_eq!(self.by_order.get(&item.order), Some(&key));
                if !item.name.is_empty() {
                    assert_eq!(self.by_name.get(&item.name), Some(&key));
                }
                assert_eq!(item.pieces.is_empty(), item.is_in_items());
                for takes in self.lists_of(item) {
                    assert!(self.free[&takes].contains(&item.order), "{takes:?} lacks {item:?}");
                }
                if let Some(lease) = item.lease {
                    assert!(self.leases[&lease.id].contains(&key));
                    held += u64::from(item.stage == Stage::Ready);
                    counted += u64::from(self.is_counted(item));
                }
            }
            assert_eq!((self.num_ready_held, self.num_taken_held), (held, counted));
            assert!(self.num_taken_held <= self.kept.taken);
            let in_stage =
                |stage| self.kept.items.values().filter(|item| item.stage == stage).count() as u64;
            assert_eq!(self.num_in, [Stage::Open, Stage::Settled, Stage::Ready].map(in_stage));
            let listed: usize = self.free.values().map(BTreeSet::len).sum();
            let lists = |item: &Arc<Growing>| self.lists_of(item).len();
            assert_eq!(listed, self.kept.items.values().map(lists).sum::<usize>());
            let leased: usize = self.leases.values().map(Vec::len).sum();
            assert_eq!(leased, self.kept.items.values().filter(|it| it.lease.is_some()).count());
            assert!(self.by_name.len() <= self.len());
            let open = self.kept.items.values().filter(|item| item.stage == Stage::Open);
            assert_eq!(self.open, open.map(|item| item.order).collect());
            let all = self.kept.items.values();
            assert!(all.clone().all(|item| item.age == item.age_now()));
            let ages = all.filter_map(|item| Some((item.order, item.age?)));
            assert_eq!(self.ages.all(), ages.collect());
        }
    }
}
