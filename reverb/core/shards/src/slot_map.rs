// SPDX-License-Identifier: Apache-2.0
//! Slot map: the shard that owns each slot of keys.

use reverb_base::{Error, Result};
use reverb_data::{KeySlots, NUM_SLOTS};
use reverb_wire::generated::reverb::{ShardMap, SlotRange};

/// Owners of all slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotMap {
    /// Index of the owner of each slot.
    owners: Vec<i32>,
    /// Former owners that may still have items, for each of these ranges of slots.
    former: Vec<(std::ops::Range<u16>, Vec<i32>)>,
}

impl SlotMap {
    /// Equal ranges of slots for `num_shards` shards (1 to 4,096), in order of their positions.
    pub fn by_position(num_shards: usize) -> Self {
        let num_slots = usize::from(NUM_SLOTS);
        let n = num_shards.clamp(1, num_slots);
        let mut owners = Vec::with_capacity(num_slots);
        for shard in 0..n {
            let end = (shard + 1) * num_slots / n;
            owners.resize(end, shard as i32);
        }
        Self { owners, former: Vec::new() }
    }

    /// The slots of a shard map.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if a slot has no owner, several owners, or an owner outside the map.
    pub fn of(map: &ShardMap) -> Result<Self> {
        let malformed = |what: String| {
            Error::invalid_argument(format!(
                "The map of group {:?} (epoch {}) {what}.",
                map.group, map.epoch
            ))
        };
        let mut owners: Vec<Option<i32>> = vec![None; usize::from(NUM_SLOTS)];
        let mut former = Vec::new();
        for SlotRange { first, count, owner, former_owners } in &map.slots {
            let slots = slot_range(*first, *count).ok_or_else(|| {
                malformed(format!("has slots {first} to {}, of {NUM_SLOTS}", first + count))
            })?;
            if let Some(unknown) = std::iter::once(owner)
                .chain(former_owners)
                .find(|index| map.shards.iter().all(|shard| shard.index != **index))
            {
                return Err(malformed(format!("gives slots to shard {unknown}, which it has not")));
            }
            for slot in slots.clone() {
                if owners[usize::from(slot)].replace(*owner).is_some() {
                    return Err(malformed(format!("gives slot {slot} to two shards")));
                }
            }
            if !former_owners.is_empty() {
                former.push((slots, former_owners.clone()));
            }
        }
        former.sort_by_key(|(slots, _)| slots.start);
        let missing = owners.iter().position(Option::is_none);
        match missing {
            Some(slot) => Err(malformed(format!("gives slot {slot} to no shard"))),
            None => Ok(Self { owners: owners.into_iter().flatten().collect(), former }),
        }
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: u16) -> i32 {
        self.owners[usize::from(slot)]
    }

    /// Former owners that may still have items of the slot.
    pub fn former_owners(&self, slot: u16) -> &[i32] {
        let after = self.former.partition_point(|(slots, _)| slots.start <= slot);
        match after.checked_sub(1).map(|at| &self.former[at]) {
            Some((slots, owners)) if slots.contains(&slot) => owners,
            _ => &[],
        }
    }

    /// Slots of a shard; `None` if it has none.
    pub fn slots_of(&self, shard: i32) -> Option<KeySlots> {
        let slots: Vec<u16> =
            (0..NUM_SLOTS).filter(|&slot| self.owners[usize::from(slot)] == shard).collect();
        (!slots.is_empty()).then(|| KeySlots::new(slots))
    }

    /// Slots in the form of the message, without former owners.
    pub fn ranges(&self) -> Vec<SlotRange> {
        let mut ranges: Vec<SlotRange> = Vec::new();
        for slot in 0..NUM_SLOTS {
            let owner = self.owner(slot);
            let former = self.former_owners(slot);
            match ranges.last_mut() {
                Some(range) if range.owner == owner && range.former_owners == former => {
                    range.count += 1;
                }
                _ => ranges.push(SlotRange {
                    first: i32::from(slot),
                    count: 1,
                    owner,
                    former_owners: former.to_vec(),
                }),
            }
        }
        ranges
    }
}

fn slot_range(first: i32, count: i32) -> Option<std::ops::Range<u16>> {
    let start = u16::try_from(first).ok()?;
    let end = u16::try_from(first.checked_add(count)?).ok()?;
    (start <= end && end <= NUM_SLOTS).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reverb_wire::generated::reverb::Shard;

    use super::*;

    proptest! {
        #[test]
        fn every_slot_has_one_owner(n in 1..4096_usize) {
            let map = SlotMap::by_position(n);
            let mut counts = vec![0_usize; n];
            for slot in 0..NUM_SLOTS {
                counts[map.owner(slot) as usize] += 1;
            }
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            prop_assert!(*least >= 1 && most - least <= 1);
        }

        #[test]
        fn ranges_make_the_same_map(
            owners in proptest::collection::vec((0..5_i32, proptest::bool::ANY), 1..30),
        ) {
            let each = 4096 / owners.len() as i32;
            let mut slots: Vec<SlotRange> = owners.iter().enumerate().map(|(i, (owner, moved))| {
                let former_owners = if *moved { vec![(owner + 1) % 5] } else { Vec::new() };
                SlotRange { first: i as i32 * each, count: each, owner: *owner, former_owners }
            }).collect();
            let last = slots.last_mut().unwrap();
            last.count = 4096 - last.first;
            let shards = (0..5).map(|index| Shard { index, ..Default::default() }).collect();
            let map = ShardMap { slots, shards, ..Default::default() };
            let read = SlotMap::of(&map).unwrap();
            let again = ShardMap { slots: read.ranges(), ..map };
            let again = SlotMap::of(&again).unwrap();
            for slot in 0..NUM_SLOTS {
                prop_assert_eq!(read.owner(slot), again.owner(slot));
                prop_assert_eq!(read.former_owners(slot), again.former_owners(slot));
            }
        }
    }

    #[test]
    fn slots_without_an_owner_or_with_two_are_refused() {
        let shards: Vec<Shard> =
            (0..2).map(|index| Shard { index, ..Default::default() }).collect();
        let range = |first, count, owner| SlotRange { first, count, owner, ..Default::default() };
        let check = |slots: Vec<SlotRange>| {
            let map = ShardMap { shards: shards.clone(), slots, ..Default::default() };
            SlotMap::of(&map).map(drop).map_err(|error| error.to_string())
        };
        check(vec![range(0, 4096, 1)]).unwrap();
        for (slots, text) in [
            (vec![range(0, 4095, 0)], "gives slot 4095 to no shard"),
            (vec![range(0, 4096, 0), range(7, 1, 1)], "gives slot 7 to two shards"),
            (vec![range(0, 4096, 2)], "gives slots to shard 2, which it has not"),
            (vec![range(0, 4097, 0)], "has slots 0 to 4097, of 4096"),
            (vec![range(-1, 9, 0)], "has slots -1 to 8"),
        ] {
            let error = check(slots).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
