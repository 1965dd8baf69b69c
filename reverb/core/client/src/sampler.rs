// SPDX-License-Identifier: Apache-2.0
//! Readers: `cursor` fetches items when they are asked for, `parallel` in advance and with several
//! workers; `scan` reads a whole table once; `batch` stacks items into arrays.

pub(crate) mod batch;
pub(crate) mod cursor;
pub(crate) mod parallel;
pub(crate) mod scan;
