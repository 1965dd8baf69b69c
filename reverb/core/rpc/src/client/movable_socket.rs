// SPDX-License-Identifier: Apache-2.0
//! A socket that moves between the runtime, which waits for it, and a thread that does so itself.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use socket2::Socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::task::coop;

/// Bytes that are read from a detached socket at once. They are set to zero first.
const READ_BYTES: usize = 64 << 10;

/// The socket. Its lock is held while it is read or written.
#[derive(Debug)]
pub(super) struct MovableSocket(Mutex<State>);

#[derive(Debug)]
enum State {
    /// The runtime waits for it.
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    /// A thread waits for it. Nothing is read before it is readable.
    Detached { socket: Arc<Socket>, is_unix: bool, is_readable: bool },
    /// The connection has ended, or the socket could not be moved.
    Closed(io::ErrorKind),
}

impl From<TcpStream> for MovableSocket {
    fn from(socket: TcpStream) -> Self {
        Self(Mutex::new(State::Tcp(socket)))
    }
}

#[cfg(unix)]
impl From<UnixStream> for MovableSocket {
    fn from(socket: UnixStream) -> Self {
        Self(Mutex::new(State::Unix(socket)))
    }
}

impl MovableSocket {
    /// No socket, for tests of connections over other streams.
    #[cfg(test)]
    pub(super) fn closed() -> Self {
        Self(Mutex::new(State::Closed(io::ErrorKind::NotConnected)))
    }

    /// Takes the socket out of the runtime.
    pub(super) fn detach(&self) {
        self.replace(|state| {
            let (socket, is_unix) = match state {
                State::Tcp(socket) => (Socket::from(socket.into_std()?), false),
                #[cfg(unix)]
                State::Unix(socket) => (Socket::from(socket.into_std()?), true),
                other => return Ok(other),
            };
            Ok(State::Detached { socket: Arc::new(socket), is_unix, is_readable: true })
        });
    }

    /// Gives the socket to the runtime. No thread waits for it.
    pub(super) fn attach(&self, runtime: &Handle) {
        let _runtime = runtime.enter();
        self.replace(|state| {
            let State::Detached { socket, is_unix, .. } = state else { return Ok(state) };
            let socket = Arc::try_unwrap(socket).map_err(|_| io::ErrorKind::ResourceBusy)?;
            #[cfg(unix)]
            if is_unix {
                return Ok(State::Unix(UnixStream::from_std(socket.into())?));
            }
            debug_assert!(!is_unix);
            Ok(State::Tcp(TcpStream::from_std(socket.into())?))
        });
    }

    pub(super) fn close(&self) {
        self.replace(|_| Err(io::ErrorKind::NotConnected.into()));
    }

    fn replace(&self, change: impl FnOnce(State) -> io::Result<State>) {
        let mut state = self.0.lock();
        let before = std::mem::replace(&mut *state, State::Closed(io::ErrorKind::NotConnected));
        *state = change(before).unwrap_or_else(|error| State::Closed(error.kind()));
    }

    /// The socket, for a thread that waits for it, if it is detached.
    pub(super) fn detached(&self) -> Option<Arc<Socket>> {
        match &*self.0.lock() {
            State::Detached { socket, .. } => Some(Arc::clone(socket)),
            _ => None,
        }
    }

    /// Notes that a detached socket may be readable.
    pub(super) fn note_readable(&self) {
        if let State::Detached { is_readable, .. } = &mut *self.0.lock() {
            *is_readable = true;
        }
    }

    /// Reads from the socket. Nobody wakes the task for a detached one but the thread that waits.
    pub(super) fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self.0.lock() {
            State::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            #[cfg(unix)]
            State::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
            State::Closed(kind) => Poll::Ready(Err((*kind).into())),
            State::Detached { is_readable: false, .. } => Poll::Pending,
            State::Detached { socket, is_readable, .. } => {
                let progress = ready!(coop::poll_proceed(context));
                let room = buffer.initialize_unfilled_to(buffer.remaining().min(READ_BYTES));
                let wanted = room.len();
                match (&mut &**socket).read(room) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        *is_readable = false;
                        Poll::Pending
                    }
                    read => {
                        progress.made_progress();
                        Poll::Ready(read.map(|bytes| {
                            // What comes after less than wanted makes it readable again.
                            *is_readable = bytes == wanted;
                            buffer.advance(bytes);
                        }))
                    }
                }
            }
        }
    }

    /// Writes to the socket; `None` if it is detached and full.
    pub(super) fn poll_write(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Option<Poll<io::Result<usize>>> {
        Some(match &mut *self.0.lock() {
            State::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            #[cfg(unix)]
            State::Unix(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            State::Closed(kind) => Poll::Ready(Err((*kind).into())),
            State::Detached { socket, .. } => match (&mut &**socket).write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                written => Poll::Ready(written),
            },
        })
    }

    pub(super) fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.lock() {
            State::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            #[cfg(unix)]
            State::Unix(socket) => Pin::new(socket).poll_shutdown(context),
            State::Closed(_) => Poll::Ready(Ok(())),
            State::Detached { socket, .. } => Poll::Ready(socket.shutdown(Shutdown::Write)),
        }
    }
}
