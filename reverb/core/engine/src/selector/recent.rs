// SPDX-License-Identifier: Apache-2.0
//! Selects newer items more often.

use rand::Rng;
use rand::rngs::SmallRng;

use super::{Handle, Pick, RestorePoint, Select, ensure};
use crate::sum_tree::{Descent, SumTree};

/// Number of choices that are made together.
const BLOCK: usize = 32;

/// An empty position of the ring.
const NONE: Handle = Handle::MAX;

/// Selects the `k`-th newest item, starting at 0, in proportion to `q ^ k`.
///
/// Items lie in order of insertion in a ring. A tree of ones and zeros counts them, so that the
/// `k`-th is found in a few steps. Positions of removed items stay empty until the ring wraps
/// around or is rebuilt.
#[derive(Debug)]
pub(crate) struct Recent {
    expected_age: f64,
    /// The length is a power of two.
    ring: Vec<Handle>,
    /// 1 for each used position.
    taken: SumTree,
    /// Position of the next item.
    next: usize,
    /// Number of positions from the oldest item to the newest, including empty ones.
    span: usize,
    len: usize,
    /// Position of each handle in the ring. Entries of absent handles are meaningless.
    positions: Vec<u32>,
}

impl Recent {
    pub(super) fn new(expected_age: f64) -> Self {
        Self {
            expected_age,
            ring: vec![NONE; 16],
            taken: SumTree::new(),
            next: 0,
            span: 0,
            len: 0,
            positions: Vec::new(),
        }
    }

    pub(super) fn set_expected_age(&mut self, expected_age: f64) {
        self.expected_age = expected_age;
    }

    fn oldest_position(&self) -> usize {
        self.next.wrapping_sub(self.span) & (self.ring.len() - 1)
    }

    /// Makes space for one more item.
    fn make_room(&mut self) {
        while self.span > 0 && self.ring[self.oldest_position()] == NONE {
            self.span -= 1;
        }
        if self.span < self.ring.len() {
            return;
        }
        let oldest = self.oldest_position();
        let (newer, older) = self.ring.split_at(oldest);
        let handles = older.iter().chain(newer).copied().filter(|&handle| handle != NONE);
        let handles: Vec<Handle> = handles.collect();
        // At least a quarter is free, so the next rebuild is that many inserts away.
        let size = (self.len + self.len / 4 + 16).next_power_of_two();
        (self.ring, self.taken) = (vec![NONE; size], SumTree::new());
        (self.next, self.span) = (0, 0);
        for handle in handles {
            self.push(handle);
        }
    }

    fn push(&mut self, handle: Handle) {
        self.ring[self.next] = handle;
        self.taken.set(self.next, 1.0);
        self.positions[handle as usize] = self.next as u32;
        self.next = (self.next + 1) & (self.ring.len() - 1);
        self.span += 1;
    }

    /// Current distribution of ages.
    fn ages(&self) -> Ages {
        Ages::new(self.expected_age, self.len)
    }

    /// Number of items at positions before `end`.
    fn count_before(&self, end: usize) -> usize {
        self.taken.sum_before(end) as usize
    }
}

/// Geometric distribution of ages, truncated at the number of items.
#[derive(Debug, Clone, Copy)]
struct Ages {
    /// `-ln q`.
    rate: f64,
    /// `1 - q`.
    first: f64,
    /// `1 - q ^ len`.
    kept: f64,
    len: usize,
}

impl Ages {
    fn new(expected_age: f64, len: usize) -> Self {
        let rate = expected_age.recip().ln_1p();
        Self {
            rate,
            first: 1.0 / (expected_age + 1.0),
            kept: -(-(rate * len as f64)).exp_m1(),
            len,
        }
    }

    /// Age for a number from 0 to 1.
    fn at(&self, point: f64) -> usize {
        let age = -(-point * self.kept).ln_1p() / self.rate;
        (age as usize).min(self.len - 1)
    }

    fn probability(&self, age: usize) -> f64 {
        self.first * (-(self.rate * age as f64)).exp() / self.kept
    }
}

impl Select for Recent {
    // A place and the handle in it, and two places of a tree of sums.
    const ITEM_BYTES: u64 = 29;
    const REPEATS: bool = true;

    fn insert(&mut self, handle: Handle, _priority: f64) {
        ensure(&mut self.positions, handle, 0);
        self.make_room();
        self.push(handle);
        self.len += 1;
    }

    fn remove(&mut self, handle: Handle) {
        let position = self.positions[handle as usize] as usize;
        self.ring[position] = NONE;
        self.taken.set(position, 0.0);
        self.len -= 1;
    }

    /// Position of the item in the ring.
    fn restore_point(&self, handle: Handle) -> RestorePoint {
        RestorePoint::from(self.positions[handle as usize])
    }

    fn put_back(&mut self, handle: Handle, _priority: f64, point: RestorePoint) {
        let position = point as usize;
        self.ring[position] = handle;
        self.taken.set(position, 1.0);
        self.positions[handle as usize] = position as u32;
        self.len += 1;
    }

    fn update(&mut self, _handle: Handle, _priority: f64) {}

    fn pick_many(&mut self, rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        if self.len == 0 {
            return;
        }
        let ages = self.ages();
        // The oldest items may lie behind the newest ones in the ring.
        let before_oldest = self.count_before(self.oldest_position());
        for begin in (0..count).step_by(BLOCK) {
            let mut chosen = [0; BLOCK];
            let chosen = &mut chosen[..BLOCK.min(count - begin)];
            chosen.fill_with(|| ages.at(rng.random::<f64>()));
            let mut points = [Descent::from(0.0); BLOCK];
            let points = &mut points[..chosen.len()];
            for (point, age) in points.iter_mut().zip(&*chosen) {
                let rank = (before_oldest + self.len - 1 - age) % self.len;
                // Middle of the unit interval of the item.
                *point = Descent::from(rank as f64 + 0.5);
            }
            self.taken.find(points);
            picks.extend(points.iter().zip(&*chosen).map(|(point, &age)| Pick {
                handle: self.ring[point.index],
                probability: ages.probability(age),
                epoch: 0,
            }));
        }
    }

    fn probability_of(&self, handle: Handle) -> f64 {
        let position = self.positions[handle as usize] as usize;
        let older =
            self.count_before(position) as i64 - self.count_before(self.oldest_position()) as i64;
        let older = older.rem_euclid(self.len as i64) as usize;
        self.ages().probability(self.len - 1 - older)
    }

    /// 0 means unknown: relative to the oldest item's probability, all other weights would be 0.
    fn min_probability(&self) -> f64 {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::*;

    /// All handles, newest first, as found by the tree.
    fn in_order(recent: &Recent) -> Vec<Handle> {
        let before_oldest = recent.count_before(recent.oldest_position());
        let find = |age| {
            let rank = (before_oldest + recent.len - 1 - age) % recent.len;
            let mut points = [Descent::from(rank as f64 + 0.5)];
            recent.taken.find(&mut points);
            recent.ring[points[0].index]
        };
        (0..recent.len).map(find).collect()
    }

    proptest! {
        #[test]
        fn the_kth_newest_is_found(
            steps in prop::collection::vec((0u32..60, 0u8..8), 1..400),
        ) {
            let mut recent = Recent::new(3.0);
            let mut newest_first: Vec<Handle> = Vec::new();
            for (handle, kind) in steps {
                let found = newest_first.iter().position(|&other| other == handle);
                match (found, kind) {
                    (None, _) => {
                        recent.insert(handle, 1.0);
                        newest_first.insert(0, handle);
                    }
                    (Some(at), 0..4) => {
                        recent.remove(handle);
                        newest_first.remove(at);
                    }
                    // Like a full table with a FIFO remover.
                    (Some(_), 4..6) => {
                        let oldest = newest_first.pop().unwrap();
                        recent.remove(oldest);
                    }
                    (Some(_), _) => {
                        let position = recent.restore_point(handle);
                        recent.remove(handle);
                        recent.put_back(handle, 1.0, position);
                    }
                }
                prop_assert_eq!(in_order(&recent), newest_first.clone());
            }
        }

        #[test]
        fn probabilities_add_up_to_one(expected_age in 1e-6f64..1e9, len in 1usize..2000) {
            let ages = Ages::new(expected_age, len);
            let sum: f64 = (0..len).map(|age| ages.probability(age)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            prop_assert_eq!(ages.at(0.0), 0);
            prop_assert!(ages.at(1.0) < len);
        }
    }

    #[test]
    fn the_mean_age_of_a_large_table_is_the_expected_one() {
        let mut recent = Recent::new(50.0);
        (0..10_000).for_each(|handle| recent.insert(handle, 1.0));
        let mut picks = Vec::new();
        recent.pick_many(&mut SmallRng::seed_from_u64(1), 100_000, &mut picks);
        let ages = picks.iter().map(|pick| f64::from(9_999 - pick.handle));
        let mean = ages.sum::<f64>() / 100_000.0;
        // The standard deviation of an age is about 50.
        assert!((mean - 50.0).abs() < 0.7, "{mean}");
    }
}
