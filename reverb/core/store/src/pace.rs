// SPDX-License-Identifier: Apache-2.0
//! Reading at a bounded rate.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_files::DiskFile;

/// Most bytes that are read at once.
const PIECE: usize = 1 << 20;

/// How fast files of a store are read.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: u64,
    /// When the next read may begin.
    next: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new(bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self { bytes_per_second, next: Mutex::new(Instant::now()) })
    }

    /// Waits until so many bytes may be read.
    fn wait(&self, num_bytes: usize) {
        let time = num_bytes as f64 / self.bytes_per_second.max(1) as f64;
        let mut next = self.next.lock();
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        *next = (*next).max(Instant::now()) + Duration::from_secs_f64(time);
    }

    /// The file, read at this pace.
    pub(crate) fn apply(pace: Option<&Arc<Self>>, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        match pace {
            Some(pace) => Arc::new(Paced { file, pace: pace.clone() }),
            None => file,
        }
    }
}

/// A file that is read and not written.
#[derive(Debug)]
struct Paced {
    file: Arc<dyn DiskFile>,
    pace: Arc<Pace>,
}

impl DiskFile for Paced {
    fn read_exact_at(&self, bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        for piece in bytes.chunks_mut(PIECE) {
            self.pace.wait(piece.len());
            self.file.read_exact_at(piece, offset)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
