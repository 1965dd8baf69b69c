// SPDX-License-Identifier: Apache-2.0
//! Answering: a server of tables, over gRPC and to callers in its own process.

#![forbid(unsafe_code)]

mod checkpoints;
mod health;
mod insert_stream;
mod listener;
pub mod local;
mod reflection;
mod responder;
mod sample_stream;
mod scan_stream;
mod server;
mod service;
mod stop;
mod tables;

pub use checkpoints::CheckpointOptions;
pub use local::local_transport;
pub use server::{Server, ServerOptions};
