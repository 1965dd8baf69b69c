// SPDX-License-Identifier: Apache-2.0
//! gRPC messages on an HTTP/2 stream, for both ends.
//!
//! The layer is our own and thin, because the usual ones cost what this project is about: they copy
//! every message into a buffer of its own on both ends, hop through a task per stream, and reserve
//! memory for whatever length a peer claims. Here a large chunk goes from memory to the socket as
//! it is, and is stored as it arrives.

mod compression;
mod read;
mod write;

pub use compression::{ACCEPTED as ACCEPTED_COMPRESSION, Compression};
pub use read::MessageReader;
pub use write::MessageSender;

use reverb_data::{Error, ErrorKind};

/// Bytes of one stream that a peer may send before they are consumed.
pub const STREAM_WINDOW_BYTES: u32 = 16 << 20;

/// Bytes of all streams of a connection. As large as HTTP/2 allows, so that a stream that waits for
/// a rate limiter does not hold up the others.
pub const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// Largest frame that we take. A message that fits into one is not copied when it arrives.
pub const MAX_FRAME_BYTES: u32 = 4 << 20;

/// Bytes of a stream that wait for the socket before a sender is held up.
pub const SEND_BUFFER_BYTES: usize = 2 << 20;

/// Streams that were reset lately and whose late frames are still recognised. Every short call that
/// is cancelled is one.
pub const MAX_RESET_STREAMS: usize = 4096;

/// Bytes of a header list that we take.
pub const MAX_HEADER_LIST_BYTES: u32 = 64 << 10;

/// Largest message: what HTTP/2 flow control can count.
pub const MAX_MESSAGE_BYTES: usize = (1 << 31) - 1;

/// An error of HTTP/2 as an error of the call; `peer` says who was talked to.
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
