// SPDX-License-Identifier: Apache-2.0
//! How long a writer stays at a shard of a group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reverb_data::NewItem;
use reverb_wire::transport::ShardRoute;

/// After the first episode that ends when it is this old, a stay ends: so all shards get items of
/// all writers.
const MAX_TIME: Duration = Duration::from_secs(60);

/// How often a writer looks whether another shard is better. It stays as long at least.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a writer that wants to go waits for an item that shares no chunk with those before.
/// Then the chunks of its next items are stored at both shards.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time that a writer is at a shard.
pub(super) struct Stay {
    pub(super) shard: ShardRoute,
    /// The tables of its items.
    tables: Vec<Arc<str>>,
    began: Instant,
    looks_at: Instant,
    /// Since when another shard is better.
    is_over_since: Option<Instant>,
}

impl Stay {
    /// It begins now.
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

    /// Whether it ends before the next item.
    ///
    /// `has_better_shard` says whether there is a better shard for these tables than the one with
    /// this index, and is asked once a second; `continues`, whether the next item shares chunks
    /// with those that are at this shard.
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

    fn stay() -> Stay {
        Stay::begin(ShardRoute { index: 3, slots: Arc::new(KeySlots::ALL) })
    }

    #[test]
    fn it_ends_between_chunks_when_there_is_a_better_place() {
        let mut stay = stay();
        let at = |seconds: u32| stay_at(&stay, seconds);
        let (early, now, later) = (at(0), at(1), at(2));
        assert!(!stay.ends(early, true, |_, _| true, || false), "it looks once a second");
        assert!(!stay.ends(now, false, |_, _| true, || true), "a chunk would be cut");
        assert!(stay.ends(now, false, |_, _| unreachable!(), || false));
        assert!(stay.ends(now, true, |_, _| unreachable!(), || true), "an episode has ended");
        assert!(!stay.ends(later, true, |_, _| false, || false), "the other one is full by now");
    }

    #[test]
    fn items_that_always_share_chunks_do_not_hold_it_up_for_long() {
        let mut stay = stay();
        let at: Vec<Instant> = (0..=6).map(|seconds| stay_at(&stay, seconds)).collect();
        assert!(!(1..6).any(|i| stay.ends(at[i], false, |_, _| true, || true)));
        assert!(stay.ends(at[6], false, |_, _| true, || true));
    }

    #[test]
    fn it_ends_with_an_episode_after_a_minute() {
        let mut stay = stay();
        let (minute, before) = (stay_at(&stay, 60), stay_at(&stay, 59));
        assert!(!stay.ends(before, true, |_, _| false, || false));
        assert!(!stay.ends(minute, false, |_, _| false, || false));
        assert!(stay.ends(minute, true, |_, _| false, || false));
    }

    fn stay_at(stay: &Stay, seconds: u32) -> Instant {
        stay.began + SECOND * seconds
    }
}
