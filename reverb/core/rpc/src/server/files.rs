// SPDX-License-Identifier: Apache-2.0
//! The file descriptors of the process: how many are left, and how many connections leave alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// This part of what a process may open is kept for checkpoints, the log and the HTTP port.
const RESERVED_PART: usize = 8;

/// And at least so many.
const MIN_RESERVED: usize = 32;

/// Time between two counts of what is open. Connections in between are counted one by one.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Counting takes at most this part of the time, however much is open.
const LOOK_PART: u32 = 100;

/// The connections of all ports of this process.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// How many files, and so connections, this process may open; as many as anybody could want if the
/// system does not tell.
pub fn max_files() -> usize {
    #[cfg(unix)]
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        return usize::try_from(limit).unwrap_or(usize::MAX);
    }
    usize::MAX
}

/// How many of `max_files` connections leave alone.
pub fn reserved_files(max_files: usize) -> usize {
    (max_files / RESERVED_PART).max(MIN_RESERVED)
}

/// What is left of the file descriptors.
#[derive(Debug, Default)]
pub(super) struct Files {
    look: Mutex<Look>,
    /// Notified when a connection of the port has closed.
    closed: Notify,
}

/// What a look has found.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// When it is time for the next one; absent before the first.
    next: Option<Instant>,
    max_files: usize,
    /// Open files that are no connections of ports. Below 0 after a fork, which keeps the number of
    /// connections.
    others: isize,
}

impl Default for Look {
    fn default() -> Self {
        Self { next: None, max_files: usize::MAX, others: 0 }
    }
}

/// A connection that takes a file, until it is dropped.
#[derive(Debug)]
pub(super) struct OpenFile(Arc<Files>);

impl Files {
    /// Counts a connection.
    pub(super) fn open(self: &Arc<Self>) -> OpenFile {
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        OpenFile(Arc::clone(self))
    }

    /// Whether fewer than the reserve are left. `newest` is the number of the descriptor that was
    /// opened last: the system gives out the lowest one that is free.
    pub(super) fn are_scarce(&self, newest: Option<usize>) -> bool {
        let Look { max_files, others, .. } = self.look();
        let connections = CONNECTIONS.load(Ordering::Relaxed);
        let open = usize::try_from(others + connections as isize).unwrap_or(0);
        let open = open.max(newest.map_or(0, |newest| newest + 1));
        max_files.saturating_sub(open) < reserved_files(max_files)
    }

    /// Resolves when a connection has closed, maybe before this call.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }

    /// What the last look has found, or one of now if that is too old.
    fn look(&self) -> Look {
        let mut look = self.look.lock();
        let now = Instant::now();
        if look.next.is_none_or(|next| next <= now) {
            let connections = CONNECTIONS.load(Ordering::Relaxed) as isize;
            let others = count_open().map_or(0, |open| open as isize - connections);
            let pause = LOOK_INTERVAL.max(now.elapsed() * LOOK_PART);
            *look = Look { next: Some(Instant::now() + pause), max_files: max_files(), others };
        }
        *look
    }
}

/// How many files this process has open, where the system tells.
fn count_open() -> Option<usize> {
    let files =
        std::fs::read_dir(if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" });
    // One of them is the list itself.
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
        let look = |max_files, others| {
            let next = Some(Instant::now() + Duration::from_secs(3600));
            *files.look.lock() = Look { next, max_files, others };
        };
        // Other tests may have a few connections, too.
        look(1024, 850);
        assert!(!files.are_scarce(Some(895)));
        look(1024, 896);
        let _open = files.open();
        assert!(files.are_scarce(None));
        look(1024, 0);
        assert!(files.are_scarce(Some(896)), "all below the newest are open");
        look(1024, -5);
        assert!(!files.are_scarce(None));
        *files.look.lock() = Look::default();
        assert!(count_open().is_none_or(|open| open > 2));
        assert_eq!(files.look().max_files, max_files());
    }
}
