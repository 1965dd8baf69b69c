// SPDX-License-Identifier: Apache-2.0
//! Readers: `cursor` fetches items when they are asked for, `parallel` in advance and with several workers; `scan` reads
//! a whole table once; `batch` stacks items into arrays.

pub mod batch;
pub mod cursor;
pub mod parallel;
pub mod scan;
