// SPDX-License-Identifier: Apache-2.0
//! Watching tables: what the clients of a group of servers need to know of each, and when it has
//! changed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::{Shared, Table};

/// A mass that has moved by less than this share counts as unchanged.
const MASS_TOLERANCE: f64 = 0.01;

/// What watchers see of a table.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Watched {
    /// Number of items.
    pub size: i64,
    /// The largest priority of all items, if the sampler knows it; `None` also without items.
    pub max_priority: Option<f64>,
    /// Sum of the weights of all items; their number if the sampler has no weights.
    pub mass: f64,
    /// Inserts that the limiter counted times `samples_per_insert`, minus samples that it counted.
    pub cursor: f64,
    /// Inserts that the limiter counted.
    pub num_inserts: i64,
    /// Samples that the limiter counted.
    pub num_samples: i64,
    /// Deletes that the limiter counted.
    pub num_deletes: i64,
    /// The smallest cursor after a sample, as it is in force.
    pub min_diff: f64,
    /// The largest cursor after an insert, as it is in force.
    pub max_diff: f64,
    /// Number of items from which on items are sampled, as it is in force.
    pub min_size_to_sample: i64,
    /// Whether an insert waits for the limiter.
    pub insert_waits: bool,
    /// Whether a sample waits for the limiter.
    pub sample_waits: bool,
    /// Whether there may be items with keys of slots that the server never owned.
    pub has_foreign_keys: bool,
}

impl Watched {
    /// Whether somebody who knows `other` must learn of it.
    fn differs_from(&self, other: &Self) -> bool {
        let has_moved = |now: f64, told: f64| (now - told).abs() > MASS_TOLERANCE * told.abs();
        has_moved(self.mass, other.mass)
            || has_moved(
                self.max_priority.unwrap_or_default(),
                other.max_priority.unwrap_or_default(),
            )
            || self.without_counters() != other.without_counters()
    }

    /// All but the mass, the largest priority, and what changes only together with other numbers.
    fn without_counters(&self) -> Self {
        Self {
            mass: 0.0,
            max_priority: None,
            num_inserts: 0,
            num_samples: 0,
            num_deletes: 0,
            ..*self
        }
    }

    /// Whether somebody who knows `other` must learn of it at once: a request has begun to wait, or
    /// an empty table has items.
    fn is_urgent_after(&self, other: &Self) -> bool {
        (self.insert_waits && !other.insert_waits)
            || (self.sample_waits && !other.sample_waits)
            || (self.size > 0 && other.size == 0)
    }
}

/// Wakes the watchers of the tables of a server. They look themselves for what has changed.
#[derive(Debug, Default)]
pub struct TableChanges {
    any: Notify,
    urgent: Notify,
}

impl TableChanges {
    /// Notified with every change.
    pub fn any(&self) -> &Notify {
        &self.any
    }

    /// Notified with changes that watchers must learn of at once.
    pub fn urgent(&self) -> &Notify {
        &self.urgent
    }

    /// Wakes all watchers.
    pub fn notify(&self, is_urgent: bool) {
        if is_urgent {
            self.urgent.notify_waiters();
        }
        self.any.notify_waiters();
    }
}

/// Who watches a table, and what they were told.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    count: usize,
    /// The table when the watchers were woken last.
    told: Watched,
    changes: Arc<TableChanges>,
}

/// How often watchers had to be told of the table.
#[derive(Debug, Default)]
pub(super) struct Versions {
    any: AtomicU64,
    urgent: AtomicU64,
}

/// Watchers to wake after the table is unlocked.
#[must_use]
pub(super) struct News {
    changes: Arc<TableChanges>,
    is_urgent: bool,
}

impl News {
    pub(super) fn tell(self) {
        self.changes.notify(self.is_urgent);
    }
}

impl Shared {
    /// Whom to wake after an operation. Costs a comparison for a table that nobody watches.
    #[inline]
    pub(super) fn news(&mut self, versions: &Versions) -> Option<News> {
        if self.watchers.count == 0 { None } else { self.news_for_watchers(versions) }
    }

    fn news_for_watchers(&mut self, versions: &Versions) -> Option<News> {
        let now = self.watched();
        let Watchers { told, changes, .. } = &mut self.watchers;
        if !now.differs_from(told) {
            return None;
        }
        let is_urgent = now.is_urgent_after(told);
        *told = now;
        versions.any.fetch_add(1, Ordering::Relaxed);
        versions.urgent.fetch_add(u64::from(is_urgent), Ordering::Relaxed);
        Some(News { changes: Arc::clone(changes), is_urgent })
    }

    pub(super) fn watched(&self) -> Watched {
        let state = &self.state;
        let limiter = state.limiter();
        let (insert_waits, sample_waits) = self.held_by_limiter();
        let size = state.len() as i64;
        let bounds = limiter.bounds();
        Watched {
            size,
            max_priority: state.largest_present(),
            mass: state.mass().unwrap_or(size as f64),
            cursor: limiter.cursor(),
            num_inserts: limiter.inserts(),
            num_samples: limiter.samples(),
            num_deletes: limiter.deletes(),
            min_diff: bounds.min_diff,
            max_diff: bounds.max_diff,
            min_size_to_sample: bounds.min_size_to_sample,
            insert_waits,
            sample_waits,
            has_foreign_keys: state.has_foreign_keys(),
        }
    }
}

impl Table {
    /// What watchers see of it now.
    pub fn watched(&self) -> Watched {
        self.shared.lock().watched()
    }

    /// Watches it until the result is dropped. The first look at it is new.
    pub fn watch(self: &Arc<Self>) -> TableWatch {
        let mut shared = self.shared.lock();
        if shared.watchers.count == 0 {
            shared.watchers.told = shared.watched();
        }
        shared.watchers.count += 1;
        TableWatch { table: Arc::downgrade(self), seen: None }
    }

    /// Whom its changes wake: the watchers of the server that it is a table of.
    pub(super) fn set_changes(shared: &mut Shared, changes: &Arc<TableChanges>) {
        shared.watchers.changes = Arc::clone(changes);
    }
}

/// A watcher of a table. Does not keep it alive.
#[derive(Debug)]
pub struct TableWatch {
    table: Weak<Table>,
    /// The versions at the last look.
    seen: Option<(u64, u64)>,
}

impl TableWatch {
    /// Whether the table has changed since the last look, and whether one must look at once.
    pub fn has_changed(&self) -> (bool, bool) {
        let Some(table) = self.table.upgrade() else { return (false, false) };
        let Some((any, urgent)) = self.seen else { return (true, true) };
        let versions = &table.versions;
        let is_urgent = versions.urgent.load(Ordering::Relaxed) != urgent;
        (versions.any.load(Ordering::Relaxed) != any, is_urgent)
    }

    /// The table as it is now; `None` if it is gone.
    pub fn look(&mut self) -> Option<Watched> {
        let table = self.table.upgrade()?;
        let shared = table.shared.lock();
        // They change under the lock alone.
        let versions = &table.versions;
        let any = versions.any.load(Ordering::Relaxed);
        self.seen = Some((any, versions.urgent.load(Ordering::Relaxed)));
        Some(shared.watched())
    }
}

impl Drop for TableWatch {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.shared.lock().watchers.count -= 1;
        }
    }
}
