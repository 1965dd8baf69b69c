// SPDX-License-Identifier: Apache-2.0
//! What is on its way in a table with rollouts: for the status, and for calls that wait.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_base::diagnosis::since;
use reverb_base::figures::{plural, seconds};
use reverb_data::rollouts::{Outcome, RolloutsInfo, Stage};

use super::rollouts::{Growing, Lease, Rollouts, Takes};
use super::takes::TakeQueue;

/// The items of a table with rollouts at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RolloutsStatus {
    /// Numbers of items by stage, version and backlog.
    pub info: RolloutsInfo,
    /// Limit of the backlog; `None` for none.
    pub max_backlog: Option<u64>,
    /// Open items that generators hold.
    pub open_held: u64,
    /// Settled items that stages hold.
    pub settled_held: u64,
    /// A column that free settled items lack, and for which no take waits.
    pub unserved: Option<u32>,
    /// Items that left as failed since the version was set.
    pub failed: u64,
    /// Items that became stale since then.
    pub stale: u64,
    /// The open item that was inserted first.
    pub oldest_open: Option<OldestOpen>,
    /// The lease of a learner that has lasted longest.
    pub oldest_lease: Option<OldestLease>,
    /// Time since the last rollout was accepted; `None`: never, since the table was made.
    pub last_rollout: Option<Duration>,
    /// Number of takes of open items that wait.
    pub waiting_open: usize,
    /// Number of takes of settled items that wait.
    pub waiting_settled: usize,
}

/// The open item that was inserted first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldestOpen {
    /// Its name; empty for none.
    pub name: Box<str>,
    /// Time since it was inserted.
    pub age: Duration,
    /// Number of its final rollouts.
    pub num_final: u32,
    /// Number of rollouts that it will have.
    pub num_rollouts: u32,
    /// Name of the client that holds it, if one does.
    pub holder: Option<Arc<str>>,
}

/// A lease of a learner on ready items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldestLease {
    /// Name of the client.
    pub holder: Arc<str>,
    /// Number of its items.
    pub num_items: usize,
    /// Time since they were taken.
    pub age: Duration,
}

/// An item for which learners wait, although others are ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Straggler {
    name: Box<str>,
    /// Oldest version in it.
    oldest: i64,
    /// Number of items like it: this one, and younger ones.
    num_items: usize,
    max_staleness: u32,
    /// Numbers of its final rollouts, and of those that it will have; `None` once it is settled.
    rollouts: Option<(u32, u32)>,
    /// Who holds it, and for how long.
    hold: Option<(Arc<str>, Duration)>,
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, oldest, num_items, max_staleness, rollouts, hold } = self;
        let name = if name.is_empty() { "an item" } else { name };
        let are = if *num_items == 1 { "is" } else { "are" };
        write!(
            f,
            "{} that {are} not ready would then get staler than max_staleness ({max_staleness}), \
             the first of them {name} of version {oldest}: it ",
            plural(*num_items as i64, "item", "items"),
        )?;
        match rollouts {
            Some((num_final, num_rollouts)) => {
                write!(f, "has {num_final} of {num_rollouts} rollouts")?;
            }
            None => write!(f, "lacks columns")?,
        }
        match hold {
            Some((holder, time)) => write!(f, ", held by {holder} for {}", seconds(*time)),
            None => write!(f, ", held by no client"),
        }
    }
}

impl fmt::Display for OldestOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, age, num_final, num_rollouts, holder } = self;
        let name = if name.is_empty() { "an item" } else { name };
        write!(f, "for {}: {name} has {num_final} of {num_rollouts} rollouts", seconds(*age))?;
        match holder {
            Some(holder) => write!(f, ", held by {holder}"),
            None => write!(f, ", held by no client"),
        }
    }
}

impl fmt::Display for OldestLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = plural(self.num_items as i64, "item", "items");
        write!(f, "{items} for {} by {}", seconds(self.age), self.holder)
    }
}

/// Clauses: where the items are, what became of others, and when the last rollout came.
impl fmt::Display for RolloutsStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RolloutsInfo { open, settled, ready, ready_held, taken, version, .. } = self.info;
        let free = ready.saturating_sub(ready_held);
        write!(f, "{open} open")?;
        if let Some(oldest) = &self.oldest_open {
            write!(f, " (the oldest {oldest})")?;
        }
        write!(f, ", {settled} settled, {free} ready, {ready_held} held by learners")?;
        if let Some(lease) = &self.oldest_lease {
            write!(f, " ({lease})")?;
        }
        write!(
            f,
            "; since version {version} was set {taken} were taken, {} failed and {} became stale",
            self.failed, self.stale
        )?;
        match self.last_rollout {
            Some(ago) => write!(f, "; the last rollout came {} ago", seconds(ago)),
            None => write!(f, "; no rollout has come since the start"),
        }
    }
}

impl Rollouts {
    /// What a take of more items waits for, if it is an item that is not ready.
    pub(super) fn straggler(&self, now: Instant) -> Option<Straggler> {
        let (item, num_items) = self.oldest_unready()?;
        let settings = self.settings();
        let is_open = item.stage == Stage::Open;
        let hold = |lease: Lease| {
            (self.name_of(lease.id.holder), now.saturating_duration_since(lease.since))
        };
        Some(Straggler {
            name: item.name.clone(),
            oldest: item.oldest()?,
            num_items,
            max_staleness: settings.max_staleness?,
            rollouts: is_open
                .then(|| (item.count(|it| *it == Outcome::Final), settings.num_rollouts)),
            hold: item.lease.map(hold),
        })
    }

    /// What is on its way.
    pub(super) fn status(&self, takes: &TakeQueue, now: Instant, now_ns: i64) -> RolloutsStatus {
        let settings = self.settings();
        let named = |holder| self.name_of(holder);
        let oldest_open = self.oldest_open().map(|item: &Growing| OldestOpen {
            name: item.name.clone(),
            age: since(item.values.inserted_at_ns, now_ns).unwrap_or_default(),
            num_final: item.count(|it| *it == Outcome::Final),
            num_rollouts: settings.num_rollouts,
            holder: item.holder().map(named),
        });
        let oldest_lease = self.oldest_lease(Stage::Ready).map(|(lease, num_items): (Lease, _)| {
            let age = now.saturating_duration_since(lease.since);
            OldestLease { holder: named(lease.id.holder), num_items, age }
        });
        let (failed, stale) = self.left_since_version();
        RolloutsStatus {
            info: self.info(),
            max_backlog: settings.backlog(),
            open_held: self.num_open_held(),
            settled_held: self.num_settled_held(),
            unserved: self.lacking_columns().find(|&it| takes.num_waiting(Takes::Lacking(it)) == 0),
            failed,
            stale,
            oldest_open,
            oldest_lease,
            last_rollout: self.last_rollout.map(|at| now.saturating_duration_since(at)),
            waiting_open: takes.num_waiting(Takes::Open),
            waiting_settled: takes.num_of_stages(),
        }
    }
}
