// SPDX-License-Identifier: Apache-2.0
//! Foreign keys: keys in slots that the server never owned, from writers without the map.

use std::sync::Arc;

use reverb_data::{NUM_SLOTS, slot_of};

use super::Table;
use super::clock::Activity;

/// Number of items that are checked under one lock.
const ITEMS_AT_ONCE: usize = 512;

const WORDS: usize = NUM_SLOTS as usize / u64::BITS as usize;

/// A set of slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSet([u64; WORDS]);

impl SlotSet {
    /// Set of these slots. Invalid numbers are ignored.
    pub fn new(slots: impl IntoIterator<Item = u16>) -> Self {
        let mut words = [0; WORDS];
        for slot in slots.into_iter().filter(|&slot| slot < NUM_SLOTS) {
            words[usize::from(slot) / 64] |= 1 << (slot % 64);
        }
        Self(words)
    }

    /// True if the set has the slot of a key.
    pub fn has_slot_of(&self, key: u64) -> bool {
        let slot = slot_of(key);
        self.0[usize::from(slot) / 64] >> (slot % 64) & 1 == 1
    }
}

/// Knowledge about items with keys outside the server's slots.
#[derive(Debug, Clone, Default)]
pub(super) struct ForeignKeys {
    /// Slots that the server owns or has owned; absent without a map.
    own: Option<Arc<SlotSet>>,
    /// Set if a foreign key was added since these slots hold.
    were_added: bool,
    /// Set while older items are not checked yet.
    is_unknown: bool,
}

impl ForeignKeys {
    /// True if there may be foreign keys.
    pub(super) fn may_be(&self) -> bool {
        self.were_added || self.is_unknown
    }

    #[inline]
    pub(super) fn note(&mut self, key: u64) {
        if let Some(own) = &self.own
            && !self.were_added
        {
            self.were_added = !own.has_slot_of(key);
        }
    }

    /// Forgets everything, because there are no items.
    pub(super) fn reset(&mut self) {
        *self = Self { own: self.own.take(), ..Self::default() };
    }
}

impl Table {
    /// Sets the slots that the server owns or has owned. Checks all items before it returns, a few
    /// hundred under one lock; until then the table may have foreign keys.
    pub fn set_own_slots(&self, slots: &Arc<SlotSet>) {
        let _configuring = self.configuring.lock();
        let foreign =
            ForeignKeys { own: Some(Arc::clone(slots)), were_added: false, is_unknown: true };
        // A closed table has no watchers.
        let set = |foreign| {
            self.operate(Activity::Running, |shared, _| *shared.state.foreign_keys_mut() = foreign)
        };
        if set(foreign).is_err() {
            return;
        }
        let found = self.has_item_outside(slots);
        let _ = self.operate(Activity::Running, |shared, _| {
            let foreign = shared.state.foreign_keys_mut();
            // False after a reset, because all items are new then.
            foreign.were_added |= found && foreign.is_unknown;
            foreign.is_unknown = false;
        });
    }

    fn has_item_outside(&self, slots: &SlotSet) -> bool {
        for begin in (0..).step_by(ITEMS_AT_ONCE) {
            {
                let shared = self.shared.lock();
                let items = shared.state.items();
                if begin >= items.num_entries() {
                    break;
                }
                let mut some = items.piece(begin, ITEMS_AT_ONCE);
                if some.any(|(_, item)| !slots.has_slot_of(item.key())) {
                    return true;
                }
            }
            std::thread::yield_now();
        }
        false
    }
}
