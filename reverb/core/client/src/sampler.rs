// SPDX-License-Identifier: Apache-2.0
//! Readers: `cursor` fetches items on demand, `parallel` prefetches them with several workers,
//! `scan` reads a whole table once, and `batch` stacks items into arrays, most of them by a
//! `copy_plan`, with chunks that `fetch_ahead` has brought into the cache.

pub(crate) mod batch;
pub(crate) mod copy_plan;
pub(crate) mod cursor;
pub(crate) mod fetch_ahead;
pub(crate) mod parallel;
pub(crate) mod scan;
#[cfg(test)]
mod testing;
