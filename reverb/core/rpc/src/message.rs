// SPDX-License-Identifier: Apache-2.0
//! An outgoing gRPC message: small parts written into buffers, large payloads by reference.

use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::server::Room;

/// Length of the prefix of every gRPC message: a compression flag and the length of the message.
pub const PREFIX_BYTES: usize = 5;

/// Payloads up to this size are copied. That is cheaper than one more entry in a vectored write.
const MAX_COPIED_BYTES: usize = 2048;

/// A message with its gRPC prefix, ready for the socket. Large payloads are shared, not copied.
#[derive(Debug)]
pub struct Message {
    segments: Vec<Segment>,
    /// Index of the first segment that is not consumed.
    at: usize,
    consumed: usize,
    remaining: usize,
    /// Room for readers that it occupies until it is sent.
    _room: Option<Room>,
}

#[derive(Debug)]
enum Segment {
    Written(Vec<u8>),
    Payload(Bytes),
}

impl Segment {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Written(bytes) => bytes,
            Self::Payload(bytes) => bytes,
        }
    }
}

impl Message {
    /// Creates a message from a generated one.
    pub fn encode(message: &impl prost::Message) -> Self {
        let mut builder = MessageBuilder::with_capacity(message.encoded_len());
        message.encode_raw(builder.out());
        builder.finish()
    }

    /// Creates a message from its encoding.
    pub fn from_body(body: &[u8]) -> Self {
        let mut builder = MessageBuilder::with_capacity(body.len());
        builder.out().extend_from_slice(body);
        builder.finish()
    }

    /// Creates a message from its compressed encoding. The compression must be that of the stream's
    /// headers.
    pub fn from_compressed_body(body: &[u8]) -> Self {
        let mut builder = MessageBuilder::with_capacity(body.len());
        builder.out()[0] = 1;
        builder.out().extend_from_slice(body);
        builder.finish()
    }

    /// No bytes at all, not even a prefix. It ends a stream.
    pub(crate) fn empty() -> Self {
        Self { segments: Vec::new(), at: 0, consumed: 0, remaining: 0, _room: None }
    }

    /// Attaches the room that was taken for it; sending the message gives it back.
    #[must_use]
    pub fn with_room(self, mut room: Room) -> Self {
        room.use_for(self.remaining);
        Self { _room: Some(room), ..self }
    }
}

impl Buf for Message {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.segments.get(self.at).map_or(&[], |segment| &segment.bytes()[self.consumed..])
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut consumed = self.consumed;
        let mut filled = 0;
        for (segment, slot) in self.segments[self.at..].iter().zip(out) {
            *slot = IoSlice::new(&segment.bytes()[consumed..]);
            consumed = 0;
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining, "cannot advance past the end of a message");
        self.remaining -= count;
        self.consumed += count;
        while let Some(segment) = self.segments.get(self.at)
            && self.consumed >= segment.bytes().len()
        {
            self.consumed -= segment.bytes().len();
            self.at += 1;
        }
    }
}

/// Writes a message.
#[derive(Debug)]
pub struct MessageBuilder {
    segments: Vec<Segment>,
    tail: Vec<u8>,
    closed_bytes: usize,
}

impl MessageBuilder {
    /// An empty message with room for `bytes` bytes of small parts.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut tail = Vec::with_capacity(PREFIX_BYTES + bytes);
        tail.extend_from_slice(&[0; PREFIX_BYTES]);
        Self { segments: Vec::new(), tail, closed_bytes: 0 }
    }

    /// The buffer for small parts.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Length of the message so far, in bytes.
    pub fn body_len(&self) -> usize {
        self.closed_bytes + self.tail.len() - PREFIX_BYTES
    }

    /// Appends bytes that are shared with the caller, unless copying them is cheaper.
    pub fn put_shared(&mut self, bytes: &Bytes) {
        if bytes.len() <= MAX_COPIED_BYTES {
            self.tail.extend_from_slice(bytes);
            return;
        }
        self.closed_bytes += self.tail.len() + bytes.len();
        self.segments.push(Segment::Written(std::mem::take(&mut self.tail)));
        self.segments.push(Segment::Payload(bytes.clone()));
    }

    /// Completes the message.
    pub fn finish(mut self) -> Message {
        let length = self.body_len();
        if !self.tail.is_empty() {
            self.segments.push(Segment::Written(self.tail));
        }
        // `MessageSender` refuses messages that are too long for this field.
        let length_field = u32::try_from(length).unwrap_or(u32::MAX);
        if let Some(Segment::Written(head)) = self.segments.first_mut() {
            head[1..PREFIX_BYTES].copy_from_slice(&length_field.to_be_bytes());
        }
        let remaining = length + PREFIX_BYTES;
        Message { segments: self.segments, at: 0, consumed: 0, remaining, _room: None }
    }
}

/// Content of the message as one buffer without its prefix, for tests and for calls without a
/// network.
pub fn body_bytes(mut message: Message) -> Bytes {
    message.advance(PREFIX_BYTES);
    let length = message.remaining();
    message.copy_to_bytes(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_read_like_one_buffer() {
        let large = Bytes::from(vec![7; 5000]);
        let small = Bytes::from(vec![8; 10]);
        let mut builder = MessageBuilder::with_capacity(0);
        builder.out().extend_from_slice(b"ab");
        builder.put_shared(&large);
        builder.put_shared(&small);
        builder.put_shared(&large);
        assert_eq!(builder.body_len(), 2 + 5000 + 10 + 5000);
        let mut message = builder.finish();
        assert_eq!(message.segments.len(), 4);

        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(message.chunks_vectored(&mut slices), 4);
        assert_eq!(slices.iter().map(|slice| slice.len()).sum::<usize>(), message.remaining());
        message.advance(6);
        assert_eq!(message.chunk(), b"b");
        message.advance(2);
        assert_eq!(message.chunk().len(), 4999);
        let rest = message.copy_to_bytes(message.remaining());
        assert_eq!(rest.len(), 4999 + 10 + 5000);
        assert_eq!(&rest[4998..5010], &[7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7]);
    }

    #[test]
    fn the_frame_header_holds_the_length() {
        let mut builder = MessageBuilder::with_capacity(3);
        builder.out().extend_from_slice(&[1, 2, 3]);
        assert_eq!(builder.finish().chunk(), [0, 0, 0, 0, 3, 1, 2, 3]);
        let mut empty = MessageBuilder::with_capacity(0).finish();
        assert_eq!(empty.copy_to_bytes(5).as_ref(), [0; 5]);
    }
}
