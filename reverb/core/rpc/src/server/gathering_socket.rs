// SPDX-License-Identifier: Apache-2.0
//! A socket that writes in one piece what a connection sends in one step.
//!
//! h2 writes a DATA frame of 256 bytes or more before it encodes the next frame. So an answer and
//! the trailers after it would be two writes, which the peer would read one after the other.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are gathered. More than that is written as it comes, without a copy.
const MAX_GATHERED_BYTES: usize = 16 << 10;

/// The socket. Clones are the same one. What was written waits for `write_gathered`.
#[derive(Debug)]
pub(super) struct GatheringSocket<S>(Arc<Mutex<State<S>>>);

#[derive(Debug)]
struct State<S> {
    socket: S,
    gathered: Vec<u8>,
    /// How many of these bytes are written.
    num_written: usize,
    is_flushed: bool,
}

impl<S> Clone for GatheringSocket<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> GatheringSocket<S> {
    pub(super) fn new(socket: S) -> Self {
        let gathered = Vec::new();
        Self(Arc::new(Mutex::new(State { socket, gathered, num_written: 0, is_flushed: true })))
    }
}

impl<S: AsyncWrite + Unpin> GatheringSocket<S> {
    /// Writes what was gathered. To be called after each step of the connection. A socket that is
    /// full wakes the task; an error is that of the next write.
    pub(super) fn write_gathered(&self, context: &mut Context<'_>) {
        let mut state = self.0.lock();
        if !state.is_flushed {
            let _ = state.poll_flush(context);
        }
    }
}

impl<S: AsyncWrite + Unpin> State<S> {
    fn poll_write_gathered(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.num_written < self.gathered.len() {
            let rest = &self.gathered[self.num_written..];
            let written = ready!(Pin::new(&mut self.socket).poll_write(context, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.num_written += written;
        }
        self.gathered.clear();
        self.num_written = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_gathered(context))?;
        ready!(Pin::new(&mut self.socket).poll_flush(context))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GatheringSocket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GatheringSocket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        state.is_flushed = false;
        let bytes = slices.iter().map(|slice| slice.len()).sum::<usize>();
        if state.gathered.len() + bytes > MAX_GATHERED_BYTES {
            ready!(state.poll_write_gathered(context))?;
            if bytes > MAX_GATHERED_BYTES {
                return Pin::new(&mut state.socket).poll_write_vectored(context, slices);
            }
        }
        for slice in slices {
            state.gathered.extend_from_slice(slice);
        }
        Poll::Ready(Ok(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().socket.is_write_vectored()
    }

    /// Does nothing, because h2 flushes after each large frame.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        ready!(state.poll_write_gathered(context))?;
        Pin::new(&mut state.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use bytes::Bytes;
    use http::{HeaderMap, Request, Response};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// A socket that counts the bytes of each write, and is full after `room` of them.
    #[derive(Debug)]
    struct Counter {
        socket: DuplexStream,
        writes: Vec<usize>,
        room: usize,
    }

    impl AsyncRead for Counter {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.socket).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Counter {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.room == 0 {
                return Poll::Pending;
            }
            let bytes = &bytes[..bytes.len().min(self.room)];
            self.room -= bytes.len();
            self.writes.push(bytes.len());
            Pin::new(&mut self.socket).poll_write(context, bytes)
        }

        fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.socket).poll_shutdown(context)
        }
    }

    /// A socket, and the other end.
    fn pair(room: usize) -> (GatheringSocket<Counter>, DuplexStream) {
        let (socket, peer) = tokio::io::duplex(1 << 20);
        (GatheringSocket::new(Counter { socket, writes: Vec::new(), room }), peer)
    }

    fn writes(socket: &GatheringSocket<Counter>) -> Vec<usize> {
        std::mem::take(&mut socket.0.lock().socket.writes)
    }

    #[tokio::test]
    async fn small_pieces_are_one_write_and_large_ones_are_not_copied() {
        let (mut socket, _peer) = pair(usize::MAX);
        let mut context = Context::from_waker(Waker::noop());
        for piece in [&b"head"[..], &[1; 300], b"trailers"] {
            socket.write_all(piece).await.unwrap();
            socket.flush().await.unwrap();
        }
        assert!(writes(&socket).is_empty(), "the step is not over");
        socket.write_gathered(&mut context);
        assert_eq!(writes(&socket), [312]);
        socket.write_all(b"head").await.unwrap();
        socket.write_all(&vec![2; MAX_GATHERED_BYTES + 1]).await.unwrap();
        socket.write_all(b"trailers").await.unwrap();
        socket.write_gathered(&mut context);
        socket.write_gathered(&mut context);
        assert_eq!(writes(&socket), [4, MAX_GATHERED_BYTES + 1, 8]);
    }

    #[tokio::test]
    async fn a_full_socket_gets_the_rest_in_order_and_holds_up_more() {
        let (mut socket, mut peer) = pair(100);
        let mut context = Context::from_waker(Waker::noop());
        let sent: Vec<u8> = (0..MAX_GATHERED_BYTES).map(|i| i as u8).collect();
        socket.write_all(&sent).await.unwrap();
        socket.write_gathered(&mut context);
        assert_eq!(writes(&socket), [100]);
        assert!(Pin::new(&mut socket).poll_write(&mut context, b"more").is_pending());
        assert!(Pin::new(&mut socket).poll_shutdown(&mut context).is_pending());
        socket.0.lock().socket.room = usize::MAX;
        socket.write_all(b"more").await.unwrap();
        socket.shutdown().await.unwrap();
        let mut received = Vec::new();
        peer.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, [&sent[..], b"more"].concat());
    }

    #[tokio::test]
    async fn an_answer_and_its_trailers_are_one_write() {
        let (socket, peer) = pair(usize::MAX);
        let (mut handle, client) = h2::client::handshake(peer).await.unwrap();
        tokio::spawn(client);
        let (answer, _) = handle.send_request(Request::new(()), true).unwrap();
        let mut connection = h2::server::handshake(socket.clone()).await.unwrap();
        let accepted = poll_fn(|context| {
            let accepted = connection.poll_accept(context);
            socket.write_gathered(context);
            accepted
        });
        let (_, mut responder) = accepted.await.unwrap().unwrap();
        let mut stream = responder.send_response(Response::new(()), false).unwrap();
        stream.send_data(Bytes::from(vec![7; 5000]), false).unwrap();
        stream.send_trailers(HeaderMap::new()).unwrap();
        writes(&socket);
        let step = poll_fn(|context| {
            assert!(connection.poll_accept(context).is_pending());
            socket.write_gathered(context);
            Poll::Ready(())
        });
        step.await;
        assert_eq!(writes(&socket).len(), 1);
        let mut body = answer.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), [7; 5000][..]);
        assert!(body.trailers().await.unwrap().is_some());
    }
}
