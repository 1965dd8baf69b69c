// SPDX-License-Identifier: Apache-2.0
//! Checksums of what lies on disk.

/// CRC-32C, rotated and shifted as in TensorFlow's records, so that a checksum of data that holds
/// checksums is not zero.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    masked_crc_of([bytes])
}

/// The same of several pieces, one after another.
pub fn masked_crc_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let crc = pieces.into_iter().fold(0, crc32c::crc32c_append);
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::{masked_crc, masked_crc_of};

    #[test]
    fn checksums_are_those_of_other_programs() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc(b"123456789"), 0xc78a_b0e5);
        assert_eq!(masked_crc(&[0; 32]), 0x0fd7_fffa);
        assert_eq!(masked_crc_of([&b"1234"[..], b"", b"56789"]), 0xc78a_b0e5);
    }
}
