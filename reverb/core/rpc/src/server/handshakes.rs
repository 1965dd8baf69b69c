// SPDX-License-Identifier: Apache-2.0
//! Connections with unfinished handshakes: a limited number, and the oldest is displaced.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::by_age::{ByAge, Entry};

/// Maximum number of unfinished handshakes. A normal client needs milliseconds, so displaced
/// handshakes belong to peers that send nothing.
const MAX_UNFINISHED: usize = 1000;

/// Unfinished handshakes may use one in this many of the file descriptors.
const PART_OF_FILES: usize = 4;

#[derive(Debug)]
pub(super) struct Handshakes {
    /// Limit on open handshakes, including displaced ones that have not closed yet.
    room: Arc<Semaphore>,
    unfinished: Arc<ByAge>,
}

#[derive(Debug)]
pub(super) struct Handshake {
    entry: Entry,
    _room: OwnedSemaphorePermit,
}

impl Handshakes {
    /// Handshakes of a process that may open `max_files`.
    pub(super) fn new(max_files: usize) -> Self {
        let limit = (max_files / PART_OF_FILES).clamp(1, MAX_UNFINISHED);
        Self { room: Arc::new(Semaphore::new(limit)), unfinished: Arc::default() }
    }

    /// Begins one more. If there are too many, the oldest ends first: on a busy machine this waits
    /// until it has closed its file. Cancel safe, for one caller at a time.
    pub(super) async fn begin(&self) -> Handshake {
        if self.room.available_permits() == 0 {
            self.end_oldest(0);
        }
        let room = Arc::clone(&self.room).acquire_owned().await;
        let room = room.expect("nobody closes the semaphore");
        Handshake { entry: self.unfinished.open(), _room: room }
    }

    /// Displaces the oldest, as when file descriptors run out, unless there are only `kept`.
    pub(super) fn end_oldest(&self, kept: usize) -> bool {
        self.unfinished.end_oldest(kept)
    }
}

impl Handshake {
    /// Result of `work`, or `None` if the handshake is displaced first.
    pub(super) async fn or_displaced<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.entry.or_displaced(work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_makes_room() {
        let all = Handshakes::new(10_000);
        let mut open = Vec::new();
        for _ in 0..MAX_UNFINISHED {
            open.push(all.begin().await);
        }
        drop(open.remove(1));
        open.push(all.begin().await);
        let first = &open[0];
        assert_eq!(first.or_displaced(std::future::ready(1)).await, Some(1));
        let mut newest = std::pin::pin!(all.begin());
        let brief = std::time::Duration::from_millis(10);
        let waited = tokio::time::timeout(brief, newest.as_mut()).await;
        assert!(waited.is_err(), "the oldest has not closed its file yet");
        assert_eq!(first.or_displaced(std::future::pending::<()>()).await, None);
        drop(open.remove(0));
        let _newest = newest.await;
        let second = open[0].or_displaced(std::future::pending::<()>());
        let waited = tokio::time::timeout(brief, second).await;
        assert!(waited.is_err(), "only the oldest ends");
        assert_eq!(all.unfinished.len(), MAX_UNFINISHED);
        drop(open);
        assert_eq!(all.unfinished.len(), 1);
        assert_eq!(Handshakes::new(1024).room.available_permits(), 256);
    }
}
