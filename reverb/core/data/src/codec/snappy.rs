// SPDX-License-Identifier: Apache-2.0
//! Snappy blocks: all of their bytes, or only the first ones.

use super::long_copies;
use crate::proto_bytes::put_varint;

/// A block that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Corrupt;

/// A copy in a block has at most this many bytes, so the first one that does not fit into this much
/// room behind the wanted bytes begins behind these.
const MAX_COPY: usize = 64;
/// The bytes that one byte takes at most: a literal with a length of four bytes.
const MAX_BYTES_OF_ONE: usize = 6;

/// Decodes a block to `out`, which has exactly the length of its content.
pub(super) fn decompress(block: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    if long_copies::are_most_of(block, out.len()) {
        return long_copies::decompress(block, out.len(), out);
    }
    match snap::raw::Decoder::new().decompress(block, out) {
        Ok(written) if written == out.len() => Ok(()),
        _ => Err(Corrupt),
    }
}

/// Bytes of the memory that `decompress_first` needs.
pub(super) fn room_for_first(wanted: usize, total: usize) -> usize {
    total.min(wanted.saturating_add(MAX_COPY))
}

/// Decodes the first `wanted` of the `total` bytes of a block to `out`, which has the length
/// `room_for_first`, and does not read the rest of the block. `copy` is scratch memory.
///
/// The decoder reads a block that claims to be as long as `out`. It stops at the first element
/// that is longer, and returns where.
pub(super) fn decompress_first(
    block: &[u8],
    wanted: usize,
    total: usize,
    out: &mut [u8],
    copy: &mut Vec<u8>,
) -> Result<(), Corrupt> {
    if long_copies::are_most_of(block, total) {
        return long_copies::decompress(block, total, &mut out[..wanted]);
    }
    let room = out.len();
    if room == total {
        return decompress(block, out);
    }
    let header = block.iter().position(|byte| byte & 0x80 == 0).ok_or(Corrupt)?;
    let elements = &block[header + 1..];
    let elements = &elements[..elements.len().min(room.saturating_mul(MAX_BYTES_OF_ONE))];
    copy.clear();
    put_varint(copy, room as u64);
    copy.extend_from_slice(elements);
    match snap::raw::Decoder::new().decompress(copy, out) {
        Err(snap::Error::CopyWrite { dst_len, .. }) if room - dst_len as usize >= wanted => Ok(()),
        // The beginning of a literal that is too long may be wanted.
        Err(snap::Error::Literal { src_len, dst_len, .. }) if dst_len <= src_len => {
            let literal = &elements[elements.len() - src_len as usize..];
            let rest = &mut out[room - dst_len as usize..];
            rest.copy_from_slice(&literal[..rest.len()]);
            Ok(())
        }
        _ => Err(Corrupt),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first(block: &[u8], wanted: usize, total: usize) -> Result<Vec<u8>, Corrupt> {
        let mut out = vec![0xaa; room_for_first(wanted, total)];
        decompress_first(block, wanted, total, &mut out, &mut vec![1, 2, 3])?;
        out.truncate(wanted);
        Ok(out)
    }

    /// Bytes in runs, which compress to literals and copies of any length.
    fn content() -> impl Strategy<Value = Vec<u8>> {
        let noise = prop::collection::vec(any::<u8>(), 1..300);
        let repeated = (prop::collection::vec(any::<u8>(), 1..20), 1usize..40)
            .prop_map(|(piece, count)| piece.repeat(count));
        prop::collection::vec(prop_oneof![noise, repeated], 1..12).prop_map(|runs| runs.concat())
    }

    /// Elements of any kind, of which an encoder would write only some, with their content.
    fn elements() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let element = (0u8..6, 1usize..200, any::<prop::sample::Index>());
        prop::collection::vec(element, 1..60).prop_map(|elements| {
            let (mut block, mut content) = (Vec::new(), Vec::<u8>::new());
            for (kind, length, at) in elements {
                if kind < 3 || content.is_empty() {
                    // The length of a literal in one to four bytes.
                    let bytes = 1 + usize::from(kind) % 4;
                    block.push((59 + bytes as u8) << 2);
                    block.extend_from_slice(&(length as u32 - 1).to_le_bytes()[..bytes]);
                    let values = (0..length).map(|i| (i * 31 + content.len()) as u8);
                    let values: Vec<u8> = values.collect();
                    block.extend_from_slice(&values);
                    content.extend_from_slice(&values);
                    continue;
                }
                let (length, offset) = (1 + length % MAX_COPY, 1 + at.index(content.len()));
                let bytes = if kind == 3 { 4 } else { 2 };
                block.push((length as u8 - 1) << 2 | if kind == 3 { 3 } else { 2 });
                block.extend_from_slice(&(offset as u32).to_le_bytes()[..bytes]);
                (0..length).for_each(|_| content.push(content[content.len() - offset]));
            }
            let mut whole = Vec::new();
            put_varint(&mut whole, content.len() as u64);
            whole.extend_from_slice(&block);
            (whole, content)
        })
    }

    proptest! {
        #[test]
        fn the_first_bytes_are_those_of_the_whole_block(
            content in content(), wanted in any::<prop::sample::Index>(),
        ) {
            let block = snap::raw::Encoder::new().compress_vec(&content).unwrap();
            let wanted = wanted.index(content.len() + 1);
            let found = first(&block, wanted, content.len());
            prop_assert_eq!(found.as_deref(), Ok(&content[..wanted]));
        }

        #[test]
        fn any_elements_are_read((block, content) in elements()) {
            prop_assert_eq!(&snap::raw::Decoder::new().decompress_vec(&block).unwrap(), &content);
            for wanted in 0..=content.len() {
                let found = first(&block, wanted, content.len());
                prop_assert_eq!(found.as_deref(), Ok(&content[..wanted]));
            }
        }

        /// Damage behind the wanted bytes is not read; else the result is an error, or
        /// what a decoder of the whole block yields.
        #[test]
        fn a_damaged_block_is_an_error_or_has_the_same_bytes(
            (block, content) in elements(),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
            cut in any::<prop::sample::Index>(),
        ) {
            let mut damaged = block.clone();
            let at = at.index(block.len());
            damaged[at] ^= 1 << bit;
            damaged.truncate(cut.index(block.len() * 4).max(1));
            for wanted in (0..=content.len()).step_by(7) {
                let all = snap::raw::Decoder::new().decompress_vec(&damaged);
                if let (Ok(found), Ok(all)) = (first(&damaged, wanted, content.len()), all) {
                    prop_assert_eq!(&found[..wanted.min(all.len())], &all[..wanted.min(all.len())]);
                }
            }
        }
    }
}
