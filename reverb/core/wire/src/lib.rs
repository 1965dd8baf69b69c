// SPDX-License-Identifier: Apache-2.0
//! What is said between machines: the messages, the streams and how a client reaches a server.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

pub mod codec;
pub mod convert;
pub mod generated;
pub mod grpc;
pub mod keepalive;
pub mod message;
pub mod status;
pub mod stream;
pub mod target;
pub mod transport;

pub use grpc::GrpcTransport;
pub use keepalive::Keepalive;

/// Path in front of every method of the service.
pub const SERVICE_PATH: &str = "/deepmind.reverb.ReverbService/";

/// Path in front of the methods that the original does not have.
pub const OWN_SERVICE_PATH: &str = "/reverb.ReplayService/";

/// Path in front of the methods of gRPC's health service.
pub const HEALTH_PATH: &str = "/grpc.health.v1.Health/";

/// Path in front of the method of gRPC's reflection service.
pub const REFLECTION_PATH: &str = "/grpc.reflection.v1.ServerReflection/";

/// The same under the service's older name.
pub const OLD_REFLECTION_PATH: &str = "/grpc.reflection.v1alpha.ServerReflection/";

/// All services and messages: a `google.protobuf.FileDescriptorSet`, dependencies first.
pub const DESCRIPTORS: &[u8] = include_bytes!("../proto/descriptors.bin");
