// SPDX-License-Identifier: Apache-2.0
//! Sampling of windows: items without one are drawn again, and each window is a random one of its
//! item.
//!
//! Item `i` with the probability `p_i` and `n_i` windows: a window of it has the probability
//! `p_i / n_i / S`, where `S` is the sum over the items that have windows. A sampler that is
//! uniform over steps draws an item again with the probability that a step of it is no anchor, so
//! that each window of the table has the same probability.
//!
//! Nothing is counted before all of it is drawn.

use rand::Rng;
use reverb_data::step_window::different_lengths;
use reverb_data::{Error, SampledWindow, StepWindow};

use super::{Batch, TableState};
use crate::selector::{Handle, Pick};

/// Number of draws of a request that may find no window, before the items that have one are listed.
const TRIES: usize = 64;

/// Items that have a window and a weight.
#[derive(Default)]
pub(super) struct Listed {
    /// Each with its weight.
    pub(super) items: Vec<(Handle, f64)>,
    /// Sum of the weights up to each item.
    sums: Vec<f64>,
}

impl TableState {
    /// True if windows can be cut out of all items without visiting them first.
    pub(in crate::table) fn knows_steps(&self) -> bool {
        self.contents.step_counts.as_ref().is_some_and(|counts| counts.is_complete())
    }

    /// Counts the steps of some items; to be called until `knows_steps`.
    pub(in crate::table) fn count_steps(&mut self) {
        let contents = &mut self.contents;
        contents.step_counts.get_or_insert_default().count_more(&contents.items);
    }

    pub(super) fn num_windows_of(&self, window: StepWindow, handle: Handle) -> u32 {
        window.count(self.contents.steps_of(handle))
    }

    /// True if there may be a window to sample. If there is none and never will be,
    /// `batch.refusal` has the reason.
    pub(super) fn may_have_window(&mut self, window: StepWindow, batch: &mut Batch) -> bool {
        if self.contents.sampler.is_ordered() || !self.limiter.can_sample(1) {
            return true;
        }
        let num_windows = self.contents.step_counts.get_or_insert_default().num_windows(window);
        if num_windows == 0 {
            self.refuse_if_hopeless(window, batch);
        }
        num_windows > 0
    }

    /// Sets the refusal of a request for a window, if no insert will ever bring one.
    fn refuse_if_hopeless(&self, window: StepWindow, batch: &mut Batch) {
        let why = if self.len() >= self.max_size {
            "The table is full"
        } else if !self.limiter.can_insert(1) {
            "Inserts wait until items were sampled"
        } else {
            return;
        };
        let error = Error::invalid_argument(format!(
            "{} {why}. Ask for a shorter window or for padding, or store longer items.",
            self.no_window(window)
        ));
        batch.refusal = Some(error.without_window());
    }

    /// True if an item that may be sampled has a window.
    pub(in crate::table) fn has_window(&self, window: StepWindow) -> bool {
        !self.list(window).items.is_empty()
    }

    /// Sentence about a table without a window.
    pub(in crate::table) fn no_window(&self, window: StepWindow) -> String {
        let longest = self.contents.step_counts.as_ref().map_or(0, |counts| counts.longest());
        if longest == 0
            && let Some(error) =
                self.contents.items.in_entries(0..self.contents.items.num_entries()).find_map(
                    |(_, item)| {
                        different_lengths(item.key(), &item.trajectory(), &self.column_names)
                    },
                )
        {
            return error.message().to_owned();
        }
        format!(
            "No item of table {} has a {}; the longest has {longest}.",
            self.name,
            window.told()
        )
    }

    /// Picks items that have a window, as often as the sampler would pick any. Fewer, and
    /// `batch.refusal`, if the next item of an ordered sampler has none; none if no item with a
    /// window has weight.
    pub(super) fn pick_windows(
        &mut self,
        window: StepWindow,
        count: usize,
        batch: &mut Batch,
        picks: &mut Vec<Pick>,
    ) {
        let first = picks.len();
        self.contents.sampler.pick_many(&mut self.rng, count, picks);
        if self.contents.sampler.is_ordered() {
            return self.stop_before_short_item(window, batch, picks);
        }
        let mut listed = None;
        let mut tries = 0;
        for at in first..picks.len() {
            while !self.accepts(window, picks[at].handle) {
                tries += 1;
                let redrawn = if tries <= TRIES {
                    // The sampler is not empty: it adds one at the end.
                    self.contents.sampler.pick_many(&mut self.rng, 1, picks);
                    picks.pop()
                } else {
                    let listed = listed.get_or_insert_with(|| self.list(window));
                    self.pick_listed(listed)
                };
                let Some(redrawn) = redrawn else {
                    picks.truncate(first);
                    self.refuse_if_hopeless(window, batch);
                    return;
                };
                picks[at] = redrawn;
                if tries > TRIES {
                    break;
                }
            }
        }
        self.set_window_probabilities(window, &mut picks[first..]);
    }

    /// Sets the probabilities of items that were chosen for their windows, if the sampler is
    /// uniform over steps: its own ones are those before items were drawn again.
    pub(super) fn set_window_probabilities(&mut self, window: StepWindow, picks: &mut [Pick]) {
        if !self.contents.sampler.is_over_steps() {
            return;
        }
        let counts = self.contents.step_counts.get_or_insert_default();
        let num_windows = counts.num_windows(window);
        for pick in picks {
            let count = window.count(counts.get(pick.handle));
            pick.probability = f64::from(count) / num_windows as f64;
        }
    }

    /// Takes picks back from the first item on that has no window.
    fn stop_before_short_item(
        &mut self,
        window: StepWindow,
        batch: &mut Batch,
        picks: &mut Vec<Pick>,
    ) {
        let is_short = |pick: &Pick| self.num_windows_of(window, pick.handle) == 0;
        let Some(at) = picks.iter().position(is_short) else { return };
        batch.refusal = Some(self.is_short(window, picks[at].handle));
        for pick in picks.drain(at..).rev() {
            self.contents.sampler.unpick(pick);
        }
    }

    /// Error for an item of an ordered sampler.
    pub(super) fn is_short(&self, window: StepWindow, handle: Handle) -> Error {
        let item = self.contents.items.get(handle);
        different_lengths(item.key(), &item.trajectory(), &self.column_names).unwrap_or_else(|| {
            Error::invalid_argument(format!(
                "Item {}, the next of table {}, has no {}: it has {}. Ask for a shorter window or \
                 for padding, or choose a sampler that draws at random.",
                item.key(),
                self.name,
                window.told(),
                self.contents.steps_of(handle)
            ))
        })
    }

    /// True if the item is taken: it has a window and, if the sampler is uniform over steps, a
    /// random step of it is an anchor.
    pub(super) fn accepts(&mut self, window: StepWindow, handle: Handle) -> bool {
        let steps = self.contents.steps_of(handle);
        let count = window.count(steps);
        if !self.contents.sampler.is_over_steps() || count == 0 || count == steps {
            return count > 0;
        }
        self.rng.random_range(0..steps) < count
    }

    /// The weight of an item with this many windows.
    fn weight(&self, handle: Handle, num_windows: u32) -> f64 {
        if self.contents.sampler.is_over_steps() {
            f64::from(num_windows)
        } else {
            self.contents.sampler.probability_of(handle)
        }
    }

    pub(super) fn list(&self, window: StepWindow) -> Listed {
        let mut listed = Listed::default();
        let mut sum = 0.0;
        let Some(counts) = &self.contents.step_counts else { return listed };
        for (handle, count) in counts.with_windows(window) {
            let weight = self.weight(handle, count);
            if weight > 0.0 {
                sum += weight;
                listed.items.push((handle, weight));
                listed.sums.push(sum);
            }
        }
        listed
    }

    fn pick_listed(&mut self, listed: &Listed) -> Option<Pick> {
        let &total = listed.sums.last()?;
        let point = self.rng.random::<f64>() * total;
        let at = listed.sums.partition_point(|&sum| sum <= point).min(listed.items.len() - 1);
        let (handle, _) = listed.items[at];
        Some(Pick { handle, probability: self.contents.sampler.probability_of(handle), epoch: 0 })
    }

    /// A random window of an item.
    pub(super) fn draw_window(&mut self, window: StepWindow, handle: Handle) -> SampledWindow {
        let count = self.num_windows_of(window, handle);
        debug_assert!(count > 0, "items without a window are not taken");
        let anchor = window.first_anchor() + self.rng.random_range(0..count.max(1));
        SampledWindow { start: anchor as i32 - window.before as i32, count }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use reverb_data::{RateLimiterConfig, SampleOptions, SelectorConfig, Stacking, TableConfig};

    use super::*;
    use crate::table::testing::{config, item_of_length};

    /// Items by key, with their number of steps and their priority.
    type Items = BTreeMap<u64, (u32, f64)>;

    fn state_of(sampler: SelectorConfig, items: &Items) -> TableState {
        let mut state = TableState::new(&TableConfig { sampler, seed: Some(7), ..config(1000) });
        for (&key, &(steps, priority)) in items {
            state.insert(item_of_length(key, steps as usize, priority), 0);
        }
        know_steps(&mut state);
        state
    }

    fn know_steps(state: &mut TableState) {
        while !state.knows_steps() {
            state.count_steps();
        }
    }

    fn window(length: u32, before: u32, pads_left: bool, pads_right: bool) -> StepWindow {
        StepWindow { length, before, pads_left, pads_right }
    }

    fn sample(state: &mut TableState, count: usize, options: SampleOptions) -> Batch {
        let mut batch = Batch::new(count, options.whole());
        state.sample(&mut batch);
        batch
    }

    fn of(window: StepWindow) -> SampleOptions {
        SampleOptions { window: Some(window), ..SampleOptions::default() }
    }

    /// Probability of each window, by key and first step, as in the docs of the module.
    fn closed_form(
        sampler: SelectorConfig,
        items: &Items,
        window: StepWindow,
    ) -> BTreeMap<(u64, i32), f64> {
        let weigh = |count: u32, priority: f64| match sampler {
            SelectorConfig::UniformOverSteps => f64::from(count),
            SelectorConfig::Prioritized { priority_exponent, .. } => {
                if priority > 0.0 {
                    priority.powf(priority_exponent)
                } else {
                    0.0
                }
            }
            _ => 1.0,
        };
        let mut all = BTreeMap::new();
        for (&key, &(steps, priority)) in items {
            // By enumeration, and not by the formulas of `StepWindow`.
            let fits = |anchor: u32| {
                (window.pads_left || anchor >= window.before)
                    && (window.pads_right || anchor + window.length <= steps)
            };
            let anchors: Vec<u32> = (0..steps).filter(|&it| fits(it)).collect();
            let count = anchors.len() as u32;
            for anchor in anchors {
                let start = anchor as i32 - window.before as i32;
                all.insert((key, start), weigh(count, priority) / f64::from(count));
            }
        }
        let sum: f64 = all.values().sum();
        all.retain(|_, weight| *weight > 0.0);
        for weight in all.values_mut() {
            *weight /= sum;
        }
        all
    }

    /// Draws, and compares with the closed form; no window may be missing or differ by more than
    /// six standard deviations.
    fn check_draws(sampler: SelectorConfig, items: &Items, window: StepWindow, rounds: usize) {
        const AT_ONCE: usize = 32;
        let mut state = state_of(sampler, items);
        let expected = closed_form(sampler, items, window);
        let mut counts: BTreeMap<(u64, i32), usize> = BTreeMap::new();
        for _ in 0..rounds {
            let batch = sample(&mut state, AT_ONCE, of(window));
            assert_eq!(batch.items.len(), if expected.is_empty() { 0 } else { AT_ONCE });
            for item in &batch.items {
                *counts.entry((item.key, item.window.start)).or_default() += 1;
                assert_eq!(item.window.count, window.count(items[&item.key].0));
                if sampler == SelectorConfig::UniformOverSteps {
                    let each = item.probability / f64::from(item.window.count);
                    assert!((each - 1.0 / expected.len() as f64).abs() < 1e-12);
                }
            }
        }
        let total = (rounds * AT_ONCE) as f64;
        for (at, probability) in &expected {
            let (mean, count) = (total * probability, counts.remove(at).unwrap_or(0) as f64);
            let deviation = (mean * (1.0 - probability)).sqrt();
            assert!((count - mean).abs() < 6.0 * deviation + 1.0, "{at:?}: {count} of {mean}");
        }
        assert_eq!(counts.len(), 0, "windows that do not exist: {counts:?}");
    }

    fn with_chance() -> impl Strategy<Value = SelectorConfig> {
        prop::sample::select(vec![
            SelectorConfig::Uniform,
            SelectorConfig::UniformOverSteps,
            SelectorConfig::prioritized(0.7),
            SelectorConfig::Prioritized {
                priority_exponent: 1.0,
                draw: reverb_data::Draw::Stratified,
            },
        ])
    }

    fn some_items() -> impl Strategy<Value = Items> {
        let item = (1u32..12, prop::sample::select(vec![0.0, 1.0, 2.0, 5.0]));
        prop::collection::btree_map(0u64..100, item, 1..9)
    }

    fn some_window() -> impl Strategy<Value = StepWindow> {
        (1u32..6, 0u32..4, any::<bool>(), any::<bool>())
            .prop_map(|(length, before, left, right)| window(length, before, left, right))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        #[test]
        fn draws_have_the_probabilities_of_the_closed_form(
            sampler in with_chance(),
            items in some_items(),
            window in some_window(),
        ) {
            // All weights 0 means that items are equally likely, also for windows.
            let has_weight = items.values().any(|&(_, priority)| priority > 0.0);
            if has_weight || matches!(sampler, SelectorConfig::Uniform | SelectorConfig::UniformOverSteps) {
                check_draws(sampler, &items, window, 300);
            }
        }

        #[test]
        fn sums_follow_every_change(
            changes in prop::collection::vec((0u64..12, 1u32..12, any::<bool>()), 1..60),
            windows in prop::collection::vec(some_window(), 1..7),
            resets_at in 0usize..60,
        ) {
            let mut state = state_of(SelectorConfig::Uniform, &Items::new());
            let mut items: BTreeMap<u64, u32> = BTreeMap::new();
            for (at, (key, steps, deletes)) in changes.into_iter().enumerate() {
                if at == resets_at {
                    drop(state.reset(&config(1000)));
                    items.clear();
                } else if deletes {
                    state.delete(key);
                    items.remove(&key);
                } else {
                    state.insert(item_of_length(key, steps as usize, 1.0), 0);
                    items.entry(key).or_insert(steps);
                }
                let window = windows[at % windows.len()];
                let expected: u64 = items.values().map(|&it| u64::from(window.count(it))).sum();
                let counts = state.contents.step_counts.as_mut().unwrap();
                prop_assert_eq!(counts.num_windows(window), expected);
                prop_assert_eq!(counts.longest(), items.values().copied().max().unwrap_or(0));
            }
        }

        #[test]
        fn distinct_windows_are_of_different_items_that_have_one(
            sampler in with_chance(),
            items in some_items(),
            window in some_window(),
            count in 1usize..9,
        ) {
            let mut state = state_of(sampler, &items);
            let possible: Vec<u64> = closed_form(sampler, &items, window).keys().map(|it| it.0).collect();
            let possible: std::collections::BTreeSet<u64> = possible.into_iter().collect();
            let options = SampleOptions { distinct: true, ..of(window) };
            let batch = sample(&mut state, count, options);
            let keys: std::collections::BTreeSet<u64> = batch.items.iter().map(|it| it.key).collect();
            prop_assert_eq!(keys.len(), batch.items.len());
            if possible.len() >= count {
                prop_assert_eq!(batch.items.len(), count);
                prop_assert!(keys.is_subset(&possible));
            } else if matches!(sampler, SelectorConfig::Uniform | SelectorConfig::UniformOverSteps) {
                prop_assert!(batch.items.is_empty());
            }
        }
    }

    fn short_and_long(num_short: u64, num_long: u64) -> Items {
        let short = (0..num_short).map(|key| (key, (3, 1.0)));
        let long = (0..num_long).map(|key| (1_000 + key, (10, 1.0 + key as f64)));
        short.chain(long).collect()
    }

    /// Only one item in a hundred has a window, so that drawing again is given up.
    #[test]
    fn rare_windows_have_the_probabilities_of_the_closed_form_too() {
        for sampler in [
            SelectorConfig::Uniform,
            SelectorConfig::UniformOverSteps,
            SelectorConfig::prioritized(1.0),
        ] {
            check_draws(sampler, &short_and_long(300, 3), window(5, 0, false, false), 1500);
        }
    }

    #[test]
    fn a_request_waits_for_the_first_window_and_fails_where_none_can_come() {
        let of_six = of(window(6, 0, false, false));
        let mut state = state_of(SelectorConfig::Uniform, &short_and_long(3, 0));
        let batch = sample(&mut state, 2, of_six);
        assert!(!batch.is_over());
        assert_eq!(state.limiter().samples(), 0);
        let sentence = state.no_window(window(6, 0, false, false));
        assert_eq!(sentence, "No item of table t has a window of 6 steps; the longest has 3.");
        state.insert(item_of_length(9, 6, 1.0), 0);
        let batch = sample(&mut state, 2, of_six);
        assert_eq!(batch.items.iter().map(|it| it.key).collect::<Vec<_>>(), [9, 9]);

        let sampler = SelectorConfig::Uniform;
        let mut full = TableState::new(&TableConfig { sampler, ..config(3) });
        for key in 0..3 {
            full.insert(item_of_length(key, 2, 1.0), 0);
        }
        know_steps(&mut full);
        let error = sample(&mut full, 1, of_six).into_answer().unwrap_err();
        assert!(error.message().contains("longest has 2. The table is full"), "{error}");

        let rate_limiter = RateLimiterConfig { max_diff: 2.0, ..config(9).rate_limiter };
        let mut held = TableState::new(&TableConfig { sampler, rate_limiter, ..config(9) });
        held.insert(item_of_length(1, 2, 1.0), 0);
        held.insert(item_of_length(2, 2, 1.0), 0);
        know_steps(&mut held);
        let error = sample(&mut held, 1, of_six).into_answer().unwrap_err();
        assert!(error.message().contains("Inserts wait until items were sampled"), "{error}");
    }

    #[test]
    fn an_ordered_sampler_stops_before_an_item_without_a_window() {
        let lengths: Items = [(1, (6, 1.0)), (2, (6, 1.0)), (3, (2, 1.0))].into();
        let of_four = of(window(4, 0, false, false));
        let queue = |max_times_sampled| {
            let sampler = SelectorConfig::Fifo;
            let config = TableConfig { sampler, max_times_sampled, ..config(1000) };
            let mut state = TableState::new(&config);
            for (&key, &(steps, _)) in &lengths {
                state.insert(item_of_length(key, steps as usize, 1.0), 0);
            }
            know_steps(&mut state);
            state
        };
        let mut state = queue(1);
        let batch = sample(&mut state, 3, of_four);
        assert_eq!(batch.items.iter().map(|it| it.key).collect::<Vec<_>>(), [1, 2]);
        let error = sample(&mut state, 1, of_four).into_answer().unwrap_err();
        assert!(error.message().starts_with("Item 3, the next of table t, has no window"));
        assert_eq!((state.limiter().samples(), state.len()), (2, 1));
        // A whole batch, or one that is stacked, is sampled completely or not at all.
        let stacking = Some(Stacking::new(3));
        for options in [
            SampleOptions { all_or_nothing: true, ..of_four },
            SampleOptions { stacking, ..of_four },
            SampleOptions { distinct: true, ..of_four },
        ] {
            let mut state = queue(1);
            let batch = sample(&mut state, 3, options);
            assert!(batch.into_answer().is_err());
            assert_eq!((state.limiter().samples(), state.len()), (0, 3));
            assert_eq!(state.take_garbage().len(), 0);
        }
        let shuffle = SelectorConfig::Shuffle { seed: Some(1) };
        let mut state = state_of(shuffle, &lengths);
        let whole = SampleOptions { all_or_nothing: true, ..of_four };
        assert!(sample(&mut state, 3, whole).into_answer().is_err());
        assert_eq!((state.limiter().samples(), state.num_unique_samples()), (0, 0));
    }

    #[test]
    fn items_of_other_lengths_are_one_batch_of_windows() {
        let config = TableConfig { max_times_sampled: 1, ..config(1000) };
        let mut state = TableState::new(&config);
        assert!(state.contents.sampler.is_ordered());
        for (key, steps) in [(1, 6), (2, 9), (3, 30)] {
            state.insert(item_of_length(key, steps, 1.0), 0);
        }
        know_steps(&mut state);
        let stacking = Some(Stacking::new(3));
        let batch =
            sample(&mut state, 3, SampleOptions { stacking, ..of(window(4, 0, false, false)) });
        assert_eq!(batch.items.len(), 3);
        assert_eq!(state.len(), 0);
    }

    #[test]
    fn a_table_that_never_sees_a_window_counts_no_steps() {
        let mut state = TableState::new(&config(10));
        state.insert(item_of_length(1, 5, 1.0), 0);
        drop(sample(&mut state, 1, SampleOptions::default()));
        assert!(state.contents.step_counts.is_none());
    }
}
