// SPDX-License-Identifier: Apache-2.0
//! Strings of header compression in Huffman code (RFC 7541, section 5.2 and appendix B).

/// Number of codes of each length in bits. The code is canonical: codes of one length are
/// consecutive, and those of the next length follow. So these numbers determine the end of each
/// code.
const CODES_OF_LENGTH: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, //
    0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4,
];

/// The first five bits of the codes of ` ` and `%`; no other code begins with them.
const SPACE_OR_PERCENT: u32 = 0b01010;
const FIVE_BITS: usize = 5;

/// Position in a string: the bits of an incomplete code.
#[derive(Debug, Default)]
pub(super) struct HuffmanText {
    length: usize,
    code: u32,
    /// First code of this length.
    first: u32,
}

impl HuffmanText {
    /// Processes the next byte of a string: each `%` becomes a `.`, and each space a `-`. Their
    /// codes differ in the fifth bit alone.
    pub(super) fn replace_percent(&mut self, byte: &mut u8) {
        for place in (0..8).rev() {
            self.pass(*byte >> place & 1);
            if self.length == FIVE_BITS && self.code == SPACE_OR_PERCENT {
                *byte |= 1 << place;
                self.code |= 1;
            }
        }
    }

    fn pass(&mut self, bit: u8) {
        self.first = (self.first + CODES_OF_LENGTH[self.length]) << 1;
        self.code = self.code << 1 | u32::from(bit);
        self.length += 1;
        let is_whole = self.code - self.first < CODES_OF_LENGTH[self.length];
        // The longest bit sequence that is no code consists of ones: the end of a string.
        if is_whole || self.length + 1 == CODES_OF_LENGTH.len() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Symbols with codes of 5, 6, 7 bits, in the order of their codes.
    const SYMBOLS: [&[u8]; 3] =
        [b"012aceiost", b" %-./3456789=A_bdfghlmnpru", b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"];

    /// A symbol with a longer code, of 13 bits.
    const TILDE: (u8, u32, usize) = (b'~', 0x1ffd, 13);

    fn code(symbol: u8) -> (u32, usize) {
        if symbol == TILDE.0 {
            return (TILDE.1, TILDE.2);
        }
        let mut first = 0;
        for (symbols, length) in SYMBOLS.iter().zip(5..) {
            if let Some(place) = symbols.iter().position(|known| *known == symbol) {
                return (first + place as u32, length);
            }
            first = (first + symbols.len() as u32) << 1;
        }
        panic!("no code of {symbol}");
    }

    pub(in super::super) fn in_huffman_code(text: &[u8]) -> Vec<u8> {
        let bits = text.iter().map(|symbol| code(*symbol)).flat_map(|(code, length)| {
            (0..length).rev().map(move |place| (code >> place & 1) as u8)
        });
        let bits: Vec<u8> = bits.collect();
        // Ones fill the last byte.
        let byte_of =
            |bits: &[u8]| (0..8).fold(0, |byte, place| byte << 1 | bits.get(place).unwrap_or(&1));
        bits.chunks(8).map(byte_of).collect()
    }

    #[test]
    fn the_codes_are_those_of_the_rfc() {
        // Examples of RFC 7541, appendix C.4.
        assert_eq!(in_huffman_code(b"no-cache"), [0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]);
        assert_eq!(
            in_huffman_code(b"www.example.com"),
            [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff]
        );
        // The codes fill the code space, except for the end marker.
        let filled: u64 = CODES_OF_LENGTH
            .iter()
            .zip(0..)
            .map(|(count, length)| u64::from(*count) << (30 - length))
            .sum();
        assert_eq!(filled, 1 << 30);
        assert_eq!(CODES_OF_LENGTH.iter().sum::<u32>(), 257);
    }

    #[test]
    fn every_byte_may_follow_every_other() {
        for first in 0..=u16::MAX {
            let mut text = HuffmanText::default();
            for byte in first.to_be_bytes().into_iter().chain([0, 0x55, 0xff, 0xff, 0xff, 0xff]) {
                text.replace_percent(&mut { byte });
            }
        }
    }
}
