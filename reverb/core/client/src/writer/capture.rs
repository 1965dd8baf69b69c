// SPDX-License-Identifier: Apache-2.0
//! Capture: steps become cells of blocks, blocks become chunks, items refer to cells.
//!
//! `history` is the history of one environment, `cell` a single value in it, `block` the cells that
//! become a chunk. `item` is a pending item, `item_template` what items have in common,
//! `item_maker` checks items against their tables, and `item_encoder` makes trajectories of them.
//! `constants` makes cells of values that are in no history. `column_orders` matches the names of
//! columns with `signatures`. `rows` encodes rows that need no history.

pub(in crate::writer) mod block;
pub(crate) mod cell;
mod chunk_template;
pub(crate) mod column_orders;
pub(crate) mod constants;
pub(crate) mod history;
pub(crate) mod item;
pub(in crate::writer) mod item_encoder;
pub(crate) mod item_maker;
mod item_template;
pub(in crate::writer) mod rows;
pub(in crate::writer) mod signatures;
