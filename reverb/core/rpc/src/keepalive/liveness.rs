// SPDX-License-Identifier: Apache-2.0
//! What is known of the peer of a connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Shared by a connection, its socket and its calls.
#[derive(Debug, Default)]
pub struct Liveness {
    is_ours: AtomicBool,
    open_calls: AtomicUsize,
    was_heard: AtomicBool,
    is_gone: AtomicBool,
}

impl Liveness {
    /// Takes note of what the peer calls itself.
    pub fn meet(&self, product: Option<&HeaderValue>) {
        // Reading is cheaper than writing, and one header is as good as all.
        if !self.is_ours() && super::is_ours(product) {
            self.is_ours.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the peer has said that it is of this package.
    pub fn is_ours(&self) -> bool {
        self.is_ours.load(Ordering::Relaxed)
    }

    /// Whether the peer has left a PING without an answer.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// A call is open until the guard is dropped.
    pub fn open_call(self: &Arc<Self>) -> OpenCall {
        self.open_calls.fetch_add(1, Ordering::Relaxed);
        OpenCall(Arc::clone(self))
    }

    pub(super) fn is_to_be_pinged(&self) -> bool {
        self.is_ours() && self.open_calls.load(Ordering::Relaxed) > 0
    }

    pub(super) fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    fn hear(&self) {
        self.was_heard.store(true, Ordering::Relaxed);
    }

    /// Whether the peer has given a sign of life since the last time this was asked.
    pub(super) fn forget(&self) -> bool {
        self.was_heard.swap(false, Ordering::Relaxed)
    }
}

/// A call that is open.
#[derive(Debug)]
pub struct OpenCall(Arc<Liveness>);

impl OpenCall {
    /// The peer of the call.
    pub fn liveness(&self) -> &Liveness {
        &self.0
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.open_calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket that takes note of signs of life: bytes that come, and bytes that go again after the
/// socket was full, because then the peer has acknowledged some.
#[derive(Debug)]
pub struct WatchedSocket<S> {
    socket: S,
    liveness: Arc<Liveness>,
    was_full: bool,
}

impl<S> WatchedSocket<S> {
    /// Watches `socket`.
    pub fn new(socket: S, liveness: Arc<Liveness>) -> Self {
        Self { socket, liveness, was_full: false }
    }

    fn note(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if self.was_full && matches!(written, Poll::Ready(Ok(_))) {
            self.liveness.hear();
        }
        self.was_full = written.is_pending();
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if read.is_ready() {
            self.liveness.hear();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, buffers);
        self.note(written)
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
