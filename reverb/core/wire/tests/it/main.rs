// SPDX-License-Identifier: Apache-2.0
//! The protocol, message by message. One test binary, because each one costs a link.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests may")]

mod codec;
mod disk_chunks;
mod encoding;
mod hostile;
mod scripted_server;
