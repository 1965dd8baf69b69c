// SPDX-License-Identifier: Apache-2.0
//! Writers: steps become cells of blocks, blocks become chunks, items refer to chunks.
//!
//! `cell` stores single values, `lane` the history of one environment, `item` a pending item, and
//! `item_kind` the common parts of items. `item_queue` checks items; `send_queue` encodes them
//! (`resolver`) and streams them in the background. `column_orders` matches the names of columns
//! with signatures. `constants` makes cells of values that are in no history. `dropped` keeps the
//! items of a dropped writer before those of the next. `trajectory`, `batched`, `sequence` and
//! `legacy` are the writers. `insertion` uses none of this: it encodes single steps (`rows`) and
//! sends them itself.

pub(crate) mod batched;
mod block;
pub(crate) mod cell;
mod chunk_template;
pub(crate) mod column_orders;
pub(crate) mod constants;
pub(crate) mod dropped;
pub(crate) mod insertion;
pub(crate) mod item;
mod item_kind;
pub(crate) mod item_queue;
pub(crate) mod lane;
pub(crate) mod legacy;
mod resolver;
mod rows;
pub(crate) mod send_queue;
pub(crate) mod sequence;
mod signatures;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod trajectory;

/// Size of a message's chunks at which it is sent. This bounds the memory of both ends. A large
/// chunk fills a message, which the server stores without a copy.
const MESSAGE_BYTES: usize = 256 * 1024;
/// Largest number of items in one message.
const MESSAGE_ITEMS: usize = 1024;
