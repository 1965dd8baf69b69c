// SPDX-License-Identifier: Apache-2.0
//! Records in TensorFlow's format: length, checksum of the length, data, checksum of the data.

use reverb_files::masked_crc;

/// Length of the header before a record's data.
pub(crate) const HEADER_BYTES: usize = 12;

/// Length of the footer after a record's data.
pub(crate) const FOOTER_BYTES: usize = 4;

/// Maximum size of a table or an item: a million slices have a third of that.
pub(crate) const MAX_RECORD_BYTES: u64 = 64 << 20;

/// Maximum size of a chunk, which is that of a protobuf message.
pub(crate) const MAX_CHUNK_RECORD_BYTES: u64 = 2 << 30;

/// Appends a record; `write` appends its data. Returns their length.
pub(crate) fn put_record(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    write(out);
    let data = start + HEADER_BYTES;
    let length = (out.len() - data) as u64;
    let checksum = masked_crc(&out[data..]);
    out[start..start + 8].copy_from_slice(&length.to_le_bytes());
    let length_checksum = masked_crc(&length.to_le_bytes());
    out[start + 8..data].copy_from_slice(&length_checksum.to_le_bytes());
    out.extend_from_slice(&checksum.to_le_bytes());
    length
}

/// Length in a header, if its checksum is correct.
pub(crate) fn parse_header(header: &[u8; HEADER_BYTES]) -> Option<u64> {
    let [l0, l1, l2, l3, l4, l5, l6, l7, c0, c1, c2, c3] = *header;
    let length = [l0, l1, l2, l3, l4, l5, l6, l7];
    let checksum = u32::from_le_bytes([c0, c1, c2, c3]);
    (masked_crc(&length) == checksum).then(|| u64::from_le_bytes(length))
}

pub(crate) fn record_bytes(data_bytes: u64) -> u64 {
    data_bytes.saturating_add((HEADER_BYTES + FOOTER_BYTES) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_length_and_two_checksums() {
        let mut out = vec![7];
        put_record(&mut out, |out| out.extend_from_slice(b"abc"));
        assert_eq!(out.len() as u64, 1 + record_bytes(3));
        assert_eq!(parse_header(out[1..13].try_into().unwrap()), Some(3));
        assert_eq!(&out[13..16], b"abc");
        assert_eq!(out[16..], masked_crc(b"abc").to_le_bytes());
        out[1] ^= 1;
        assert_eq!(parse_header(out[1..13].try_into().unwrap()), None);
    }
}
