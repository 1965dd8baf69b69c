// SPDX-License-Identifier: Apache-2.0
//! Structured writers: configurations decide which cells an item consists of, when it is created,
//! and its priority.
//!
//! `config` checks the caller's declarations and translates them into `pattern` (which cells),
//! `condition` (when) and `priority`; `number` keeps the values that conditions and priorities
//! read. `engine` applies patterns to a history, step by step, without a server; `writer` sends the
//! items that the engine creates.

pub(crate) mod condition;
pub(crate) mod config;
pub(crate) mod engine;
mod number;
pub(crate) mod pattern;
pub(crate) mod priority;
#[cfg(test)]
mod testing;
pub(crate) mod writer;
