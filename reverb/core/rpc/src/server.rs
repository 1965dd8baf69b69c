// SPDX-License-Identifier: Apache-2.0
//! The server side: a port, its connections, and the calls on them.

mod accepted;
mod admissions;
mod authority;
mod by_age;
mod call;
mod connection;
mod files;
mod first_bytes;
mod gathering_socket;
mod graceful_close;
mod handshakes;
mod listener;
#[cfg(unix)]
mod listening;
mod outgoing;
mod peer;
mod preface;
mod refused_connections;
mod responder;
mod sharing_socket;
mod stop;
mod stream_limit;
mod traffic;
mod turns;
mod unadmitted_calls;
mod unary;
#[cfg(unix)]
mod unix_socket;

pub use call::Handler;
pub use files::{max_files, reserved_files};
pub use listener::{ConnectionLimits, Listeners, PortOptions, PortTls, bind, serve};
#[cfg(unix)]
pub use listening::{SocketIdentity, listening};
pub use outgoing::{Content, Outbox, Outgoing, PASS_BYTES, Room};
pub use peer::{Encryption, Peer};
pub use responder::Responder;
pub use stop::{Stop, StopSender, stop_signal, stopped_for_good, stopping};
pub use traffic::{LIMITS, Traffic};
pub use unary::{decode, read_first, read_single_encoded, read_single_message, several_messages};
#[cfg(unix)]
pub use unix_socket::UnixPort;
