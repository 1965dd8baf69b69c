// SPDX-License-Identifier: Apache-2.0
//! What a journal gives back at a start.

use std::time::SystemTime;

use reverb_data::{Chunk, ShardIdentity};

use crate::changes::Note;

/// All tables as they were at one commit.
#[derive(Debug)]
pub struct Recovered {
    /// The commit; 0 of a new journal.
    pub commit: u64,
    /// When it was made.
    pub at: SystemTime,
    /// Tables by number; none of a new journal.
    pub tables: Vec<RecoveredTable>,
    /// The last 16 notes, in order.
    pub notes: Vec<Note>,
    /// The place of its server in a group, if it had one.
    pub shard: Option<ShardIdentity>,
    /// Bytes of a commit that was not finished.
    pub dropped_bytes: u64,
}

/// A table.
#[derive(Debug)]
pub struct RecoveredTable {
    /// Its number.
    pub number: u32,
    /// Settings, signature and counters, as they were recorded last.
    pub settings: Vec<u8>,
    /// Counters, if they were recorded later.
    pub counters: Option<Vec<u8>>,
    /// Its items, roughly in the order of their insertion.
    pub items: Vec<RecoveredItem>,
}

/// An item.
#[derive(Debug)]
pub struct RecoveredItem {
    /// Its key.
    pub key: u64,
    /// Its body, as it was recorded.
    pub body: Vec<u8>,
    /// Its chunks, which it shares with other items. Large payloads are on disk.
    pub chunks: Vec<Chunk>,
    /// Its priority, if that has changed since.
    pub priority: Option<f64>,
    /// Its removal priority, if that has changed since.
    pub removal_priority: Option<f64>,
    /// Its number of samples, if that was recorded since.
    pub times_sampled: Option<u64>,
}
