// SPDX-License-Identifier: Apache-2.0
//! Byte masks: compare byte strings everywhere except in some ranges.

use std::ops::Range;

/// The bytes outside of some ranges, as words with masks. A comparison takes a few instructions for
/// eight bytes.
#[derive(Debug, Clone)]
pub struct ByteMask {
    len: usize,
    words: Box<[Word]>,
}

/// Eight bytes. `mask` selects those outside of the ranges.
#[derive(Debug, Clone)]
struct Word {
    at: usize,
    mask: u64,
    bytes: u64,
}

const WORD: usize = size_of::<u64>();
/// Maximum number of words; more would take long to compare.
const MAX_WORDS: usize = 256;

impl ByteMask {
    /// The mask of `bytes` outside of `ranges`, which are in ascending order. `None` if all bytes
    /// are inside of them, or too many outside, or less than eight in all.
    pub fn new(bytes: &[u8], ranges: impl Iterator<Item = Range<usize>>) -> Option<Self> {
        let last = bytes.len().checked_sub(WORD)?;
        let mut words: Vec<Word> = Vec::new();
        let mut outside = 0;
        for range in ranges.chain(std::iter::once(bytes.len()..bytes.len())) {
            for byte in outside..range.start {
                let at = (byte / WORD * WORD).min(last);
                if words.last().is_none_or(|word| word.at != at) {
                    if words.len() == MAX_WORDS {
                        return None;
                    }
                    words.push(Word { at, mask: 0, bytes: load(bytes, at) });
                }
                words.last_mut()?.mask |= 0xff << (8 * (byte - at));
            }
            outside = range.end;
        }
        (!words.is_empty()).then(|| Self { len: bytes.len(), words: words.into() })
    }

    /// Returns true if `bytes` has the same length, and equals outside of the ranges.
    #[inline]
    pub fn matches(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.len
            && self.words.iter().all(|word| (load(bytes, word.at) ^ word.bytes) & word.mask == 0)
    }
}

#[inline]
fn load(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..].first_chunk().expect("all words are within the length of the mask");
    u64::from_le_bytes(*word)
}
