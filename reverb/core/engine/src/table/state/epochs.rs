// SPDX-License-Identifier: Apache-2.0
//! Sampling within an epoch: a request that ends when every item was sampled once.
//!
//! The epoch ends for a request that finds no item left in it. Until then, new items join it. If
//! the items that were left are deleted, it is over as well.

use reverb_base::Error;
use reverb_data::WithinEpoch;

use super::{Batch, TableState};

impl TableState {
    /// Number of items that a request may sample before the end of its epoch; no limit if it is not
    /// about an epoch. At its end, `batch` is marked as ended; then, and for an empty table, the
    /// number is 0. `batch.refusal` is set if the sampler has no epochs.
    pub(super) fn room_in_epoch(&mut self, batch: &mut Batch) -> usize {
        let Some(within) = batch.options.epoch else { return usize::MAX };
        let Some(shuffle) = self.contents.sampler.as_shuffle() else {
            batch.refusal = Some(Error::invalid_argument(format!(
                "Epochs need a table whose sampler is Shuffle, and table {} has another one.",
                self.name
            )));
            return 0;
        };
        let (num_left, num_items) = shuffle.num_left_of();
        match within {
            WithinEpoch::New => num_items,
            WithinEpoch::UpTo(last) => {
                let is_used_up = num_left == 0 && shuffle.has_begun();
                if shuffle.epoch() > last || (is_used_up && shuffle.epoch() == last) {
                    batch.has_ended = true;
                    // Items that come after the end was reported belong to the next epoch.
                    if is_used_up && batch.items.is_empty() {
                        shuffle.begin_epoch();
                    }
                    return 0;
                }
                if is_used_up { num_items } else { num_left }
            }
        }
    }

    /// Begins a new epoch if the request, which is about to sample, is to be the first of one.
    pub(super) fn begin_epoch_for(&mut self, batch: &Batch) {
        if batch.options.epoch == Some(WithinEpoch::New)
            && let Some(shuffle) = self.contents.sampler.as_shuffle()
            && shuffle.has_begun()
        {
            shuffle.begin_epoch();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use reverb_base::ErrorKind;
    use reverb_data::{
        RateLimiterConfig, SampleOptions, SelectorConfig, Stacking, TableConfig, WithinEpoch,
    };

    use super::super::{Batch, TableState};
    use crate::table::testing::{config, item_of_length, selectors};

    fn shuffled(max_times_sampled: i32) -> TableState {
        let sampler = SelectorConfig::Shuffle { seed: None };
        TableState::new(&TableConfig { sampler, max_times_sampled, ..config(1000) })
    }

    fn insert(state: &mut TableState, keys: std::ops::Range<u64>) {
        keys.for_each(|key| drop(state.insert(item_of_length(key, 1, 1.0), 0)));
    }

    /// Keys and epoch of a request, and whether it is over. `None`: it waits.
    fn read(
        state: &mut TableState,
        num: usize,
        within: WithinEpoch,
        stacks: bool,
    ) -> Option<(Vec<u64>, Option<i64>)> {
        let stacking = stacks.then(|| Stacking::new(num));
        let epoch = Some(within);
        let mut batch =
            Batch::new(num, SampleOptions { stacking, epoch, ..SampleOptions::default() });
        state.sample(&mut batch);
        if batch.len() == 0 && !batch.is_over() {
            return None;
        }
        let items = batch.into_answer().unwrap();
        let epoch = items.first().map(|item| item.epoch);
        assert!(items.iter().all(|item| Some(item.epoch) == epoch));
        Some((items.iter().map(|item| item.key).collect(), epoch))
    }

    fn up_to(state: &mut TableState, num: usize, last: i64) -> Option<usize> {
        read(state, num, WithinEpoch::UpTo(last), false).map(|(keys, _)| keys.len())
    }

    #[test]
    fn a_request_ends_with_its_epoch() {
        let mut state = shuffled(0);
        insert(&mut state, 0..5);
        assert_eq!(read(&mut state, 3, WithinEpoch::New, false).unwrap().1, Some(0));
        assert_eq!(up_to(&mut state, 3, 0), Some(2));
        assert_eq!(up_to(&mut state, 3, 0), Some(0));
        assert_eq!(up_to(&mut state, 3, 1), Some(3));
        // An epoch that was begun is not gone on with.
        let (keys, epoch) = read(&mut state, 9, WithinEpoch::New, false).unwrap();
        assert_eq!((keys.len(), epoch), (5, Some(2)));
        assert_eq!(up_to(&mut state, 9, 1), Some(0));
    }

    #[test]
    fn an_item_that_comes_after_the_end_was_told_is_of_the_next_one() {
        let mut state = shuffled(0);
        insert(&mut state, 0..2);
        assert_eq!(read(&mut state, 9, WithinEpoch::New, false).unwrap().0.len(), 2);
        assert_eq!(up_to(&mut state, 9, 0), Some(0));
        insert(&mut state, 2..3);
        assert_eq!(up_to(&mut state, 9, 0), Some(0));
        assert_eq!(up_to(&mut state, 9, 1), Some(3));
    }

    #[test]
    fn an_epoch_that_was_not_begun_is_a_new_one() {
        let mut state = shuffled(0);
        insert(&mut state, 0..2);
        assert_eq!(read(&mut state, 1, WithinEpoch::New, false).unwrap().1, Some(0));
        assert_eq!(read(&mut state, 2, WithinEpoch::New, false).unwrap().1, Some(1));
    }

    #[test]
    fn an_item_that_comes_before_the_end_is_told_joins() {
        let mut state = shuffled(0);
        insert(&mut state, 0..2);
        assert_eq!(read(&mut state, 2, WithinEpoch::New, false).unwrap().0.len(), 2);
        insert(&mut state, 2..3);
        assert_eq!(read(&mut state, 2, WithinEpoch::UpTo(0), false), Some((vec![2], Some(0))));
        assert_eq!(up_to(&mut state, 2, 0), Some(0));
    }

    #[test]
    fn deletes_end_an_epoch_that_waits_for_the_limiter_too() {
        let rate_limiter = RateLimiterConfig { min_size_to_sample: 4, ..config(1).rate_limiter };
        let sampler = SelectorConfig::Shuffle { seed: Some(1) };
        let mut state = TableState::new(&TableConfig { sampler, rate_limiter, ..config(9) });
        insert(&mut state, 0..4);
        let (keys, _) = read(&mut state, 2, WithinEpoch::New, false).unwrap();
        let mut left = (0..4).filter(|key| !keys.contains(key));
        state.delete(left.next().unwrap());
        // The limiter needs another item.
        assert_eq!(up_to(&mut state, 2, 0), None);
        state.delete(left.next().unwrap());
        assert_eq!(up_to(&mut state, 2, 0), Some(0));
        assert_eq!(up_to(&mut state, 2, 1), None);
    }

    #[test]
    fn an_empty_table_has_no_epoch_that_could_end() {
        let mut state = shuffled(0);
        assert_eq!(read(&mut state, 1, WithinEpoch::New, false), None);
        assert_eq!(up_to(&mut state, 1, 0), None);
    }

    #[test]
    fn a_table_after_a_reset_begins_with_the_first_epoch() {
        let mut state = shuffled(0);
        insert(&mut state, 0..2);
        for last in 0..3 {
            assert_eq!(up_to(&mut state, 2, last), Some(2));
        }
        drop(state.reset(&TableConfig {
            sampler: SelectorConfig::Shuffle { seed: None },
            ..config(1000)
        }));
        insert(&mut state, 0..2);
        assert_eq!(read(&mut state, 9, WithinEpoch::UpTo(2), false).unwrap().1, Some(0));
    }

    proptest! {
        #[test]
        fn other_samplers_have_no_epochs(sampler in selectors(), max_times_sampled in 0..2i32) {
            let is_shuffle = matches!(sampler, SelectorConfig::Shuffle { .. });
            let mut state =
                TableState::new(&TableConfig { sampler, max_times_sampled, ..config(9) });
            insert(&mut state, 0..2);
            let epoch = Some(WithinEpoch::New);
            let stacking = Some(Stacking::new(3));
            let mut batch = Batch::new(3, SampleOptions { stacking, epoch, ..SampleOptions::default() });
            state.sample(&mut batch);
            prop_assert!(batch.is_over());
            let answer = batch.into_answer();
            prop_assert_eq!(answer.is_ok(), is_shuffle);
            if let Err(error) = answer {
                prop_assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                prop_assert!(error.message().contains("table t has another one"));
                prop_assert_eq!(state.limiter().samples(), 0);
            }
        }

        /// Model: the epoch in which each item was read last, and the times it was read.
        #[test]
        fn a_reader_gets_every_item_once_an_epoch(
            steps in prop::collection::vec((0..6u8, 0..20u64, 1..12usize), 1..150),
            max_times_sampled in 0..3i32,
            stacks in any::<bool>(),
        ) {
            let mut state = shuffled(max_times_sampled);
            let mut read_in: BTreeMap<u64, (i64, i32)> = BTreeMap::new();
            let (mut present, mut has_begun) = (0, false);
            let mut within = WithinEpoch::New;
            for (step, key, num) in steps {
                match step {
                    0 if !read_in.contains_key(&key) => {
                        insert(&mut state, key..key + 1);
                        read_in.insert(key, (-1, 0));
                    }
                    1 => {
                        state.delete(key);
                        read_in.remove(&key);
                    }
                    2 if num == 11 => within = WithinEpoch::New,
                    3.. => {
                        let left = |read_in: &BTreeMap<u64, (i64, i32)>, epoch| {
                            read_in.values().filter(|read| read.0 < epoch).count()
                        };
                        let Some((keys, epoch)) = read(&mut state, num, within, stacks) else {
                            // Only an empty table lets a request wait.
                            prop_assert!(read_in.is_empty());
                            prop_assert!(within == WithinEpoch::New || !has_begun);
                            continue;
                        };
                        let Some(epoch) = epoch else {
                            // The epoch is over: nothing is left of it.
                            prop_assert_eq!(within, WithinEpoch::UpTo(present));
                            prop_assert!(has_begun);
                            prop_assert_eq!(left(&read_in, present), 0);
                            (present, has_begun) = (present + 1, false);
                            within = WithinEpoch::UpTo(present);
                            continue;
                        };
                        let begins = has_begun && within == WithinEpoch::New;
                        prop_assert_eq!(epoch, present + i64::from(begins));
                        (present, has_begun) = (epoch, true);
                        prop_assert_eq!(keys.len(), num.min(left(&read_in, epoch)));
                        for key in keys {
                            let (last, times) = read_in[&key];
                            prop_assert!(last < epoch, "{key} comes twice in epoch {epoch}");
                            read_in.insert(key, (epoch, times + 1));
                            if times + 1 == max_times_sampled {
                                read_in.remove(&key);
                            }
                        }
                        within = WithinEpoch::UpTo(epoch);
                    }
                    _ => {}
                }
                prop_assert_eq!(state.len(), read_in.len());
            }
        }
    }
}
