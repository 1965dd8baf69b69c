// SPDX-License-Identifier: Apache-2.0
//! A hand-written protobuf wire format, for the two places where a general library costs too much:
//! tensors inside chunks, and the messages of the two streams.

use crate::error::{Error, Result};

/// Length in bytes of a varint of `value`.
pub fn varint_len(value: u64) -> usize {
    // One byte for each group of seven bits, the last one partial. Zero takes one byte too.
    ((64 - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Appends a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the tag of a field: wire type 0 varint, 1 64-bit, 2 bytes.
pub fn put_tag(out: &mut Vec<u8>, field: u32, wire_type: u32) {
    put_varint(out, u64::from(field << 3 | wire_type));
}

/// Appends a varint field unless it has the default value 0.
pub fn put_varint_field(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        put_tag(out, field, 0);
        put_varint(out, value);
    }
}

/// Appends a field of bytes, even if they are empty.
pub fn put_bytes_field(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_tag(out, field, 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a nested message whose length is not known beforehand.
pub fn put_nested(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    put_tag(out, field, 2);
    let at = out.len();
    // Most nested messages are short: reserve one byte for the length, and widen it if needed.
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    if length < 0x80 {
        out[at] = length as u8;
        return;
    }
    let width = varint_len(length as u64);
    let end = out.len();
    out.resize(end + width - 1, 0);
    out.copy_within(at + 1..end, at + width);
    let mut rest = length;
    for byte in &mut out[at..at + width] {
        *byte = rest as u8 | 0x80;
        rest >>= 7;
    }
    out[at + width - 1] &= 0x7f;
}

/// Appends a double unless it is zero.
pub fn put_double_field(out: &mut Vec<u8>, field: u32, value: f64) {
    if value.to_bits() != 0 {
        put_tag(out, field, 1);
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Appends an `int32` or `int64` unless it is zero. Negative numbers take ten bytes, as protobuf
/// requires.
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

fn truncated() -> Error {
    Error::invalid_argument("Malformed message: it ends in the middle of a field.")
}

impl<'a> Reader<'a> {
    /// A reader of `message`.
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads a bare varint.
    pub fn varint(&mut self) -> Result<u64> {
        if let [first, rest @ ..] = self.rest
            && *first < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(*first));
        }
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
    pub fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        if length > self.rest.len() {
            return Err(truncated());
        }
        let (head, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(head)
    }

    /// The next field with its number, or `None` at the end.
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
            other => {
                return Err(Error::invalid_argument(format!(
                    "Malformed message: wire type {other} does not exist."
                )));
            }
        };
        let number = u32::try_from(tag >> 3).ok().filter(|&n| n > 0);
        let number =
            number.ok_or_else(|| Error::invalid_argument("Malformed message: field number 0."))?;
        Ok(Some((number, field)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            assert_eq!(Reader::new(&bytes).varint(), Ok(value));
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
    fn nested_lengths_of_any_width_are_right() {
        for length in [0usize, 1, 127, 128, 129, 16383, 16384, 3_000_000] {
            let mut out = vec![9];
            put_nested(&mut out, 4, |out| out.extend((0..length).map(|i| i as u8)));
            out.push(9);
            let mut expected = vec![9];
            let body: Vec<u8> = (0..length).map(|i| i as u8).collect();
            put_bytes_field(&mut expected, 4, &body);
            expected.push(9);
            assert!(out == expected, "length {length}");
        }
    }
}
