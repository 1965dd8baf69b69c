// SPDX-License-Identifier: Apache-2.0
//! A server of tables, over gRPC and for callers in its own process.

#![forbid(unsafe_code)]

mod checkpoints;
mod health;
mod insert_stream;
mod limits;
pub mod local;
mod reflection;
mod router;
mod sample_stream;
mod scan_stream;
mod server;
mod service;
mod tables;

pub use checkpoints::CheckpointOptions;
pub use limits::Limits;
pub use local::local_transport;
pub use server::{Server, ServerOptions};
