// SPDX-License-Identifier: Apache-2.0
//! The client side: connections to the servers of a target, and calls over them.

mod caller;
mod channel;
mod connection;
mod credentials;
mod driver;
mod movable_socket;
mod round_robin;
mod servers;
mod token;
mod unix_socket;
mod who_drives;

pub use caller::poll_for;
pub use channel::{AnswerRules, Call, Channel, Reply, own_name};
pub use connection::ConnectionOptions;
pub use credentials::{Credentials, Environment, Security};
pub use driver::{Driver, Waiting};
