// SPDX-License-Identifier: Apache-2.0
//! The first bytes of a file, which say whose it is.

use std::time::{SystemTime, UNIX_EPOCH};

use reverb_files::masked_crc;

/// Bytes before the first payload.
pub(crate) const HEAD_BYTES: usize = 4096;

/// Bytes of them that mean something.
pub(crate) const USED_BYTES: usize = 80;

const DATA: &[u8] = b"RVBDATA1";

/// What a journal's other files begin with.
const OF_JOURNALS: [&[u8]; 2] = [b"RVBLOG01", b"RVBBASE1"];

const MAJOR: u16 = 1;

/// Flag of a file that is worthless once its process has ended.
const TIER_ONLY: u32 = 1;

/// Where the store's id, the number and the checksum are.
const ID: usize = 16;
const NUMBER: usize = 32;
const TIME: usize = 48;
const RANDOM: usize = 56;
const CRC: usize = 76;

/// Random bytes that all files of a store have.
pub(crate) type StoreId = [u8; 16];

/// Head of a data file that is worthless once its process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) store: StoreId,
    pub(crate) number: u32,
}

impl Head {
    /// Its bytes, little endian: at 0 the magic, at 8 the version, at 12 the flags, then as the
    /// constants say. All others are 0.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        put(0, DATA);
        put(8, &MAJOR.to_le_bytes());
        put(12, &TIER_ONLY.to_le_bytes());
        put(ID, &self.store);
        put(NUMBER, &self.number.to_le_bytes());
        put(TIME, &(time.as_nanos() as u64).to_le_bytes());
        put(RANDOM, &rand::random::<[u8; 16]>());
        let crc = masked_crc(&bytes[..CRC]);
        bytes[CRC..USED_BYTES].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The head that a file begins with; `None` if it is no whole head, or one of a journal.
    pub(crate) fn parse(bytes: &[u8; USED_BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let is_tier = bytes.starts_with(DATA)
            && bytes[8..10] == MAJOR.to_le_bytes()
            && word(12)? & TIER_ONLY != 0
            && word(CRC)? == masked_crc(&bytes[..CRC]);
        let store = bytes[ID..NUMBER].try_into().ok()?;
        is_tier.then_some(Self { store, number: word(NUMBER)? })
    }
}

/// Returns true if a file that begins like this is the log or the base of a journal.
pub(crate) fn is_of_journal(bytes: &[u8]) -> bool {
    OF_JOURNALS.iter().any(|magic| bytes.starts_with(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_head_is_none() {
        let head = Head { store: [7; 16], number: 12 };
        let bytes = head.to_bytes();
        assert!(bytes.len() == HEAD_BYTES && bytes[USED_BYTES..].iter().all(|&byte| byte == 0));
        let bytes: [u8; USED_BYTES] = bytes[..USED_BYTES].try_into().unwrap();
        assert_eq!(Head::parse(&bytes), Some(head));
        for at in 0..USED_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Head::parse(&damaged), None, "{at}");
        }
        assert!(is_of_journal(b"RVBLOG01...") && !is_of_journal(&bytes) && !is_of_journal(b""));
    }
}
