// SPDX-License-Identifier: Apache-2.0
//! The state of a table in numbers.

use std::sync::Arc;

use crate::TableConfig;
use crate::rollouts::RolloutsInfo;

/// The state of a table at one instant.
#[derive(Debug, Clone, PartialEq)]
pub struct TableInfo {
    /// Its settings: name, selectors, sizes, limiter, signature.
    pub config: Arc<TableConfig>,
    /// Number of items.
    pub current_size: i64,
    /// Inserts that its limiter counted since creation or reset. Priority updates do not count.
    pub num_inserts: i64,
    /// Samples that its limiter counted since creation or reset.
    pub num_samples: i64,
    /// Items inserted and sampled since the table was first made, also before it was restored. A
    /// reset does not change them.
    pub totals: Totals,
    /// Items removed since creation or reset, for any reason.
    pub num_deletes: i64,
    /// Number of episodes to which chunks of its items belong.
    pub num_episodes: i64,
    /// How often an episode lost its last item since creation or reset.
    pub num_deleted_episodes: i64,
    /// Items that were sampled at least once since creation or reset.
    pub num_unique_samples: i64,
    /// Largest priority of its items; `None` without items, or if its sampler does not track it.
    pub max_priority: Option<f64>,
    /// Largest priority that any item had so far, for tables that use it for items of the largest
    /// priority.
    pub largest_priority: Option<f64>,
    /// Time spent in each state.
    pub worker_time: WorkerTime,
    /// Bytes of its items: chunks, each counted once, and everything that belongs to the items
    /// themselves.
    pub bytes: u64,
    /// Number of different chunks of its items.
    pub num_chunks: u64,
    /// Number of inserts that wait for the limiter.
    pub waiting_inserts: usize,
    /// Bytes of the items that wait. A chunk counts for each item.
    pub waiting_bytes: u64,
    /// Number of sample requests that wait for the limiter.
    pub waiting_samples: usize,
    /// What is there of items with rollouts.
    pub rollouts: Option<RolloutsInfo>,
}

/// Items inserted and sampled over the life of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Items inserted; priority updates do not count.
    pub inserts: u64,
    /// Items sampled.
    pub samples: u64,
}

/// How a table spent its time since it was created, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerTime {
    /// Updates, deletes and resets.
    pub running_ms: i64,
    /// Sampling.
    pub sampling_ms: i64,
    /// Inserting.
    pub inserting_ms: i64,
    /// Idle: there were no requests.
    pub sleeping_ms: i64,
    /// Inserts were waiting, and no samples were.
    pub waiting_for_sampling_ms: i64,
    /// Samples were waiting.
    pub waiting_for_inserts_ms: i64,
}

/// The counters of a table.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Counters {
    /// Inserts that its limiter counted.
    pub inserts: i64,
    /// Samples that its limiter counted.
    pub samples: i64,
    /// See [`TableInfo::totals`].
    pub totals: Totals,
    /// Items removed, for any reason.
    pub deletes: i64,
    /// Number of times that an episode lost its last item.
    pub deleted_episodes: i64,
    /// Items that were sampled at least once.
    pub unique_samples: i64,
    /// Largest priority that any item had, if it is known.
    pub largest_priority: Option<f64>,
}
