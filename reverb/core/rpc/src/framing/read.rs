// SPDX-License-Identifier: Apache-2.0
//! Reads messages from the data frames of a stream.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h2::RecvStream;
use http::HeaderMap;
use reverb_base::error::grouped;
use reverb_base::{Error, Result};
use tokio::time::Sleep;

use crate::framing::compression::Inflated;
use crate::framing::frames::{Frames, UnreadBytes};
use crate::framing::{Compression, stream_error};
use crate::message::PREFIX_BYTES;

/// Reads the messages of one direction of a stream. Each message is one buffer.
///
/// A message inside one frame is a slice of that frame. Only a message that spans frames is copied,
/// once. Its memory grows with the received bytes, and not with the length that its header claims.
#[derive(Debug)]
pub struct MessageReader {
    frames: Frames,
    assembler: Assembler,
    peer: String,
    gate: Option<Arc<dyn Gate>>,
    counted: usize,
    /// Time of the next look at a closed gate.
    retry: Option<Pin<Box<Sleep>>>,
    check: Option<Box<dyn MessageCheck>>,
}

/// Check of messages before they are decoded.
pub trait MessageCheck: fmt::Debug + Send + Sync {
    /// # Errors
    ///
    /// Error that ends the call.
    fn check(&self, message: &[u8]) -> Result<()>;
}

/// Decides whether a stream is read, so that incomplete messages do not fill the memory.
pub trait Gate: fmt::Debug + Send + Sync {
    /// Returns true if more may be read; `partial_bytes` of a message are in memory.
    ///
    /// # Errors
    ///
    /// Error that ends the call.
    fn is_open(&self, partial_bytes: usize) -> Result<bool>;

    /// Reports that the bytes of this stream's incomplete messages changed by this number.
    fn count(&self, bytes: i64);

    /// True if bytes that wait while the call does not read are counted, too, and bounded for all
    /// such calls of a connection.
    fn bounds_unread(&self) -> bool {
        false
    }
}

/// Smaller frames of a message are copied together.
const BLOCK_BYTES: usize = 64 * 1024;

/// Time between two looks at a closed gate.
const GATE_INTERVAL: Duration = Duration::from_millis(20);

/// Size limit of messages, after decompression.
#[derive(Debug, Clone, Copy)]
pub struct MessageLimit {
    bytes: usize,
    /// Source of the limit, for error texts.
    source: LimitSource,
}

#[derive(Debug, Clone, Copy)]
enum LimitSource {
    /// A setting of the server: its name in `Limits`.
    Setting(&'static str),
    /// A method, which has a fixed limit: its name.
    Method(&'static str),
    /// A client's limit on answers.
    Client,
}

impl MessageLimit {
    /// The longest message that a length field can announce.
    const LARGEST: Self = Self { bytes: u32::MAX as usize, source: LimitSource::Client };

    /// Limit from a setting of the server: `Limits.name`.
    pub fn of_setting(name: &'static str, bytes: usize) -> Self {
        Self { bytes, source: LimitSource::Setting(name) }
    }

    /// Limit of one method.
    pub fn of_method(name: &'static str, bytes: usize) -> Self {
        Self { bytes, source: LimitSource::Method(name) }
    }

    /// Limit on the answers that a client reads.
    pub fn of_answers(bytes: usize) -> Self {
        Self { bytes, source: LimitSource::Client }
    }

    /// The smaller of two limits.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if other.bytes < self.bytes { other } else { self }
    }
}

impl MessageReader {
    /// Reads from `stream`; `peer` names the other end.
    pub fn new(stream: RecvStream, compression: Compression, peer: impl Into<String>) -> Self {
        Self::over(Frames::new(stream, UnreadBytes::default()), compression, peer)
    }

    /// Reads frames that the call may take in before they are read.
    pub(crate) fn over(frames: Frames, compression: Compression, peer: impl Into<String>) -> Self {
        Self {
            frames,
            assembler: Assembler::new(compression),
            peer: peer.into(),
            gate: None,
            counted: 0,
            retry: None,
            check: None,
        }
    }

    /// Reads only while the gate is open.
    pub fn pass_through(&mut self, gate: Arc<dyn Gate>) {
        self.frames.bound(gate.bounds_unread().then(|| Arc::clone(&gate)));
        self.gate = Some(gate);
    }

    /// Refuses longer messages as soon as their length is known, and compressed ones as soon as
    /// they exceed it during decompression. Without this call a message may have up to 4 GiB.
    pub fn limit_messages(&mut self, limit: MessageLimit) {
        self.assembler.limit = limit;
    }

    /// Refuses compressed messages, for callers that are not authenticated: decompression costs
    /// time.
    pub fn refuse_compressed(&mut self) {
        self.assembler.compression = None;
    }

    /// Checks each message before it is returned.
    pub fn check_messages(&mut self, check: Box<dyn MessageCheck>) {
        self.check = Some(check);
    }

    /// Received bytes of a message that is still incomplete.
    pub fn partial_bytes(&self) -> usize {
        self.assembler.partial_bytes
    }

    /// The next message, or `None` when the peer has ended its direction. Cancel safe: no message
    /// is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// See `next`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        loop {
            let taken = self.assembler.take();
            self.count(0);
            if let Some(message) = taken? {
                let checked = self.check.as_ref().map_or(Ok(()), |check| check.check(&message));
                return Poll::Ready(checked.map(|()| Some(message)));
            }
            ready!(self.poll_gate(context))?;
            match ready!(self.frames.poll_next(context)) {
                Some(Ok(data)) => {
                    let length = data.len();
                    self.assembler.put(data);
                    self.frames.release(length);
                }
                Some(Err(error)) => return Poll::Ready(Err(stream_error(&error, &self.peer))),
                None => return Poll::Ready(self.assembler.end().map(|()| None)),
            }
        }
    }

    fn poll_gate(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while let Some(gate) = &self.gate
            && !gate.is_open(self.assembler.partial_bytes)?
        {
            let retry =
                self.retry.get_or_insert_with(|| Box::pin(tokio::time::sleep(GATE_INTERVAL)));
            let is_due = retry.as_mut().poll(context);
            // Received bytes that are not read yet take memory too.
            let unread = self.frames.unread_bytes();
            self.count(unread);
            ready!(is_due);
            self.retry = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Reports the bytes of an incomplete message, and `unread` bytes of frames, to the gate.
    fn count(&mut self, unread: usize) {
        let bytes = self.assembler.partial_bytes + unread;
        if let Some(gate) = &self.gate
            && bytes != self.counted
        {
            gate.count(bytes as i64 - self.counted as i64);
            self.counted = bytes;
        }
    }

    /// The trailers, once `next` has returned `None`.
    pub async fn trailers(&mut self) -> Result<Option<HeaderMap>> {
        std::future::poll_fn(|context| self.frames.poll_trailers(context))
            .await
            .map_err(|error| stream_error(&error, &self.peer))
    }
}

impl Drop for MessageReader {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            gate.count(-(self.counted as i64));
        }
    }
}

/// Cuts messages out of consecutive buffers.
#[derive(Debug)]
struct Assembler {
    /// `None` if compressed messages are refused.
    compression: Option<Compression>,
    /// Rest of the last buffer, not looked at yet.
    rest: Bytes,
    header: [u8; PREFIX_BYTES],
    header_filled: usize,
    /// Received part of an incomplete message. It is assembled once, at the end: a growing buffer
    /// would leave half as much again behind, in blocks that nothing else needs.
    partial: Vec<Bytes>,
    /// End of that part, if it came in small frames. Each of them would keep alive the buffer that
    /// it was read into.
    block: Vec<u8>,
    partial_bytes: usize,
    limit: MessageLimit,
}

impl Assembler {
    fn new(compression: Compression) -> Self {
        Self {
            compression: Some(compression),
            rest: Bytes::new(),
            header: [0; PREFIX_BYTES],
            header_filled: 0,
            partial: Vec::new(),
            block: Vec::new(),
            partial_bytes: 0,
            limit: MessageLimit::LARGEST,
        }
    }

    /// Adds a buffer. May be called only after `take` has returned `None`.
    fn put(&mut self, data: Bytes) {
        debug_assert!(self.rest.is_empty());
        self.rest = data;
    }

    fn take(&mut self) -> Result<Option<Bytes>> {
        let missing = PREFIX_BYTES - self.header_filled;
        if missing > 0 {
            let count = missing.min(self.rest.len());
            let filled = self.header_filled;
            self.rest.copy_to_slice(&mut self.header[filled..filled + count]);
            self.header_filled += count;
            if count < missing {
                return Ok(None);
            }
        }
        let [flag, length @ ..] = self.header;
        if flag > 1 {
            return Err(Error::internal(format!(
                "A message has the compression flag {flag}; only 0 and 1 exist."
            )));
        }
        let length = u32::from_be_bytes(length) as usize;
        self.limit.check(length)?;
        if flag == 1 && self.compression.is_none() {
            return Err(Error::unimplemented(
                "The message is compressed, which this server takes only from callers with a token \
                 or a certificate; send it uncompressed.",
            ));
        }
        let Some(message) = self.take_body(length) else {
            return Ok(None);
        };
        self.header_filled = 0;
        match self.compression {
            Some(compression) if flag == 1 => {
                match compression.decompress(&message, self.limit.bytes)? {
                    Inflated::Whole(message) => Ok(Some(message)),
                    Inflated::TooLong(length) => self.limit.check(length).map(|()| None),
                }
            }
            _ => Ok(Some(message)),
        }
    }

    fn take_body(&mut self, length: usize) -> Option<Bytes> {
        if self.partial_bytes == 0 && self.rest.len() >= length {
            return Some(self.rest.split_to(length));
        }
        let count = self.rest.len().min(length - self.partial_bytes);
        let piece = self.rest.split_to(count);
        self.partial_bytes += count;
        if count >= BLOCK_BYTES {
            self.end_block();
            self.partial.push(piece);
        } else if count > 0 {
            self.add_to_block(&piece, length);
        }
        (self.partial_bytes == length).then(|| self.put_together())
    }

    fn add_to_block(&mut self, piece: &[u8], length: usize) {
        if self.block.len() + piece.len() > self.block.capacity() {
            self.end_block();
            let missing = length - self.partial_bytes + piece.len();
            self.block.reserve_exact(BLOCK_BYTES.min(missing));
        }
        self.block.extend_from_slice(piece);
    }

    fn end_block(&mut self) {
        if !self.block.is_empty() {
            self.partial.push(std::mem::take(&mut self.block).into());
        }
    }

    fn put_together(&mut self) -> Bytes {
        self.end_block();
        let length = std::mem::take(&mut self.partial_bytes);
        if let [_] = self.partial[..]
            && let Some(whole) = self.partial.pop()
        {
            return whole;
        }
        let mut message = Vec::with_capacity(length);
        // Each piece is freed as soon as it is copied.
        for piece in self.partial.drain(..) {
            message.extend_from_slice(&piece);
        }
        message.into()
    }

    fn end(&self) -> Result<()> {
        if self.header_filled == 0 {
            return Ok(());
        }
        Err(Error::invalid_argument("The stream ended in the middle of a message."))
    }
}

impl MessageLimit {
    fn check(self, length: usize) -> Result<()> {
        if length <= self.bytes {
            return Ok(());
        }
        let what = format!("A message of {} bytes is larger than", grouped(length));
        let bytes = grouped(self.bytes);
        Err(match self.source {
            LimitSource::Setting(name) => Error::resource_exhausted(format!(
                "{what} the limit of {bytes} bytes (Limits.{name}). Send less at once, or raise the \
                 limit of the server."
            ))
            .over_limit(name),
            LimitSource::Method(name) => Error::resource_exhausted(format!(
                "{what} the limit of {bytes} bytes for {name}. Send less at once."
            )),
            LimitSource::Client => Error::resource_exhausted(format!(
                "{what} the limit of {bytes} bytes for an answer: no server of this kind sends \
                 one."
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_message_over_the_limit_is_refused_by_its_header() {
        let mut assembler = Assembler::new(Compression::Identity);
        assembler.limit = MessageLimit::of_setting("call_bytes", 1000);
        assembler.put(Bytes::from(framed(0, &[1; 1000])));
        assert_eq!(assembler.take().unwrap().unwrap().len(), 1000);
        assembler.put(Bytes::from_static(&[0, 0, 0x12, 0xd6, 0x87]));
        let error = assembler.take().unwrap_err();
        assert_eq!(error.kind(), reverb_base::ErrorKind::ResourceExhausted);
        assert_eq!(
            error.message(),
            "A message of 1,234,567 bytes is larger than the limit of 1,000 bytes (Limits.call_bytes). \
             Send less at once, or raise the limit of the server."
        );
    }

    #[test]
    fn an_answer_over_the_limit_of_clients_is_refused() {
        let mut assembler = Assembler::new(Compression::Identity);
        assembler.limit = MessageLimit::of_answers(1000);
        assembler.put(Bytes::from_static(&[0, 0, 0, 7, 0xd0]));
        assert_eq!(
            assembler.take().unwrap_err().message(),
            "A message of 2,000 bytes is larger than the limit of 1,000 bytes for an answer: no \
             server of this kind sends one."
        );
    }

    #[test]
    fn a_compressed_message_counts_with_its_real_size() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&[5; 2000]).unwrap();
        let mut assembler = Assembler::new(Compression::Gzip);
        assembler.limit = MessageLimit::of_setting("call_bytes", 1000);
        assembler.put(Bytes::from(framed(1, &gzip.finish().unwrap())));
        let error = assembler.take().unwrap_err();
        assert!(error.message().starts_with("A message of 2,000 bytes"), "{error}");
    }

    fn framed(flag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![flag];
        bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn read_in_pieces(bytes: &[u8], size: usize, compression: Compression) -> Vec<Bytes> {
        let mut assembler = Assembler::new(compression);
        let mut messages = Vec::new();
        for piece in bytes.chunks(size) {
            assembler.put(Bytes::copy_from_slice(piece));
            while let Some(message) = assembler.take().unwrap() {
                messages.push(message);
            }
        }
        assembler.end().unwrap();
        messages
    }

    #[test]
    fn messages_are_whole_for_any_split() {
        let bodies: [&[u8]; 4] = [b"abc", b"", &[7; 300], b"z"];
        let bytes: Vec<u8> = bodies.iter().flat_map(|body| framed(0, body)).collect();
        for size in 1..=bytes.len() {
            assert_eq!(read_in_pieces(&bytes, size, Compression::Identity), bodies, "size {size}");
        }
    }

    #[test]
    fn a_message_inside_one_frame_is_not_copied() {
        let bytes = Bytes::from(framed(0, &[1; 100]));
        let mut assembler = Assembler::new(Compression::Identity);
        assembler.put(bytes.clone());
        let message = assembler.take().unwrap().unwrap();
        assert_eq!(message.as_ptr(), bytes[5..].as_ptr());
    }

    #[test]
    fn a_false_length_reserves_no_memory() {
        let mut assembler = Assembler::new(Compression::Identity);
        assembler.put(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]));
        assert!(assembler.take().unwrap().is_none());
        assert!(assembler.partial_bytes < 1024);
        assert!(assembler.end().is_err());
    }

    #[test]
    fn compressed_messages_are_read_and_bounded() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&[5; 1000]).unwrap();
        let bytes = framed(1, &gzip.finish().unwrap());
        assert_eq!(read_in_pieces(&bytes, 7, Compression::Gzip), [vec![5; 1000]]);

        let mut assembler = Assembler::new(Compression::Identity);
        assembler.put(Bytes::from(bytes.clone()));
        assert!(assembler.take().is_err());
        let mut assembler = Assembler::new(Compression::Deflate);
        assembler.put(Bytes::from(bytes));
        assert!(assembler.take().is_err());
        let mut assembler = Assembler::new(Compression::Gzip);
        assembler.put(Bytes::from_static(&[9, 0, 0, 0, 0]));
        assert!(assembler.take().is_err());
    }

    #[test]
    fn a_decompression_bomb_is_inflated_to_the_limit_and_no_further() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let zeros = vec![0; 1 << 20];
        (0..8).for_each(|_| gzip.write_all(&zeros).unwrap());
        let mut assembler = Assembler::new(Compression::Gzip);
        assembler.limit = MessageLimit::of_method("Health", 300 << 10);
        assembler.put(Bytes::from(framed(1, &gzip.finish().unwrap())));
        assert_eq!(
            assembler.take().unwrap_err().message(),
            "A message of 524,288 bytes is larger than the limit of 307,200 bytes for Health. \
             Send less at once."
        );
    }

    #[test]
    fn compressed_messages_can_be_refused() {
        let mut assembler = Assembler::new(Compression::Gzip);
        assembler.compression = None;
        assembler.put(Bytes::from(framed(1, &[1, 2, 3])));
        let error = assembler.take().unwrap_err();
        assert_eq!(error.kind(), reverb_base::ErrorKind::Unimplemented);
        assert_eq!(
            error.message(),
            "The message is compressed, which this server takes only from callers with a token or a \
             certificate; send it uncompressed."
        );
        let mut assembler = Assembler::new(Compression::Gzip);
        assembler.compression = None;
        assembler.put(Bytes::from(framed(0, b"plain")));
        assert_eq!(assembler.take().unwrap().unwrap(), &b"plain"[..]);
    }
}
