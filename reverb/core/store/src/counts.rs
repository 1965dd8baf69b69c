// SPDX-License-Identifier: Apache-2.0
//! What a store counts: bytes, times and errors of its calls.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_files::DiskFile;

/// Seconds of writing that the speed is of.
const SPEED_SECONDS: f64 = 2.0;

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) written_bytes: AtomicU64,
    pub(crate) moved_bytes: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) base_bytes: AtomicU64,
    /// Bytes of the next base, as it seems.
    pub(crate) next_base_bytes: AtomicU64,
    pub(crate) written_log_bytes: AtomicU64,
    pub(crate) written_base_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    sync_nanoseconds: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    read_nanoseconds: AtomicU64,
    /// By call and kind.
    errors: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    speed: Mutex<Speed>,
}

#[derive(Debug, Default)]
struct Speed {
    bytes: f64,
    seconds: f64,
    /// Begin of the write that has not returned.
    since: Option<Instant>,
}

impl Counts {
    pub(crate) fn add_read(&self, num_bytes: usize, time: Duration) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(num_bytes as u64, Relaxed);
        self.read_nanoseconds.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn read_time(&self) -> Duration {
        Duration::from_nanos(self.read_nanoseconds.load(Relaxed))
    }

    /// Syncs a file, and counts it.
    pub(crate) fn sync(&self, file: &dyn DiskFile) -> io::Result<()> {
        let start = Instant::now();
        let synced = file.sync_data();
        self.syncs.fetch_add(1, Relaxed);
        self.sync_nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
        synced
    }

    pub(crate) fn sync_time(&self) -> Duration {
        Duration::from_nanos(self.sync_nanoseconds.load(Relaxed))
    }

    pub(crate) fn add_error(&self, call: &'static str, error: &io::Error) {
        *self.errors.lock().entry((call, kind_of(error))).or_default() += 1;
    }

    pub(crate) fn errors(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.errors.lock().clone()
    }

    pub(crate) fn begin_write(&self) {
        self.speed.lock().since = Some(Instant::now());
    }

    pub(crate) fn end_write(&self, num_bytes: usize) {
        let mut speed = self.speed.lock();
        if speed.seconds > SPEED_SECONDS {
            speed.bytes /= 2.0;
            speed.seconds /= 2.0;
        }
        speed.seconds += speed.since.take().map_or(0.0, |since| since.elapsed().as_secs_f64());
        speed.bytes += num_bytes as f64;
    }

    /// Bytes a second of the last writes; 0 before the first one.
    pub(crate) fn write_speed(&self) -> f64 {
        let speed = self.speed.lock();
        let current = speed.since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        speed.bytes / (speed.seconds + current).max(1e-9)
    }
}

/// A word for an error, for metrics.
fn kind_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "no_space",
        io::ErrorKind::QuotaExceeded => "quota",
        io::ErrorKind::FileTooLarge => "file_too_large",
        io::ErrorKind::ReadOnlyFilesystem => "read_only",
        io::ErrorKind::PermissionDenied => "permission",
        io::ErrorKind::NotFound => "not_found",
        io::ErrorKind::UnexpectedEof => "too_short",
        io::ErrorKind::StaleNetworkFileHandle => "stale",
        io::ErrorKind::InvalidData => "checksum",
        _ => match error.raw_os_error() {
            Some(5) => "io",
            Some(23 | 24) => "too_many_files",
            _ => "other",
        },
    }
}
