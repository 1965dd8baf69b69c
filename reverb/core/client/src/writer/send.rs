// SPDX-License-Identifier: Apache-2.0
//! Send: items wait in a queue, leave in messages over a stream, and are kept until confirmed.
//!
//! `send_queue` is what a writer sees. Its task (`send_task`) encodes items (`message`) and streams
//! them; `state` is what both share, `in_flight` the items that are not confirmed, `gathering` the
//! rule for sending several together, `confirmation` how callers wait, `report` what they read
//! about it, `shard_lease` when a writer of a group changes its shard, `dropped` the items of a
//! dropped writer. `delivery` sends items that are encoded already, without a task.

mod confirmation;
pub(in crate::writer) mod delivery;
pub(crate) mod dropped;
mod gathering;
mod in_flight;
mod message;
mod messages;
mod report;
pub(crate) mod send_queue;
mod send_task;
mod shard_lease;
mod state;

/// Size of a message's chunks at which it is sent. This bounds the memory of both ends. A large
/// chunk fills a message, which the server stores without a copy.
const MESSAGE_BYTES: usize = 256 * 1024;
/// Largest number of items in one message.
const MESSAGE_ITEMS: usize = 1024;
