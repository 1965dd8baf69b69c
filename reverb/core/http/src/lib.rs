// SPDX-License-Identifier: Apache-2.0
//! A small HTTP/1.1 port for read-only pages: metrics, probes, a status page.
//!
//! Design: `docs/design/operations.md`.
//!
//! A port serves a [`Site`], which answers each request at once, from memory. Peers get little: few
//! connections, small headers, a few seconds. An idle connection is closed for a new one, so many
//! connections shut nobody out. This crate knows nothing of replay.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

mod answer;
mod connections;
mod host;
mod port;

pub use answer::{Answer, Peer, Request, Site};
pub use host::AllowedHosts;
/// Status of an answer.
pub use http::StatusCode;
pub use port::serve;
