// SPDX-License-Identifier: Apache-2.0
//! Writes messages to a stream, no faster than the peer accepts them.

use std::task::{Context, Poll, ready};

use bytes::Buf;
use h2::{Reason, SendStream};
use http::HeaderMap;
use reverb_base::{Error, Result};

use crate::framing::{MAX_MESSAGE_BYTES, stream_error};
use crate::message::Message;

/// Writes the messages of one direction of a stream.
#[derive(Debug)]
pub struct MessageSender {
    stream: SendStream<Message>,
    peer: String,
}

impl MessageSender {
    /// Writes to `stream`; `peer` names the other end.
    pub fn new(stream: SendStream<Message>, peer: impl Into<String>) -> Self {
        Self { stream, peer: peer.into() }
    }

    /// Hands a message over as soon as the stream has room for a part of it.
    pub async fn send(&mut self, message: Message) -> Result<()> {
        self.stream.reserve_capacity(message.remaining());
        std::future::poll_fn(|context| self.poll_room(context)).await?;
        self.send_now(message)
    }

    /// Hands a message over without waiting; for messages of a few bytes.
    pub fn send_now(&mut self, message: Message) -> Result<()> {
        self.hand_over(message, false)
    }

    /// Hands the only or last message over and ends this direction.
    pub fn send_last(&mut self, message: Message) -> Result<()> {
        self.hand_over(message, true)
    }

    fn hand_over(&mut self, message: Message, is_last: bool) -> Result<()> {
        if message.remaining() > MAX_MESSAGE_BYTES {
            return Err(Error::resource_exhausted(format!(
                "A message of {} bytes is larger than the limit of {MAX_MESSAGE_BYTES} bytes.",
                message.remaining()
            )));
        }
        self.stream.send_data(message, is_last).map_err(|error| stream_error(&error, &self.peer))
    }

    /// Ends this direction.
    pub fn finish(&mut self) {
        // This fails only if the stream is over already.
        self.stream.reserve_capacity(0);
        let _ = self.stream.send_data(Message::empty(), true);
    }

    /// Ends this direction with trailers.
    pub fn finish_with(&mut self, trailers: HeaderMap) {
        self.stream.reserve_capacity(0);
        let _ = self.stream.send_trailers(trailers);
    }

    /// Resolves when the peer has reset the stream or the connection is lost.
    pub async fn closed(&mut self) {
        let _ = std::future::poll_fn(|context| self.poll_closed(context)).await;
    }

    /// See `closed`.
    pub fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<Option<Reason>> {
        self.stream.poll_reset(context).map(std::result::Result::ok)
    }

    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.stream.capacity() > 0 {
            return Poll::Ready(Ok(()));
        }
        match ready!(self.stream.poll_capacity(context)) {
            Some(Ok(_)) => Poll::Ready(Ok(())),
            Some(Err(error)) => Poll::Ready(Err(stream_error(&error, &self.peer))),
            None => Poll::Ready(Err(Error::unavailable(format!(
                "The stream to {} is closed.",
                self.peer
            )))),
        }
    }
}
