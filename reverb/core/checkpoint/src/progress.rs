// SPDX-License-Identifier: Apache-2.0
//! The progress of a save or a load, which other threads can read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counters that increase while a checkpoint is written or read.
#[derive(Debug, Default)]
pub struct Progress {
    items_done: AtomicU64,
    items_total: AtomicU64,
    bytes_done: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// Number of items written or read so far.
    pub fn items_done(&self) -> u64 {
        self.items_done.load(Ordering::Relaxed)
    }

    /// Total number of items; 0 while it is unknown.
    pub fn items_total(&self) -> u64 {
        self.items_total.load(Ordering::Relaxed)
    }

    /// Number of bytes of files written or read so far.
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }

    /// Makes the work end soon with `Cancelled`.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// True after `cancel`.
    pub fn cancelled(&self) -> &AtomicBool {
        &self.cancelled
    }

    pub(crate) fn expect_items(&self, items: u64) {
        self.items_total.store(items, Ordering::Relaxed);
    }

    pub(crate) fn add_items(&self, items: u64) {
        self.items_done.fetch_add(items, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }
}
