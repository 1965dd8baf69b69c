// SPDX-License-Identifier: Apache-2.0
//! Large values, such as frames: the next ones come into the cache while one is copied.
//!
//! The processor reads ahead within a page of memory, and neither from one chunk to the next nor
//! from page to page. Otherwise each copy would begin with a wait for memory.

use reverb_base::memory::prefetch;

/// Size of large values.
const MIN_BYTES: usize = 2048;
/// Size of the pieces in which they are copied, some lines of the cache.
const PIECE_BYTES: usize = 448;

/// Returns true if these are so many bytes that `write` pays.
#[inline]
pub(crate) fn are_large(num_bytes: usize) -> bool {
    num_bytes >= MIN_BYTES
}

/// Passes pieces of `values` and their positions to `write`, and fetches `following` meanwhile, as
/// many bytes as there are values.
#[inline]
pub(crate) fn write(values: &[u8], following: &[u8], mut write: impl FnMut(usize, &[u8])) {
    let mut following = following.chunks(PIECE_BYTES);
    for (i, piece) in values.chunks(PIECE_BYTES).enumerate() {
        if let Some(following) = following.next() {
            prefetch(following);
        }
        write(i * PIECE_BYTES, piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_written_in_order() {
        let values: Vec<u8> = (0..10_000).map(|i| (i * 31 % 251) as u8).collect();
        for size in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, MIN_BYTES, 10_000] {
            for following in [0, 1, 700, 10_000] {
                let mut written = Vec::new();
                write(&values[..size], &values[..following], |at, piece| {
                    assert_eq!(at, written.len());
                    written.extend_from_slice(piece);
                });
                assert_eq!(written, values[..size]);
            }
        }
    }
}
