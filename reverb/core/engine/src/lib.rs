// SPDX-License-Identifier: Apache-2.0
//! The engine: tables of items, the selectors that choose items from them, and the rate limiters
//! that bound the ratio of samples to inserts.
//!
//! Design: `docs/design/engine.md`.
//!
//! A table has two layers. `TableState` in `table/state.rs` is the inner one. It is synchronous,
//! deterministic for a given seed, and never waits. Start reading there. [`Table`] adds a lock and
//! two wait queues, so that callers can wait. There is no thread per table: each call also serves
//! the waiting requests that it unblocked.
//!
//! This crate does not depend on messages, sockets, Python or TensorFlow.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests may"))]

mod extremes;
mod histogram;
mod rate_limiter;
mod selector;
mod sum_tree;
mod table;

pub use histogram::Histogram;
pub use table::{
    ChangedBy, ChangedItem, Changes, Commit, Configured, Confirm, Evicted, Forecast, Growing,
    GrowingValues, Held, Kept, Limit, LimiterHold, MAX_SAMPLE_BYTES, MAX_SAMPLE_ITEMS, OldestLease,
    OldestOpen, Presence, Removal, Removed, Restored, RolloutEvents, RolloutsStatus, Scan, Side,
    SlotSet, SnapshotCut, Statistics, Table, TableChanges, TableCommit, TableCut, TableSnapshot,
    TableStatus, TableWatch, TakeRequest, Taken, Takes, Transferred, Unsynced, WaitReason,
    WaitTimes, Watched, configure,
};
