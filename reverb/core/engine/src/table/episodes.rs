// SPDX-License-Identifier: Apache-2.0
//! Number of episodes with items in a table.

use hashbrown::HashMap;
use reverb_data::Trajectory;

/// References from items to chunks, counted per episode.
///
/// Many items that come or go one after another are mostly of the same episode. They are counted
/// together, apart from the others.
#[derive(Debug, Default)]
pub(super) struct Episodes {
    /// References without those in `added` and with those in `removed`.
    references: HashMap<u64, u64>,
    /// References of the last items that were added.
    added: Run,
    /// References of the last items that were removed, of another episode than `added`.
    removed: Run,
    num_deleted: i64,
}

/// References to chunks of one episode; none if there are no chunks.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    episode: u64,
    chunks: u64,
}

impl Run {
    /// True if it has chunks of this episode.
    fn is_of(&self, episode: u64) -> bool {
        self.chunks > 0 && self.episode == episode
    }
}

impl Episodes {
    /// Counts of an empty table, after `num_deleted` deleted episodes.
    pub(super) fn after(num_deleted: i64) -> Self {
        Self { num_deleted, ..Self::default() }
    }

    /// Number of episodes with an item.
    pub(super) fn num_present(&self) -> i64 {
        let Run { episode, chunks } = self.added;
        let is_new = chunks > 0 && !self.references.contains_key(&episode);
        self.references.len() as i64 + i64::from(is_new) - i64::from(self.has_just_lost_one())
    }

    /// Number of times that an episode lost its last item.
    pub(super) fn num_deleted(&self) -> i64 {
        self.num_deleted + i64::from(self.has_just_lost_one())
    }

    pub(super) fn add(&mut self, trajectory: &Trajectory) {
        for_each_run(trajectory, |episode, chunks| {
            if self.added.is_of(episode) {
                self.added.chunks += chunks;
                return;
            }
            self.count_added();
            if self.removed.is_of(episode) {
                self.count_removed();
            }
            self.added = Run { episode, chunks };
        });
    }

    pub(super) fn remove(&mut self, trajectory: &Trajectory) {
        for_each_run(trajectory, |episode, chunks| {
            if self.removed.is_of(episode) {
                self.removed.chunks += chunks;
                return;
            }
            self.count_removed();
            if self.added.is_of(episode) {
                self.count_added();
            }
            self.removed = Run { episode, chunks };
        });
    }

    /// Undoes `remove`.
    pub(super) fn put_back(&mut self, trajectory: &Trajectory) {
        self.count_added();
        self.count_removed();
        for_each_run(trajectory, |episode, chunks| {
            let references = self.references.entry(episode).or_insert(0);
            if *references == 0 {
                self.num_deleted -= 1;
            }
            *references += chunks;
        });
    }

    /// True if the last removed items were all that their episode had.
    fn has_just_lost_one(&self) -> bool {
        let Run { episode, chunks } = self.removed;
        chunks > 0 && self.references.get(&episode) == Some(&chunks)
    }

    fn count_added(&mut self) {
        let Run { episode, chunks } = std::mem::take(&mut self.added);
        if chunks > 0 {
            *self.references.entry(episode).or_insert(0) += chunks;
        }
    }

    fn count_removed(&mut self) {
        let Run { episode, chunks } = std::mem::take(&mut self.removed);
        if chunks > 0
            && let Some(references) = self.references.get_mut(&episode)
        {
            *references -= chunks;
            if *references == 0 {
                self.references.remove(&episode);
                self.num_deleted += 1;
            }
        }
    }
}

/// Calls `call` with each episode and its number of consecutive chunks, nearly always once.
fn for_each_run(trajectory: &Trajectory, mut call: impl FnMut(u64, u64)) {
    let mut episodes = trajectory.chunks().iter().map(|chunk| chunk.range().episode_id);
    let Some(mut current) = episodes.next() else { return };
    let mut chunks = 1;
    for episode in episodes {
        if episode == current {
            chunks += 1;
        } else {
            call(current, chunks);
            (current, chunks) = (episode, 1);
        }
    }
    call(current, chunks);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::table::testing::item_of_length;

    #[derive(Debug, Clone)]
    enum Change {
        Add,
        Remove,
        RemoveAndPutBack,
    }

    proptest! {
        #[test]
        fn runs_are_counted_as_one_by_one(changes in prop::collection::vec(
            (prop::sample::select(vec![Change::Add, Change::Remove, Change::RemoveAndPutBack]), 0u64..3, 1u64..4),
            0..80,
        )) {
            let mut episodes = Episodes::after(7);
            let mut model = BTreeMap::new();
            let mut deleted = 7;
            for (change, episode, times) in changes {
                let trajectory = item_of_length(episode, 1, 1.0).trajectory;
                for _ in 0..times {
                    let present = model.get(&episode).copied().unwrap_or(0);
                    match change {
                        Change::Add => {
                            episodes.add(&trajectory);
                            model.insert(episode, present + 1);
                        }
                        Change::Remove if present > 0 => {
                            episodes.remove(&trajectory);
                            deleted += i64::from(present == 1);
                            model.insert(episode, present - 1);
                        }
                        Change::RemoveAndPutBack if present > 0 => {
                            episodes.remove(&trajectory);
                            episodes.put_back(&trajectory);
                        }
                        _ => {}
                    }
                    let num_present = model.values().filter(|&&count| count > 0).count();
                    prop_assert_eq!(episodes.num_present(), num_present as i64);
                    prop_assert_eq!(episodes.num_deleted(), deleted);
                }
            }
        }
    }
}
