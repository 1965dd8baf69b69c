// SPDX-License-Identifier: Apache-2.0
//! Liveness of the peer of a connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::Traffic;

/// State shared by a connection, its socket and its calls.
#[derive(Debug, Default)]
pub struct Liveness {
    /// Counter of the connection's bytes, at a server.
    traffic: Option<Arc<Traffic>>,
    is_ours: AtomicBool,
    open_calls: AtomicUsize,
    was_heard: AtomicBool,
    is_gone: AtomicBool,
    has_stopped: AtomicBool,
}

impl Liveness {
    /// Liveness of a connection whose bytes are counted.
    pub(crate) fn counted(traffic: &Arc<Traffic>) -> Self {
        Self { traffic: Some(Arc::clone(traffic)), ..Self::default() }
    }

    /// Records the product name that the peer sent.
    pub fn identify(&self, product: Option<&HeaderValue>) {
        // Reading is cheaper than writing, and one matching header is enough.
        if !self.is_ours() && super::is_ours(product) {
            self.is_ours.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the peer has identified itself as part of this package.
    pub fn is_ours(&self) -> bool {
        self.is_ours.load(Ordering::Relaxed)
    }

    /// Returns true if the peer has not answered a PING.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// Notes that the peer has said that it does not come back.
    pub fn note_stop(&self) {
        self.has_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns true if the peer has said that it does not come back.
    pub fn has_stopped(&self) -> bool {
        self.has_stopped.load(Ordering::Relaxed)
    }

    /// Counts a call as open until the guard is dropped.
    pub fn open_call(self: &Arc<Self>) -> OpenCall {
        self.open_calls.fetch_add(1, Ordering::Relaxed);
        OpenCall(Arc::clone(self))
    }

    /// Number of open calls.
    pub fn open_calls(&self) -> usize {
        self.open_calls.load(Ordering::Relaxed)
    }

    pub(super) fn needs_pings(&self) -> bool {
        self.is_ours() && self.open_calls() > 0
    }

    pub(super) fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    fn set_heard(&self) {
        self.was_heard.store(true, Ordering::Relaxed);
    }

    /// Returns true if the peer has given a sign of life since the last call of this method.
    pub(super) fn take_heard(&self) -> bool {
        self.was_heard.swap(false, Ordering::Relaxed)
    }
}

/// A guard that counts a call as open.
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

/// A socket that records signs of life: received bytes, and writes that succeed after the socket
/// was full, because then the peer has acknowledged some bytes.
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

    fn record_write(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            if self.was_full {
                self.liveness.set_heard();
            }
            if let Some(traffic) = &self.liveness.traffic {
                traffic.count_sent(*bytes);
            }
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
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if read.is_ready() {
            self.liveness.set_heard();
            if let Some(traffic) = &self.liveness.traffic {
                traffic.count_received(buffer.filled().len() - before);
            }
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
        self.record_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, buffers);
        self.record_write(written)
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
