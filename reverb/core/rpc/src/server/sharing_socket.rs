// SPDX-License-Identifier: Apache-2.0
//! A socket that lets other connections be served.
//!
//! h2 reads and writes for as long as the socket can, and begins a call for each 100 bytes that a
//! peer sends. Connections that do so at once would delay all others for seconds.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::turns::use_up_budget;

/// Time that a connection may use without a pause.
const TURN: Duration = Duration::from_micros(100);

/// A socket that is neither readable nor writable after a turn, until other tasks have run. It is
/// not read while reading is paused.
#[derive(Debug)]
pub(super) struct SharingSocket<S> {
    socket: S,
    turn: Duration,
    /// Begin of the turn: the first of consecutive reads, or writes, that did not wait.
    began: Option<Instant>,
    is_writing: bool,
    pause: ReadingPause,
}

/// A pause in reading, while calls that were read wait for their beginning. Clones belong to the
/// same socket.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadingPause(Arc<AtomicBool>);

impl ReadingPause {
    pub(super) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if there was a pause. The socket should be read at once then: during a pause
    /// it wakes no task.
    pub(super) fn end(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

impl<S> SharingSocket<S> {
    pub(super) fn new(socket: S, pause: ReadingPause) -> Self {
        Self { socket, turn: TURN, began: None, is_writing: false, pause }
    }

    /// Begins a read or a write. After a turn it has to wait.
    fn begin_use(&mut self, context: &mut Context<'_>, is_write: bool) {
        if std::mem::replace(&mut self.is_writing, is_write) != is_write {
            self.began = None;
        }
        match self.began {
            None => self.began = Some(Instant::now()),
            Some(began) if began.elapsed() >= self.turn => use_up_budget(context),
            Some(_) => {}
        }
    }

    /// Ends a read or a write.
    fn end_use<T>(&mut self, used: Poll<T>) -> Poll<T> {
        if used.is_pending() {
            self.began = None;
        }
        used
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SharingSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.pause.0.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        self.begin_use(context, false);
        let used = Pin::new(&mut self.socket).poll_read(context, buffer);
        self.end_use(used)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SharingSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begin_use(context, true);
        let used = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.end_use(used)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin_use(context, true);
        let used = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.end_use(used)
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Number of times that another task went on while a peer's bytes were read, one at a time.
    async fn pauses(turn: Duration) -> usize {
        let (mut near, far) = tokio::io::duplex(1000);
        near.write_all(&[0; 100]).await.unwrap();
        let pause = ReadingPause::default();
        let mut socket = SharingSocket { turn, ..SharingSocket::new(far, pause) };
        let reading = tokio::spawn(async move {
            for _ in 0..100 {
                socket.read_u8().await.unwrap();
            }
        });
        let mut pauses = 0;
        while !reading.is_finished() {
            tokio::task::yield_now().await;
            pauses += 1;
        }
        reading.await.unwrap();
        pauses
    }

    #[tokio::test]
    async fn a_task_pauses_after_each_turn() {
        assert!(pauses(Duration::MAX).await < 3, "the runtime allows 128 uses");
        assert!(pauses(Duration::ZERO).await > 90, "one after each byte");
    }
    #[tokio::test]
    async fn nothing_is_read_in_a_pause() {
        let (mut near, far) = tokio::io::duplex(1000);
        near.write_all(b"a").await.unwrap();
        let pause = ReadingPause::default();
        let mut socket = SharingSocket::new(far, pause.clone());
        pause.begin();
        let mut byte = [0];
        let mut reading = std::pin::pin!(socket.read(&mut byte));
        let poll = std::future::poll_fn(|context| Poll::Ready(reading.as_mut().poll(context)));
        assert!(poll.await.is_pending());
        assert!(pause.end());
        assert_eq!(reading.await.unwrap(), 1);
        assert!(!pause.end());
    }
}
