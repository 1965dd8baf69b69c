// SPDX-License-Identifier: Apache-2.0
//! `ShardLease`: the time that a writer keeps sending to one shard of a group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_data::NewItem;
use reverb_wire::transport::ShardRoute;

/// Age at which a lease ends with the next episode, so that all shards get items of all writers.
const MAX_TIME: Duration = Duration::from_secs(60);

/// Interval at which a writer looks for a better shard, and the shortest lease.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Time that a writer that wants to leave waits for an item without chunks of earlier items. After
/// that, the chunks of its next items are stored at both shards.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time that a writer is at one shard of its group.
pub(super) struct ShardLease {
    pub(super) shard: ShardRoute,
    /// The tables of its items.
    tables: Vec<Arc<str>>,
    began: Instant,
    looks_at: Instant,
    /// Time since when another shard is better.
    is_over_since: Option<Instant>,
}

impl ShardLease {
    /// Begins now.
    pub(super) fn begin(shard: ShardRoute) -> Self {
        let began = Instant::now();
        let looks_at = began + LOOK_INTERVAL;
        Self { shard, tables: Vec::new(), began, looks_at, is_over_since: None }
    }

    /// Remembers the tables of items.
    pub(super) fn writes(&mut self, items: &[NewItem]) {
        let mut last: Option<&Arc<str>> = None;
        for NewItem { table, .. } in items {
            if last.is_some_and(|last| Arc::ptr_eq(last, table)) {
                continue;
            }
            last = Some(table);
            if !self.tables.iter().any(|known| Arc::ptr_eq(known, table) || known == table) {
                self.tables.push(Arc::clone(table));
            }
        }
    }

    /// True if the lease ends before the next item.
    ///
    /// `has_better_shard` is called once a second with the tables and the shard's index, and
    /// returns true if another shard is better; `continues` returns true if the next item shares
    /// chunks with items that are at this shard.
    pub(super) fn ends(
        &mut self,
        now: Instant,
        has_ended_episode: bool,
        has_better_shard: impl FnOnce(i32, &[Arc<str>]) -> bool,
        continues: impl FnOnce() -> bool,
    ) -> bool {
        if has_ended_episode && now.duration_since(self.began) >= MAX_TIME {
            return true;
        }
        if now >= self.looks_at {
            self.looks_at = now + LOOK_INTERVAL;
            let is_over = has_better_shard(self.shard.index, &self.tables);
            self.is_over_since = is_over.then(|| self.is_over_since.unwrap_or(now));
        }
        let Some(since) = self.is_over_since else { return false };
        has_ended_episode || now.duration_since(since) >= PATIENCE || !continues()
    }
}

#[cfg(test)]
mod tests {
    use reverb_data::KeySlots;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease() -> ShardLease {
        ShardLease::begin(ShardRoute { index: 3, slots: Arc::new(KeySlots::ALL) })
    }

    #[test]
    fn it_ends_between_chunks_when_there_is_a_better_place() {
        let mut lease = lease();
        let at = |seconds: u32| lease_at(&lease, seconds);
        let early = at(0);
        let now = at(1);
        let later = at(2);
        assert!(!lease.ends(early, true, |_, _| true, || false), "it looks once a second");
        assert!(!lease.ends(now, false, |_, _| true, || true), "a chunk would be cut");
        assert!(lease.ends(now, false, |_, _| unreachable!(), || false));
        assert!(lease.ends(now, true, |_, _| unreachable!(), || true), "an episode has ended");
        assert!(!lease.ends(later, true, |_, _| false, || false), "the other one is full by now");
    }

    #[test]
    fn items_that_always_share_chunks_do_not_hold_it_up_for_long() {
        let mut lease = lease();
        let at: Vec<Instant> = (0..=6).map(|seconds| lease_at(&lease, seconds)).collect();
        assert!(!(1..6).any(|i| lease.ends(at[i], false, |_, _| true, || true)));
        assert!(lease.ends(at[6], false, |_, _| true, || true));
    }

    #[test]
    fn it_ends_with_an_episode_after_a_minute() {
        let mut lease = lease();
        let minute = lease_at(&lease, 60);
        let before = lease_at(&lease, 59);
        assert!(!lease.ends(before, true, |_, _| false, || false));
        assert!(!lease.ends(minute, false, |_, _| false, || false));
        assert!(lease.ends(minute, true, |_, _| false, || false));
    }

    fn lease_at(lease: &ShardLease, seconds: u32) -> Instant {
        lease.began + SECOND * seconds
    }
}
