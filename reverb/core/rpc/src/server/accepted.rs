// SPDX-License-Identifier: Apache-2.0
//! A connection that was accepted; nothing was read from it yet.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use reverb_tls::Socket;
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use crate::keepalive::Keepalive;

/// An accepted connection, by the type of its socket.
#[derive(Debug)]
pub(super) enum Accepted {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerAddress {
    /// IP address and port; an IPv4 address mapped to IPv6 is shown as IPv4.
    Network(SocketAddr),
    /// A process of this machine that has connected to a Unix socket.
    Process {
        /// Process number; `None` if the process is in another namespace, such as another
        /// container.
        pid: Option<i32>,
        uid: u32,
    },
}

/// Forms: `10.0.0.1:5`, `unix:4711` with a process number, `unix:user-1000`.
impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Process { pid: Some(pid), .. } => write!(f, "unix:{pid}"),
            Self::Process { pid: None, uid } => write!(f, "unix:user-{uid}"),
        }
    }
}

impl Accepted {
    /// Sets socket options for speed, and for noticing a lost peer.
    pub(super) fn set_options(&self, keepalive: Keepalive) {
        match self {
            Self::Tcp(socket) => {
                // This is only an optimisation. The connection also works without it.
                let _ = socket.set_nodelay(true);
                keepalive.set_tcp_options(socket);
            }
            // A peer on the same machine needs no keepalive.
            #[cfg(unix)]
            Self::Unix(_) => {}
        }
    }

    /// Returns true if the bytes never leave this machine, so that they need no TLS.
    pub(super) fn is_unix(&self) -> bool {
        !matches!(self, Self::Tcp(_))
    }

    /// Number of its file descriptor, on systems that have them.
    pub(super) fn file_number(&self) -> Option<usize> {
        #[cfg(unix)]
        {
            use std::os::fd::AsRawFd;
            let number = match self {
                Self::Tcp(socket) => socket.as_raw_fd(),
                Self::Unix(socket) => socket.as_raw_fd(),
            };
            usize::try_from(number).ok()
        }
        #[cfg(not(unix))]
        None
    }

    /// Waits for bytes and copies the first ones; they stay unread. Returns 0 if the peer sends no
    /// more.
    pub(super) async fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.peek(bytes).await,
            #[cfg(unix)]
            Self::Unix(socket) => {
                use rustix::net::{RecvFlags, recv};
                let mut peek = || Ok(recv(socket, &mut *bytes, RecvFlags::PEEK)?.0);
                socket.async_io(tokio::io::Interest::READABLE, &mut peek).await
            }
        }
    }
}

impl From<Accepted> for Socket {
    fn from(accepted: Accepted) -> Self {
        match accepted {
            Accepted::Tcp(socket) => Self::Cleartext(socket),
            #[cfg(unix)]
            Accepted::Unix(socket) => Self::Unix(socket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_named_by_what_is_known_of_it() {
        let network = PeerAddress::Network("10.0.0.1:5".parse().unwrap());
        assert_eq!(network.to_string(), "10.0.0.1:5");
        assert_eq!(PeerAddress::Process { pid: Some(4711), uid: 0 }.to_string(), "unix:4711");
        assert_eq!(PeerAddress::Process { pid: None, uid: 1000 }.to_string(), "unix:user-1000");
    }
}
