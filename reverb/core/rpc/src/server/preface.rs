// SPDX-License-Identifier: Apache-2.0
//! The client preface of HTTP/2: read first, and then read once more by h2.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::authority::PlainAuthority;
use crate::framing::FOR_OPERATORS;

/// First bytes of every HTTP/2 client (RFC 9113, section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A socket whose first bytes, which were already read, are read once more.
#[derive(Debug)]
pub(super) struct WithPreface<S> {
    socket: S,
    preface_bytes: Vec<u8>,
    num_read: usize,
    /// Present for Unix sockets, whose clients may send a path as `:authority`.
    authority: Option<Box<PlainAuthority>>,
}

/// Reads the client preface of HTTP/2, or as much of it as matches; h2 reports anything else.
/// Returns true if the client asks for a connection that is kept for operators.
/// Cancel safe: bytes that were read are in `bytes`.
pub(super) async fn read_preface<S: AsyncRead + Unpin>(
    socket: &mut S,
    bytes: &mut Vec<u8>,
) -> io::Result<bool> {
    read_matching(socket, FOR_OPERATORS, bytes).await?;
    let is_for_operators = bytes == FOR_OPERATORS;
    if is_for_operators {
        bytes.clear();
    }
    read_matching(socket, PREFACE, bytes).await?;
    Ok(is_for_operators)
}

async fn read_matching<S: AsyncRead + Unpin>(
    socket: &mut S,
    expected: &[u8],
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    while bytes.len() < expected.len() && expected.starts_with(bytes) {
        let missing = (expected.len() - bytes.len()) as u64;
        if socket.take(missing).read_buf(bytes).await? == 0 {
            break;
        }
    }
    Ok(())
}

impl<S> WithPreface<S> {
    /// `is_unix` is true for a Unix socket.
    pub(super) fn new(socket: S, preface_bytes: Vec<u8>, is_unix: bool) -> Self {
        let authority = is_unix.then(|| Box::new(PlainAuthority::new()));
        Self { socket, preface_bytes, num_read: 0, authority }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WithPreface<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, preface_bytes, num_read, authority } = self.get_mut();
        let before = buffer.filled().len();
        let read = if *num_read < preface_bytes.len() {
            let rest = &preface_bytes[*num_read..];
            let now = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..now]);
            *num_read += now;
            Poll::Ready(Ok(()))
        } else {
            Pin::new(socket).poll_read(context, buffer)
        };
        if let Some(authority) = authority {
            authority.pass(&mut buffer.filled_mut()[before..]);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WithPreface<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_preface_is_read_once_more_and_nothing_else() {
        let said = [PREFACE, b"and so on"].concat();
        for (step, before) in
            [1, 5, 24, 100].into_iter().flat_map(|step| [(step, &b""[..]), (step, FOR_OPERATORS)])
        {
            let (mut near, mut far) = tokio::io::duplex(step);
            let theirs = [before, &said].concat();
            let say = tokio::spawn(async move {
                tokio::io::AsyncWriteExt::write_all(&mut near, &theirs).await.unwrap();
            });
            let mut bytes = Vec::new();
            let is_for_operators = read_preface(&mut far, &mut bytes).await.unwrap();
            assert_eq!(is_for_operators, !before.is_empty());
            assert_eq!(bytes, PREFACE);
            let mut heard = Vec::new();
            WithPreface::new(far, bytes, true).read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, said);
            say.await.unwrap();
        }
    }

    #[tokio::test]
    async fn other_bytes_are_not_waited_for() {
        for said in [&b"PRI * HTTP/1.1"[..], b"", b"what is this?", b"PRI * HT"] {
            let mut bytes = Vec::new();
            read_preface(&mut &said[..], &mut bytes).await.unwrap();
            assert!(said.starts_with(&bytes) && (bytes == said || !PREFACE.starts_with(&bytes)));
        }
        let (_near, mut far) = tokio::io::duplex(10);
        let brief = std::time::Duration::from_millis(10);
        let waited = tokio::time::timeout(brief, read_preface(&mut far, &mut Vec::new())).await;
        assert!(waited.is_err(), "a peer that says nothing is waited for");
    }
}
