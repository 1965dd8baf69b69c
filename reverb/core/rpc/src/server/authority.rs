// SPDX-License-Identifier: Apache-2.0
//! Repair of the header `:authority` of clients at a Unix socket.
//!
//! Newer gRPC libraries send the path of the socket there, percent-encoded: `run%2Freverb`. The
//! `http` crate accepts no host with a `%`, so h2 would reset each of their calls. Nothing here
//! uses the value. So each `%` in it becomes a `-` (in Huffman code a `.`) before h2 sees it, in
//! place: lengths stay as they are, and with them frames and the tables of header compression.

use super::huffman::HuffmanText;
use super::preface::PREFACE;

const HEAD_BYTES: usize = 9;

const PRIORITY_BYTES: usize = 5;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

const AUTHORITY: &[u8] = b":authority";
const AUTHORITY_IN_HUFFMAN_CODE: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// Index of `:authority` in the static table (RFC 7541, appendix A).
const AUTHORITY_INDEX: u8 = 1;

/// Meaning of the next byte of a connection.
#[derive(Debug)]
enum Next {
    /// The first of this many bytes that are passed unread.
    Skipped(usize),
    /// A byte of a frame's head.
    Head,
    /// The padding length of a HEADERS frame, which a priority of this many bytes follows.
    PaddingLength(usize),
    /// A byte of a header block.
    Block,
}

/// Rewriter of a connection's bytes: removes `%` from each `:authority`.
#[derive(Debug)]
pub(super) struct PlainAuthority {
    next: Next,
    head: Vec<u8>,
    /// Bytes of the header block left in this frame.
    block: usize,
    /// Bytes of padding behind the header block.
    padding: usize,
    fields: Fields,
}

impl PlainAuthority {
    pub(super) fn new() -> Self {
        Self {
            next: Next::Skipped(PREFACE.len()),
            head: Vec::with_capacity(HEAD_BYTES),
            block: 0,
            padding: 0,
            fields: Fields::new(),
        }
    }

    pub(super) fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let passed = self.pass_some(bytes);
            bytes = &mut bytes[passed..];
        }
    }

    /// Processes at least one byte; returns the number of bytes processed.
    fn pass_some(&mut self, bytes: &mut [u8]) -> usize {
        match self.next {
            Next::Skipped(left) => {
                let passed = left.min(bytes.len());
                self.skip(left - passed);
                passed
            }
            Next::Head => {
                self.head.push(bytes[0]);
                if self.head.len() == HEAD_BYTES {
                    self.begin_frame();
                }
                1
            }
            Next::PaddingLength(priority) => {
                self.padding = usize::from(bytes[0]);
                self.block = self.block.saturating_sub(self.padding);
                self.skip(priority);
                1
            }
            Next::Block => {
                let passed = self.block.min(bytes.len());
                bytes[..passed].iter_mut().for_each(|byte| self.fields.pass(byte));
                self.block -= passed;
                if self.block == 0 {
                    let padding = std::mem::take(&mut self.padding);
                    self.skip(padding);
                }
                passed
            }
        }
    }

    /// Passes bytes unread. The header block follows if there is one, else the next frame.
    fn skip(&mut self, bytes: usize) {
        self.next = match (bytes, self.block) {
            (0, 0) => Next::Head,
            (0, _) => Next::Block,
            (bytes, _) => Next::Skipped(bytes),
        };
    }

    fn begin_frame(&mut self) {
        let (kind, flags) = (self.head[3], self.head[4]);
        let length = self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        self.head.clear();
        if kind == CONTINUATION {
            self.block = length;
            return self.skip(0);
        }
        if kind != HEADERS {
            return self.skip(length);
        }
        self.fields = Fields::new();
        let priority = if flags & PRIORITY == 0 { 0 } else { PRIORITY_BYTES };
        let is_padded = flags & PADDED != 0;
        self.block = length.saturating_sub(priority + usize::from(is_padded));
        if is_padded && length > 0 {
            self.next = Next::PaddingLength(priority);
        } else {
            self.skip(priority.min(length));
        }
    }
}

/// Meaning of the next byte of a header block (RFC 7541, section 6).
#[derive(Debug)]
enum Part {
    /// First byte of a field.
    Field,
    /// Next byte of a field's index; then follows a value or the next field.
    Number { has_value: bool },
    /// First byte of a string's length.
    Length,
    /// Next length byte.
    LengthGoesOn { shift: u32 },
    /// A byte of a string.
    Text,
}

/// Parser of the fields of a header block.
#[derive(Debug)]
struct Fields {
    next: Part,
    /// True if the string is the name of a field, not its value.
    is_name: bool,
    is_authority: bool,
    /// True if the string is plain text, false if it is Huffman code.
    is_plain: bool,
    huffman: HuffmanText,
    /// Bytes of the string that are left.
    left: usize,
    /// Bytes of the name read so far.
    name: Vec<u8>,
}

impl Fields {
    fn new() -> Self {
        Self {
            next: Part::Field,
            is_name: false,
            is_authority: false,
            is_plain: false,
            huffman: HuffmanText::default(),
            left: 0,
            name: Vec::new(),
        }
    }

    fn pass(&mut self, byte: &mut u8) {
        let is_last = *byte & 0x80 == 0;
        match self.next {
            Part::Field => self.begin_field(*byte),
            Part::Number { has_value } if is_last => {
                self.next = if has_value { Part::Length } else { Part::Field };
            }
            Part::Number { .. } => {}
            Part::Length => {
                self.is_plain = is_last;
                self.left = usize::from(*byte & 0x7f);
                self.next = Part::LengthGoesOn { shift: 0 };
                if *byte & 0x7f != 0x7f {
                    self.begin_text();
                }
            }
            Part::LengthGoesOn { shift } => {
                // A length that overflows would not fit into a frame.
                let more = usize::from(*byte & 0x7f).checked_shl(shift).unwrap_or_default();
                self.left = self.left.saturating_add(more);
                self.next = Part::LengthGoesOn { shift: shift + 7 };
                if is_last {
                    self.begin_text();
                }
            }
            Part::Text => {
                if self.is_name {
                    // Longer names cannot match.
                    if self.name.len() <= AUTHORITY.len() {
                        self.name.push(*byte);
                    }
                } else if self.is_authority && !self.is_plain {
                    self.huffman.replace_percent(byte);
                } else if self.is_authority && *byte == b'%' {
                    *byte = b'-';
                }
                self.left -= 1;
                if self.left == 0 {
                    self.end_text();
                }
            }
        }
    }

    fn begin_field(&mut self, byte: u8) {
        // An indexed field has no strings. An update of the table's size is read in the same way.
        let (bits, has_value) = match byte {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        let number = byte & bits;
        self.is_authority = has_value && number == AUTHORITY_INDEX;
        self.is_name = has_value && number == 0;
        self.next = if number == bits {
            Part::Number { has_value }
        } else if has_value {
            Part::Length
        } else {
            Part::Field
        };
    }

    fn begin_text(&mut self) {
        self.next = Part::Text;
        self.name.clear();
        self.huffman = HuffmanText::default();
        if self.left == 0 {
            self.end_text();
        }
    }

    fn end_text(&mut self) {
        if self.is_name {
            let name = if self.is_plain { AUTHORITY } else { AUTHORITY_IN_HUFFMAN_CODE };
            self.is_authority = self.name == name;
            self.next = Part::Length;
        } else {
            self.next = Part::Field;
        }
        self.is_name = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::huffman::tests::in_huffman_code;
    use super::*;

    type TextOf = fn(&[u8]) -> Vec<u8>;

    fn text(bytes: &[u8]) -> Vec<u8> {
        marked_text(bytes, 0)
    }

    fn huffman_text(bytes: &[u8]) -> Vec<u8> {
        marked_text(&in_huffman_code(bytes), 0x80)
    }

    fn marked_text(bytes: &[u8], mark: u8) -> Vec<u8> {
        let mut text = vec![mark | bytes.len().min(127) as u8];
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
    fn block(authority: &[u8], is_named: bool, text_of: TextOf) -> Vec<u8> {
        let name = if is_named { [&[0x40][..], &text_of(AUTHORITY)].concat() } else { vec![0x41] };
        let long = [b'%'; 300];
        [
            &[0x83, 0x86, 0x3f, 0xe1, 0x1f, 0xff, 0x01, 0x40][..],
            &text(b":path"),
            &text(b"/a%20b"),
            &name,
            &text_of(authority),
            // Index 62 of the tables, and a Huffman string.
            &[0x7f, 0x00, 0x83, b'%', b'%', b'%', 0x10],
            &text(b"x-long"),
            &text(&long),
            &[0x00],
            &text(b""),
            &text(b""),
        ]
        .concat()
    }

    fn connection(authority: &[u8], is_named: bool, text_of: TextOf) -> Vec<u8> {
        let block = block(authority, is_named, text_of);
        let (first, rest) = block.split_at(30);
        let padded = [&[3][..], &[0; 5], &block, b"%%%"].concat();
        [
            PREFACE,
            &frame(4, 0, b"%%%%%%"),
            &frame(HEADERS, 4, &block),
            &frame(0, 0, b"\x41\x02%%%%%"),
            &frame(0, 1, b""),
            &frame(HEADERS, 4 | PADDED | PRIORITY, &padded),
            &frame(HEADERS, 0, first),
            &frame(CONTINUATION, 4, rest),
            &frame(HEADERS, 5, &[]),
            &frame(0, 1, b"%"),
        ]
        .concat()
    }

    proptest! {
        #[test]
        fn only_the_authority_is_changed_however_the_bytes_arrive(
            authority in "[a-z0-9%./_~-]{0,200}",
            is_named: bool,
            is_plain: bool,
            reads in prop::collection::vec(1_usize..40, 1..40),
        ) {
            let (text_of, replaced): (TextOf, _) =
                if is_plain { (text, "-") } else { (huffman_text, ".") };
            let mut bytes = connection(authority.as_bytes(), is_named, text_of);
            let expected =
                connection(authority.replace('%', replaced).as_bytes(), is_named, text_of);
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
            frames.next = Next::Head;
            let length = bytes.len();
            let mut passed = bytes;
            frames.pass(&mut passed);
            prop_assert_eq!(passed.len(), length);
        }
    }
}
