// SPDX-License-Identifier: Apache-2.0
//! Items in flight: sent but not confirmed.

use std::collections::VecDeque;

use reverb_data::NewItem;

/// Number of free slots at which they are removed.
const MAX_FREE_SLOTS: usize = 64;

/// An item in flight.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) item: NewItem,
    /// Bytes that the item added.
    pub(super) bytes: usize,
}

/// The items in flight, in the order of sending.
///
/// A table confirms its items in that order, so the next one is searched from the last one on, and
/// found after as many items as tables that wait have between the two.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Slots of confirmed items in between are free.
    slots: VecDeque<Option<Sent>>,
    /// Number of items.
    len: usize,
    /// Slot after the last confirmed item.
    next: usize,
}

impl InFlight {
    /// Number of items.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The items in the order of sending.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.slots.iter().flatten()
    }

    /// Takes all items, in the order of sending.
    pub(super) fn take_all(&mut self) -> impl DoubleEndedIterator<Item = Sent> + use<> {
        std::mem::take(self).slots.into_iter().flatten()
    }

    /// Adds an item that was sent after all others.
    pub(super) fn push(&mut self, item: NewItem, bytes: usize) {
        self.slots.push_back(Some(Sent { item, bytes }));
        self.len += 1;
    }

    /// Takes the item with this key.
    pub(super) fn confirm(&mut self, key: u64) -> Option<Sent> {
        if self.is_empty() {
            return None;
        }
        let at = self.find(key)?;
        let sent = self.slots[at].take();
        self.len -= 1;
        self.next = at + 1;
        if self.is_empty() {
            // Keeps the memory of the slots.
            self.slots.clear();
            self.next = 0;
            return sent;
        }
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.next = self.next.saturating_sub(1);
        }
        if self.slots.len() > 2 * self.len + MAX_FREE_SLOTS {
            self.remove_free();
        }
        sent
    }

    fn find(&self, key: u64) -> Option<usize> {
        let has_key = |slot: &Option<Sent>| slot.as_ref().is_some_and(|sent| sent.item.key == key);
        let next = self.next.min(self.slots.len());
        let skipped = self.slots.range(next..).position(has_key);
        skipped.map(|skipped| next + skipped).or_else(|| self.slots.range(..next).position(has_key))
    }

    /// Removes the free slots.
    fn remove_free(&mut self) {
        self.next = self.slots.range(..self.next).flatten().count();
        self.slots.retain(Option::is_some);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::writer::testing::item;

    proptest! {
        /// Each item is found once in any order of confirmations, and the rest stays in the order
        /// of sending.
        #[test]
        fn items_leave_by_key_and_stay_in_order(
            steps in prop::collection::vec((0usize..40, 0usize..40, any::<prop::sample::Index>()), 1..40),
            in_order in any::<bool>(),
        ) {
            let mut in_flight = InFlight::default();
            let mut model = Vec::new();
            let mut keys = 0..;
            for (sent, confirmed, start) in steps {
                for key in keys.by_ref().take(sent) {
                    in_flight.push(item(key), key as usize * 2);
                    model.push(key);
                }
                prop_assert!(in_flight.confirm(u64::MAX).is_none());
                for i in 0..confirmed.min(model.len()) {
                    // Consecutive items from some position on, or every second one.
                    let at = start.index(model.len()) + if in_order { 0 } else { i };
                    let key = model.remove(at % model.len());
                    let sent = in_flight.confirm(key).unwrap();
                    prop_assert_eq!((sent.item.key, sent.bytes), (key, key as usize * 2));
                    prop_assert!(in_flight.confirm(key).is_none());
                }
                let left: Vec<u64> = in_flight.iter().map(|sent| sent.item.key).collect();
                prop_assert_eq!(&left, &model);
                prop_assert_eq!(in_flight.len(), model.len());
                prop_assert!(in_flight.slots.len() <= 2 * model.len() + MAX_FREE_SLOTS);
            }
            let taken: Vec<u64> = in_flight.take_all().map(|sent| sent.item.key).collect();
            prop_assert_eq!(taken, model);
            prop_assert!(in_flight.is_empty());
        }
    }

    #[test]
    fn items_of_a_table_that_waits_do_not_slow_down_others() {
        let mut in_flight = InFlight::default();
        let mut keys = 0..;
        let mut send = |in_flight: &mut InFlight, count: usize| -> Vec<u64> {
            let sent: Vec<u64> = keys.by_ref().take(count).collect();
            for &key in &sent {
                in_flight.push(item(key), 1);
            }
            sent
        };
        let waiting = send(&mut in_flight, 10);
        for _ in 0..1000 {
            for key in send(&mut in_flight, 10) {
                in_flight.confirm(key).unwrap();
            }
            assert!(in_flight.slots.len() < 100);
        }
        let left: Vec<u64> = in_flight.iter().map(|sent| sent.item.key).collect();
        assert_eq!(left, waiting);
    }
}
