// SPDX-License-Identifier: Apache-2.0
//! Compressed messages. We never send one, but any gRPC client may.

use std::io::Read;

use bytes::Bytes;
use flate2::read::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use reverb_base::{Error, Result};

/// A message is inflated in pieces of this size.
const PIECE_BYTES: u64 = 256 << 10;

/// The compressions that we announce to peers.
pub const ACCEPTED: &str = "identity,deflate,gzip";

/// Compression of a stream's compressed messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Deflate,
}

impl Compression {
    /// Compression that the headers of a stream announce.
    pub fn from_headers(headers: &HeaderMap) -> Result<Self> {
        match headers.get("grpc-encoding").map(http::HeaderValue::as_bytes) {
            None | Some(b"identity") => Ok(Self::Identity),
            Some(b"gzip") => Ok(Self::Gzip),
            Some(b"deflate") => Ok(Self::Deflate),
            Some(other) => Err(Error::unimplemented(format!(
                "Compression {} is not supported; use one of {ACCEPTED}.",
                String::from_utf8_lossy(other)
            ))),
        }
    }

    /// Decompresses a message. A message longer than `limit` is cut: a few bytes can expand to
    /// gigabytes, and only a little more than the limit is ever in memory.
    pub(crate) fn decompress(self, message: &[u8], limit: usize) -> Result<Inflated> {
        match self {
            Self::Identity => Err(Error::internal(
                "A message is marked as compressed, but the stream names no compression.",
            )),
            Self::Gzip => inflate(GzDecoder::new(message), limit),
            Self::Deflate => inflate(ZlibDecoder::new(message), limit),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Inflated {
    Whole(Bytes),
    /// At least this many bytes.
    TooLong(usize),
}

/// The message is assembled once, at the end: a growing buffer would take twice as much.
fn inflate(mut reader: impl Read, limit: usize) -> Result<Inflated> {
    let mut pieces = Vec::new();
    let mut length = 0;
    loop {
        let mut piece = Vec::new();
        reader.by_ref().take(PIECE_BYTES).read_to_end(&mut piece).map_err(|error| {
            Error::invalid_argument(format!("A compressed message is damaged: {error}."))
        })?;
        length += piece.len();
        if length > limit {
            return Ok(Inflated::TooLong(length));
        }
        if piece.is_empty() {
            break;
        }
        pieces.push(piece);
    }
    let mut message = Vec::with_capacity(length);
    for piece in pieces {
        message.extend_from_slice(&piece);
    }
    Ok(Inflated::Whole(message.into()))
}
