// SPDX-License-Identifier: Apache-2.0
//! What is sampled: tables of items, the selectors that pick from them and the rate limiters that
//! keep inserting and sampling in step.
//!
//! A table has two faces. `TableState` in `table/state.rs` is its heart: synchronous, deterministic
//! given a seed, and it never waits; start reading there. [`Table`] puts a lock and two queues
//! around it, so that callers can wait for their turn. There is no thread per table: whoever calls
//! does the work that its call made possible, also for others.
//!
//! This crate knows no messages, sockets, Python or TensorFlow.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests may"))]

mod rate_limiter;
mod selector;
mod sum_tree;
mod table;

pub use table::{Confirm, MAX_SAMPLE_BYTES, Restored, Scan, SnapshotCut, Table, TableSnapshot};
