// SPDX-License-Identifier: Apache-2.0
//! A hand-written protobuf wire format, for the two places where a general library costs too much:
//! tensors inside chunks, and the messages of the two streams.

use reverb_base::error::{Error, Result};

/// Length of the longest varint.
pub const MAX_VARINT_BYTES: usize = 10;

/// Length in bytes of a varint of `value`.
#[inline]
pub fn varint_len(value: u64) -> usize {
    // One byte for each group of seven bits, the last one partial. Zero takes one byte too.
    ((64 - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Varint of `value`, and its length in bytes.
#[inline]
pub fn varint(value: u64) -> ([u8; MAX_VARINT_BYTES], usize) {
    let (number, length) = wide_varint(value);
    let mut bytes = [0; MAX_VARINT_BYTES];
    bytes.copy_from_slice(&number.to_le_bytes()[..MAX_VARINT_BYTES]);
    (bytes, length)
}

/// Varint of `value` in the lowest bytes of a number, and its length.
///
/// Keys are random numbers of nine or ten bytes, so the first eight bytes are made at once.
#[inline]
fn wide_varint(value: u64) -> (u128, usize) {
    let length = varint_len(value);
    // All bytes but the last one have the highest bit set.
    let unused_bits = 8 * 9u32.saturating_sub(length as u32);
    let continued = HIGHEST_BITS.checked_shr(unused_bits).unwrap_or(0);
    let first = spread(value & LOW_56_BITS) | continued;
    let rest = value >> 56;
    (u128::from(rest | (rest >> 7) << 8) << 64 | u128::from(first), length)
}

const LOW_56_BITS: u64 = u64::MAX >> 8;
const HIGHEST_BITS: u64 = 0x8080_8080_8080_8080;

/// Puts 56 bits into the lower seven bits of eight bytes.
#[inline]
fn spread(bits: u64) -> u64 {
    let bits = bits & 0x0000_0000_0fff_ffff | (bits & 0x00ff_ffff_f000_0000) << 4;
    let bits = bits & 0x0000_3fff_0000_3fff | (bits & 0x0fff_c000_0fff_c000) << 2;
    bits & 0x007f_007f_007f_007f | (bits & 0x3f80_3f80_3f80_3f80) << 1
}

/// Inverse of `spread`; ignores the highest bit of each byte.
#[inline]
fn gather(bytes: u64) -> u64 {
    let bits = bytes & 0x007f_007f_007f_007f | (bytes & 0x7f00_7f00_7f00_7f00) >> 1;
    let bits = bits & 0x0000_3fff_0000_3fff | (bits & 0x3fff_0000_3fff_0000) >> 2;
    bits & 0x0000_0000_0fff_ffff | (bits & 0x0fff_ffff_0000_0000) >> 4
}

/// Appends a varint.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
        return;
    }
    let (number, length) = wide_varint(value);
    put_low_bytes(out, number, length);
}

/// Appends the lowest bytes of a number. Copying all sixteen of them takes an instruction or two.
#[inline]
fn put_low_bytes(out: &mut Vec<u8>, bytes: u128, count: usize) {
    let end = out.len() + count;
    out.extend_from_slice(&bytes.to_le_bytes());
    out.truncate(end);
}

/// Appends the tag of a field: wire type 0 varint, 1 64-bit, 2 bytes.
#[inline]
pub fn put_tag(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    put_varint(out, u64::from(field << 3 | wire_type));
}

/// Appends a varint field unless it has the default value 0.
#[inline]
pub fn put_varint_field(out: &mut Vec<u8>, field: u32, value: u64) {
    if value == 0 {
        return;
    }
    if field >= 16 || value < 0x80 {
        put_tag(out, field, 0);
        put_varint(out, value);
        return;
    }
    let (number, length) = wide_varint(value);
    put_low_bytes(out, number << 8 | u128::from(field << 3), 1 + length);
}

/// Appends a field of bytes, even an empty one.
#[inline]
pub fn put_bytes_field(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_tag(out, field, 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a nested message whose length is not known beforehand, and most likely below 128.
#[inline]
pub fn put_nested(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    put_nested_of_width::<1>(out, field, write);
}

/// Appends a nested message whose length most likely takes `WIDTH` bytes as a varint. Other lengths
/// work too.
#[inline]
pub fn put_nested_of_width<const WIDTH: usize>(
    out: &mut Vec<u8>,
    field: u32,
    write: impl FnOnce(&mut Vec<u8>),
) {
    put_tag(out, field, 2);
    let at = out.len();
    out.extend_from_slice(&[0; WIDTH]);
    write(out);
    let length = out.len() - at - WIDTH;
    if WIDTH == 1 && length < 0x80 {
        out[at] = length as u8;
        return;
    }
    put_varint_over::<WIDTH>(out, at, length as u64);
}

/// Writes a varint over the `WIDTH` bytes at `at`, and moves the bytes behind it if it takes
/// another number.
pub(crate) fn put_varint_over<const WIDTH: usize>(out: &mut Vec<u8>, at: usize, value: u64) {
    let (bytes, width) = varint(value);
    if width != WIDTH {
        move_tail(out, at + WIDTH, at + width);
    }
    out[at..at + width].copy_from_slice(&bytes[..width]);
}

#[cold]
fn move_tail(out: &mut Vec<u8>, from: usize, to: usize) {
    let end = out.len();
    let moved_end = out.len() + to - from;
    out.resize(end.max(moved_end), 0);
    out.copy_within(from..end, to);
    out.truncate(moved_end);
}

/// Appends a double unless it is zero.
#[inline]
pub fn put_double_field(out: &mut Vec<u8>, field: u32, value: f64) {
    if value.to_bits() == 0 {
        return;
    }
    if field >= 16 {
        put_tag(out, field, 1);
        out.extend_from_slice(&value.to_le_bytes());
        return;
    }
    let mut bytes = [0; 9];
    bytes[0] = (field as u8) << 3 | 1;
    bytes[1..].copy_from_slice(&value.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// Appends an `int32` or `int64` unless it is zero. Negative numbers take ten bytes, as protobuf
/// requires.
#[inline]
pub fn put_int_field(out: &mut Vec<u8>, field: u32, value: i64) {
    put_varint_field(out, field, value as u64);
}

/// Appends a list of integers in packed form, unless it is empty.
pub fn put_packed_field(out: &mut Vec<u8>, field: u32, values: &[u64]) {
    if values.is_empty() {
        return;
    }
    put_tag(out, field, 2);
    put_varint(out, values.iter().map(|&value| varint_len(value) as u64).sum());
    for &value in values {
        put_varint(out, value);
    }
}

/// One encoded field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2.
    Bytes(&'a [u8]),
    /// Wire type 5.
    Fixed32(u32),
}

/// Reads the fields of a message one by one.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

#[cold]
fn truncated() -> Error {
    Error::invalid_argument("Malformed message: it ends in the middle of a field.")
}

impl<'a> Reader<'a> {
    /// A reader of `message`.
    #[inline]
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns true if everything was read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Unread bytes.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads a bare varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        if let [first, rest @ ..] = self.rest
            && *first < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(*first));
        }
        self.long_varint()
    }

    /// Reads a length, which most likely takes one byte or two.
    #[inline]
    pub fn length(&mut self) -> Result<usize> {
        if let [low @ 0x80..=0xff, high @ 0..=0x7f, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(usize::from(low & 0x7f) | usize::from(*high) << 7);
        }
        usize::try_from(self.varint()?).map_err(|_| truncated())
    }

    fn long_varint(&mut self) -> Result<u64> {
        if let Some(word) = self.rest.first_chunk() {
            let word = u64::from_le_bytes(*word);
            let ends = !word & HIGHEST_BITS;
            if ends != 0 {
                let bits = ends.trailing_zeros() + 1;
                self.rest = &self.rest[bits as usize / 8..];
                return Ok(gather(word & u64::MAX >> (64 - bits)));
            }
            if let [ninth, tenth, ..] = self.rest[8..]
                && ninth.min(tenth) < 0x80
            {
                let is_ninth_last = ninth < 0x80;
                let tenth = if is_ninth_last { 0 } else { u64::from(tenth) };
                self.rest = &self.rest[if is_ninth_last { 9 } else { 10 }..];
                return Ok(gather(word) | u64::from(ninth & 0x7f) << 56 | tenth << 63);
            }
        }
        self.varint_by_bytes()
    }

    fn varint_by_bytes(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for (i, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(truncated())
    }

    /// Takes the next `length` bytes.
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        if length > self.rest.len() {
            return Err(truncated());
        }
        let (head, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(head)
    }

    /// Reads the number in the next field, if that is varint field `number`, which is below 16.
    ///
    /// Messages have their fields in order, so asking for each in turn saves the jump by number in
    /// a loop over `field`. Fields in another order are left to such a loop.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `field`")]
    pub fn next_varint(&mut self, number: u32) -> Result<Option<u64>> {
        if !self.skip_tag(number, 0) {
            return Ok(None);
        }
        self.varint().map(Some)
    }

    /// Reads the number in the next field, if that is the 64-bit field `number`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `field`")]
    pub fn next_fixed64(&mut self, number: u32) -> Result<Option<u64>> {
        if !self.skip_tag(number, 1) {
            return Ok(None);
        }
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(Some(u64::from_le_bytes(*bytes)))
    }

    /// Reads the bytes in the next field, if that is field `number`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `field`")]
    pub fn next_bytes(&mut self, number: u32) -> Result<Option<&'a [u8]>> {
        if !self.skip_tag(number, 2) {
            return Ok(None);
        }
        let length = usize::try_from(self.varint()?).map_err(|_| truncated())?;
        self.take(length).map(Some)
    }

    /// Skips a tag of one byte, if it comes next.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `field`")]
    fn skip_tag(&mut self, number: u32, wire_type: u8) -> bool {
        debug_assert!((1..16).contains(&number), "its tag has one byte");
        match self.rest {
            [tag, rest @ ..] if *tag == (number as u8) << 3 | wire_type => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// The next field with its number, or `None` at the end.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a tenth of the time of remote batches")]
    pub fn field(&mut self) -> Result<Option<(u32, Field<'a>)>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?;
                Field::Fixed64(u64::from_le_bytes(bytes.try_into().map_err(|_| truncated())?))
            }
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.take(usize::try_from(length).map_err(|_| truncated())?)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Field::Fixed32(u32::from_le_bytes(bytes.try_into().map_err(|_| truncated())?))
            }
            other => return Err(unknown_wire_type(other)),
        };
        let number = u32::try_from(tag >> 3).ok().filter(|&n| n > 0);
        Ok(Some((number.ok_or_else(no_field_number)?, field)))
    }
}

#[cold]
fn unknown_wire_type(wire_type: u64) -> Error {
    Error::invalid_argument(format!("Malformed message: wire type {wire_type} does not exist."))
}

#[cold]
fn no_field_number() -> Error {
    Error::invalid_argument("Malformed message: field number 0.")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Byte by byte, following the definition.
    fn plain_varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    #[test]
    fn varints_of_every_length_round_trip() {
        for value in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, 3 << bit, !0 >> bit]) {
            let mut bytes = vec![9];
            put_varint(&mut bytes, value);
            assert_eq!(bytes[1..], plain_varint(value));
            assert_eq!(bytes.len() - 1, varint_len(value));
            for behind in 0..12 {
                let mut message = plain_varint(value);
                message.extend((0..behind).map(|i| 0x7f + i));
                let mut reader = Reader::new(&message);
                assert_eq!(reader.varint(), Ok(value));
                assert_eq!(reader.rest().len(), usize::from(behind));
            }
        }
    }

    proptest! {
        /// The bytes may be padded varints, too long ones, or truncated ones.
        #[test]
        fn varints_are_read_at_once_as_byte_by_byte(
            mut bytes in prop::collection::vec(any::<u8>(), 0..14), continued in 0usize..14,
        ) {
            bytes.iter_mut().take(continued).for_each(|byte| *byte |= 0x80);
            let (mut at_once, mut by_bytes) = (Reader::new(&bytes), Reader::new(&bytes));
            prop_assert_eq!(at_once.varint(), by_bytes.varint_by_bytes());
            prop_assert_eq!(at_once.rest(), by_bytes.rest());
        }
    }

    #[test]
    fn false_lengths_are_errors() {
        assert!(Reader::new(&[0x0a, 0x05, 1, 2]).field().is_err());
        assert!(
            Reader::new(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01])
                .field()
                .is_err()
        );
        assert!(Reader::new(&[0xff; 11]).field().is_err());
        assert!(Reader::new(&[0x00, 0x00]).field().is_err());
    }

    #[test]
    fn fields_of_any_number_and_value_are_right() {
        for field in [1, 15, 16, 2047, 2048] {
            for value in (0..64).flat_map(|bit| [1u64 << bit, !0 >> bit]) {
                let (mut out, mut expected) = (vec![9], vec![9]);
                put_varint_field(&mut out, field, value);
                put_double_field(&mut out, field, f64::from_bits(value));
                expected.extend(plain_varint(u64::from(field << 3)));
                expected.extend(plain_varint(value));
                expected.extend(plain_varint(u64::from(field << 3 | 1)));
                expected.extend(value.to_le_bytes());
                assert_eq!(out, expected, "field {field}, value {value}");
            }
            let mut out = Vec::new();
            put_varint_field(&mut out, field, 0);
            put_double_field(&mut out, field, 0.0);
            assert!(out.is_empty(), "zeros are left out");
        }
    }

    #[test]
    fn nested_lengths_of_any_width_are_right() {
        for length in [0usize, 1, 127, 128, 129, 16383, 16384, 3_000_000] {
            let body: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut expected = vec![9];
            put_bytes_field(&mut expected, 4, &body);
            expected.push(9);
            let mut written = [vec![9], vec![9], vec![9]];
            let [one, two, three] = &mut written;
            put_nested(one, 4, |out| out.extend_from_slice(&body));
            put_nested_of_width::<2>(two, 4, |out| out.extend_from_slice(&body));
            put_nested_of_width::<3>(three, 4, |out| out.extend_from_slice(&body));
            for mut out in written {
                out.push(9);
                assert!(out == expected, "length {length}");
            }
        }
    }

    fn fields(mut reader: Reader<'_>) -> Result<Vec<(u32, Field<'_>)>> {
        std::iter::from_fn(|| reader.field().transpose()).collect()
    }

    proptest! {
        /// Reading by number gives the same as `field`, even for damaged messages.
        #[test]
        fn a_field_is_read_by_its_number_as_in_a_loop(
            mut bytes in prop::collection::vec(any::<u8>(), 0..30), number in 1u32..16, kind in 0u8..8,
        ) {
            if let [first, ..] = &mut bytes[..] {
                *first = (number as u8) << 3 | kind;
            }
            for asked in [number, 1, 15] {
                let mut reader = Reader::new(&bytes);
                let value = (|| {
                    if let Some(value) = reader.next_varint(asked)? {
                        return Ok(Some(Field::Varint(value)));
                    }
                    if let Some(value) = reader.next_fixed64(asked)? {
                        return Ok(Some(Field::Fixed64(value)));
                    }
                    Ok(reader.next_bytes(asked)?.map(Field::Bytes))
                })();
                let mut expected = fields(Reader::new(&bytes));
                match value {
                    Ok(None) => prop_assert_eq!(reader.rest(), &bytes[..]),
                    Ok(Some(value)) => {
                        let mut in_loop = Reader::new(&bytes);
                        prop_assert_eq!(in_loop.field(), Ok(Some((asked, value))));
                        prop_assert_eq!(reader.rest(), in_loop.rest());
                        expected = expected.map(|fields| fields[1..].to_vec());
                        prop_assert_eq!(fields(reader), expected);
                    }
                    Err(error) => prop_assert_eq!(Reader::new(&bytes).field(), Err(error)),
                }
            }
        }
    }
}
