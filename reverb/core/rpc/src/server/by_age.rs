// SPDX-License-Identifier: Apache-2.0
//! Things that peers keep open, by their age: if there are too many, the oldest makes room.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Things that are open, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ByAge(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    places: BTreeMap<u64, Arc<Notify>>,
}

/// The place of one of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    displaced: Arc<Notify>,
    all: Arc<ByAge>,
}

impl ByAge {
    /// The place of a new one.
    pub(super) fn open(self: &Arc<Self>) -> Place {
        let displaced = Arc::new(Notify::new());
        let mut open = self.0.lock();
        let number = open.next;
        open.next += 1;
        open.places.insert(number, Arc::clone(&displaced));
        Place { number, displaced, all: Arc::clone(self) }
    }

    /// How many are open, without those that were told to make room.
    pub(super) fn len(&self) -> usize {
        self.0.lock().places.len()
    }

    /// Tells the oldest to make room, unless only `kept` are open. Returns whether there was one.
    pub(super) fn end_oldest(&self, kept: usize) -> bool {
        let mut open = self.0.lock();
        if open.places.len() <= kept {
            return false;
        }
        open.places.pop_first().is_some_and(|(_, oldest)| {
            oldest.notify_one();
            true
        })
    }
}

impl Place {
    /// Resolves when it has to make room.
    pub(super) async fn displaced(&self) {
        self.displaced.notified().await;
    }

    /// The result of `work`, or `None` if it has to make room first.
    pub(super) async fn or_displaced<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            result = work => Some(result),
            () = self.displaced() => None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.0.lock().places.remove(&self.number);
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
