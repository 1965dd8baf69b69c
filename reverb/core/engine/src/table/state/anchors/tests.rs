// SPDX-License-Identifier: Apache-2.0
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use reverb_data::{RateLimiterConfig, SampleOptions, SelectorConfig, Stacking, TableConfig};

use super::super::MAX_SAMPLE_BYTES;
use super::*;
use crate::table::items::AllItems;
use crate::table::lengths::Lengths;
use crate::table::testing::{config, item_of_length, item_of_lengths};

/// Items by key, with their number of steps and their priority.
type Items = BTreeMap<u64, (u32, f64)>;

fn state_of(sampler: SelectorConfig, items: &Items) -> TableState {
    filled(&TableConfig { sampler, seed: Some(7), ..config(1000) }, items)
}

/// A table with these items, whose steps it has counted.
fn filled(config: &TableConfig, items: &Items) -> TableState {
    let mut state = TableState::new(config);
    for (&key, &(steps, priority)) in items {
        state.insert(item_of_length(key, steps as usize, priority), 0);
    }
    know_steps(&mut state);
    state
}

/// Items of a priority of 1.
fn items_of(lengths: &[(u64, u32)]) -> Items {
    lengths.iter().map(|&(key, steps)| (key, (steps, 1.0))).collect()
}

fn keys(batch: &Batch) -> Vec<u64> {
    batch.items.iter().map(|item| item.key).collect()
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
    while state.has_pieces() {
        state.do_piece();
        state.sample(&mut batch);
    }
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
        SelectorConfig::Prioritized { .. } if priority == 0.0 => 0.0,
        SelectorConfig::Prioritized { priority_exponent, .. } => priority.powf(priority_exponent),
        _ => 1.0,
    };
    let mut all = BTreeMap::new();
    for (&key, &(steps, priority)) in items {
        // By enumeration, and not by the formulas of `StepWindow`.
        let fits = |anchor: u32| {
            (window.pads_left || anchor >= window.before)
                && (window.pads_right || anchor + window.length <= steps)
        };
        let anchors: Vec<u32> = (0..steps).filter(|&anchor| fits(anchor)).collect();
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
            } else {
                let handle = state.contents.items.find(item.key).unwrap();
                let of_one_draw = state.contents.sampler.probability_of(handle);
                assert!((item.probability - of_one_draw).abs() < 1e-12);
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
        SelectorConfig::Prioritized { priority_exponent: 1.0, draw: reverb_data::Draw::Stratified },
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
            prop_assert!(state.knows_steps());
            let window = windows[at % windows.len()];
            let expected: u64 = items.values().map(|&steps| u64::from(window.count(steps))).sum();
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
        let possible: BTreeSet<u64> =
            closed_form(sampler, &items, window).keys().map(|anchor| anchor.0).collect();
        let options = SampleOptions { distinct: true, ..of(window) };
        let batch = sample(&mut state, count, options);
        let keys: BTreeSet<u64> = keys(&batch).into_iter().collect();
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

/// Items of which hardly any has a window, and those have different numbers of them.
fn rare() -> Items {
    let long = [(1_000, (5, 1.0)), (1_001, (9, 4.0)), (1_002, (14, 0.5))];
    (0..300).map(|key| (key, (3, 1.0))).chain(long).collect()
}

/// Only one item in a hundred has a window, so that drawing again is given up.
#[test]
fn rare_windows_have_the_probabilities_of_the_closed_form_too() {
    for sampler in [
        SelectorConfig::Uniform,
        SelectorConfig::UniformOverSteps,
        SelectorConfig::prioritized(1.0),
    ] {
        for items in [short_and_long(300, 3), rare()] {
            check_draws(sampler, &items, window(5, 0, false, false), 1500);
        }
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
    assert_eq!(keys(&batch), [9, 9]);

    let sampler = SelectorConfig::Uniform;
    let of_two = items_of(&[(1, 2), (2, 2)]);
    let mut full = filled(&TableConfig { sampler, ..config(2) }, &of_two);
    let error = sample(&mut full, 1, of_six).into_answer().unwrap_err();
    assert!(error.message().contains("longest has 2. The table is full"), "{error}");

    let rate_limiter = RateLimiterConfig { max_diff: 2.0, ..config(9).rate_limiter };
    let mut held = filled(&TableConfig { sampler, rate_limiter, ..config(9) }, &of_two);
    let error = sample(&mut held, 1, of_six).into_answer().unwrap_err();
    assert!(error.message().contains("Inserts wait until items were sampled"), "{error}");

    // A request that the limiter holds back is not refused for its window.
    let rate_limiter = RateLimiterConfig { min_diff: 5.0, ..config(9).rate_limiter };
    let one = items_of(&[(1, 2)]);
    let mut limited = filled(&TableConfig { sampler, rate_limiter, ..config(1) }, &one);
    assert!(!sample(&mut limited, 1, of_six).is_over());
}

#[test]
fn an_ordered_sampler_stops_before_an_item_without_a_window() {
    let lengths = items_of(&[(1, 6), (2, 6), (3, 2)]);
    let of_four = of(window(4, 0, false, false));
    let queue = || filled(&TableConfig { max_times_sampled: 1, ..config(1000) }, &lengths);
    let mut state = queue();
    let batch = sample(&mut state, 3, of_four);
    assert_eq!(keys(&batch), [1, 2]);
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
        let mut state = queue();
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
    let mut state = filled(&config, &items_of(&[(1, 6), (2, 9), (3, 30)]));
    assert!(state.contents.sampler.is_ordered());
    let stacking = Some(Stacking::new(3));
    let batch = sample(&mut state, 3, SampleOptions { stacking, ..of(window(4, 0, false, false)) });
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

/// The weights of items in one draw: of an item over steps those of its windows.
fn weights(sampler: SelectorConfig, items: &Items, window: StepWindow) -> BTreeMap<u64, f64> {
    let mut weights = BTreeMap::new();
    for ((key, _), probability) in closed_form(sampler, items, window) {
        *weights.entry(key).or_default() += probability;
    }
    weights
}

#[test]
fn a_distinct_pair_has_the_probability_of_successive_draws() {
    const ROUNDS: u32 = 20_000;
    let window = window(5, 1, false, false);
    let few: Items = [(1, (6, 1.0)), (2, (8, 6.0)), (3, (18, 2.0)), (4, (5, 9.0))].into();
    for (sampler, items) in [
        (SelectorConfig::UniformOverSteps, few.clone()),
        (SelectorConfig::prioritized(1.0), few),
        // All that is left is chosen from a list.
        (SelectorConfig::UniformOverSteps, rare()),
        (SelectorConfig::prioritized(1.0), rare()),
    ] {
        let weights = weights(sampler, &items, window);
        let mut state = state_of(sampler, &items);
        let options = SampleOptions { distinct: true, ..of(window) };
        let mut counts: BTreeMap<Vec<u64>, f64> = BTreeMap::new();
        for _ in 0..ROUNDS {
            let batch = sample(&mut state, 2, options);
            let mut keys = keys(&batch);
            keys.sort_unstable();
            *counts.entry(keys).or_default() += 1.0;
            if sampler == SelectorConfig::UniformOverSteps {
                for item in &batch.items {
                    assert!((item.probability - weights[&item.key]).abs() < 1e-12);
                }
            }
        }
        let pair = |one: f64, other: f64| one * other / (1.0 - one) + other * one / (1.0 - other);
        for (&one, &weight) in &weights {
            for (&other, &of_other) in weights.range(one + 1..) {
                let expected = pair(weight, of_other) * f64::from(ROUNDS);
                let count = counts.remove(&vec![one, other]).unwrap_or(0.0);
                let far = 6.0 * expected.sqrt() + 1.0;
                assert!((count - expected).abs() < far, "{one} {other}: {count} of {expected}");
            }
        }
        assert_eq!(counts.len(), 0, "pairs that do not exist: {counts:?}");
    }
}

/// Items are counted in several blocks, while others come and go.
#[test]
fn steps_are_counted_beside_changes() {
    let window = window(4, 0, false, false);
    let steps = |key: u64| 1 + (key % 9) as u32;
    for changes in [false, true] {
        let mut state = TableState::new(&config(10_000));
        let mut items: BTreeMap<u64, u32> = (0..1_300).map(|key| (key, steps(key))).collect();
        for (&key, &steps) in &items {
            state.insert(item_of_length(key, steps as usize, 1.0), 0);
        }
        let mut rounds = 0;
        while !state.knows_steps() {
            state.count_steps();
            rounds += 1;
            if changes {
                for key in [rounds, 600 + rounds, 1_200 + rounds] {
                    state.delete(key);
                    items.remove(&key);
                }
                state.insert(item_of_length(2_000 + rounds, 8, 1.0), 0);
                items.insert(2_000 + rounds, 8);
            }
        }
        assert_eq!(rounds, 3);
        let expected: u64 = items.values().map(|&steps| u64::from(window.count(steps))).sum();
        let counts = state.contents.step_counts.as_mut().unwrap();
        assert_eq!(counts.num_windows(window), expected);
        for (&key, &steps) in &items {
            let handle = state.contents.items.find(key).unwrap();
            assert_eq!(state.contents.steps_of(handle), steps);
        }
    }
}

#[test]
fn an_ordered_sampler_keeps_what_comes_before_and_after_a_short_item() {
    let at = 10;
    let mut items: Items = (0..40).map(|key| (key, (6, 1.0))).collect();
    let sampler = SelectorConfig::Shuffle { seed: Some(3) };
    let plain = keys(&sample(&mut state_of(sampler, &items), 40, SampleOptions::default()));
    items.insert(plain[at], (2, 1.0));
    let mut state = state_of(sampler, &items);
    let batch = sample(&mut state, 40, of(window(4, 0, false, false)));
    assert_eq!(keys(&batch), plain[..at]);
    // The others were not taken: each comes once before the next pass.
    let rest = keys(&sample(&mut state, 40 - at, SampleOptions::default()));
    let sorted = |keys: &[u64]| keys.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(sorted(&rest), sorted(&plain[at..]));
}

#[test]
fn an_item_whose_columns_differ_has_its_longest_as_weight_and_no_window() {
    let sampler = SelectorConfig::UniformOverSteps;
    let mut state = TableState::new(&TableConfig { sampler, ..config(10) });
    state.insert(item_of_lengths(1, &[9, 3], 1.0), 0);
    state.insert(item_of_lengths(2, &[3, 3], 1.0), 0);
    assert_eq!(state.contents.sampler.mass(), Some(12.0));
    let batch = sample(&mut state, 400, SampleOptions::default());
    let of_first = batch.items.iter().filter(|item| item.key == 1).count();
    assert!((250..350).contains(&of_first), "{of_first} of 400 with probability 3/4");
    let batch = sample(&mut state, 50, of(window(2, 0, false, false)));
    assert!(batch.items.iter().all(|item| (item.key, item.window.count) == (2, 2)));
    assert_eq!(batch.items.len(), 50);
    state.delete(1);
    assert_eq!(state.contents.sampler.mass(), Some(3.0));
}

/// A request ends when its windows are large, and not the items that they are cut from.
#[test]
fn a_request_counts_the_bytes_of_windows() {
    let mut state = TableState::new(&config(10));
    state.insert(item_of_length(1, 150_000, 1.0), 0);
    know_steps(&mut state);
    let handle = state.contents.items.find(1).unwrap();
    let bytes = state.contents.items.get(handle).trajectory().chunk_bytes();
    let mut count = |options| sample(&mut state, 1_000, options).items.len();
    assert_eq!(count(SampleOptions::default()), MAX_SAMPLE_BYTES.div_ceil(bytes));
    let half = count(of(window(75_000, 0, false, false)));
    assert_eq!(half, MAX_SAMPLE_BYTES.div_ceil(bytes / 2));
    assert_eq!(count(of(window(100, 0, false, false))), 1_000);
}

/// Items that leave with a refused batch come back with their steps.
#[test]
fn a_batch_that_is_taken_back_leaves_all_windows() {
    let sampler = SelectorConfig::UniformOverSteps;
    for over in [sampler, SelectorConfig::Shuffle { seed: Some(1) }] {
        let config = TableConfig { sampler: over, max_times_sampled: 1, ..config(1000) };
        let mut state = filled(&config, &items_of(&[(0, 6), (1, 6), (2, 6), (3, 6)]));
        // Another number of columns.
        state.insert(item_of_lengths(9, &[6, 6], 1.0), 0);
        let stacking = Some(Stacking::new(5));
        let window = window(4, 0, false, false);
        let batch = sample(&mut state, 5, SampleOptions { stacking, ..of(window) });
        assert!(batch.into_answer().is_err());
        let counts = state.contents.step_counts.as_mut().unwrap();
        assert_eq!(counts.num_windows(window), 15);
        assert_eq!(state.len(), 5);
        assert_eq!(sample(&mut state, 5, of(window)).items.len(), 5);
    }
}

/// Items that are taken out for a distinct batch come back with their numbers of steps.
#[test]
fn a_distinct_batch_of_items_leaves_their_weights() {
    let items: Items = (0..40).map(|key| (key, (key as u32 % 5 + 2, 9.0))).collect();
    let mut state = state_of(SelectorConfig::UniformOverSteps, &items);
    assert_eq!(state.contents.sampler.mass(), Some(160.0));
    let options = SampleOptions { distinct: true, ..SampleOptions::default() };
    assert_eq!(sample(&mut state, 40, options).items.len(), 40);
    assert_eq!(state.contents.sampler.mass(), Some(160.0));
    let batch = sample(&mut state, 5, SampleOptions::default());
    let is_right = |sampled: &reverb_data::Sampled| {
        (sampled.probability - f64::from(items[&sampled.key].0) / 160.0).abs() < 1e-12
    };
    assert!(batch.items.iter().all(is_right));
}

/// Inserts, removes and weighs items at random, in the state and in the model.
fn change(state: &mut TableState, items: &mut Items, change: (u64, u32, f64)) {
    let (key, steps, priority) = change;
    match (items.get_mut(&key), steps) {
        (Some(_), 0..4) => {
            state.delete(key);
            items.remove(&key);
        }
        (Some(item), _) => {
            if steps == 8 {
                state.insert(item_of_length(key, item.0 as usize, priority), 0);
            } else {
                state.update(&[(key, priority)], &mut Vec::new());
            }
            item.1 = priority;
        }
        (None, 0) => {}
        (None, _) => {
            state.insert(item_of_length(key, steps as usize, priority), 0);
            items.insert(key, (steps, priority));
            items.retain(|&key, _| state.contents.items.find(key).is_some());
        }
    }
    drop(state.take_garbage());
}

fn some_change() -> impl Strategy<Value = (u64, u32, f64)> {
    (0u64..200, 0u32..9, prop::sample::select(vec![0.0, 0.5, 1.0, 2.0]))
}

/// The weights of items that have a window, by enumeration; equal ones while all are 0.
fn weights_of(sampler: SelectorConfig, items: &Items, window: StepWindow) -> BTreeMap<u64, f64> {
    let has_weight = items.values().any(|&(_, priority)| priority > 0.0);
    let flat = matches!(sampler, SelectorConfig::Prioritized { .. }) && !has_weight;
    let sampler = if flat { SelectorConfig::Uniform } else { sampler };
    weights(sampler, items, window)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// The spans of the sums are the probabilities, for windows of every length and whatever
    /// happens while sums are made and after it.
    #[test]
    fn sums_made_in_pieces_are_those_of_an_enumeration(
        sampler in with_chance(),
        before in prop::collection::vec(some_change(), 0..150),
        rounds in prop::collection::vec(
            (some_window(), prop::collection::vec(some_change(), 0..12), 0.2f64..1.5),
            1..12,
        ),
    ) {
        let mut items: Items = (0..100).map(|key| (key, (1 + key as u32 % 7, 1.0))).collect();
        let mut state = state_of(sampler, &items);
        // A full table: each new item evicts another one.
        let full = TableConfig { sampler, ..config(100) };
        state.configure(&full);
        assert!(state.shrink(&full, 1));
        for next in before {
            change(&mut state, &mut items, next);
        }
        for (window, changes, exponent) in rounds {
            let mut changes = changes.into_iter();
            while !state.has_sums(window) {
                state.do_piece();
                changes.by_ref().take(2).for_each(|next| change(&mut state, &mut items, next));
            }
            changes.for_each(|next| change(&mut state, &mut items, next));
            if let SelectorConfig::Prioritized { draw, .. } = sampler && exponent > 1.4 {
                // Other weights for all items, of which the sums know nothing.
                let mut new = crate::selector::NewWeights::new(0.7);
                for (handle, item) in state.contents.items.all(AllItems::Test) {
                    new.set(handle, item.priority()).unwrap();
                }
                drop(state.swap_weights(new));
                prop_assert!(draw == reverb_data::Draw::Independent || state.len() > 0);
            }
            while !state.has_sums(window) {
                state.do_piece();
            }
            let has_other = matches!(sampler, SelectorConfig::Prioritized { .. }) && exponent > 1.4;
            let sampler = if has_other { SelectorConfig::prioritized(0.7) } else { sampler };
            let expected = weights_of(sampler, &items, window);
            check_sums(&mut state, &expected)?;
            if has_other {
                return Ok(());
            }
        }
    }
}

/// Compares the sums with weights by key that add up to 1, by the spans of a thousand points.
fn check_sums(state: &mut TableState, expected: &BTreeMap<u64, f64>) -> Result<(), TestCaseError> {
    const POINTS: u32 = 1000;
    let Contents { step_counts, sampler, items, .. } = &mut state.contents;
    let (sums, steps) = step_counts.as_mut().unwrap().latest_sums();
    prop_assert_eq!(sums.total() > 0.0, !expected.is_empty());
    let mut spans: BTreeMap<u64, u32> = BTreeMap::new();
    for at in 0..if expected.is_empty() { 0 } else { POINTS } {
        let point = (f64::from(at) + 0.5) / f64::from(POINTS) * sums.total();
        let handle = sums.find(point, steps, sampler, |_| true).unwrap();
        *spans.entry(items.get(handle).key()).or_default() += 1;
    }
    for (key, weight) in expected {
        // A span has all points that lie in it.
        let span = f64::from(spans.remove(key).unwrap_or(0)) / f64::from(POINTS);
        prop_assert!(
            (span - weight).abs() < 1.001 / f64::from(POINTS),
            "{}: {} {}",
            key,
            span,
            weight
        );
    }
    prop_assert!(spans.is_empty(), "items without the window: {:?}", spans);
    Ok(())
}

#[test]
fn lengths_beyond_all_windows_are_counted_together() {
    let mut lengths = Lengths::default();
    let all = [1, 255, 256, 257, 65_535, 65_536, 65_537, u32::MAX];
    for steps in all {
        lengths.add(steps);
    }
    for length in [1, 2, 255, 256, 257, 300, 65_279, 65_280, 65_535, 65_536] {
        for padded in [false, true] {
            let window = window(length, 0, false, padded);
            let expected: u64 = all.iter().map(|&steps| u64::from(window.count(steps))).sum();
            assert_eq!(lengths.num_windows(window), expected, "{length} {padded}");
        }
    }
    for steps in all.into_iter().rev() {
        assert_eq!(lengths.longest(), steps.min(65_536));
        lengths.remove(steps);
    }
    assert_eq!(lengths.longest(), 0);
}

#[test]
fn a_request_waits_for_sums_and_is_served_after_the_last_piece() {
    let of_five = of(window(5, 0, false, false));
    for options in [of_five, SampleOptions { distinct: true, ..of_five }] {
        let mut state = state_of(SelectorConfig::Uniform, &short_and_long(900, 3));
        let mut batch = Batch::new(3, options.whole());
        let mut num_pieces = 0;
        state.sample(&mut batch);
        while state.has_pieces() {
            assert_eq!((batch.len(), batch.is_over(), state.limiter().samples()), (0, false, 0));
            state.do_piece();
            num_pieces += 1;
            state.sample(&mut batch);
        }
        assert_eq!((batch.len(), state.limiter().samples()), (3, 3));
        assert!(num_pieces > 20, "{num_pieces}");
    }
}
