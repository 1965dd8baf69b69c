// SPDX-License-Identifier: Apache-2.0
//! File descriptors of the process: how many are left, and how many connections may not use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Part of the process's file descriptors that is reserved for checkpoints, the log and the HTTP
/// port.
const RESERVED_PART: usize = 8;

/// Minimum number of reserved descriptors.
const MIN_RESERVED: usize = 32;

/// Time between two counts of open descriptors. Connections in between are counted one by one.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);

/// Counting takes at most one part in this many of the time, even if many files are open.
const COUNT_PART: u32 = 100;

/// Connections of all ports of this process.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// Number of file descriptors, and so connections, that this process may open; `usize::MAX` if the
/// system does not report it.
pub fn max_files() -> usize {
    #[cfg(unix)]
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        return usize::try_from(limit).unwrap_or(usize::MAX);
    }
    usize::MAX
}

/// Number of file descriptors that connections may not use.
pub fn reserved_files(max_files: usize) -> usize {
    (max_files / RESERVED_PART).max(MIN_RESERVED)
}

/// Count of the file descriptors that are left.
#[derive(Debug, Default)]
pub(super) struct Files {
    count: Mutex<FileCount>,
    /// Notified when a connection of the port has closed.
    closed: Notify,
}

#[derive(Debug, Clone, Copy)]
struct FileCount {
    /// Time of the next count; `None` before the first.
    next: Option<Instant>,
    max_files: usize,
    /// Open descriptors other than connections of ports. Below 0 after a fork, which keeps the
    /// number of connections.
    others: isize,
}

impl Default for FileCount {
    fn default() -> Self {
        Self { next: None, max_files: usize::MAX, others: 0 }
    }
}

/// Guard of a connection's file descriptor.
#[derive(Debug)]
pub(super) struct OpenFile(Arc<Files>);

impl Files {
    pub(super) fn open(self: &Arc<Self>) -> OpenFile {
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        OpenFile(Arc::clone(self))
    }

    /// Returns true if fewer than the reserve are left. `newest` is the descriptor that was opened
    /// last: the system gives out the lowest free one.
    pub(super) fn are_scarce(&self, newest: Option<usize>) -> bool {
        let FileCount { max_files, others, .. } = self.count();
        let connections = CONNECTIONS.load(Ordering::Relaxed);
        let open = usize::try_from(others + connections as isize).unwrap_or(0);
        let open = open.max(newest.map_or(0, |newest| newest + 1));
        max_files.saturating_sub(open) < reserved_files(max_files)
    }

    /// Resolves when a connection has closed, maybe before this call.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }

    /// Last count, or a new one if that is too old.
    fn count(&self) -> FileCount {
        let mut count = self.count.lock();
        let now = Instant::now();
        if count.next.is_none_or(|next| next <= now) {
            let connections = CONNECTIONS.load(Ordering::Relaxed) as isize;
            let others = count_open().map_or(0, |open| open as isize - connections);
            let pause = COUNT_INTERVAL.max(now.elapsed() * COUNT_PART);
            *count =
                FileCount { next: Some(Instant::now() + pause), max_files: max_files(), others };
        }
        *count
    }
}

/// Number of open file descriptors of this process, on systems that report it.
fn count_open() -> Option<usize> {
    let files =
        std::fs::read_dir(if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" });
    // One of them belongs to the directory listing itself.
    files.ok().map(|files| files.count().saturating_sub(1))
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
        self.0.closed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_is_reserved_and_at_least_a_few() {
        assert_eq!([64, 256, 1024, 1 << 20].map(reserved_files), [32, 32, 128, 1 << 17]);
    }

    #[test]
    fn files_are_scarce_when_the_reserve_is_touched() {
        let files = Arc::new(Files::default());
        let set = |max_files, others| {
            let next = Some(Instant::now() + Duration::from_secs(3600));
            *files.count.lock() = FileCount { next, max_files, others };
        };
        // Other tests may have a few connections, too.
        set(1024, 850);
        assert!(!files.are_scarce(Some(895)));
        set(1024, 896);
        let _open = files.open();
        assert!(files.are_scarce(None));
        set(1024, 0);
        assert!(files.are_scarce(Some(896)), "all below the newest are open");
        set(1024, -5);
        assert!(!files.are_scarce(None));
        *files.count.lock() = FileCount::default();
        assert!(count_open().is_none_or(|open| open > 2));
        assert_eq!(files.count().max_files, max_files());
    }
}
