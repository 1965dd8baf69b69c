// SPDX-License-Identifier: Apache-2.0
//! Data files: where payloads of disk chunks are.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Payloads begin at multiples of this.
pub const PAYLOAD_ALIGNMENT: u64 = 8;

/// Reads bytes at a position of a file.
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Fills `bytes` with those at `offset`.
    ///
    /// # Errors
    ///
    /// Those of the file system; `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `bytes` with those at `offset`, if all of them can be had without the disk. Returns
    /// false otherwise; never waits.
    fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        let _ = (bytes, offset);
        false
    }

    /// Counts a read that gave other bytes than were written.
    fn count_wrong_bytes(&self) {}
}

/// A file with payloads. It can be read as long as something refers to it, also after it was
/// deleted.
#[derive(Debug)]
pub struct DataFile {
    number: u32,
    path: PathBuf,
    file: Box<dyn ReadAt>,
    live_bytes: AtomicU64,
}

impl DataFile {
    /// A file in which no payload is live.
    pub fn new(number: u32, path: PathBuf, file: Box<dyn ReadAt>) -> Arc<Self> {
        Arc::new(Self { number, path, file, live_bytes: AtomicU64::new(0) })
    }

    /// Its number, which no other file of its store has or had.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the payloads that chunks have here, each rounded up to `PAYLOAD_ALIGNMENT`.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Relaxed)
    }

    /// Fills `bytes` with those at `offset`.
    ///
    /// # Errors
    ///
    /// As [`ReadAt::read_exact_at`].
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Fills `bytes` with those at `offset` without the disk; see [`ReadAt::read_cached_at`].
    pub fn read_cached_at(&self, bytes: &mut [u8], offset: u64) -> bool {
        self.file.read_cached_at(bytes, offset)
    }

    /// Counts a read that gave other bytes than were written.
    pub(super) fn count_wrong_bytes(&self) {
        self.file.count_wrong_bytes();
    }

    /// Counts a payload of this length that a chunk has here from now on.
    pub(super) fn add_live(&self, payload_len: u32) {
        self.live_bytes.fetch_add(rounded_up(payload_len), Relaxed);
    }

    /// Counts a payload less, whose chunk is freed or has moved.
    pub(super) fn remove_live(&self, payload_len: u32) {
        self.live_bytes.fetch_sub(rounded_up(payload_len), Relaxed);
    }
}

fn rounded_up(payload_len: u32) -> u64 {
    u64::from(payload_len).next_multiple_of(PAYLOAD_ALIGNMENT)
}

/// Where a payload is. Its length is that of its chunk.
#[derive(Debug, Clone)]
pub struct Place {
    /// The file.
    pub file: Arc<DataFile>,
    /// First byte in the file, a multiple of `PAYLOAD_ALIGNMENT`.
    pub offset: u64,
    /// CRC-32C of the payload.
    pub crc: u32,
}
