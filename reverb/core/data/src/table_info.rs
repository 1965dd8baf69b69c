// SPDX-License-Identifier: Apache-2.0
//! The state of a table in numbers.

use crate::TableConfig;

/// A table at one instant.
#[derive(Debug, Clone, PartialEq)]
pub struct TableInfo {
    /// What it was made of: name, selectors, sizes, limiter, signature.
    pub config: TableConfig,
    /// Items in it.
    pub current_size: i64,
    /// Inserts that its limiter counted since creation or reset; priority updates are none.
    pub num_inserts: i64,
    /// Samples that its limiter counted since creation or reset.
    pub num_samples: i64,
    /// Items removed since creation or reset, for whatever reason.
    pub num_deletes: i64,
    /// Episodes that chunks of its items belong to.
    pub num_episodes: i64,
    /// How often an episode lost its last item since creation or reset.
    pub num_deleted_episodes: i64,
    /// Items that were sampled at least once since creation or reset.
    pub num_unique_samples: i64,
    /// What its time went to.
    pub worker_time: WorkerTime,
    /// Encoded bytes behind its items. A chunk that several items share counts for each of them, so
    /// this is at least what the table keeps in memory and may be many times more.
    pub stored_bytes: u64,
    /// Inserts that wait for the limiter.
    pub waiting_inserts: usize,
    /// Sample requests that wait for the limiter.
    pub waiting_samples: usize,
}

/// What a table's time went to since it was created, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerTime {
    /// Updates, deletes and resets.
    pub running_ms: i64,
    /// Sampling.
    pub sampling_ms: i64,
    /// Inserting.
    pub inserting_ms: i64,
    /// Nobody asked for anything.
    pub sleeping_ms: i64,
    /// Inserts waited, and no samples did.
    pub waiting_for_sampling_ms: i64,
    /// Samples waited.
    pub waiting_for_inserts_ms: i64,
}

/// What a table has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Inserts that its limiter counted.
    pub inserts: i64,
    /// Samples that its limiter counted.
    pub samples: i64,
    /// Items removed, for whatever reason.
    pub deletes: i64,
    /// How often an episode lost its last item.
    pub deleted_episodes: i64,
    /// Items that were sampled at least once.
    pub unique_samples: i64,
}
