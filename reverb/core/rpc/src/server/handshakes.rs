// SPDX-License-Identifier: Apache-2.0
//! Connections that have not said yet what they want: a limited number, and the oldest makes room.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum number of unfinished handshakes. A good client needs milliseconds for its own, so those
/// that are displaced are of peers that send nothing.
const MAX_UNFINISHED: usize = 1000;

/// The part of the file descriptors that they may have.
const PART_OF_FILES: usize = 4;

/// The unfinished handshakes of a port.
#[derive(Debug)]
pub(super) struct Handshakes {
    limit: usize,
    unfinished: Mutex<Unfinished>,
}

#[derive(Debug, Default)]
struct Unfinished {
    next: u64,
    /// By age, the oldest first.
    open: BTreeMap<u64, Arc<Notify>>,
}

/// An unfinished handshake, until it is dropped.
#[derive(Debug)]
pub(super) struct Handshake {
    number: u64,
    displaced: Arc<Notify>,
    all: Arc<Handshakes>,
}

impl Handshakes {
    /// Those of a process that may open `max_files`.
    pub(super) fn new(max_files: usize) -> Arc<Self> {
        let limit = (max_files / PART_OF_FILES).clamp(1, MAX_UNFINISHED);
        Arc::new(Self { limit, unfinished: Mutex::default() })
    }

    /// Begins one more. If there are too many, the oldest ends.
    pub(super) fn begin(self: &Arc<Self>) -> Handshake {
        let displaced = Arc::new(Notify::new());
        let mut unfinished = self.unfinished.lock();
        if unfinished.open.len() >= self.limit {
            unfinished.end_oldest();
        }
        let number = unfinished.next;
        unfinished.next += 1;
        unfinished.open.insert(number, Arc::clone(&displaced));
        Handshake { number, displaced, all: Arc::clone(self) }
    }

    /// Ends the oldest, as when file descriptors run out.
    pub(super) fn end_oldest(&self) {
        self.unfinished.lock().end_oldest();
    }
}

impl Unfinished {
    fn end_oldest(&mut self) {
        if let Some((_, oldest)) = self.open.pop_first() {
            oldest.notify_one();
        }
    }
}

impl Handshake {
    /// The result of `work`, or `None` if the handshake has to make room.
    pub(super) async fn or_displaced<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            result = work => Some(result),
            () = self.displaced.notified() => None,
        }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.all.unfinished.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_makes_room() {
        let all = Handshakes::new(10_000);
        let mut open: Vec<_> = (0..MAX_UNFINISHED).map(|_| all.begin()).collect();
        drop(open.remove(1));
        open.push(all.begin());
        let first = &open[0];
        assert_eq!(first.or_displaced(std::future::ready(1)).await, Some(1));
        let _newest = all.begin();
        assert_eq!(first.or_displaced(std::future::pending::<()>()).await, None);
        let second = open[1].or_displaced(std::future::pending::<()>());
        let waited = tokio::time::timeout(std::time::Duration::from_millis(10), second).await;
        assert!(waited.is_err(), "only the oldest ends");
        assert_eq!(all.unfinished.lock().open.len(), MAX_UNFINISHED);
        drop(open);
        assert_eq!(all.unfinished.lock().open.len(), 1);
        assert_eq!(Handshakes::new(1024).limit, 256);
    }
}
