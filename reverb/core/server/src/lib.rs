// SPDX-License-Identifier: Apache-2.0
//! A server of tables, over gRPC and for callers in its own process.
//!
//! Design: `docs/design/operations.md`.

#![forbid(unsafe_code)]

mod blocking;
mod caller;
mod calls;
mod checkpoints;
mod diagnosis;
mod done;
mod drain;
mod group;
mod health;
mod held_chunks;
mod http_port;
mod insert_stream;
mod limiter_hold;
mod limits;
pub mod local;
mod long_waits;
mod memory;
mod metrics;
mod open;
mod page;
mod process_memory;
mod process_status;
mod reader_room;
mod reflection;
mod rotation;
mod router;
mod sample_stream;
mod scan_stream;
mod selection;
mod server;
mod service;
mod status;
mod streams;
mod tables;
mod throttle;
mod timeline;
mod transfer;
mod watch_stream;
mod writer_places;

pub use checkpoints::CheckpointOptions;
pub use http_port::HttpPort;
pub use limits::Limits;
pub use local::{
    local_has_ended, local_shard, local_shard_of_id, local_shard_of_socket, local_transport,
};
pub use long_waits::warn_of_long_waits;
pub use open::{Config, HttpOptions, Opened};
pub use process_memory::process_memory;
pub use server::{Server, ServerOptions, ShardOptions};
