// SPDX-License-Identifier: Apache-2.0
//! Open things of peers, ordered by age: if there are too many, the oldest is displaced.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct ByAge(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    entries: BTreeMap<u64, Arc<Notify>>,
}

/// Guard of one open thing.
#[derive(Debug)]
pub(super) struct Entry {
    number: u64,
    displaced: Arc<Notify>,
    all: Arc<ByAge>,
}

impl ByAge {
    pub(super) fn open(self: &Arc<Self>) -> Entry {
        let displaced = Arc::new(Notify::new());
        let mut open = self.0.lock();
        let number = open.next;
        open.next += 1;
        open.entries.insert(number, Arc::clone(&displaced));
        Entry { number, displaced, all: Arc::clone(self) }
    }

    /// Number of open things that are not displaced.
    pub(super) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }

    /// Displaces the oldest, unless only `kept` are open. Returns true if one was displaced.
    pub(super) fn end_oldest(&self, kept: usize) -> bool {
        let mut open = self.0.lock();
        if open.entries.len() <= kept {
            return false;
        }
        open.entries.pop_first().is_some_and(|(_, oldest)| {
            oldest.notify_one();
            true
        })
    }
}

impl Entry {
    /// Resolves when it is displaced.
    pub(super) async fn displaced(&self) {
        self.displaced.notified().await;
    }

    /// Result of `work`, or `None` if it is displaced first.
    pub(super) async fn or_displaced<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            result = work => Some(result),
            () = self.displaced() => None,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.all.0.lock().entries.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_makes_room_and_a_few_are_kept() {
        let all = Arc::new(ByAge::default());
        let [first, second, third] = [(); 3].map(|()| all.open());
        drop(second);
        assert!(!all.end_oldest(2));
        assert_eq!(first.or_displaced(std::future::ready(1)).await, Some(1));
        assert!(all.end_oldest(1));
        assert_eq!(first.or_displaced(std::future::pending::<()>()).await, None);
        assert_eq!(all.len(), 1);
        assert!(!all.end_oldest(1));
        drop((first, third));
        assert_eq!(all.len(), 0);
        assert!(!all.end_oldest(0));
    }
}
