// SPDX-License-Identifier: Apache-2.0
//! Keys of items, chunks and episodes: independent uniform random numbers, drawn without
//! coordination.
//!
//! The top bits of an item's key are its *slot*. In a group of servers every slot has one owner,
//! and a writer draws the keys of its items from the slots of the server that gets them.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Number of slots.
pub const NUM_SLOTS: u16 = 1 << SLOT_BITS;

const SLOT_BITS: u32 = 12;
const SLOT_SHIFT: u32 = u64::BITS - SLOT_BITS;

/// Slot of a key, below [`NUM_SLOTS`].
pub fn slot_of(key: u64) -> u16 {
    (key >> SLOT_SHIFT) as u16
}

/// Slots from which the keys of items are drawn.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeySlots(Vec<u16>);

impl KeySlots {
    /// All slots.
    pub const ALL: Self = Self(Vec::new());

    /// These slots, each below [`NUM_SLOTS`]; all slots if the list is empty.
    pub fn new(slots: Vec<u16>) -> Self {
        debug_assert!(slots.iter().all(|&slot| slot < NUM_SLOTS));
        Self(slots)
    }
}

/// Draws keys in `[0, 2^64 - 2]`, seeded by the operating system.
#[derive(Debug)]
pub struct KeyGenerator(SmallRng);

impl KeyGenerator {
    /// A generator with its own seed.
    pub fn new() -> Self {
        Self(SmallRng::from_os_rng())
    }

    /// The next key.
    #[inline]
    pub fn next_key(&mut self) -> u64 {
        self.0.random_range(0..u64::MAX)
    }

    /// Next key of an item, from one of these slots.
    pub fn next_key_of(&mut self, slots: &KeySlots) -> u64 {
        let KeySlots(slots) = slots;
        let key = self.next_key();
        if slots.is_empty() {
            return key;
        }
        // Product of a random slot and the number of slots, without the fraction.
        let index = (usize::from(slot_of(key)) * slots.len()) >> SLOT_BITS;
        let low = self.next_key() & !(u64::MAX << SLOT_SHIFT);
        let key = (u64::from(slots[index]) << SLOT_SHIFT) | low;
        // 2^64 - 1 is not a key.
        key.min(u64::MAX - 1)
    }
}

impl Default for KeyGenerator {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spread_over_exactly_their_slots() {
        let slots: Vec<u16> = vec![0, 7, 4095, 1000, 12];
        let mut keys = KeyGenerator::new();
        let some = KeySlots::new(slots.clone());
        let mut counts = [0_u32; NUM_SLOTS as usize];
        for _ in 0..50_000 {
            let key = keys.next_key_of(&some);
            assert_ne!(key, u64::MAX);
            counts[usize::from(slot_of(key))] += 1;
        }
        let total: u32 = slots.iter().map(|&slot| counts[usize::from(slot)]).sum();
        assert_eq!(total, 50_000);
        // One standard deviation is about 95.
        assert!(slots.iter().all(|&slot| counts[usize::from(slot)].abs_diff(10_000) < 600));
        let all: Vec<u16> =
            (0..20_000).map(|_| slot_of(keys.next_key_of(&KeySlots::ALL))).collect();
        assert!(all.iter().any(|&slot| slot < 10) && all.iter().any(|&slot| slot > 4_085));
    }
}
