// SPDX-License-Identifier: Apache-2.0
//! Writers: steps become cells of blocks, blocks become chunks, items refer to them, a sender streams both.
//!
//! `cell` is where a value lives, `lane` is the history of one environment, `item` what a caller asks to be stored,
//! `sender` the background task that encodes and sends. `trajectory`, `batched`, `sequence` and `legacy` are the
//! faces.

pub mod batched;
pub mod cell;
pub mod item;
pub mod lane;
pub mod legacy;
pub mod sender;
pub mod sequence;
pub mod single_steps;
#[cfg(test)]
pub(crate) mod testing;
pub mod trajectory;
