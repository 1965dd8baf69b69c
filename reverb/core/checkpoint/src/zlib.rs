// SPDX-License-Identifier: Apache-2.0
//! One zlib stream (RFC 1950) from pieces that several threads compress.
//!
//! Each piece is deflated on its own and ends at a byte boundary (a "sync flush"), so that pieces
//! can be concatenated. The cost is that each piece starts with an empty dictionary of 32 KiB.

use flate2::{Compress, Compression, FlushCompress};

/// Compression level. A higher one saves little space and takes several times as long.
const LEVEL: u32 = 3;

/// Bytes of a piece that are compressed first, to decide whether compressing all of it pays.
const TRIAL_BYTES: usize = 32 * 1024;

/// Longest stored block of the format.
const MAX_STORED_BYTES: usize = 65_535;

/// The two bytes at the start of every stream: deflate with a window of 32 KiB, default level.
pub(crate) const STREAM_HEADER: [u8; 2] = [0x78, 0x9c];

/// An empty last block.
const LAST_BLOCK: [u8; 2] = [0x03, 0x00];

#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Vec<u8>,
    pub(crate) raw_bytes: u64,
    checksum: u32,
}

/// Compresses pieces. Each thread has its own.
#[derive(Debug)]
pub(crate) struct Compressor(Compress);

impl Compressor {
    pub(crate) fn new() -> Self {
        Self(Compress::new(Compression::new(LEVEL), false))
    }

    pub(crate) fn compress(&mut self, raw: &[u8]) -> Piece {
        let checksum = simd_adler32::adler32(&raw);
        let trial = &raw[..raw.len().min(TRIAL_BYTES)];
        let mut bytes = self.deflate(trial);
        // Compressed data and random numbers do not get smaller.
        if bytes.len() > trial.len() - trial.len() / 32 {
            bytes.clear();
            put_stored(&mut bytes, raw);
        } else if trial.len() < raw.len() {
            bytes = self.deflate(raw);
        }
        Piece { bytes, raw_bytes: raw.len() as u64, checksum }
    }

    fn deflate(&mut self, raw: &[u8]) -> Vec<u8> {
        self.0.reset();
        let mut bytes = Vec::with_capacity(raw.len() / 2 + 1024);
        loop {
            let read = self.0.total_in() as usize;
            // Deflating into memory cannot fail.
            let _ = self.0.compress_vec(&raw[read..], &mut bytes, FlushCompress::Sync);
            if self.0.total_in() as usize == raw.len() && bytes.len() < bytes.capacity() {
                return bytes;
            }
            bytes.reserve(bytes.len() / 2 + 1024);
        }
    }
}

/// Appends uncompressed blocks, which begin and end at byte boundaries.
fn put_stored(out: &mut Vec<u8>, raw: &[u8]) {
    out.reserve(raw.len() + 5 * raw.len().div_ceil(MAX_STORED_BYTES));
    for block in raw.chunks(MAX_STORED_BYTES) {
        let length = block.len() as u16;
        out.push(0);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(block);
    }
}

/// The checksum of all pieces so far.
#[derive(Debug)]
pub(crate) struct StreamChecksum(u32);

impl StreamChecksum {
    pub(crate) fn new() -> Self {
        Self(1)
    }

    pub(crate) fn add(&mut self, piece: &Piece) {
        self.0 = adler32_of_both(self.0, piece.checksum, piece.raw_bytes);
    }

    pub(crate) fn trailer(&self) -> [u8; 6] {
        let [a, b, c, d] = self.0.to_be_bytes();
        [LAST_BLOCK[0], LAST_BLOCK[1], a, b, c, d]
    }
}

/// Adler-32 of two concatenated byte strings, from the checksum of each and the length of the
/// second. The low half is the sum of the bytes plus one, the high half the sum of all low halves.
fn adler32_of_both(first: u32, second: u32, second_bytes: u64) -> u32 {
    const BASE: u64 = 65_521;
    let low = u64::from(first & 0xffff);
    let high = u64::from(first >> 16);
    let second_low = u64::from(second & 0xffff);
    let second_high = u64::from(second >> 16);
    let sum = (low + second_low + BASE - 1) % BASE;
    let length = second_bytes % BASE;
    let sum_of_sums = (high + second_high + length * (low + BASE - 1)) % BASE;
    (sum_of_sums << 16 | sum) as u32
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use proptest::prelude::*;

    fn stream(pieces: &[Vec<u8>]) -> Vec<u8> {
        let mut out = STREAM_HEADER.to_vec();
        let mut checksum = StreamChecksum::new();
        let mut compressor = Compressor::new();
        for raw in pieces {
            let piece = compressor.compress(raw);
            checksum.add(&piece);
            out.extend_from_slice(&piece.bytes);
        }
        out.extend_from_slice(&checksum.trailer());
        out
    }

    #[test]
    fn a_stream_without_pieces_is_dm_reverbs_empty_one() {
        assert_eq!(stream(&[]), [0x78, 0x9c, 0x03, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn incompressible_data_is_stored() {
        let noise: Vec<u8> = (0..200_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .map(|byte| byte ^ rand::random::<u8>())
            .collect();
        let length = stream(std::slice::from_ref(&noise)).len();
        assert!(length < noise.len() + 100, "{length}");
    }

    proptest! {
        #[test]
        fn any_inflater_reads_the_stream(
            pieces in proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..2000),
                    (any::<u8>(), 1usize..200_000).prop_map(|(byte, n)| vec![byte; n]),
                ],
                0..8,
            )
        ) {
            let mut raw = Vec::new();
            let bytes = stream(&pieces);
            flate2::read::ZlibDecoder::new(&bytes[..]).read_to_end(&mut raw).unwrap();
            prop_assert_eq!(raw, pieces.concat());
        }
    }
}
