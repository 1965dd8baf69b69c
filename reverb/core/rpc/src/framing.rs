// SPDX-License-Identifier: Apache-2.0
//! gRPC messages on an HTTP/2 stream, for client and server.
//!
//! This thin layer replaces the usual libraries because of their cost: they copy every message into
//! a separate buffer on both ends, pass it through one more task per stream, and reserve as much
//! memory as a peer claims. Here a large chunk goes from memory to the socket without a copy, and
//! is stored as it arrives.

mod compression;
mod frames;
mod read;
mod write;

pub use compression::{ACCEPTED as ACCEPTED_COMPRESSION, Compression};
pub(crate) use frames::{Frames, UnreadBytes};
pub use read::{Gate, MessageCheck, MessageLimit, MessageReader};
pub use write::MessageSender;

use reverb_base::{Error, ErrorKind};

/// Bytes of one stream that a peer may send before they are consumed.
pub const STREAM_WINDOW_BYTES: u32 = 16 << 20;

/// Bytes of all streams of a connection. It is the maximum of HTTP/2, so that a stream that waits
/// for a rate limiter does not block the others.
pub const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// Largest HTTP/2 frame that we accept. A message that fits into one is not copied when it arrives.
pub const MAX_FRAME_BYTES: u32 = 4 << 20;

/// Bytes of a stream that may be queued for the socket before its sender has to wait.
pub const SEND_BUFFER_BYTES: usize = 2 << 20;

/// Budget of a connection for small frames that h2 holds: a frame below 256 bytes takes what it
/// lacks to that until it is read, and without budget the connection ends. A writer may fill the
/// window of a stream with messages of 31 bytes while its call works, which takes 102 MB of it. So
/// h2 holds some 600,000 such frames at most, in 270 MB.
pub const SMALL_FRAMES_BUDGET: usize = 128 << 20;

/// Number of recently reset streams whose late frames are still recognised. Every cancelled call is
/// one.
pub const MAX_RESET_STREAMS: usize = 4096;

/// Largest header list that we accept, in bytes. dm-reverb's are at most half as large.
pub const MAX_HEADER_LIST_BYTES: u32 = 16 << 10;

/// Bytes in front of the preface by which a client that was refused for want of room asks for a
/// connection that is kept for operators. They are shorter than the preface, which follows.
pub(crate) const FOR_OPERATORS: &[u8] = b"reverb operator\r\n";

/// Largest message that HTTP/2 flow control can count.
pub const MAX_MESSAGE_BYTES: usize = (1 << 31) - 1;

/// Converts an HTTP/2 error to an error of the call. `peer` names the other end.
pub fn stream_error(error: &h2::Error, peer: &str) -> Error {
    let reset_by_peer = error.is_reset() && error.is_remote();
    let kind = match error.reason() {
        Some(h2::Reason::CANCEL) if reset_by_peer => ErrorKind::Cancelled,
        Some(
            h2::Reason::PROTOCOL_ERROR
            | h2::Reason::INTERNAL_ERROR
            | h2::Reason::FRAME_SIZE_ERROR
            | h2::Reason::COMPRESSION_ERROR,
        ) if reset_by_peer => ErrorKind::Internal,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("The connection to {peer} failed: {error}."))
}
