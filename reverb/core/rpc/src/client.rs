// SPDX-License-Identifier: Apache-2.0
//! The client side: connections to the servers of a target, and calls over them.

mod channel;
mod connection;
mod driver;
mod pool;

pub use channel::{Call, Channel, Reply, own_name};
