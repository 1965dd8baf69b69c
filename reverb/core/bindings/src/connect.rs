// SPDX-License-Identifier: Apache-2.0
//! Transports behind an address: a server of this process, servers over gRPC, or a group of shards.
//!
//! Design: `docs/design/rpc.md`.

mod address_connector;
mod server_connector;
mod shard_connector;

pub(crate) use address_connector::{AddressConnector, group_of, target_of};
