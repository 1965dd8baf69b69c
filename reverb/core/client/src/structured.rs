// SPDX-License-Identifier: Apache-2.0
//! Writers that create items by themselves: a configuration says which cells make an item, when, and how important
//! it is.
//!
//! `config` checks what the caller declared and translates it into `pattern` (which cells), `condition` (when) and
//! `priority` (how important); `number` remembers the values that conditions and priorities look at. `engine` applies
//! all of it to a history, step by step, and knows no server; `writer` sends what the engine finds.

pub mod condition;
pub mod config;
pub mod engine;
mod number;
pub mod pattern;
pub mod priority;
#[cfg(test)]
mod testing;
pub mod writer;

pub use config::{Config, Configs};
pub use engine::{PatternEngine, PatternItem};
pub use writer::StructuredWriter;
