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
pub mod facts;
mod foreign;
pub mod group;
pub mod info;
pub mod member;
mod merge;
mod plan;
mod sample_stream;
pub mod shares;
pub mod slot_map;
mod status;
pub mod table_part;
mod tables;
pub mod transfer;
pub mod transport;
pub mod turns;
pub mod windows;
