// SPDX-License-Identifier: Apache-2.0
//! Messages of the two streams, and of updates of priorities: direct conversion between bytes and
//! the engine's types.
//!
//! These messages carry all data, so no generic tree of messages is built. Chunks stay encoded
//! bytes, and all other fields are read in place.

pub mod chunk;
pub mod insert;
pub mod item;
mod kept_chunks;
pub mod mutate;
pub mod sample;
pub mod trajectory_template;
pub mod transfer;
