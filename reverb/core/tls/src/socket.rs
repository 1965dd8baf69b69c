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

/// Socket under TLS, with a read buffer.
pub(crate) type Buffered = BufReader<TcpStream>;

pub(crate) fn buffered(socket: TcpStream) -> Buffered {
    BufReader::with_capacity(READ_BYTES, socket)
}

/// A connection. All variants are one type, so that HTTP/2 on top of them is compiled once.
#[derive(Debug)]
pub enum Socket {
    /// TCP without encryption.
    Cleartext(TcpStream),
    /// A Unix socket of this machine, without encryption.
    #[cfg(unix)]
    Unix(UnixStream),
    /// TCP with encryption.
    Tls(Box<Encrypted>),
}

/// A connection with TLS, and the function that explains its errors.
pub struct Encrypted {
    stream: TlsStream<Buffered>,
    describe: fn(&Error) -> String,
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").finish_non_exhaustive()
    }
}

impl Socket {
    pub(crate) fn tls(stream: TlsStream<Buffered>, describe: fn(&Error) -> String) -> Self {
        Self::Tls(Box::new(Encrypted { stream, describe }))
    }
}

impl AsyncRead for Socket {
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

impl AsyncWrite for Socket {
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
