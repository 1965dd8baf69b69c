// SPDX-License-Identifier: Apache-2.0
//! Tables and items for the unit tests of this module.

use std::sync::Arc;

use proptest::prelude::*;
use reverb_base::Error;
use reverb_data::{
    Chunk, ChunkBuilder, DType, Draw, NewItem, SelectorConfig, SequenceRange, Shape, TableConfig,
    Tensor, TensorData, TrajectoryBuilder,
};

use super::{Confirm, Table};

/// A FIFO table `t` whose rate limiter allows everything.
pub(in crate::table) fn config(max_size: i64) -> TableConfig {
    TableConfig { seed: Some(1), ..TableConfig::fifo("t", max_size) }
}

pub(super) fn table(max_size: i64) -> Arc<Table> {
    Table::new(config(max_size)).unwrap()
}

/// Selectors of every kind.
pub(in crate::table) fn selectors() -> impl Strategy<Value = SelectorConfig> {
    let mut all = vec![SelectorConfig::Fifo];
    loop {
        // The match is exhaustive, so that the compiler points here when a kind is added.
        let of_next_kind = match all[all.len() - 1] {
            SelectorConfig::Fifo => vec![SelectorConfig::Lifo],
            SelectorConfig::Lifo => vec![SelectorConfig::Uniform],
            SelectorConfig::Uniform => vec![SelectorConfig::UniformOverSteps],
            SelectorConfig::UniformOverSteps => vec![
                SelectorConfig::prioritized(0.7),
                SelectorConfig::prioritized(0.0),
                SelectorConfig::Prioritized { priority_exponent: 0.7, draw: Draw::Stratified },
                SelectorConfig::Prioritized { priority_exponent: -1.0, draw: Draw::Systematic },
            ],
            SelectorConfig::Prioritized { .. } => vec![
                SelectorConfig::Heap { min_heap: true },
                SelectorConfig::Heap { min_heap: false },
            ],
            SelectorConfig::Heap { .. } => vec![SelectorConfig::Shuffle { seed: None }],
            SelectorConfig::Shuffle { .. } => vec![SelectorConfig::Recent { expected_age: 2.5 }],
            SelectorConfig::Recent { .. } => return prop::sample::select(all),
        };
        all.extend(of_next_kind);
    }
}

/// Selectors of every kind that may be removers.
pub(in crate::table) fn removers() -> impl Strategy<Value = SelectorConfig> {
    selectors().prop_filter("it is for samplers", |it| *it != SelectorConfig::UniformOverSteps)
}

/// An item of one chunk. All items are of the same episode.
pub(super) fn item(key: u64) -> NewItem {
    let range = SequenceRange { episode_id: 1, ..SequenceRange::default() };
    let mut trajectory = TrajectoryBuilder::new();
    trajectory.slice(&Chunk::from_slice(key, range, false, &[0; 10]), 0, 0, 1);
    trajectory.end_column(false);
    let trajectory = trajectory.finish().unwrap();
    NewItem::new(key, "t", 1.0, trajectory)
}

/// An item of one int64 column `[length]`.
pub(in crate::table) fn item_of_length(key: u64, length: usize, priority: f64) -> NewItem {
    item_of_lengths(key, &[length], priority)
}

/// An item of int64 columns of these lengths, `[length]`, in one chunk.
pub(in crate::table) fn item_of_lengths(key: u64, lengths: &[usize], priority: f64) -> NewItem {
    let mut chunk = ChunkBuilder::new(false);
    for &length in lengths {
        chunk.push(&Tensor {
            dtype: DType::Int64,
            shape: Shape::from_slice(&[length]),
            data: TensorData::Bytes(vec![0; length * 8]),
        });
    }
    let range = SequenceRange { episode_id: key % 3, ..SequenceRange::default() };
    let chunk = chunk.finish(key, range);
    let mut trajectory = TrajectoryBuilder::new();
    for (at, &length) in lengths.iter().enumerate() {
        trajectory.slice(&chunk, at, 0, length);
        trajectory.end_column(false);
    }
    let trajectory = trajectory.finish().unwrap();
    NewItem::new(key, "t", priority, trajectory)
}

pub(super) fn insert(table: &Table, key: u64) {
    let ignore: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
    table.insert(vec![item(key)], &ignore).unwrap();
}

/// Ignores confirmations; failures must not happen.
pub(super) struct IgnoreConfirm;

impl Confirm for IgnoreConfirm {
    fn confirmed(&self, _keys: &[u64]) {}

    fn failed(&self, error: Error) {
        panic!("{error}");
    }
}
