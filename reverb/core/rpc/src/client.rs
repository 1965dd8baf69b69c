// SPDX-License-Identifier: Apache-2.0
//! The client side: connections to the servers of a target, and calls over them.

mod channel;
mod connection;
mod credentials;
mod round_robin;
mod servers;
mod token;
mod unix_socket;

pub use channel::{AnswerRules, Call, Channel, Reply, own_name};
pub use connection::ConnectionOptions;
pub use credentials::{Credentials, Environment, Security};
