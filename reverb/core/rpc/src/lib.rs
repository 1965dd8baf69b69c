// SPDX-License-Identifier: Apache-2.0
//! gRPC over HTTP/2: connections, calls, messages and their status.
//!
//! Design: `docs/design/rpc.md`.
//!
//! The crate is independent of replay: it uses only the errors of `reverb-data`. `client` opens
//! calls, `server` answers them, `framing` reads and writes their messages.

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
