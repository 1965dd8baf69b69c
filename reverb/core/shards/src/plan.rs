// SPDX-License-Identifier: Apache-2.0
//! Division of a sample request among the shards of a group. Decides, and never waits.

use crate::shares::Shares;
use crate::table_stats::Stats;

/// Smallest number of items to ask of a shard, so that a batch is not many small messages. Shards
/// are drawn by mass, so the minimum changes no probability.
const MIN_ITEMS: usize = 64;

/// A shard that could serve a request, and its table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// True if the shard answers.
    pub(crate) is_usable: bool,
    /// True if a watch reports changes of the table at once.
    pub(crate) is_watched: bool,
    pub(crate) stats: Stats,
}

/// Number of items of each candidate, and the candidate's share of the group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) counts: Vec<usize>,
    pub(crate) shares: Vec<f64>,
}

impl Plan {
    /// Divides a request by the masses of the shards; `None` if no shard has items. `part` is the
    /// part of the group that the candidates stand for.
    pub(crate) fn by_mass(
        candidates: &[Candidate],
        count: usize,
        max_shards: usize,
        part: f64,
        shares: &mut Shares,
    ) -> Option<Self> {
        let masses = masses(candidates);
        let total: f64 = masses.iter().sum();
        if total <= 0.0 {
            return None;
        }
        // The limit: one message costs as much as some dozen small items.
        let limit = max_shards.min(count / MIN_ITEMS).max(1);
        let counts = shares.split(&masses, count, limit);
        Some(Self { counts, shares: masses.iter().map(|mass| mass / total * part).collect() })
    }

    /// Divides a request among shards in rotation, up to their sizes; all shards if no size is
    /// known. The result may have fewer items than `count`.
    pub(crate) fn in_turn(
        candidates: &[Candidate],
        count: usize,
        shares: &mut Shares,
    ) -> Option<Self> {
        let usable = || candidates.iter().filter(|shard| shard.is_usable);
        usable().next()?;
        let allowed =
            |shard: &Candidate| if shard.is_usable { shard.stats.samples_allowed() } else { 0 };
        let mut allowed: Vec<usize> = candidates.iter().map(allowed).collect();
        if allowed.iter().all(|&count| count == 0) {
            // The watch reports at once when an empty table gets items.
            let size: i64 = candidates.iter().map(|shard| shard.stats.size).sum();
            if usable().all(|shard| shard.is_watched) && size == 0 {
                return None;
            }
            let all = |shard: &Candidate| if shard.is_usable { usize::MAX } else { 0 };
            allowed = candidates.iter().map(all).collect();
        }
        let mut counts = vec![0_usize; candidates.len()];
        let mut left = count;
        while left > 0 {
            let has_room = |(&allowed, &count)| f64::from(u8::from(allowed > count));
            let room: Vec<f64> = allowed.iter().zip(&counts).map(has_room).collect();
            if room.iter().all(|&room| room <= 0.0) {
                break;
            }
            let more = shares.split(&room, left, usize::MAX);
            for ((count, more), &allowed) in counts.iter_mut().zip(more).zip(&allowed) {
                let more = more.min(allowed - *count);
                *count += more;
                left -= more;
            }
        }
        Some(Self { counts, shares: vec![1.0; candidates.len()] })
    }

    /// Asks one of so many shards, which has this share, for all items.
    pub(crate) fn of_one(shard: usize, num_shards: usize, count: usize, share: f64) -> Self {
        let mut counts = vec![0; num_shards];
        let mut shares = vec![0.0; num_shards];
        (counts[shard], shares[shard]) = (count, share);
        Self { counts, shares }
    }

    pub(crate) fn num_items(&self) -> usize {
        self.counts.iter().sum()
    }
}

/// Masses for the division; 0 for shards that cannot be asked.
fn masses(candidates: &[Candidate]) -> Vec<f64> {
    let known = candidates.iter().filter(|shard| shard.is_usable);
    let known = known.filter_map(|shard| Some((shard.stats.mass?, shard.stats.size as f64)));
    let (mass, size) = known.fold((0.0, 0.0), |sum, known| (sum.0 + known.0, sum.1 + known.1));
    // The mean weight of known items stands in for unknown ones.
    let mean = if mass > 0.0 && size > 0.0 { mass / size } else { 1.0 };
    let sizes = || {
        let size =
            |shard: &Candidate| if shard.is_usable { shard.stats.size.max(0) as f64 } else { 0.0 };
        candidates.iter().map(size)
    };
    let mass_of = |(shard, size): (&Candidate, f64)| {
        if size > 0.0 { shard.stats.mass.unwrap_or(size * mean) } else { 0.0 }
    };
    let masses: Vec<f64> = candidates.iter().zip(sizes()).map(mass_of).collect();
    if masses.iter().any(|&mass| mass > 0.0) {
        return masses;
    }
    // With all weights 0, items are equally likely, as in a single table.
    sizes().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(size: i64, mass: Option<f64>) -> Candidate {
        Candidate {
            is_usable: true,
            is_watched: true,
            stats: Stats { size, mass, ..Stats::default() },
        }
    }

    fn by_mass(candidates: &[Candidate], count: usize) -> Option<Plan> {
        Plan::by_mass(candidates, count, usize::MAX, 1.0, &mut Shares::new(0.1))
    }

    #[test]
    fn shards_give_items_by_their_masses() {
        let plan = by_mass(&[candidate(5, Some(3.0)), candidate(100, Some(1.0))], 400).unwrap();
        assert_eq!((plan.counts, plan.shares), (vec![300, 100], vec![0.75, 0.25]));
    }

    #[test]
    fn a_mass_that_is_not_known_is_that_of_as_many_items_elsewhere() {
        let plan = by_mass(&[candidate(10, Some(40.0)), candidate(30, None)], 400).unwrap();
        assert_eq!(plan.shares, [0.25, 0.75]);
    }

    #[test]
    fn items_without_weight_are_all_alike() {
        let plan = by_mass(&[candidate(1, Some(0.0)), candidate(3, Some(0.0))], 400).unwrap();
        assert_eq!(plan.counts, [100, 300]);
    }

    #[test]
    fn a_shard_that_does_not_answer_gives_nothing() {
        let down = Candidate { is_usable: false, ..candidate(50, Some(50.0)) };
        let plan = by_mass(&[down, candidate(1, Some(1.0))], 128).unwrap();
        assert_eq!((plan.counts, plan.shares), (vec![0, 128], vec![0.0, 1.0]));
        assert_eq!(by_mass(&[down, candidate(0, Some(0.0))], 128), None);
    }

    #[test]
    fn a_small_request_goes_to_few_shards() {
        let candidates = [candidate(10, Some(1.0)); 8];
        let asked = |count| by_mass(&candidates, count).unwrap().counts;
        assert_eq!(asked(MIN_ITEMS).iter().filter(|&&count| count > 0).count(), 1);
        assert_eq!(asked(8 * MIN_ITEMS), [MIN_ITEMS; 8]);
    }

    #[test]
    fn one_learner_of_several_has_its_part_of_the_group() {
        let candidates = [candidate(10, Some(1.0))];
        let plan = Plan::by_mass(&candidates, 64, usize::MAX, 0.25, &mut Shares::new(0.1)).unwrap();
        assert_eq!(plan.shares, [0.25]);
    }

    fn in_turn(candidates: &[Candidate], count: usize) -> Option<Plan> {
        Plan::in_turn(candidates, count, &mut Shares::new(0.1))
    }

    fn limited(size: i64, allowed: f64) -> Candidate {
        let mut candidate = candidate(size, None);
        (candidate.stats.cursor, candidate.stats.min_diff) = (allowed, Some(0.0));
        candidate
    }

    #[test]
    fn an_ordered_table_gives_no_more_than_its_limiter_allows() {
        let plan = in_turn(&[limited(9, 2.0), limited(9, 7.0), limited(0, 7.0)], 20).unwrap();
        assert_eq!((plan.counts, plan.shares), (vec![2, 7, 0], vec![1.0; 3]));
    }

    #[test]
    fn empty_shards_are_asked_only_if_they_may_have_items_unheard() {
        let watched = [limited(0, 1.0); 2];
        assert_eq!(in_turn(&watched, 4), None);
        let unwatched = watched.map(|candidate| Candidate { is_watched: false, ..candidate });
        assert_eq!(in_turn(&unwatched, 4).unwrap().num_items(), 4);
        let down = unwatched.map(|candidate| Candidate { is_usable: false, ..candidate });
        assert_eq!(in_turn(&down, 4), None);
    }
}
