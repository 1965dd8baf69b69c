// SPDX-License-Identifier: Apache-2.0
//! Writers that create items by themselves: a configuration says which cells make an item, when,
//! and how important it is.
//!
//! `config` checks what the caller declared and translates it into `pattern` (which cells),
//! `condition` (when) and `priority` (how important); `number` remembers the values that conditions
//! and priorities look at. `engine` applies all of it to a history, step by step, and knows no
//! server; `writer` sends what the engine finds.

pub(crate) mod condition;
pub(crate) mod config;
pub(crate) mod engine;
mod number;
pub(crate) mod pattern;
pub(crate) mod priority;
#[cfg(test)]
mod testing;
pub(crate) mod writer;
