// SPDX-License-Identifier: Apache-2.0
//! Servers as clients meet them, over the network and in process.
//! One test binary, because each one costs a link.

#![allow(missing_docs, clippy::float_cmp, clippy::unwrap_used, reason = "tests may")]

mod access;
mod access_over_tls;
mod driving;
mod health;
mod http_port;
mod insert_rules;
mod keepalive;
mod life_cycle;
mod noise;
mod open;
mod round_trip;
mod sample_rules;
mod scan;
mod shard;
mod support;
mod tables_of_requests;
