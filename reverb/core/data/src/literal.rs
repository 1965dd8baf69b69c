// SPDX-License-Identifier: Apache-2.0
//! Snappy blocks of a single literal: raw bytes after a header of at most ten bytes.

use crate::proto_bytes::{Reader, put_varint, varint_len};

/// Bytes of the header in front of `len` raw bytes.
pub(crate) fn header_len(len: usize) -> usize {
    varint_len(len as u64)
        + match len {
            0 => 0,
            1..=60 => 1,
            61..=0x100 => 2,
            0x101..=0x1_0000 => 3,
            0x1_0001..=0x100_0000 => 4,
            _ => 5,
        }
}

/// Appends the varint length and the tag of a snappy block of one literal of `len` bytes.
pub(crate) fn put_header(out: &mut Vec<u8>, len: usize) {
    put_varint(out, len as u64);
    let Some(last) = len.checked_sub(1) else { return };
    let extra_bytes = match len {
        1..=60 => {
            out.push((last as u8) << 2);
            return;
        }
        61..=0x100 => 1,
        0x101..=0x1_0000 => 2,
        0x1_0001..=0x100_0000 => 3,
        _ => 4,
    };
    out.push((59 + extra_bytes as u8) << 2);
    out.extend_from_slice(&last.to_le_bytes()[..extra_bytes]);
}

/// Raw bytes of a block, if it is a single literal.
#[inline]
pub(crate) fn body(block: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(block);
    let len = reader.length().ok()?;
    if len == 0 {
        return reader.is_empty().then_some(&[]);
    }
    let tag = *reader.take(1).ok()?.first()?;
    if tag & 3 != 0 {
        return None;
    }
    let literal_len = match tag >> 2 {
        small @ 0..60 => usize::from(small) + 1,
        large => {
            let extra = reader.take(usize::from(large) - 59).ok()?;
            extra.iter().rev().fold(0, |len, &byte| len << 8 | usize::from(byte)) + 1
        }
    };
    let body = reader.take(literal_len).ok()?;
    (literal_len == len && reader.is_empty()).then_some(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn literals_of_every_length_are_snappy(length in prop::sample::select(vec![0usize, 1, 60, 61, 256, 257, 65_536, 65_537, 70_000])) {
            let raw: Vec<u8> = (0..length).map(|i| (i * 7 % 251) as u8).collect();
            let mut block = Vec::new();
            put_header(&mut block, length);
            block.extend_from_slice(&raw);
            prop_assert_eq!(block.len(), header_len(length) + length);
            prop_assert_eq!(body(&block), Some(&raw[..]));
            prop_assert_eq!(snap::raw::Decoder::new().decompress_vec(&block).unwrap(), raw);
        }
    }
}
