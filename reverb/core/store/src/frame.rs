// SPDX-License-Identifier: Apache-2.0
//! Frames: records that are written together, and are found whole or not at all.
//!
//! A frame begins at a multiple of 4,096, so it never rewrites a page that was synced. Its head of
//! 64 bytes, little endian: at 0 the magic, at 4 the checksum of all, at 8 the commit, at 16 the
//! newest commit that was on disk when this one was written (in a base the number of the part), at
//! 24 nanoseconds since 1970, at 32 bytes of the records, at 40 their number, at 44 the checksum of
//! the head without the one of all. The records follow, then zeros.
//!
//! Both checksums begin with random bytes of the file's head. So neither a payload, which a peer
//! chooses, nor an old block of the disk passes for a frame.

use std::io;

use reverb_files::{DiskFile, masked_crc_of};

pub(crate) const FRAME_ALIGNMENT: u64 = 4096;

const HEAD: usize = 64;

/// What a frame is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A commit of a log.
    Commit,
    /// A part of a base.
    Part,
}

impl FrameKind {
    fn magic(self) -> &'static [u8; 4] {
        match self {
            Self::Commit => b"CUT1",
            Self::Part => b"PART",
        }
    }
}

/// Head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) kind: FrameKind,
    pub(crate) commit: u64,
    /// In a log the newest commit that was on disk; in a base the number of the part, from 1 on.
    pub(crate) synced_or_part: u64,
    /// Nanoseconds since 1970.
    pub(crate) at: u64,
    /// Bytes of the records.
    pub(crate) len: u64,
    pub(crate) num_records: u32,
}

/// Records of a frame that is being made.
#[derive(Debug)]
pub(crate) struct Records {
    /// Room for the head, then the records.
    bytes: Vec<u8>,
    num_records: u32,
}

impl Records {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; HEAD], num_records: 0 }
    }

    /// Those of a frame that was read.
    pub(crate) fn of(head: &FrameHead, records: &[u8]) -> Self {
        Self { bytes: [&[0; HEAD], records].concat(), num_records: head.num_records }
    }

    /// Where records are appended.
    pub(crate) fn begin(&mut self) -> &mut Vec<u8> {
        self.num_records += 1;
        &mut self.bytes
    }

    /// Makes room for so many bytes more.
    pub(crate) fn reserve(&mut self, num_bytes: usize) {
        self.bytes.reserve(num_bytes);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - HEAD
    }

    /// The frame's bytes.
    pub(crate) fn seal(
        mut self,
        random: &[u8; 16],
        kind: FrameKind,
        commit: u64,
        synced_or_part: u64,
        at: u64,
    ) -> Vec<u8> {
        let len = self.len() as u64;
        self.bytes[..4].copy_from_slice(kind.magic());
        for (place, number) in [(8, commit), (16, synced_or_part), (24, at), (32, len)] {
            self.bytes[place..place + 8].copy_from_slice(&number.to_le_bytes());
        }
        self.bytes[40..44].copy_from_slice(&self.num_records.to_le_bytes());
        let crc = crc_of_head(random, &self.bytes);
        self.bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        let crc = crc_of_all(random, &self.bytes[..HEAD], &self.bytes[HEAD..]);
        self.bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(FRAME_ALIGNMENT as usize), 0);
        self.bytes
    }
}

fn crc_of_head(random: &[u8; 16], head: &[u8]) -> u32 {
    masked_crc_of([&random[..], &head[..4], &head[8..44], &head[48..HEAD]])
}

fn crc_of_all(random: &[u8; 16], head: &[u8], records: &[u8]) -> u32 {
    masked_crc_of([&random[..], &head[..4], &head[8..], records])
}

impl FrameHead {
    /// The whole head of a frame of this kind, if there is one.
    fn parse(bytes: &[u8; HEAD], random: &[u8; 16], kind: FrameKind) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let number = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if !bytes.starts_with(kind.magic()) || word(44)? != crc_of_head(random, bytes) {
            return None;
        }
        Some(Self {
            kind,
            commit: number(8)?,
            synced_or_part: number(16)?,
            at: number(24)?,
            len: number(32)?,
            num_records: word(40)?,
        })
    }

    /// Bytes of the frame.
    pub(crate) fn frame_bytes(&self) -> u64 {
        let bytes = (HEAD as u64).saturating_add(self.len);
        bytes.checked_next_multiple_of(FRAME_ALIGNMENT).unwrap_or(u64::MAX)
    }
}

/// A file with frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frames<'a> {
    pub(crate) file: &'a dyn DiskFile,
    /// Bytes that are read, at most.
    pub(crate) end: u64,
    pub(crate) random: &'a [u8; 16],
    pub(crate) kind: FrameKind,
}

impl Frames<'_> {
    /// The frame at a position, with its records; `None` if there is no whole one.
    pub(crate) fn read(&self, at: u64) -> io::Result<Option<(FrameHead, Vec<u8>)>> {
        let Some((head, bytes)) = self.head_at(at)? else { return Ok(None) };
        if head.frame_bytes() > self.end - at {
            return Ok(None);
        }
        let mut records = Vec::new();
        let len = usize::try_from(head.len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        records.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        records.resize(len, 0);
        self.file.read_exact_at(&mut records, at + HEAD as u64)?;
        let is_whole = bytes[4..8] == crc_of_all(self.random, &bytes, &records).to_le_bytes();
        Ok(is_whole.then_some((head, records)))
    }

    /// Whole heads of frames from a position on, whatever their records are.
    pub(crate) fn heads_from(&self, mut at: u64) -> io::Result<Vec<FrameHead>> {
        let mut found = Vec::new();
        while at < self.end {
            found.extend(self.head_at(at)?.map(|(head, _)| head));
            at += FRAME_ALIGNMENT;
        }
        Ok(found)
    }

    fn head_at(&self, at: u64) -> io::Result<Option<(FrameHead, [u8; HEAD])>> {
        let mut bytes = [0; HEAD];
        if self.end.saturating_sub(at) < HEAD as u64 {
            return Ok(None);
        }
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(FrameHead::parse(&bytes, self.random, self.kind).map(|head| (head, bytes)))
    }
}
