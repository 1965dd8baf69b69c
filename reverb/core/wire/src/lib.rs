// SPDX-License-Identifier: Apache-2.0
//! The protocol: its messages, their encoding, and the transport from a client to a server.
//!
//! Design: `docs/design/rpc.md`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

pub mod calls;
pub mod capability;
pub mod codec;
pub mod convert;
pub mod decoded_size;
pub mod generated;
pub mod grpc;
pub mod presence;
pub mod shard;
pub mod transport;

pub use calls::Calls;
pub use capability::{Capabilities, Capability};
pub use grpc::GrpcTransport;
pub use reverb_rpc::client::poll_for;

/// All services and messages: a `google.protobuf.FileDescriptorSet`, dependencies first.
pub const DESCRIPTORS: &[u8] = include_bytes!("../proto/descriptors.bin");
