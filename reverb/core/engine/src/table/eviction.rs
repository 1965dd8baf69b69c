// SPDX-License-Identifier: Apache-2.0
//! Eviction for the memory of a server.

use reverb_data::{Chunk, WhenFull};

use super::Table;
use super::clock::Activity;
use super::statistics::Removal;

/// Result of [`Table::evict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// Number of items.
    pub items: usize,
    /// Bytes of their chunks that have no other references.
    pub freed_bytes: u64,
}

impl Table {
    /// Deletes items that the remover selects, up to `max_items` or until they freed `bytes`.
    /// Deletes nothing if a full table blocks inserts instead, or if the table is closed.
    pub fn evict(&self, max_items: usize, bytes: u64) -> Evicted {
        let mut evicted = Evicted { items: 0, freed_bytes: 0 };
        let garbage = self.operate(Activity::Running, |shared, _| {
            let state = &mut shared.state;
            if shared.config.memory.when_full == WhenFull::Wait {
                return Vec::new();
            }
            let before = state.len();
            let end = state.account().bytes().saturating_sub(bytes);
            while before - state.len() < max_items && state.account().bytes() > end {
                if !state.evict(Removal::Bytes) {
                    break;
                }
            }
            state.take_garbage()
        });
        for trajectory in garbage.unwrap_or_default() {
            evicted.items += 1;
            let chunks = trajectory.chunks().iter();
            let alone = chunks.filter(|chunk| chunk.reference_count() == 1);
            evicted.freed_bytes += alone.map(Chunk::bytes).sum::<u64>();
        }
        evicted
    }

    /// False for a table with rollouts of which no item is ready and free: nothing can be evicted.
    pub fn has_evictable(&self) -> bool {
        let shared = self.shared.lock();
        shared.state.rollouts().is_none() || shared.state.len() > 0
    }

    /// Gives up what an unfinished item with rollouts has, unless a learner has items that may free
    /// memory, or could take some; also if it waits for unfinished items before it takes others.
    /// Returns false if nothing was given up.
    pub fn give_up_unfinished(&self) -> bool {
        let given_up = self.operate(Activity::Running, |shared, _| {
            let is_held_up = shared.queues.takes.is_held_up(&shared.state);
            (shared.state.give_up_unfinished(is_held_up), shared.state.take_garbage())
        });
        given_up.is_ok_and(|(is_done, _)| is_done)
    }
}
