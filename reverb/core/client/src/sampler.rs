// SPDX-License-Identifier: Apache-2.0
//! Readers: `cursor` fetches items one after another, `batch` stacks items into arrays.

pub mod batch;
pub mod cursor;
