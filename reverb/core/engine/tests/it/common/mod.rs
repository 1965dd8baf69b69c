// SPDX-License-Identifier: Apache-2.0
//! Helpers for the tests of tables.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use parking_lot::Mutex;
use reverb_base::Error;
use reverb_data::{
    Chunk, NewItem, RateLimiterConfig, SampleOptions, Sampled, SequenceRange, TableConfig,
    Trajectory, TrajectoryBuilder,
};
use reverb_engine::{Confirm, Scan, Table};

pub(crate) const UNLIMITED: f64 = f64::MAX;

/// All items or none.
pub(crate) const WHOLE: SampleOptions = SampleOptions {
    stacking: None,
    all_or_nothing: true,
    distinct: false,
    epoch: None,
    window: None,
    waits_since: None,
};

pub(crate) fn limiter(spi: f64, min_size: i64, min_diff: f64, max_diff: f64) -> RateLimiterConfig {
    RateLimiterConfig { samples_per_insert: spi, min_size_to_sample: min_size, min_diff, max_diff }
}

pub(crate) fn min_size(size: i64) -> RateLimiterConfig {
    limiter(1.0, size, -UNLIMITED, UNLIMITED)
}

/// A FIFO table with no limit except `max_size`.
pub(crate) fn config(max_size: i64) -> TableConfig {
    TableConfig { rate_limiter: min_size(1), seed: Some(1), ..TableConfig::fifo("t", max_size) }
}

/// The settings of Python's `Table.queue`.
pub(crate) fn queue(size: i64) -> TableConfig {
    TableConfig {
        max_times_sampled: 1,
        rate_limiter: limiter(1.0, 1, 0.0, size as f64),
        ..config(size)
    }
}

pub(crate) fn chunk(key: u64, episode_id: u64, bytes: usize) -> Chunk {
    let range = SequenceRange { episode_id, ..SequenceRange::default() };
    Chunk::new(key, range, false, vec![0; bytes].into())
}

pub(crate) fn trajectory(chunks: &[Chunk]) -> Trajectory {
    let mut builder = TrajectoryBuilder::new();
    for chunk in chunks {
        builder.slice(chunk, 0, 0, 1);
    }
    builder.end_column(false);
    builder.finish().unwrap()
}

pub(crate) fn item_of(key: u64, priority: f64, chunks: &[Chunk]) -> NewItem {
    NewItem::new(key, "t", priority, trajectory(chunks))
}

/// An item with its own chunk and its own episode, both with the item's number.
pub(crate) fn item(key: u64, priority: f64) -> NewItem {
    item_of(key, priority, &[chunk(key, key, 8)])
}

/// Records all confirmations and failures.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) confirmed: Mutex<Vec<u64>>,
    pub(crate) failed: Mutex<Vec<Error>>,
}

impl Confirm for Log {
    fn confirmed(&self, keys: &[u64]) {
        self.confirmed.lock().extend(keys);
    }

    fn failed(&self, error: Error) {
        self.failed.lock().push(error);
    }
}

impl Log {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The keys of all confirmed items, in order.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.confirmed.lock().clone()
    }
}

pub(crate) fn insert(table: &Table, items: Vec<NewItem>) -> Arc<Log> {
    let log = Log::new();
    let confirm: Arc<dyn Confirm> = log.clone();
    table.insert(items, &confirm).unwrap();
    log
}

/// Inserts items with these priorities one by one, with keys from 0 on.
pub(crate) fn insert_all(table: &Table, priorities: &[f64]) {
    for (key, &priority) in priorities.iter().enumerate() {
        insert(table, vec![item(key as u64, priority)]);
    }
}

/// The items that a scan has not given yet.
pub(crate) fn scan_rest(table: &Table, scan: &mut Scan) -> Vec<Sampled> {
    let pieces = std::iter::repeat_with(|| table.scan(scan).unwrap());
    pieces.take_while(|items| !items.is_empty()).flatten().collect()
}

/// Whether the call still waits after a poll.
pub(crate) fn is_waiting<T>(call: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> bool {
    call.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

pub(crate) fn sample_one(table: &Table) -> Sampled {
    table.try_sample(1).expect("a sample is allowed").remove(0)
}
