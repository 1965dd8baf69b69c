// SPDX-License-Identifier: Apache-2.0
//! Items with keys of slots that the server never owned: those of writers that do not know the map
//! of the group.

use std::sync::Arc;

use reverb_data::{NUM_SLOTS, slot_of};

use super::Table;
use super::clock::Activity;

/// Number of items that are looked at under one lock.
const ITEMS_AT_ONCE: usize = 512;

const WORDS: usize = NUM_SLOTS as usize / u64::BITS as usize;

/// A set of slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSet([u64; WORDS]);

impl SlotSet {
    /// These slots. Numbers that are no slots are ignored.
    pub fn new(slots: impl IntoIterator<Item = u16>) -> Self {
        let mut words = [0; WORDS];
        for slot in slots.into_iter().filter(|&slot| slot < NUM_SLOTS) {
            words[usize::from(slot) / 64] |= 1 << (slot % 64);
        }
        Self(words)
    }

    /// Whether it has the slot of a key.
    pub fn has_slot_of(&self, key: u64) -> bool {
        let slot = slot_of(key);
        self.0[usize::from(slot) / 64] >> (slot % 64) & 1 == 1
    }
}

/// Whether a table has items with keys of other slots than these.
#[derive(Debug, Clone, Default)]
pub(super) struct ForeignKeys {
    /// The slots that the server owns or has owned; absent without a map.
    own: Option<Arc<SlotSet>>,
    /// Whether one was added since these slots hold.
    were_added: bool,
    /// Whether the items from before must still be looked at.
    is_unknown: bool,
}

impl ForeignKeys {
    /// Whether there may be any.
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

    /// There are no items any more.
    pub(super) fn reset(&mut self) {
        *self = Self { own: self.own.take(), ..Self::default() };
    }
}

impl Table {
    /// Tells the table which slots its server owns or has owned. Returns when it has looked at all
    /// its items, a few hundred under one lock; until then it may have foreign keys.
    pub fn set_own_slots(&self, slots: &Arc<SlotSet>) {
        let _configuring = self.configuring.lock();
        let foreign =
            ForeignKeys { own: Some(Arc::clone(slots)), were_added: false, is_unknown: true };
        // A closed table tells nobody of it.
        let set = |foreign| {
            self.operate(Activity::Running, |shared, _| *shared.state.foreign_keys_mut() = foreign)
        };
        if set(foreign).is_err() {
            return;
        }
        let found = self.has_item_outside(slots);
        let _ = self.operate(Activity::Running, |shared, _| {
            let foreign = shared.state.foreign_keys_mut();
            // It is false already after a reset, whose items are all new.
            foreign.were_added |= found && foreign.is_unknown;
            foreign.is_unknown = false;
        });
    }

    fn has_item_outside(&self, slots: &SlotSet) -> bool {
        for begin in (0..).step_by(ITEMS_AT_ONCE) {
            {
                let shared = self.shared.lock();
                let items = shared.state.items();
                if begin >= items.num_slots() {
                    break;
                }
                let mut some = items.in_slots(begin..begin + ITEMS_AT_ONCE);
                if some.any(|(_, item)| !slots.has_slot_of(item.key())) {
                    return true;
                }
            }
            std::thread::yield_now();
        }
        false
    }
}
