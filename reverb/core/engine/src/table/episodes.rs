// SPDX-License-Identifier: Apache-2.0
//! Number of episodes with items in a table.

use hashbrown::HashMap;
use reverb_data::Trajectory;

/// References from items to chunks, counted per episode.
#[derive(Debug, Default)]
pub(super) struct Episodes {
    references: HashMap<u64, u64>,
    num_deleted: i64,
}

impl Episodes {
    /// Counts of an empty table, after `num_deleted` deleted episodes.
    pub(super) fn after(num_deleted: i64) -> Self {
        Self { references: HashMap::new(), num_deleted }
    }

    /// Number of episodes with an item.
    pub(super) fn num_present(&self) -> i64 {
        self.references.len() as i64
    }

    /// Number of times that an episode lost its last item.
    pub(super) fn num_deleted(&self) -> i64 {
        self.num_deleted
    }

    pub(super) fn add(&mut self, trajectory: &Trajectory) {
        for_each_run(trajectory, |episode, chunks| {
            *self.references.entry(episode).or_insert(0) += chunks;
        });
    }

    pub(super) fn remove(&mut self, trajectory: &Trajectory) {
        for_each_run(trajectory, |episode, chunks| {
            if let Some(references) = self.references.get_mut(&episode) {
                *references -= chunks;
                if *references == 0 {
                    self.references.remove(&episode);
                    self.num_deleted += 1;
                }
            }
        });
    }

    /// Undoes `remove`.
    pub(super) fn put_back(&mut self, trajectory: &Trajectory) {
        for_each_run(trajectory, |episode, chunks| {
            let references = self.references.entry(episode).or_insert(0);
            if *references == 0 {
                self.num_deleted -= 1;
            }
            *references += chunks;
        });
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
