// SPDX-License-Identifier: Apache-2.0
//! Compressed messages. We never send one, but any gRPC client may.

use std::io::Read;

use bytes::Bytes;
use flate2::read::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use reverb_data::{Error, Result};

/// Largest message after decompression. Without a limit a few bytes could expand to gigabytes.
const MAX_DECOMPRESSED_BYTES: u64 = 256 << 20;

/// The compressions that we announce to peers.
pub const ACCEPTED: &str = "identity,deflate,gzip";

/// How the compressed messages of a stream are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Deflate,
}

impl Compression {
    /// The compression that the headers of a stream announce.
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

    pub(crate) fn decompress(self, message: &[u8]) -> Result<Bytes> {
        match self {
            Self::Identity => Err(Error::internal(
                "A message is marked as compressed, but the stream names no compression.",
            )),
            Self::Gzip => read_bounded(GzDecoder::new(message)),
            Self::Deflate => read_bounded(ZlibDecoder::new(message)),
        }
    }
}

fn read_bounded(reader: impl Read) -> Result<Bytes> {
    let mut bytes = Vec::new();
    reader.take(MAX_DECOMPRESSED_BYTES + 1).read_to_end(&mut bytes).map_err(|error| {
        Error::invalid_argument(format!("A compressed message is damaged: {error}."))
    })?;
    if bytes.len() as u64 > MAX_DECOMPRESSED_BYTES {
        return Err(Error::resource_exhausted(format!(
            "A compressed message holds more than {MAX_DECOMPRESSED_BYTES} bytes; \
             send it uncompressed."
        )));
    }
    Ok(Bytes::from(bytes))
}
