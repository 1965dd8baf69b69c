// SPDX-License-Identifier: Apache-2.0
//! The messages of the two streams, straight between bytes and what the engine stores.
//!
//! They carry all data, so no generic tree of messages is built: chunks pass through as bytes, and
//! everything else is read where it stands.

pub mod chunk;
pub mod insert;
pub mod item;
mod kept_chunks;
pub mod sample;
