// SPDX-License-Identifier: Apache-2.0
//! Decoder of snappy blocks whose content is mostly long copies, such as flat areas of a frame.
//!
//! A copy in a block has at most 64 bytes, so a long one is a row of copies with the same offset.
//! They are decoded as one, which fills memory. Short elements are copied in pieces of a fixed
//! size, which may write bytes behind them; later elements write these again. Blocks with many
//! short elements are decoded faster by the crate `snap`.

use std::ops::Range;

use super::snappy::Corrupt;

/// Number of bytes that one byte of such a block yields at least.
const MIN_RATIO: usize = 9;
/// Size of the pieces in which short elements are copied.
const PIECE: usize = 16;
/// An encoder cuts a longer copy into copies of 64 bytes, and perhaps one of 60, before the last.
const MIN_CONTINUED: usize = 60;
/// Elements of at most this size are short.
const MAX_SHORT: usize = 64;

/// Returns true if most of the `total` bytes of a block must come from long copies.
pub(super) fn are_most_of(block: &[u8], total: usize) -> bool {
    total / MIN_RATIO >= block.len()
}

/// Decodes the first bytes of a block to `out`; its content has `total` bytes. Elements behind
/// these bytes are not read.
pub(super) fn decompress(block: &[u8], total: usize, out: &mut [u8]) -> Result<(), Corrupt> {
    let (mut elements, claimed) = Elements::of(block)?;
    if claimed != total || out.len() > total {
        return Err(Corrupt);
    }
    let mut done = 0;
    while done < out.len() {
        let element = elements.next()?;
        let mut end = done + element.len;
        if end > out.len() {
            if end > total {
                return Err(Corrupt);
            }
            end = out.len();
        }
        match element.source {
            Source::Literal(start) => put_literal(block, start, out, done..end),
            Source::Copy(offset) if offset.wrapping_sub(1) < done => {
                put_copy(offset, out, done..end);
            }
            Source::Copy(_) => return Err(Corrupt),
        }
        done = end;
    }
    if done == total && !elements.have_ended() { Err(Corrupt) } else { Ok(()) }
}

/// A part of the content.
struct Element {
    source: Source,
    len: usize,
}

enum Source {
    /// Bytes of the block from this position on.
    Literal(usize),
    /// Content this far before the element, which may overlap with it.
    Copy(usize),
}

/// The elements of a block from a position on.
struct Elements<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Elements<'a> {
    /// All elements of a block, and the length that it claims.
    fn of(block: &'a [u8]) -> Result<(Self, usize), Corrupt> {
        let mut len: u64 = 0;
        for (at, &byte) in block.iter().take(5).enumerate() {
            len |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                let len = u32::try_from(len).map_err(|_| Corrupt)?;
                return Ok((Self { block, at: at + 1 }, len as usize));
            }
        }
        Err(Corrupt)
    }

    fn have_ended(&self) -> bool {
        self.at == self.block.len()
    }

    /// The next element; copies of the same offset behind it belong to it.
    #[inline]
    fn next(&mut self) -> Result<Element, Corrupt> {
        let tag = *self.block.get(self.at).ok_or(Corrupt)?;
        self.at += 1;
        let Tag { extra, len, high } = TAGS[usize::from(tag)];
        let number = self.number(usize::from(extra))?;
        if tag.is_multiple_of(4) {
            // Literals of up to 60 bytes have no number.
            let len = usize::from(len) + number;
            let start = self.at;
            if len > self.block.len() - start {
                return Err(Corrupt);
            }
            self.at += len;
            return Ok(Element { source: Source::Literal(start), len });
        }
        let offset = usize::from(high) + number;
        let mut len = usize::from(len);
        if len >= MIN_CONTINUED {
            while let Some(more) = self.copy_of(offset) {
                len += more;
                self.at += 3;
            }
        }
        Ok(Element { source: Source::Copy(offset), len })
    }

    /// A number of so many bytes, at most four.
    #[inline]
    fn number(&mut self, size: usize) -> Result<usize, Corrupt> {
        let rest = &self.block[self.at..];
        let bytes = match rest.first_chunk() {
            Some(bytes) => *bytes,
            None if size <= rest.len() => {
                let mut bytes = [0; 4];
                bytes[..size].copy_from_slice(&rest[..size]);
                bytes
            }
            None => return Err(Corrupt),
        };
        self.at += size;
        Ok((u32::from_le_bytes(bytes) & MASKS[size]) as usize)
    }

    /// Length of the next element, if it is a copy of this offset, in two bytes.
    #[inline]
    fn copy_of(&self, offset: usize) -> Option<usize> {
        let &[tag, low, high] = self.block.get(self.at..)?.first_chunk()?;
        let is_it = tag & 3 == 2 && usize::from(u16::from_le_bytes([low, high])) == offset;
        is_it.then_some(1 + usize::from(tag >> 2))
    }
}

/// The meaning of the first byte of an element.
#[derive(Clone, Copy)]
struct Tag {
    /// Bytes of the number behind it: the offset of a copy, or the length of a long literal less 1.
    extra: u8,
    /// Length of the element; of a long literal, what is added to the number.
    len: u8,
    /// Part of a copy's offset, in front of the number.
    high: u16,
}

/// The meaning of each tag.
const TAGS: [Tag; 256] = {
    let mut tags = [Tag { extra: 0, len: 0, high: 0 }; 256];
    let mut at = 0;
    while at < 256 {
        let tag = at as u8;
        let bits = at as u8 >> 2;
        tags[at] = match tag & 3 {
            0 if bits < 60 => Tag { extra: 0, len: 1 + bits, high: 0 },
            0 => Tag { extra: bits - 59, len: 1, high: 0 },
            1 => Tag { extra: 1, len: 4 + (bits & 7), high: (tag as u16 >> 5) << 8 },
            2 => Tag { extra: 2, len: 1 + bits, high: 0 },
            _ => Tag { extra: 4, len: 1 + bits, high: 0 },
        };
        at += 1;
    }
    tags
};

/// The bits of numbers of up to four bytes.
const MASKS: [u32; 5] = [0, 0xff, 0xffff, 0xff_ffff, u32::MAX];

/// Copies bytes of the block, from `start` on, to `place` of `out`.
#[inline]
fn put_literal(block: &[u8], start: usize, out: &mut [u8], place: Range<usize>) {
    let len = place.len();
    if len <= PIECE
        && let Some(piece) = block[start..].first_chunk::<PIECE>()
        && let Some(place) = out[place.start..].first_chunk_mut()
    {
        *place = *piece;
        return;
    }
    out[place].copy_from_slice(&block[start..start + len]);
}

/// Copies content from `offset` bytes before `place` to `place`, where it may be needed already.
#[inline]
fn put_copy(offset: usize, out: &mut [u8], place: Range<usize>) {
    let start = place.start - offset;
    if place.len() <= MAX_SHORT && place.end + PIECE <= out.len() {
        put_short_copy(offset, out, place);
    } else if offset == 1 {
        let byte = out[start];
        out[place].fill(byte);
    } else {
        // Written bytes are as good a source, so each copy may be twice as long.
        let mut at = place.start;
        while at < place.end {
            let len = (at - start).min(place.end - at);
            out.copy_within(start..start + len, at);
            at += len;
        }
    }
}

#[inline]
fn put_short_copy(offset: usize, out: &mut [u8], place: Range<usize>) {
    let mut at = place.start;
    let mut distance = offset;
    if place.len() <= PIECE && distance >= PIECE / 2 {
        copy_piece::<{ PIECE / 2 }>(out, at - distance, at);
        copy_piece::<{ PIECE / 2 }>(out, at - distance + PIECE / 2, at + PIECE / 2);
        return;
    }
    if distance >= PIECE {
        loop {
            copy_piece::<PIECE>(out, at - distance, at);
            at += PIECE;
            if at >= place.end {
                return;
            }
        }
    }
    // A piece that overlaps with its source is right up to the distance between both.
    while distance < PIECE / 2 {
        copy_piece::<{ PIECE / 2 }>(out, at - distance, at);
        at += distance;
        distance += distance;
    }
    while at < place.end {
        copy_piece::<{ PIECE / 2 }>(out, at - distance, at);
        at += PIECE / 2;
    }
}

#[inline]
fn copy_piece<const N: usize>(out: &mut [u8], from: usize, to: usize) {
    let piece: [u8; N] = *out[from..].first_chunk().expect("before the end");
    *out[to..].first_chunk_mut().expect("there is room") = piece;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto_bytes::put_varint;

    fn decoded(block: &[u8], total: usize, wanted: usize) -> Result<Vec<u8>, Corrupt> {
        let mut out = vec![0xaa; wanted];
        decompress(block, total, &mut out).map(|()| out)
    }

    /// The result of another decoder.
    fn expected(block: &[u8], total: usize) -> Result<Vec<u8>, Corrupt> {
        let mut out = vec![0xaa; total];
        match snap::raw::Decoder::new().decompress(block, &mut out) {
            Ok(written) if written == total => Ok(out),
            _ => Err(Corrupt),
        }
    }

    /// Frames with flat areas, rows that repeat, and noise.
    fn content() -> impl Strategy<Value = Vec<u8>> {
        let noise = prop::collection::vec(any::<u8>(), 1..80);
        let repeated = (prop::collection::vec(any::<u8>(), 1..100), 1usize..60)
            .prop_map(|(piece, count)| piece.repeat(count));
        let flat = (any::<u8>(), 1usize..9000).prop_map(|(byte, count)| vec![byte; count]);
        prop::collection::vec(prop_oneof![noise, repeated, flat], 0..12)
            .prop_map(|runs| runs.concat())
    }

    /// Elements of every kind and length, of which an encoder would write only some.
    fn elements() -> impl Strategy<Value = Vec<u8>> {
        let element = (0u8..8, 1usize..300, any::<prop::sample::Index>(), 1usize..6);
        prop::collection::vec(element, 0..60).prop_map(|elements| {
            let (mut block, mut len) = (Vec::new(), 0);
            for (kind, size, at, repeats) in elements {
                if kind < 3 || len == 0 {
                    let bytes = if size <= 60 && kind == 0 { 0 } else { 2 + usize::from(kind) % 3 };
                    let bits = if bytes == 0 { size as u8 - 1 } else { 59 + bytes as u8 };
                    block.push(bits << 2);
                    block.extend_from_slice(&(size as u32 - 1).to_le_bytes()[..bytes]);
                    block.extend((0..size).map(|i| (i * 31 + len) as u8));
                    len += size;
                    continue;
                }
                let offset = 1 + at.index(len.min(if kind == 3 { 2000 } else { 60_000 }));
                let offset = if kind == 7 { 1 + offset % 20 % len } else { offset };
                for _ in 0..repeats {
                    let size = if kind < 6 && repeats > 2 { 64 } else { 4 + size % 8 };
                    let number = (offset as u32).to_le_bytes();
                    match kind {
                        3 if size < 12 => {
                            block.push((number[1] << 5) | (size as u8 - 4) << 2 | 1);
                            block.push(number[0]);
                        }
                        4 => {
                            block.push((size as u8 - 1) << 2 | 3);
                            block.extend_from_slice(&number);
                        }
                        _ => {
                            block.push((size as u8 - 1) << 2 | 2);
                            block.extend_from_slice(&number[..2]);
                        }
                    }
                    len += size;
                }
            }
            let mut whole = Vec::new();
            put_varint(&mut whole, len as u64);
            whole.extend_from_slice(&block);
            whole
        })
    }

    fn claimed(block: &[u8]) -> usize {
        snap::raw::decompress_len(block).unwrap()
    }

    proptest! {
        #[test]
        fn what_was_compressed_comes_back(content in content()) {
            let block = snap::raw::Encoder::new().compress_vec(&content).unwrap();
            for wanted in [content.len(), content.len() / 2, content.len() / 7, 0] {
                let found = decoded(&block, content.len(), wanted);
                prop_assert_eq!(found.as_deref(), Ok(&content[..wanted]));
            }
        }

        #[test]
        fn elements_of_every_kind_are_read(block in elements()) {
            let total = claimed(&block);
            let content = expected(&block, total).unwrap();
            for wanted in (0..=total).step_by(total / 40 + 1).chain([total]) {
                let found = decoded(&block, total, wanted);
                prop_assert_eq!(found.as_deref(), Ok(&content[..wanted]));
            }
        }

        /// A damaged or cut block is refused exactly where the other decoder refuses it.
        #[test]
        fn a_damaged_block_is_refused(
            block in elements(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
            missing in prop::sample::select(vec![0usize, 0, 0, 1, 40]),
        ) {
            let total = claimed(&block).saturating_sub(missing);
            let mut damaged = block;
            for (at, byte) in damage {
                let at = at.index(damaged.len());
                damaged[at] = byte;
            }
            if let Some(cut) = cut {
                damaged.truncate(cut.index(damaged.len() + 1));
            }
            let all = expected(&damaged, total);
            prop_assert_eq!(&decoded(&damaged, total, total), &all);
            // Damage behind the wanted bytes need not be found.
            if let (Ok(first), Ok(all)) = (decoded(&damaged, total, total / 2), all) {
                prop_assert_eq!(&first[..], &all[..total / 2]);
            }
        }

        #[test]
        fn bytes_of_peers_are_never_more_than_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..400), total in 0usize..20_000,
        ) {
            let mut block = Vec::new();
            put_varint(&mut block, total as u64);
            block.extend_from_slice(&bytes);
            for block in [&block, &bytes] {
                prop_assert_eq!(decoded(block, total, total), expected(block, total));
            }
        }
    }

    #[test]
    fn flat_frames_are_mostly_long_copies() {
        let frame = vec![7; 7056];
        let block = snap::raw::Encoder::new().compress_vec(&frame).unwrap();
        assert!(are_most_of(&block, frame.len()));
        assert!(!are_most_of(&frame, frame.len()));
        assert!(!are_most_of(&[], 0) || decoded(&[], 0, 0) == Err(Corrupt));
    }
}
