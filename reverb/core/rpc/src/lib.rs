// SPDX-License-Identifier: Apache-2.0
//! gRPC over HTTP/2: connections, calls, messages and their status.
//!
//! Design: `docs/design/rpc.md`.
//!
//! The crate knows no chunk, item or table, and uses only `reverb-base` and `reverb-tls`. Two
//! errors of replay have marks of their own on the wire; `status` has them. `client` opens calls,
//! `server` answers them, `framing` reads and writes their messages.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

pub mod client;
pub mod framing;
pub mod keepalive;
pub mod message;
pub mod server;
pub mod socket_path;
pub mod status;
pub mod target;

use std::pin::Pin;

pub use keepalive::Keepalive;
pub use message::{Message, MessageBuilder};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
