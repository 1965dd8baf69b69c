// SPDX-License-Identifier: Apache-2.0
//! A connection, with or without TLS.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio_rustls::TlsStream;
use tokio_rustls::rustls::Error;

use crate::explain::explained;

/// Bytes that are read from the system at once. The TLS library asks for 4 KiB at a time, and a
/// record has up to 16 KiB.
const READ_BYTES: usize = 32 << 10;

/// A socket under TLS, with a read buffer.
pub(crate) fn buffered<S: AsyncRead>(socket: S) -> BufReader<S> {
    BufReader::with_capacity(READ_BYTES, socket)
}

/// A connection over a socket `S`. All variants are one type, so that HTTP/2 on top of them is
/// compiled once.
#[derive(Debug)]
pub enum Socket<S = TcpStream> {
    /// Without encryption.
    Cleartext(S),
    /// A Unix socket of this machine, without encryption.
    #[cfg(unix)]
    Unix(UnixStream),
    /// With encryption.
    Tls(Box<Encrypted<S>>),
}

/// A connection with TLS, and the function that explains its errors.
pub struct Encrypted<S> {
    stream: TlsStream<BufReader<S>>,
    describe: fn(&Error) -> String,
}

impl<S> fmt::Debug for Encrypted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").finish_non_exhaustive()
    }
}

impl<S> Socket<S> {
    pub(crate) fn tls(stream: TlsStream<BufReader<S>>, describe: fn(&Error) -> String) -> Self {
        Self::Tls(Box::new(Encrypted { stream, describe }))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Cleartext(socket) => Pin::new(socket).poll_read(context, buffer),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tls(it) => Pin::new(&mut it.stream)
                .poll_read(context, buffer)
                .map_err(|error| explained(error, it.describe)),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Cleartext(socket) => Pin::new(socket).poll_write(context, bytes),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Tls(it) => Pin::new(&mut it.stream)
                .poll_write(context, bytes)
                .map_err(|error| explained(error, it.describe)),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Cleartext(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            Self::Tls(it) => Pin::new(&mut it.stream)
                .poll_write_vectored(context, slices)
                .map_err(|error| explained(error, it.describe)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Cleartext(socket) => socket.is_write_vectored(),
            #[cfg(unix)]
            Self::Unix(socket) => socket.is_write_vectored(),
            Self::Tls(it) => it.stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Cleartext(socket) => Pin::new(socket).poll_flush(context),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(it) => Pin::new(&mut it.stream)
                .poll_flush(context)
                .map_err(|error| explained(error, it.describe)),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Cleartext(socket) => Pin::new(socket).poll_shutdown(context),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(it) => Pin::new(&mut it.stream)
                .poll_shutdown(context)
                .map_err(|error| explained(error, it.describe)),
        }
    }
}
