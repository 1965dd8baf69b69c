// SPDX-License-Identifier: Apache-2.0
//! Data frames of a stream that were received and are not read yet.
//!
//! h2 keeps each frame in an entry of a few hundred bytes until it is read, and bounds only the
//! bytes in them. So a peer that sends frames of one byte to calls that do not read would take many
//! times what it sends. A server takes in the frames of a call whenever the call has taken a step:
//! small ones are copied together, so they take the memory of their bytes. The peer's window opens
//! when they are read, as before.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use parking_lot::Mutex;
use reverb_base::error::grouped;
use reverb_base::{Error, Result};

use super::read::Gate;

/// Smaller frames are copied together.
const BLOCK_BYTES: usize = 64 * 1024;

/// Bytes that the calls of a connection may leave unread, without insert streams, whose bytes are
/// part of the server's memory.
const MAX_UNREAD_BYTES: usize = 4 << 20;

/// Unread bytes of all calls of a connection that have a bound.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadBytes(Arc<AtomicUsize>);

/// The frames of a stream, for its reader and for the task that runs its call.
#[derive(Debug, Clone)]
pub(crate) struct Frames(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    stream: RecvStream,
    /// Frames that were taken in, small ones together, oldest first.
    unread: VecDeque<Bytes>,
    /// The last of them, while it may grow.
    block: Vec<u8>,
    /// The end of the stream, if it was found after them.
    end: End,
    /// True if the reader waits for frames since this step of the call.
    is_empty: bool,
    /// Waker of a reader that waits.
    reader: Option<Waker>,
    of_connection: UnreadBytes,
    /// Counts unread bytes. `None`: they have no bound but the window.
    gate: Option<Arc<dyn Gate>>,
    counted: usize,
}

#[derive(Debug)]
enum End {
    /// The stream may continue.
    Unknown,
    Ended,
    Failed(h2::Error),
}

type Next = Option<std::result::Result<Bytes, h2::Error>>;

impl Frames {
    pub(crate) fn new(stream: RecvStream, of_connection: UnreadBytes) -> Self {
        Self(Arc::new(Mutex::new(State {
            stream,
            unread: VecDeque::new(),
            block: Vec::new(),
            end: End::Unknown,
            is_empty: false,
            reader: None,
            of_connection,
            gate: None,
            counted: 0,
        })))
    }

    /// Bounds the unread bytes, together with those of other calls of the connection, and counts
    /// them by this gate; `None`: no longer.
    pub(super) fn bound(&self, gate: Option<Arc<dyn Gate>>) {
        let mut state = self.0.lock();
        state.count(0);
        state.gate = gate;
    }

    /// The next frame, or several small ones; `None` at the end.
    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Next> {
        let mut state = self.0.lock();
        let next = state.poll_next(context);
        state.is_empty = next.is_pending();
        let is_known = |waker: &Waker| waker.will_wake(context.waker());
        if state.is_empty && !state.reader.as_ref().is_some_and(is_known) {
            state.reader = Some(context.waker().clone());
        }
        next
    }

    /// Opens the peer's window by bytes that were read.
    pub(super) fn release(&self, bytes: usize) {
        // An error means that the stream is over. The next poll returns a better error.
        let _ = self.0.lock().stream.flow_control().release_capacity(bytes);
    }

    /// Received bytes that are not read.
    pub(super) fn unread_bytes(&self) -> usize {
        self.0.lock().stream.flow_control().used_capacity()
    }

    pub(super) fn poll_trailers(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<std::result::Result<Option<http::HeaderMap>, h2::Error>> {
        self.0.lock().stream.poll_trailers(context)
    }

    /// Begins a step of the call.
    pub(crate) fn begin_step(&self) {
        self.0.lock().is_empty = false;
    }

    /// Takes in the frames that came, unless the reader waits for them since this step. To be
    /// called after each step of the call.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if too much is unread.
    pub(crate) fn take_in(&self, context: &mut Context<'_>) -> Result<()> {
        let mut state = self.0.lock();
        if state.is_empty || !matches!(state.end, End::Unknown) {
            return Ok(());
        }
        state.take_in(context)
    }
}

impl State {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        let next = match self.unread.pop_front() {
            Some(frame) => frame,
            None => mem::take(&mut self.block).into(),
        };
        if !next.is_empty() {
            self.count(self.counted.saturating_sub(next.len()));
            return Poll::Ready(Some(Ok(next)));
        }
        match mem::replace(&mut self.end, End::Ended) {
            End::Ended => Poll::Ready(None),
            End::Failed(error) => Poll::Ready(Some(Err(error))),
            End::Unknown => {
                self.end = End::Unknown;
                self.stream.poll_data(context)
            }
        }
    }

    fn take_in(&mut self, context: &mut Context<'_>) -> Result<()> {
        let mut bytes = 0;
        while matches!(self.end, End::Unknown)
            && let Poll::Ready(next) = self.stream.poll_data(context)
        {
            match next {
                Some(Ok(frame)) => {
                    bytes += frame.len();
                    self.put(&frame);
                }
                Some(Err(error)) => self.end = End::Failed(error),
                None => self.end = End::Ended,
            }
        }
        let has_news = bytes > 0 || !matches!(self.end, End::Unknown);
        if let Some(reader) = self.reader.take_if(|_| has_news) {
            reader.wake();
        }
        if self.gate.is_none() {
            return Ok(());
        }
        self.count(self.counted + bytes);
        let unread = self.of_connection.0.load(Ordering::Relaxed);
        if bytes == 0 || unread <= MAX_UNREAD_BYTES {
            return Ok(());
        }
        Err(Error::resource_exhausted(format!(
            "The calls of this connection have {} bytes of requests that wait, more than {}: send \
             the next request of a stream when the last one is answered.",
            grouped(unread),
            grouped(MAX_UNREAD_BYTES),
        )))
    }

    fn put(&mut self, frame: &Bytes) {
        if frame.len() >= BLOCK_BYTES {
            self.end_block();
            self.unread.push_back(frame.clone());
            return;
        }
        if self.block.len() + frame.len() > BLOCK_BYTES {
            self.end_block();
        }
        self.block.extend_from_slice(frame);
    }

    fn end_block(&mut self) {
        if !self.block.is_empty() {
            self.unread.push_back(mem::take(&mut self.block).into());
        }
    }

    /// Sets the number of unread bytes that are counted.
    fn count(&mut self, bytes: usize) {
        let Some(gate) = &self.gate else { return };
        // In one step, so that no other call sees both numbers. A decrease wraps around.
        self.of_connection.0.fetch_add(bytes.wrapping_sub(self.counted), Ordering::Relaxed);
        gate.count(bytes as i64 - self.counted as i64);
        self.counted = bytes;
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.count(0);
    }
}
