// SPDX-License-Identifier: Apache-2.0
//! Watches of tables: numbers for the clients of a group, and notifications of changes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::{Shared, Table};

/// Relative change of the mass below which it counts as unchanged.
const MASS_TOLERANCE: f64 = 0.01;

/// Numbers of a table that watchers get.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Watched {
    /// Number of items.
    pub size: i64,
    /// Largest priority of all items, if there are any and the sampler knows it.
    pub max_priority: Option<f64>,
    /// Sum of the weights of all items, or their number if the sampler has no weights.
    pub mass: f64,
    /// Inserts that the limiter counted times `samples_per_insert`, minus samples that it counted.
    pub cursor: f64,
    /// Inserts that the limiter counted.
    pub num_inserts: i64,
    /// Samples that the limiter counted.
    pub num_samples: i64,
    /// Deletes that the limiter counted.
    pub num_deletes: i64,
    /// Smallest cursor after a sample, in force.
    pub min_diff: f64,
    /// Largest cursor after an insert, in force.
    pub max_diff: f64,
    /// Smallest number of items at which the table can be sampled, in force.
    pub min_size_to_sample: i64,
    /// True if the limiter blocks an insert.
    pub insert_waits: bool,
    /// True if the limiter blocks a sample.
    pub sample_waits: bool,
    /// True if items with foreign keys are possible.
    pub has_foreign_keys: bool,
}

impl Watched {
    /// True if watchers that know `other` need an update.
    fn differs_from(&self, other: &Self) -> bool {
        let has_moved = |now: f64, known: f64| (now - known).abs() > MASS_TOLERANCE * known.abs();
        has_moved(self.mass, other.mass)
            || has_moved(
                self.max_priority.unwrap_or_default(),
                other.max_priority.unwrap_or_default(),
            )
            || self.without_counters() != other.without_counters()
    }

    /// The numbers without the mass, the largest priority, and those that follow from others.
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

    /// True if watchers that know `other` need an update at once: a request is newly blocked, or an
    /// empty table has items.
    fn is_urgent_after(&self, other: &Self) -> bool {
        (self.insert_waits && !other.insert_waits)
            || (self.sample_waits && !other.sample_waits)
            || (self.size > 0 && other.size == 0)
    }
}

/// Notifies the watchers of a server's tables, which then look for changes themselves.
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

    /// Notified with urgent changes.
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

/// Watchers of a table, and the numbers that they know.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    count: usize,
    /// Numbers at the last notification.
    known: Watched,
    /// Those of the table's server.
    pub(super) changes: Arc<TableChanges>,
}

/// Numbers of changes that watchers need.
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
    pub(super) fn notify(self) {
        self.changes.notify(self.is_urgent);
    }
}

impl Shared {
    /// Watchers to notify after an operation. Costs one comparison for a table without watchers.
    #[inline]
    pub(super) fn news(&mut self, versions: &Versions) -> Option<News> {
        if self.watchers.count == 0 { None } else { self.news_for_watchers(versions) }
    }

    fn news_for_watchers(&mut self, versions: &Versions) -> Option<News> {
        let now = self.watched();
        let Watchers { known, changes, .. } = &mut self.watchers;
        if !now.differs_from(known) {
            return None;
        }
        let is_urgent = now.is_urgent_after(known);
        *known = now;
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
    /// Current numbers for watchers.
    pub fn watched(&self) -> Watched {
        self.shared.lock().watched()
    }

    /// Watches the table until the result is dropped. The first look reports all.
    pub fn watch(self: &Arc<Self>) -> TableWatch {
        let mut shared = self.shared.lock();
        if shared.watchers.count == 0 {
            shared.watchers.known = shared.watched();
        }
        shared.watchers.count += 1;
        TableWatch { table: Arc::downgrade(self), seen: None }
    }
}

/// A watcher of a table. Does not keep the table alive.
#[derive(Debug)]
pub struct TableWatch {
    table: Weak<Table>,
    /// Versions at the last look.
    seen: Option<(u64, u64)>,
}

impl TableWatch {
    /// Two flags: the table has changed since the last look, and the change is urgent.
    pub fn has_changed(&self) -> (bool, bool) {
        let Some(table) = self.table.upgrade() else { return (false, false) };
        let Some((any, urgent)) = self.seen else { return (true, true) };
        let versions = &table.versions;
        let is_urgent = versions.urgent.load(Ordering::Relaxed) != urgent;
        (versions.any.load(Ordering::Relaxed) != any, is_urgent)
    }

    /// Current numbers of the table; `None` if it is gone.
    pub fn look(&mut self) -> Option<Watched> {
        let table = self.table.upgrade()?;
        let shared = table.shared.lock();
        // Versions change only under the lock.
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
