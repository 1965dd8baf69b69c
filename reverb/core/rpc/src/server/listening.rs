// SPDX-License-Identifier: Apache-2.0
//! Listening sockets of this process. A forked child has them too, and must not keep the ports of
//! its parent in use.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FileType, fstat};

/// Number of remembered sockets, the latest ones.
const MAX_SOCKETS: usize = 256;

/// No lock: another thread could hold it while a child is forked.
static SOCKETS: [AtomicU64; MAX_SOCKETS] = [const { AtomicU64::new(0) }; MAX_SOCKETS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Number of an open file and, if it is a socket, the last bits of the socket's own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketIdentity(u64);

impl SocketIdentity {
    /// `None` if the file is no socket.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let file = file.as_fd();
        let status = fstat(file).ok()?;
        let number = u64::try_from(file.as_raw_fd()).ok()?;
        let is_socket = FileType::from_raw_mode(status.st_mode).is_socket();
        is_socket.then(|| Self(number << 32 | status.st_ino & u64::from(u32::MAX)))
    }

    /// The number of the file.
    pub fn file_number(self) -> RawFd {
        (self.0 >> 32) as RawFd
    }
}

pub(super) fn remember(socket: impl AsFd) {
    if let Some(SocketIdentity(identity)) = SocketIdentity::of(socket) {
        let index = NEXT.fetch_add(1, Ordering::Relaxed) % MAX_SOCKETS;
        SOCKETS[index].store(identity, Ordering::Release);
    }
}

/// Listening sockets, and some that are closed. A file that reuses the number of a closed one has
/// another identity.
pub fn listening() -> impl Iterator<Item = SocketIdentity> {
    let identities = SOCKETS.iter().map(|socket| socket.load(Ordering::Acquire));
    identities.filter(|identity| *identity != 0).map(SocketIdentity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_known_until_its_number_is_that_of_another() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        remember(&listener);
        let identity = SocketIdentity::of(&listener).unwrap();
        assert_eq!(identity.file_number(), listener.as_raw_fd());
        assert!(listening().any(|known| known == identity));
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listening().all(|known| Some(known) != SocketIdentity::of(&other)));
        assert_eq!(SocketIdentity::of(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
