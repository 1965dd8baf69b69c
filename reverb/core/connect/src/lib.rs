// SPDX-License-Identifier: Apache-2.0
//! What an address leads to: a server of this process, servers over gRPC, or a group of shards.
//!
//! Design: `docs/design/rpc.md`.

#![forbid(unsafe_code)]

mod connector;
mod dialer;
mod reach;

pub use connector::{AnyConnector, Options};
pub use reach::{Reach, group_of, target_of};
