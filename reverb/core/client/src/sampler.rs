// SPDX-License-Identifier: Apache-2.0
//! Readers: `cursor` fetches items on demand, `parallel` prefetches them with several workers,
//! `scan` reads a whole table once, and `batch` stacks items into arrays (`batch_column`), most of
//! them by a `copy_plan`, with chunks that `fetch_ahead` has brought into the cache; `ragged` does
//! that with items of different lengths. `batch_size` says which batch is too large. `ahead` has
//! batches ready before they are asked for.

pub(crate) mod ahead;
pub(crate) mod batch;
pub(crate) mod batch_column;
pub(crate) mod batch_size;
pub(crate) mod column_plan;
pub(crate) mod copy_plan;
pub(crate) mod cursor;
pub(crate) mod fetch_ahead;
#[cfg(test)]
mod hostile_tests;
pub(crate) mod parallel;
pub(crate) mod ragged;
pub(crate) mod scan;
#[cfg(test)]
mod testing;
