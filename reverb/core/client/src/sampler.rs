// SPDX-License-Identifier: Apache-2.0
//! Readers: `cursor` fetches items on demand, `parallel` prefetches them with several workers,
//! `scan` reads a whole table once, `fetch_items` the items of some keys, and `ahead` prepares
//! whole batches. `batch` stacks items into arrays (`batch_column`), mostly by a `copy_plan`, with
//! chunks that `fetch_ahead` has brought into the cache; `ragged` does so for items of different
//! lengths; `batch_size` refuses batches that are too large.

pub(crate) mod ahead;
pub(crate) mod batch;
pub(crate) mod batch_column;
pub(crate) mod batch_size;
pub(crate) mod column_plan;
pub(crate) mod copy_plan;
pub(crate) mod cursor;
pub(crate) mod fetch_ahead;
pub(crate) mod fetch_items;
#[cfg(test)]
mod hostile_tests;
pub(crate) mod known_chunks;
mod large_values;
pub(crate) mod odd_item;
pub(crate) mod parallel;
pub(crate) mod ragged;
pub(crate) mod scan;
pub(crate) mod size_so_far;
#[cfg(test)]
mod testing;
