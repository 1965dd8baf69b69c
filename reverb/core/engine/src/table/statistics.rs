// SPDX-License-Identifier: Apache-2.0
//! Statistics: events of a table since it was made. A reset does not change them.

use std::time::Duration;

use reverb_data::{Sampled, TableInfo, Totals};

use super::changed_by::ChangedBy;
use super::rollouts_status::RolloutsStatus;
use super::wait_reason::WaitReason;
use crate::histogram::Histogram;

/// Reason why an item left its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// The table had more items than `max_size`.
    Full,
    /// The table, or the server, had more bytes than `max_bytes`.
    Bytes,
    /// The item was sampled `max_times_sampled` times.
    SampledOut,
    /// A client deleted it.
    Deleted,
    /// The table was reset.
    Reset,
    /// The table was made smaller.
    Shrunk,
    /// A payload of the item could not be read back from disk.
    Lost,
    /// Too few of its rollouts were made, or too many clients lost it.
    Failed,
    /// It was staler than its table allows.
    Stale,
    /// Another one with its key took its place.
    Replaced,
}

impl Removal {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Full,
        Self::Bytes,
        Self::SampledOut,
        Self::Deleted,
        Self::Reset,
        Self::Shrunk,
        Self::Lost,
        Self::Failed,
        Self::Stale,
        Self::Replaced,
    ];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Bytes => "bytes",
            Self::SampledOut => "sampled_out",
            Self::Deleted => "deleted",
            Self::Reset => "reset",
            Self::Shrunk => "shrunk",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::Stale => "stale",
            Self::Replaced => "replaced",
        }
    }
}

/// Waits in microseconds: up to 1 us, 2 us, ... 2^32 us = 1.2 h, and longer.
pub type WaitTimes = Histogram<34>;
/// Ages in milliseconds: up to 1 ms, 2 ms, ... 2^30 ms = 12 days, and older.
pub(super) type Ages = Histogram<32>;
/// Numbers of samples: none, up to 1, 2, 4, ... 2^20, and more.
pub(super) type TimesSampled = Histogram<22>;

/// Twice the staleness in versions, so that fresh items have a count of their own.
pub(super) type Staleness = Histogram<22>;

/// Events of a table since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of items added. Inserts of a known key count as priority updates.
    pub inserts: u64,
    /// Items that got a new priority.
    pub priority_updates: u64,
    /// Items that left.
    pub removed: Removed,
    /// Age of each sample in milliseconds; as many values as samples.
    pub sample_ages: Ages,
    /// Wait of each item for its insert, in microseconds.
    pub insert_waits: WaitTimes,
    /// Wait of each request for its first sample, in microseconds.
    pub sample_waits: WaitTimes,
    /// Time of the last added item, in nanoseconds since 1970; 0: never.
    pub last_insert_ns: i64,
    /// Time of the last sample, in nanoseconds since 1970; 0: never.
    pub last_sample_ns: i64,
    /// Events of items with rollouts.
    pub rollouts: RolloutEvents,
}

/// Events of items with rollouts since their table was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RolloutEvents {
    /// Final rollouts.
    pub added: u64,
    /// Rollouts that were given up.
    pub failed: u64,
    /// Items that are prompts again, because they became stale or the memory was full.
    pub again: u64,
    /// Items whose client was lost, or held them for too long.
    pub lost: u64,
    /// Items that were too stale when they were done, and rollouts that were too old, since the
    /// last item became ready.
    pub stale_in_a_row: u64,
    /// Newest version of the policy in the last of them.
    pub stale_version: i64,
    /// Twice the staleness of each taken item, in versions.
    pub staleness: Staleness,
}

impl RolloutEvents {
    /// Something that was done is too stale; `newest` is its newest version.
    pub(super) fn count_done_stale(&mut self, newest: i64) {
        self.stale_in_a_row += 1;
        self.stale_version = newest;
    }

    pub(super) fn count_staleness(&mut self, versions: i64) {
        self.staleness.add(2 * versions.max(0).cast_unsigned());
    }
}

impl Statistics {
    pub(super) fn count_samples(&mut self, sampled: &[Sampled], now_ns: i64) {
        const NS_PER_MS: u64 = 1_000_000;
        if sampled.is_empty() {
            return;
        }
        self.last_sample_ns = now_ns;
        for item in sampled {
            // Clocks may be set back.
            let age_ns = u64::try_from(now_ns.saturating_sub(item.inserted_at_ns)).unwrap_or(0);
            self.sample_ages.add(age_ns / NS_PER_MS);
        }
    }
}

/// The items that left a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    by_reason: [u64; Removal::ALL.len()],
    unsampled: u64,
    /// Number of samples of each removed item that was sampled.
    sampled: TimesSampled,
}

impl Removed {
    /// Number of items that left for this reason.
    pub fn of(&self, reason: Removal) -> u64 {
        self.by_reason[reason as usize]
    }

    /// Numbers of items that left, as [`Removal::ALL`].
    pub fn by_reason(&self) -> &[u64; Removal::ALL.len()] {
        &self.by_reason
    }

    /// Number of removed items that were never sampled.
    pub fn unsampled(&self) -> u64 {
        self.unsampled
    }

    /// Number of samples of each other removed item.
    pub fn sampled(&self) -> &TimesSampled {
        &self.sampled
    }

    pub(super) fn count(&mut self, reason: Removal, times_sampled: i32) {
        self.by_reason[reason as usize] += 1;
        match u64::try_from(times_sampled) {
            Ok(times @ 1..) => self.sampled.add(times),
            _ => self.unsampled += 1,
        }
    }

    /// Adds the counts of other items.
    pub(super) fn merge(&mut self, other: &Self) {
        let all = |mine: &mut [u64], others: &[u64]| {
            mine.iter_mut().zip(others).for_each(|(mine, other)| *mine += other);
        };
        all(&mut self.by_reason, &other.by_reason);
        self.unsampled += other.unsampled;
        self.sampled.merge(&other.sampled);
    }
}

/// A table at one moment.
#[derive(Debug, Clone)]
pub struct TableStatus {
    /// Settings, counters and size.
    pub info: TableInfo,
    /// Events so far.
    pub statistics: Statistics,
    /// Items inserted and sampled before the table was restored.
    pub restored: Totals,
    /// Inserts times `samples_per_insert` minus samples, which the limiter keeps within bounds.
    pub cursor: f64,
    /// Sum of the weights of all items, if the sampler has weights.
    pub mass: Option<f64>,
    /// Author of a hold of the rate limiter, if there is one.
    pub limiter_off: Option<ChangedBy>,
    /// Waits of inserts.
    pub inserting: Side,
    /// Waits of sample requests, and of takes of ready items.
    pub sampling: Side,
    /// Items with rollouts, if the table has such items.
    pub rollouts: Option<RolloutsStatus>,
}

/// Waits of one side of a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Side {
    /// Wait of the first insert in the queue; longest wait of a sample request there.
    pub oldest_wait: Option<Duration>,
    /// Total time in which at least one request waited.
    pub blocked: Duration,
    /// Reason of the first request in the queue; if the queue is empty, of the next one.
    pub reason: Option<WaitReason>,
}

impl Side {
    /// Reason of the first request in the queue, as sentences; `None` if the queue is empty.
    pub fn why_it_waits(&self) -> Option<String> {
        let reason = self.reason.as_ref().filter(|_| self.oldest_wait.is_some());
        reason.map(ToString::to_string)
    }

    /// Author of the pause, if the side is paused.
    pub fn paused(&self) -> Option<&ChangedBy> {
        match &self.reason {
            Some(WaitReason::Paused(by)) => Some(by),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{insert, table};
    use super::*;

    #[test]
    fn ages_of_samples_are_milliseconds() {
        let table = table(1);
        insert(&table, 1);
        let mut sampled = table.try_sample(1).unwrap();
        sampled[0].inserted_at_ns = 1_000_000_000;
        let mut statistics = Statistics::default();
        statistics.count_samples(&sampled, 6_000_000_000);
        assert_eq!((statistics.sample_ages.count(), statistics.sample_ages.sum()), (1, 5000));
        assert_eq!(statistics.last_sample_ns, 6_000_000_000);
    }
}
