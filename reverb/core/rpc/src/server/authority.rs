// SPDX-License-Identifier: Apache-2.0
//! Repair of the header `:authority` of clients at a Unix socket.
//!
//! Newer gRPC libraries send the path of the socket there, percent-encoded: `run%2Freverb`. The
//! `http` crate accepts no host with a `%`, so h2 would reset each of their calls. Nothing here
//! uses the value. So each `%` in it becomes a `-` before h2 sees it, in place: lengths stay as
//! they are, and with them frames and the tables of header compression.
//!
//! These libraries send the name and the value as plain text, so the header is found by its name.
//! Header compression is not decoded.

use super::preface::PREFACE;

/// Bytes of a frame's head (RFC 9113, section 4.1).
const HEAD_BYTES: usize = 9;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// The header's name in a header block, after its length (RFC 7541, section 5.2). No value of a
/// header has a line feed, so it is found nowhere else.
const NAME: &[u8] = b"\x0a:authority";

/// Meaning of the next byte of a header block.
#[derive(Debug)]
enum Next {
    /// The byte of `NAME` at this position, if the header begins here.
    Name(usize),
    /// First byte of the value's length.
    Length,
    /// Next byte of the value's length, to be shifted by so many bits.
    LengthGoesOn { length: usize, shift: u32 },
    /// A byte of the value, of which so many are left.
    Value(usize),
}

/// Rewriter of a connection's bytes: removes `%` from each `:authority`.
#[derive(Debug)]
pub(super) struct PlainAuthority {
    head: Vec<u8>,
    /// Bytes left of the preface or of a frame's payload.
    left: usize,
    is_header_block: bool,
    next: Next,
}

impl PlainAuthority {
    pub(super) fn new() -> Self {
        Self {
            head: Vec::with_capacity(HEAD_BYTES),
            left: PREFACE.len(),
            is_header_block: false,
            next: Next::Name(0),
        }
    }

    pub(super) fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let is_head = self.left == 0;
            let passed = if is_head { 1 } else { self.left.min(bytes.len()) };
            let (now, later) = bytes.split_at_mut(passed);
            bytes = later;
            if is_head {
                self.pass_head(now[0]);
                continue;
            }
            self.left -= passed;
            if self.is_header_block {
                for byte in now {
                    self.next.pass(byte);
                }
            }
        }
    }

    fn pass_head(&mut self, byte: u8) {
        self.head.push(byte);
        if let [high, middle, low, kind, _, _, _, _, _] = self.head[..] {
            self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
            self.is_header_block = matches!(kind, HEADERS | CONTINUATION);
            if kind == HEADERS {
                self.next = Next::Name(0);
            }
            self.head.clear();
        }
    }
}

impl Next {
    fn pass(&mut self, byte: &mut u8) {
        *self = match *self {
            Self::Name(at) if *byte != NAME[at] => Self::Name(usize::from(*byte == NAME[0])),
            Self::Name(at) if at + 1 == NAME.len() => Self::Length,
            Self::Name(at) => Self::Name(at + 1),
            // Huffman code, or an empty value.
            Self::Length if matches!(*byte, 0x80.. | 0) => Self::Name(0),
            Self::Length if *byte == 0x7f => Self::LengthGoesOn { length: 0x7f, shift: 0 },
            Self::Length => Self::Value(usize::from(*byte)),
            Self::LengthGoesOn { length, shift } => {
                // A length that overflows would not fit into a frame.
                let more = usize::from(*byte & 0x7f).checked_shl(shift).unwrap_or_default();
                let length = length.saturating_add(more);
                match *byte {
                    0x80.. => Self::LengthGoesOn { length, shift: shift.saturating_add(7) },
                    _ => Self::Value(length),
                }
            }
            Self::Value(left) => {
                if *byte == b'%' {
                    *byte = b'-';
                }
                if left == 1 { Self::Name(0) } else { Self::Value(left - 1) }
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PADDED_WITH_PRIORITY: u8 = 0x28;

    fn text(bytes: &[u8]) -> Vec<u8> {
        let mut text = vec![bytes.len().min(127) as u8];
        if bytes.len() >= 127 {
            let mut rest = bytes.len() - 127;
            while rest >= 128 {
                text.push(rest as u8 | 0x80);
                rest /= 128;
            }
            text.push(rest as u8);
        }
        text.extend(bytes);
        text
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Header block of a request, with fields before and behind the authority.
    fn block(authority: &[u8]) -> Vec<u8> {
        [
            &[0x83, 0x86, 0x3f, 0xe1, 0x1f, 0xff, 0x01, 0x40][..],
            &text(b":path"),
            &text(b"/a%20b:authority%"),
            &[0x40],
            &text(b":authority"),
            &text(authority),
            // Index 62 of the tables, and a Huffman string.
            &[0x7f, 0x00, 0x83, b'%', b'%', b'%', 0x10],
            &text(b"x-long"),
            &text(&[b'%'; 300]),
            &[0x00],
            &text(b""),
            &text(b""),
        ]
        .concat()
    }

    fn connection(authority: &[u8]) -> Vec<u8> {
        let block = block(authority);
        let (first, rest) = block.split_at(46);
        let padded = [&[3][..], &[0; 5], &block, b"%%%"].concat();
        [
            PREFACE,
            &frame(4, 0, b"%%%%%%"),
            &frame(HEADERS, 4, &block),
            &frame(0, 0, b"\x40\x0a:authority\x05%%%%%"),
            &frame(0, 1, b""),
            &frame(HEADERS, 4 | PADDED_WITH_PRIORITY, &padded),
            &frame(HEADERS, 0, first),
            &frame(CONTINUATION, 4, rest),
            // The value is in Huffman code.
            &frame(HEADERS, 4, b"\x40\x0a:authority\x83%%%\x40"),
            &frame(HEADERS, 5, &[]),
            &frame(0, 1, b"%"),
        ]
        .concat()
    }

    proptest! {
        #[test]
        fn only_the_authority_is_changed_however_the_bytes_arrive(
            authority in "[a-z0-9%./_~-]{0,400}",
            reads in prop::collection::vec(1_usize..40, 1..40),
        ) {
            let mut bytes = connection(authority.as_bytes());
            let expected = connection(authority.replace('%', "-").as_bytes());
            let mut frames = PlainAuthority::new();
            let mut rest = &mut bytes[..];
            for read in reads.iter().cycle() {
                let (now, later) = rest.split_at_mut((*read).min(rest.len()));
                frames.pass(now);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(bytes, expected);
        }

        #[test]
        fn nothing_that_a_peer_sends_is_too_much(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut frames = PlainAuthority::new();
            frames.left = 0;
            let length = bytes.len();
            let mut passed = bytes;
            frames.pass(&mut passed);
            prop_assert_eq!(passed.len(), length);
        }

        #[test]
        fn no_header_block_is_too_much(
            block in prop::collection::vec(prop_oneof![Just(NAME.to_vec()), any::<u8>().prop_map(|byte| vec![byte])], 0..200),
        ) {
            let mut bytes = frame(HEADERS, 4, &block.concat());
            let length = bytes.len();
            let mut frames = PlainAuthority::new();
            frames.left = 0;
            frames.pass(&mut bytes);
            prop_assert_eq!((bytes.len(), frames.left), (length, 0));
        }
    }
}
