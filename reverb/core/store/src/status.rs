// SPDX-License-Identifier: Apache-2.0
//! What a store tells about itself.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use reverb_base::StoreState;

/// State of a store and what it has counted.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreStatus {
    /// Its directory.
    pub path: PathBuf,
    /// Whether it writes. While it is full it still moves payloads.
    pub state: StoreState,
    /// Why it does not, while it fails.
    pub failure: Option<Failure>,
    /// Bytes of payloads that chunks have on disk.
    pub live_bytes: u64,
    /// Bytes of data files that no chunk needs any more.
    pub dead_bytes: u64,
    /// Bytes that its files may take: the option, else what the file system has.
    pub max_bytes: u64,
    /// Number of data files.
    pub num_files: usize,
    /// Bytes of the log files and of the bases that are there; 0 without a journal.
    pub log_bytes: u64,
    /// See `log_bytes`.
    pub base_bytes: u64,
    /// Bytes of payloads that were written for the first time.
    pub written_bytes: u64,
    /// Bytes of payloads that were written again, to empty files.
    pub moved_bytes: u64,
    /// Bytes of logs and of bases that were written so far.
    pub written_log_bytes: u64,
    /// See `written_log_bytes`.
    pub written_base_bytes: u64,
    /// Bytes of payloads that were given to it and are not written yet.
    pub waiting_bytes: u64,
    /// Bytes a second of the last writes; 0 before the first one.
    pub write_speed: f64,
    /// Number of times that a file was synced.
    pub syncs: u64,
    /// Time of all syncs together.
    pub sync_time: Duration,
    /// Number of reads.
    pub reads: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Time of all reads together.
    pub read_time: Duration,
    /// Errors of the disk so far.
    pub errors: Vec<DiskErrors>,
}

/// Why writes fail. The store tries again each 10 seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The call, the file and the error.
    pub error: String,
    /// When it began.
    pub since: SystemTime,
}

/// Number of errors of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskErrors {
    /// `create`, `write`, `sync`, `rename`, `read` or `delete`.
    pub call: &'static str,
    /// A word for the error, such as `no_space` or `io`.
    pub kind: &'static str,
    /// How often it came.
    pub count: u64,
}
