// SPDX-License-Identifier: Apache-2.0
//! A group: several servers (shards) behind one [`Transport`].
//!
//! Design: `docs/design/groups.md`.
//!
//! [`Transport`]: reverb_wire::transport::Transport

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests may"))]

pub mod address;
pub mod coordinator;
pub mod group;
pub mod info;
mod key_cache;
pub mod member;
mod merge;
mod plan;
mod sample_stream;
pub mod shares;
pub mod slot_map;
mod status;
pub mod table_part;
pub mod table_stats;
mod tables;
pub mod transfer;
pub mod transport;
pub mod weighted_round_robin;
pub mod windows;
