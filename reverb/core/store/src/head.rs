// SPDX-License-Identifier: Apache-2.0
//! The first bytes of a file, which say whose it is.

use std::time::{SystemTime, UNIX_EPOCH};

use reverb_files::masked_crc;

use crate::directory::Directory;

/// Bytes before the first payload or frame.
pub(crate) const HEAD_BYTES: usize = 4096;

/// Bytes of them that mean something.
pub(crate) const USED_BYTES: usize = 80;

/// Files of another major version are refused.
const MAJOR: u16 = 1;

/// Flag of a file that is worthless once its process has ended.
const TIER_ONLY: u32 = 1;

/// Flag of a log whose first frame was on disk when it got its name.
const BEGINS_WHOLE: u32 = 2;

/// Where the store's id, the number and the other fields are.
const ID: usize = 16;
const NUMBER: usize = 32;
const BEFORE: usize = 36;
const POSITION: usize = 40;
const TIME: usize = 48;
const RANDOM: usize = 56;
const CRC: usize = 76;

/// Random bytes that all files of a store have.
pub(crate) type StoreId = [u8; 16];

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileKind {
    /// Payloads.
    Data,
    /// What happened to items since a base.
    Log,
    /// All items at one commit.
    Base,
}

impl FileKind {
    pub(crate) const ALL: [Self; 3] = [Self::Data, Self::Log, Self::Base];

    /// What names of such files begin with.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Data => "data-",
            Self::Log => "log-",
            Self::Base => "base-",
        }
    }

    pub(crate) fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Data => b"RVBDATA1",
            Self::Log => b"RVBLOG01",
            Self::Base => b"RVBBASE1",
        }
    }
}

/// Head of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: FileKind,
    pub(crate) major: u16,
    /// True for a file that is worthless once its process has ended.
    pub(crate) is_tier: bool,
    /// True for a log that got its name with its first frame, the last one of the log before.
    pub(crate) begins_whole: bool,
    pub(crate) store: StoreId,
    pub(crate) number: u32,
    /// Number of the log before this log; else 0.
    pub(crate) before: u32,
    /// Of a log: bytes of the log before that count. Of a base: its commit. Else 0.
    pub(crate) position: u64,
    /// Bytes that no client sees, so that none can send what passes for a frame of this file.
    pub(crate) random: [u8; 16],
}

impl Head {
    pub(crate) fn new(kind: FileKind, directory: &Directory, number: u32) -> Self {
        let (store, random) = (directory.id, rand::random());
        let is_tier = !directory.is_journal;
        let (begins_whole, before, position) = (false, 0, 0);
        Self { kind, major: MAJOR, is_tier, begins_whole, store, number, before, position, random }
    }

    /// Its bytes, little endian: at 0 the magic, at 8 the version, at 12 the flags, then as the
    /// constants say. All others are 0.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, self.kind.magic());
        put(8, &self.major.to_le_bytes());
        let flags = [(self.is_tier, TIER_ONLY), (self.begins_whole, BEGINS_WHOLE)];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag);
        put(12, &flags.sum::<u32>().to_le_bytes());
        put(ID, &self.store);
        put(NUMBER, &self.number.to_le_bytes());
        put(BEFORE, &self.before.to_le_bytes());
        put(POSITION, &self.position.to_le_bytes());
        put(TIME, &nanoseconds(SystemTime::now()).to_le_bytes());
        put(RANDOM, &self.random);
        let crc = masked_crc(&bytes[..CRC]);
        bytes[CRC..USED_BYTES].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The head that a file begins with; `None` if it is no whole head.
    pub(crate) fn parse(bytes: &[u8; USED_BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let kind = FileKind::ALL.into_iter().find(|kind| bytes.starts_with(kind.magic()))?;
        if word(CRC)? != masked_crc(&bytes[..CRC]) {
            return None;
        }
        Some(Self {
            kind,
            major: u16::from_le_bytes([bytes[8], bytes[9]]),
            is_tier: word(12)? & TIER_ONLY != 0,
            begins_whole: word(12)? & BEGINS_WHOLE != 0,
            store: bytes[ID..NUMBER].try_into().ok()?,
            number: word(NUMBER)?,
            before: word(BEFORE)?,
            position: bytes[POSITION..TIME].try_into().map(u64::from_le_bytes).ok()?,
            random: bytes[RANDOM..RANDOM + 16].try_into().ok()?,
        })
    }

    /// Returns true if a later release has written the file.
    pub(crate) fn is_newer(&self) -> bool {
        self.major > MAJOR
    }
}

/// Nanoseconds since 1970.
pub(crate) fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Returns true if a file that begins like this is the log or the base of a journal.
pub(crate) fn is_of_journal(bytes: &[u8]) -> bool {
    [FileKind::Log, FileKind::Base].iter().any(|kind| bytes.starts_with(kind.magic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_head_is_none() {
        let head = Head {
            kind: FileKind::Log,
            major: MAJOR,
            is_tier: false,
            begins_whole: true,
            store: [7; 16],
            number: 12,
            before: 11,
            position: 8192,
            random: [3; 16],
        };
        let bytes = head.to_bytes();
        assert!(bytes.len() == HEAD_BYTES && bytes[USED_BYTES..].iter().all(|&byte| byte == 0));
        let bytes: [u8; USED_BYTES] = bytes[..USED_BYTES].try_into().unwrap();
        assert_eq!(Head::parse(&bytes), Some(head));
        for at in 0..USED_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Head::parse(&damaged), None, "{at}");
        }
        assert!(is_of_journal(&bytes) && !is_of_journal(b"RVBDATA1...") && !is_of_journal(b""));
    }
}
