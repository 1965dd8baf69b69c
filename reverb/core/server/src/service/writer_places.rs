// SPDX-License-Identifier: Apache-2.0
//! Recent choices of shards for writers, which spread writers that start at the same time.
//!
//! Until items arrive, all writers see the same shard as the emptiest. So they ask one shard, which
//! remembers its answers for a second.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_data::KeyGenerator;
use reverb_wire::generated::reverb::WriterPlace;

/// Time after which a writer's items are counted in its shard.
const MEMORY: Duration = Duration::from_secs(1);
/// Fill level by which a recent writer raises its shard's.
const SHARE_OF_A_WRITER: f64 = 0.05;
/// Largest number of writers that are remembered.
const MAX_REMEMBERED: usize = 4096;

/// Writers of the last second.
#[derive(Debug, Default)]
pub(crate) struct WriterPlaces(Mutex<VecDeque<(Instant, i32)>>);

impl WriterPlaces {
    /// The emptiest shard, counting recent writers. Among equally empty ones, a random one with the
    /// fewest writers. `None` if there are no shards.
    pub(crate) fn choose(&self, now: Instant, shards: &[WriterPlace]) -> Option<i32> {
        if shards.is_empty() {
            return None;
        }
        let mut begun = self.0.lock();
        while begun.front().is_some_and(|(at, _)| now.duration_since(*at) >= MEMORY) {
            begun.pop_front();
        }
        let mut writers: HashMap<i32, u32> = HashMap::new();
        for (_, index) in &*begun {
            *writers.entry(*index).or_default() += 1;
        }
        let place = |shard: &WriterPlace| {
            let writers = writers.get(&shard.index).copied().unwrap_or_default();
            // Infinite or NaN means unknown.
            let share = if shard.share.is_finite() { shard.share } else { 1.0 };
            (share + SHARE_OF_A_WRITER * f64::from(writers), shard.num_writers, shard.index)
        };
        let mut places: Vec<(f64, i64, i32)> = shards.iter().map(place).collect();
        let order =
            |a: &(f64, i64, i32), b: &(f64, i64, i32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        places.sort_unstable_by(order);
        let ties = places.iter().take_while(|place| order(place, &places[0]).is_eq()).count();
        let at = KeyGenerator::new().next_key() as usize % ties;
        let (_, _, chosen) = places[at];
        if begun.len() == MAX_REMEMBERED {
            begun.pop_front();
        }
        begun.push_back((now, chosen));
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn shards(shares: &[f64]) -> Vec<WriterPlace> {
        let shards = (0..).zip(shares);
        shards.map(|(index, &share)| WriterPlace { index, share, num_writers: 7 }).collect()
    }

    fn counts(places: &WriterPlaces, now: Instant, shares: &[f64], writers: usize) -> Vec<usize> {
        let mut counts = BTreeMap::new();
        for _ in 0..writers {
            *counts.entry(places.choose(now, &shards(shares)).unwrap()).or_insert(0) += 1;
        }
        (0..shares.len() as i32).map(|i| counts.get(&i).copied().unwrap_or(0)).collect()
    }

    #[test]
    fn writers_that_begin_together_are_spread() {
        let now = Instant::now();
        assert_eq!(counts(&WriterPlaces::default(), now, &[0.0; 4], 4), [1; 4]);
        assert_eq!(counts(&WriterPlaces::default(), now, &[1.0; 4], 64), [16; 4]);
        // Full shards get no writers until the empty one has as many.
        let some = counts(&WriterPlaces::default(), now, &[0.9, 0.4, 0.9, 0.9], 9);
        assert_eq!(some, [0, 9, 0, 0]);
        let some = counts(&WriterPlaces::default(), now, &[0.2, 0.1, 0.2, 0.2], 6);
        assert_eq!(some, [1, 3, 1, 1]);
    }

    #[test]
    fn one_writer_begins_at_the_emptiest_of_several_at_a_random_one() {
        let now = Instant::now();
        let begin = |shares: &[f64]| WriterPlaces::default().choose(now, &shards(shares));
        assert_eq!(begin(&[0.02, 0.01, 0.03]), Some(1));
        assert_eq!(begin(&[f64::NAN, 0.9, f64::INFINITY]), Some(1));
        assert_eq!(begin(&[]), None);
        let seen: BTreeSet<_> = (0..200).map(|_| begin(&[0.5, 0.1, 0.1]).unwrap()).collect();
        assert_eq!(seen, BTreeSet::from([1, 2]));
    }

    #[test]
    fn of_full_shards_the_one_with_the_fewest_writers_is_chosen() {
        let mut shards = shards(&[1.0; 3]);
        shards[1].num_writers = 2;
        let choose = || WriterPlaces::default().choose(Instant::now(), &shards);
        assert!((0..50).all(|_| choose() == Some(1)));
    }

    #[test]
    fn writers_are_remembered_for_a_second() {
        let places = WriterPlaces::default();
        let now = Instant::now();
        assert_eq!(counts(&places, now, &[0.0, 0.01], 3), [2, 1]);
        let later = now + MEMORY;
        assert_eq!(places.choose(later, &shards(&[0.0, 0.01])), Some(0));
        assert_eq!(places.0.lock().len(), 1);
    }
}
