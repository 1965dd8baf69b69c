// SPDX-License-Identifier: Apache-2.0
//! What is said between machines: the messages, the streams and how a client reaches a server.

#![forbid(unsafe_code)]

pub mod generated;
pub mod transport;
