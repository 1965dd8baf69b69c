// SPDX-License-Identifier: Apache-2.0
//! A table for its callers: the state behind a lock, and waiting.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use reverb_base::ranked::{Rank, Ranked};
use reverb_base::{Error, Result};
use reverb_data::rollouts::Refusal;
use reverb_data::{NewItem, ServerAccount, TableConfig, TableInfo, Trajectory};
use tokio::sync::Notify;

mod ages;
#[cfg(test)]
mod bulk_tests;
mod changed_by;
mod changes;
mod checks;
mod clock;
mod commit;
mod configure;
mod episodes;
mod eviction;
mod forecast;
mod foreign_keys;
#[cfg(test)]
mod growing_tests;
mod insert_room;
mod items;
mod key_index;
mod lengths;
mod limiter_hold;
#[cfg(test)]
mod model_tests;
mod mutation;
mod operation;
#[cfg(test)]
mod pace_tests;
mod presence;
mod replaced;
mod restore;
mod rollouts;
mod rollouts_status;
mod sample_request;
mod scan;
mod snapshot;
mod state;
mod statistics;
mod step_counts;
mod sweep;
mod takes;
#[cfg(test)]
mod testing;
mod transfer;
mod visits;
mod wait_queues;
mod wait_reason;
mod watch;
mod window;
mod window_sums;

pub use changed_by::ChangedBy;
pub use changes::{ChangedItem, Changes};
use checks::{check_bytes, check_count, check_new};
use clock::{Activity, Clock};
pub use commit::{Commit, TableCommit, Unsynced};
pub use configure::{Configured, configure};
pub use eviction::Evicted;
pub use forecast::Forecast;
use forecast::ForecastTimes;
pub use foreign_keys::SlotSet;
use insert_room::InsertRoom;
pub use limiter_hold::LimiterHold;
use operation::wall_clock_ns;
pub use presence::Presence;
pub use restore::Restored;
pub use rollouts::{Growing, GrowingValues, Kept, Takes};
pub use rollouts_status::{OldestLease, OldestOpen, RolloutsStatus};
pub use scan::Scan;
pub use snapshot::{SnapshotCut, TableCut, TableSnapshot};
use state::TableState;
pub use state::{MAX_SAMPLE_BYTES, MAX_SAMPLE_ITEMS, Taken};
pub use statistics::{Removal, Removed, RolloutEvents, Side, Statistics, TableStatus, WaitTimes};
pub use takes::TakeRequest;
pub use transfer::Transferred;
use visits::Lock;
use wait_queues::{Completions, WaitQueues};
pub use wait_reason::{Held, Limit, WaitReason};
pub use watch::{TableChanges, TableWatch, Watched};
use watch::{Versions, Watchers};

/// Receives the outcome of inserts, on any thread that uses the table and without a lock. The
/// methods must neither block nor take long.
pub trait Confirm: Send + Sync {
    /// These items were inserted. They may already have been removed again.
    fn confirmed(&self, keys: &[u64]);

    /// These items are refused, and why. They are confirmed right after that.
    fn refused(&self, _refused: Vec<(u64, Refusal)>) {}

    /// The table was closed. Items of the call without confirmation will not be inserted.
    fn failed(&self, error: Error);
}

/// A bounded collection of items with a sampler, a remover and a rate limiter.
///
/// All methods may be called from any thread. Only `sample`, `sample_with` and
/// `wait_for_insert_room` wait, without the lock. Freeing items can be slow (`reset` of a large
/// table); it happens on the caller's thread after the lock is released.
pub struct Table {
    name: Box<str>,
    room: Notify,
    /// Locked while settings change, so that changes are applied one after another.
    configuring: Ranked<()>,
    /// Notified while a request waits for work that is done in pieces.
    pieces: Notify,
    /// Set while there is a new forecast.
    has_forecast: AtomicBool,
    versions: Versions,
    shared: Lock<Shared>,
}

struct Shared {
    config: Arc<TableConfig>,
    state: TableState,
    queues: WaitQueues,
    room: InsertRoom,
    clock: Clock,
    forecasts: ForecastTimes,
    /// Author of a hold of the rate limiter.
    limiter_off: Option<ChangedBy>,
    watchers: Watchers,
    closed: bool,
}

impl Shared {
    /// Ends an operation; requests that are still queued are blocked now.
    fn now_waits(&mut self, now: Instant) {
        let Self { queues, clock, .. } = self;
        clock.change(queues.waits_for(), now);
        clock.inserts.change(queues.queued_inserts() > 0, now);
        clock.samples.change(queues.waiting_samples() > 0, now);
    }

    /// What is on its way in a table with rollouts.
    fn rollouts_status(&self, now: Instant, now_ns: i64) -> Option<RolloutsStatus> {
        Some(self.state.rollouts()?.status(&self.queues.takes, now, now_ns))
    }

    /// The state of the table.
    fn info(&self) -> TableInfo {
        let Self { config, state, queues, clock, .. } = self;
        TableInfo {
            config: Arc::clone(config),
            current_size: state.num_present() as i64,
            num_inserts: state.limiter().inserts(),
            num_samples: state.limiter().samples(),
            totals: state.totals(),
            num_deletes: state.limiter().deletes(),
            num_episodes: state.num_episodes(),
            num_deleted_episodes: state.num_deleted_episodes(),
            num_unique_samples: state.num_unique_samples(),
            max_priority: state.largest_present(),
            largest_priority: state.largest_ever(),
            worker_time: clock.read(Instant::now()),
            bytes: state.account().bytes(),
            num_chunks: state.account().num_chunks(),
            waiting_inserts: queues.queued_inserts(),
            waiting_bytes: queues.queued_bytes(),
            waiting_samples: queues.waiting_samples(),
            rollouts: state.rollouts_info(),
        }
    }
}

impl Table {
    /// Makes an empty table.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `config` is invalid; see [`TableConfig::validate`].
    pub fn new(config: TableConfig) -> Result<Arc<Self>> {
        config.validate()?;
        let name = config.name.as_str().into();
        let shared = Shared {
            state: TableState::new(&config),
            queues: WaitQueues::default(),
            room: InsertRoom::new(&config, u64::MAX),
            clock: Clock::new(Instant::now()),
            forecasts: ForecastTimes::new(config.max_size),
            limiter_off: None,
            watchers: Watchers::default(),
            closed: false,
            config: Arc::new(config),
        };
        Ok(Arc::new(Self {
            name,
            room: Notify::new(),
            pieces: Notify::new(),
            configuring: Ranked::new(Rank::Settings, ()),
            has_forecast: AtomicBool::new(false),
            versions: Versions::default(),
            shared: Lock::new(shared),
        }))
    }

    /// Makes the table part of a server: its bytes count in the server's account, and writers wait
    /// while more than `insert_room_bytes` of their items, or a tenth of `max_bytes`, are queued.
    /// Its changes notify the watchers of `changes`.
    pub fn join_server(
        &self,
        account: &ServerAccount,
        insert_room_bytes: u64,
        changes: &Arc<TableChanges>,
    ) {
        let mut shared = self.shared.lock();
        shared.watchers.changes = Arc::clone(changes);
        shared.room = InsertRoom::new(&shared.config, insert_room_bytes);
        shared.state.account_mut().move_to(account);
    }

    /// Settings of the table.
    pub fn config(&self) -> Arc<TableConfig> {
        Arc::clone(&self.shared.lock().config)
    }

    /// Name of the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Inserts the items that the rate limiter allows now, and queues the rest after those already
    /// queued.
    ///
    /// Never waits. `confirm` is called for every item when it is inserted, perhaps before this
    /// call returns.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a priority that a selector of this table does not accept, and for an
    /// item larger than `max_bytes`; no item of the call is inserted then. `Cancelled` if the table
    /// is closed. In all cases `confirm` is not called.
    pub fn insert(&self, mut items: Vec<NewItem>, confirm: &Arc<dyn Confirm>) -> Result<()> {
        // Refused items are freed after the lock is released.
        self.take_items(&mut items, confirm, |_, _| ())
    }

    /// Like `insert`. Items that wait or were refused stay in the list, the former as copies; they
    /// are the last ones.
    ///
    /// # Errors
    ///
    /// Those of `insert`; the list is unchanged then.
    pub fn insert_from(&self, items: &mut Vec<NewItem>, confirm: &Arc<dyn Confirm>) -> Result<()> {
        self.take_items(items, confirm, |queues, items| {
            // Requests are served in order, so if any is left, this one is.
            items.extend_from_slice(queues.last_request());
        })
    }

    /// Takes the items out of the list, and calls `finish` with it after inserting them.
    fn take_items(
        &self,
        items: &mut Vec<NewItem>,
        confirm: &Arc<dyn Confirm>,
        finish: impl FnOnce(&WaitQueues, &mut Vec<NewItem>),
    ) -> Result<()> {
        let queue = |shared: &mut Shared, now| {
            let config = &shared.config;
            for item in items.iter() {
                check_new(config, item)?;
                check_bytes(config, &shared.state, item)?;
            }
            if !items.is_empty() {
                shared.queues.queue_inserts(std::mem::take(items), Arc::clone(confirm), now);
            }
            Ok(items)
        };
        self.operate_and(Activity::Inserting, queue, |shared, _, queued| {
            queued.map(|items| finish(&shared.queues, items))
        })?
    }

    /// Removes the queued items of `confirm`.
    pub fn cancel_inserts(&self, confirm: &Arc<dyn Confirm>) {
        // A closed table has no queued items. The items are freed after the lock is released.
        let cancelled = self
            .operate(Activity::Running, |shared, _| shared.queues.cancel_inserts(confirm))
            .unwrap_or_default();
        drop(cancelled);
    }

    /// Refuses the queued items of `confirm`, which have waited for as long as they may.
    pub fn refuse_inserts(&self, confirm: &Arc<dyn Confirm>) {
        let refuse = |shared: &mut Shared, now| {
            (shared.why_insert_waits(now), shared.queues.cancel_inserts(confirm))
        };
        let Ok((reason, items)) = self.operate(Activity::Running, refuse) else { return };
        if !items.is_empty() {
            let keys: Vec<u64> = items.iter().map(|item| item.key).collect();
            let mut reason = reason.map(|reason| reason.to_string());
            let why = |key| (key, Refusal::Waited(reason.take().unwrap_or_default().into()));
            confirm.refused(keys.iter().copied().map(why).collect());
            confirm.confirmed(&keys);
        }
    }

    /// Trajectories of the queued items.
    pub fn queued_trajectories(&self) -> Vec<Trajectory> {
        let mut found = Vec::with_capacity(self.queued_inserts());
        while !self.shared.lock().queues.queued_trajectories(&mut found) {
            // More were queued meanwhile. Memory is allocated without the lock.
            found.clear();
            found.reserve(2 * self.queued_inserts());
        }
        found
    }

    /// New forecast of the memory of a full table, or one that has changed by half since the last
    /// call. Costs almost nothing otherwise.
    pub fn take_forecast(&self) -> Option<Forecast> {
        if !self.has_forecast.swap(false, Ordering::Relaxed) {
            return None;
        }
        let mut shared = self.shared.lock();
        let Shared { state, forecasts, .. } = &mut *shared;
        forecasts.take(state.len(), state.account().bytes())
    }

    /// Number of queued inserts.
    pub fn queued_inserts(&self) -> usize {
        self.shared.lock().queues.queued_inserts()
    }

    /// Removes all items and sets all counters to zero. Queued requests are tried again.
    pub fn reset(&self) {
        // A closed table stays unchanged, because its items are out of reach.
        let contents =
            self.operate(Activity::Running, |shared, _| shared.state.reset(&shared.config));
        if let Ok(Some(contents)) = contents {
            let removed = contents.as_removed();
            self.shared.lock().state.statistics_mut().removed.merge(&removed);
        }
    }

    /// Closes the table: queued samples and inserts fail with `Cancelled`, and so do all later
    /// calls. A closed table cannot be opened again. Closing it twice does nothing.
    pub fn close(&self) {
        let mut done = Completions::default();
        {
            let mut shared = self.shared.lock();
            shared.closed = true;
            shared.queues.close(self.name(), &mut done);
            shared.now_waits(Instant::now());
        }
        done.deliver(self.name());
        self.room.notify_waiters();
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.shared.lock().state.len()
    }

    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the rate limiter allows `n` more samples now. Ignores `max_times_sampled`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `n` is below 1.
    pub fn can_sample(&self, n: i64) -> Result<bool> {
        check_count("num_samples", n)?;
        Ok(self.shared.lock().state.limiter().can_sample(n))
    }

    /// True if the rate limiter allows `n` more inserts now. Ignores `max_size`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if `n` is below 1.
    pub fn can_insert(&self, n: i64) -> Result<bool> {
        check_count("num_inserts", n)?;
        Ok(self.shared.lock().state.limiter().can_insert(n))
    }

    /// Settings, counters and current size.
    pub fn info(&self) -> TableInfo {
        self.shared.lock().info()
    }

    /// Pauses requests of one side or of both until [`Table::resume`]. `by` is reported to blocked
    /// callers.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn pause(&self, inserts: bool, samples: bool, by: &ChangedBy) -> Result<()> {
        self.operate(Activity::Running, |shared, _| {
            let paused = &mut shared.queues.paused;
            if inserts {
                paused.inserts.get_or_insert_with(|| by.clone());
            }
            if samples {
                paused.samples.get_or_insert_with(|| by.clone());
            }
        })
    }

    /// Resumes requests of one side or of both.
    ///
    /// # Errors
    ///
    /// `Cancelled` if the table is closed.
    pub fn resume(&self, inserts: bool, samples: bool) -> Result<()> {
        self.operate(Activity::Running, |shared, _| {
            let paused = &mut shared.queues.paused;
            paused.inserts.take_if(|_| inserts);
            paused.samples.take_if(|_| samples);
        })
    }

    /// Time since which the request waits that has waited longest; `None` if none waits.
    pub fn longest_wait_since(&self) -> Option<Instant> {
        let now = Instant::now();
        let queues = &self.shared.lock().queues;
        now.checked_sub(queues.oldest_insert(now).max(queues.oldest_sample(now))?)
    }

    /// All counters of the table.
    pub fn status(&self) -> TableStatus {
        let shared = self.shared.lock();
        let Shared { state, queues, clock, limiter_off, .. } = &*shared;
        let now = Instant::now();
        TableStatus {
            info: shared.info(),
            statistics: *state.statistics(),
            restored: state.restored(),
            cursor: state.limiter().cursor(),
            mass: state.mass(),
            limiter_off: limiter_off.clone(),
            inserting: Side {
                oldest_wait: queues.oldest_insert(now),
                blocked: clock.inserts.read(now),
                reason: shared.why_insert_waits(now),
            },
            sampling: Side {
                oldest_wait: queues.oldest_sample(now),
                blocked: clock.samples.read(now),
                reason: shared.why_sample_waits(),
            },
            rollouts: shared.rollouts_status(now, wall_clock_ns()),
        }
    }

    /// Bytes of the items and their chunks, each chunk once.
    pub fn bytes(&self) -> u64 {
        self.shared.lock().state.account().bytes()
    }
}

impl Drop for Table {
    /// Queued inserts fail, because the table is gone.
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("config", &self.config()).finish_non_exhaustive()
    }
}
