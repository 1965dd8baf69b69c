// SPDX-License-Identifier: Apache-2.0
//! A server of tables, over gRPC and for callers in its own process.
//!
//! `service` starts a server, answers its calls, and keeps what they share. `observe` says what the
//! server is doing, and knows nothing of `service`.
//!
//! Design: `docs/design/operations.md`.

#![forbid(unsafe_code)]

mod observe;
mod service;

pub use service::{
    CheckpointOptions, Config, HttpOptions, HttpPort, JournalOptions, Limits, Opened, Server,
    ServerOptions, ShardOptions, StoreOptions, local_has_ended, local_shard, local_shard_of_id,
    local_shard_of_socket, process_memory, warn_of_long_waits,
};
