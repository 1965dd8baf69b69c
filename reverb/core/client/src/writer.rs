// SPDX-License-Identifier: Apache-2.0
//! Writers: steps become cells of blocks, blocks become chunks, items refer to them.
//!
//! `cell` stores single values, `lane` the history of one environment, `item` a pending item.
//! `item_kind` is what items have in common. `item_queue` checks items, and `send_queue` encodes
//! (`resolver`) and streams them in the background. `column_orders` compares the names of columns
//! with those of signatures. `dropped` keeps the order of items of a writer that was dropped and
//! those of the next.
//! `trajectory`, `batched`, `sequence` and `legacy` are the writers. `insertion` needs none of it:
//! it encodes single steps (`rows`) and sends them itself.

pub(crate) mod batched;
mod block;
pub(crate) mod cell;
mod chunk_template;
pub(crate) mod column_orders;
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

/// A message is sent when its chunks reach this size. So it bounds the memory of both sides, and a
/// large chunk fills a message: the server stores it where it arrived, without a copy.
const MESSAGE_BYTES: usize = 256 * 1024;
/// Maximum number of items in one message.
const MESSAGE_ITEMS: usize = 1024;
