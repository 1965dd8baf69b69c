// SPDX-License-Identifier: Apache-2.0
//! Frequencies of sampled items, compared with closed forms, while other threads change the table.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{self, config, insert, insert_all, item};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use reverb_data::{Draw, MAX_PRIORITY, MaxPriority, NewItem, SelectorConfig, TableConfig};
use reverb_engine::Table;

const ITEMS: usize = 50;
const DRAWS: usize = 100_000;
/// An item whose priority changes all the time.
const RESTLESS: u64 = ITEMS as u64;

fn table(sampler: SelectorConfig) -> Arc<Table> {
    Table::new(TableConfig { sampler, seed: Some(7), ..config(1000) }).unwrap()
}

fn priorities() -> Vec<f64> {
    (0..ITEMS).map(|i| if i % 10 == 3 { 0.0 } else { 0.5 + i as f64 / 7.0 }).collect()
}

/// The share of each item, if only these are sampled.
fn shares(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Compares counts with shares, at six standard deviations.
fn assert_chi_square(counts: &[f64], shares: &[f64], what: &str) {
    let total: f64 = counts.iter().sum();
    let mut chi_square = 0.0;
    let mut freedom = -1.0;
    for (&count, &share) in counts.iter().zip(shares) {
        if share == 0.0 {
            assert_eq!(count, 0.0, "{what}");
            continue;
        }
        chi_square += (count - total * share).powi(2) / (total * share);
        freedom += 1.0;
    }
    let bound = freedom + 6.0 * f64::sqrt(2.0 * freedom);
    assert!(chi_square < bound, "{what}: {chi_square} with {freedom} degrees of freedom");
}

/// Counts how often each item is sampled while another thread gives all items their priorities
/// again, and one more item a new priority each time, which is not counted.
fn counts_under_updates(table: &Arc<Table>, priorities: &[f64]) -> Vec<f64> {
    let is_over = AtomicBool::new(false);
    let mut counts = vec![0.0; priorities.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = SmallRng::seed_from_u64(1);
            while !is_over.load(Ordering::Relaxed) {
                let mut updates: Vec<(u64, f64)> = priorities
                    .iter()
                    .enumerate()
                    .map(|(key, &priority)| (key as u64, priority))
                    .collect();
                updates.push((RESTLESS, rng.random_range(0.0..20.0)));
                table.mutate(&updates, &[]).unwrap();
                std::thread::yield_now();
            }
        });
        for _ in 0..DRAWS / 100 {
            for sampled in table.try_sample(100).unwrap() {
                if let Some(count) = counts.get_mut(sampled.key as usize) {
                    *count += 1.0;
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    counts
}

#[test]
fn prioritized_items_come_in_proportion_to_their_weights() {
    for draw in [Draw::Independent, Draw::Stratified, Draw::Systematic] {
        for priority_exponent in [0.0, 0.5, 1.0, -1.0] {
            let table = table(SelectorConfig::Prioritized { priority_exponent, draw });
            let priorities = priorities();
            insert_all(&table, &priorities);
            insert(&table, vec![item(RESTLESS, 1.0)]);
            let weigh = |&priority: &f64| {
                if priority == 0.0 { 0.0 } else { priority.powf(priority_exponent) }
            };
            let weights: Vec<f64> = priorities.iter().map(weigh).collect();
            let counts = counts_under_updates(&table, &priorities);
            let what = format!("{draw:?} with exponent {priority_exponent}");
            assert_chi_square(&counts, &shares(&weights), &what);
        }
    }
}

#[test]
fn uniform_and_shuffled_items_are_alike() {
    for sampler in [SelectorConfig::Uniform, SelectorConfig::Shuffle { seed: None }] {
        let table = table(sampler);
        insert_all(&table, &priorities());
        insert(&table, vec![item(RESTLESS, 1.0)]);
        let counts = counts_under_updates(&table, &priorities());
        assert_chi_square(&counts, &shares(&[1.0; ITEMS]), sampler.name());
    }
}

#[test]
fn recent_items_come_by_their_age() {
    for expected_age in [0.5, 5.0, 1e6] {
        let table = table(SelectorConfig::Recent { expected_age });
        // Holes, as a remover leaves them.
        (0..3 * ITEMS as u64).for_each(|key| insert_one(&table, key + 1000, 1.0));
        let holes: Vec<u64> = (0..3 * ITEMS as u64).map(|key| key + 1000).collect();
        (0..ITEMS as u64).for_each(|key| {
            insert_one(&table, key, 1.0);
            table.mutate(&[], &[holes[3 * key as usize], holes[3 * key as usize + 1]]).unwrap();
            table.mutate(&[], &[holes[3 * key as usize + 2]]).unwrap();
        });
        let counts = counts_under_updates(&table, &vec![1.0; ITEMS]);
        let q: f64 = expected_age / (expected_age + 1.0);
        let weights: Vec<f64> = (0..ITEMS).map(|key| q.powi((ITEMS - 1 - key) as i32)).collect();
        // A rare item makes the statistic jump.
        let is_common = |weight: f64| weight / weights.iter().sum::<f64>() > 20.0 / DRAWS as f64;
        let keep = |values: &[f64]| -> Vec<f64> {
            let pairs = values.iter().zip(&weights);
            pairs.filter(|(_, weight)| is_common(**weight)).map(|(value, _)| *value).collect()
        };
        let what = format!("expected age {expected_age}");
        assert_chi_square(&keep(&counts), &shares(&keep(&weights)), &what);
    }
}

fn insert_one(table: &Table, key: u64, priority: f64) {
    insert(table, vec![item(key, priority)]);
}

#[test]
fn ordered_samplers_choose_one_item() {
    let heap = |min_heap| SelectorConfig::Heap { min_heap };
    for (sampler, expected) in
        [(SelectorConfig::Fifo, 0), (SelectorConfig::Lifo, 49), (heap(false), 49), (heap(true), 0)]
    {
        let table = table(sampler);
        let rising: Vec<f64> = (0..ITEMS).map(|i| i as f64).collect();
        insert_all(&table, &rising);
        let mut updates: Vec<(u64, f64)> =
            rising.iter().enumerate().map(|(key, &priority)| (key as u64, priority)).collect();
        updates.reverse();
        for _ in 0..100 {
            table.mutate(&updates, &[]).unwrap();
            let sampled = table.try_sample(10).unwrap();
            assert!(sampled.iter().all(|sampled| sampled.key == expected), "{sampler:?}");
            assert!(sampled.iter().all(|sampled| sampled.min_probability == 1.0));
        }
    }
}

#[test]
fn every_stratum_gives_its_share() {
    let mut rng = SmallRng::seed_from_u64(5);
    for draw in [Draw::Stratified, Draw::Systematic] {
        for _ in 0..20 {
            let table = table(SelectorConfig::Prioritized { priority_exponent: 1.0, draw });
            let priorities: Vec<f64> = (0..ITEMS).map(|_| rng.random_range(0.0..4.0)).collect();
            insert_all(&table, &priorities);
            let count = rng.random_range(1..200);
            let mut seen = [0.0; ITEMS];
            for sampled in table.try_sample(count).unwrap() {
                seen[sampled.key as usize] += 1.0;
            }
            let (mut got, mut expected) = (0.0, 0.0);
            for (seen, share) in seen.iter().zip(shares(&priorities)) {
                got += seen;
                expected += count as f64 * share;
                assert!(f64::abs(got - expected) < 1.0 + 1e-9, "{got} of {expected}");
            }
        }
    }
}

#[test]
fn the_mean_of_a_stratified_request_varies_less() {
    let mut rng = SmallRng::seed_from_u64(6);
    for _ in 0..20 {
        let priorities: Vec<f64> = (0..ITEMS).map(|_| rng.random_range(0.0..4.0)).collect();
        let values: Vec<f64> = (0..ITEMS).map(|_| rng.random()).collect();
        let variance = |draw| {
            let table = table(SelectorConfig::Prioritized { priority_exponent: 1.0, draw });
            insert_all(&table, &priorities);
            let means: Vec<f64> = (0..200)
                .map(|_| {
                    let samples = table.try_sample(64).unwrap();
                    samples.iter().map(|sampled| values[sampled.key as usize]).sum::<f64>() / 64.0
                })
                .collect();
            let mean = means.iter().sum::<f64>() / means.len() as f64;
            means.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / means.len() as f64
        };
        let (stratified, independent) = (variance(Draw::Stratified), variance(Draw::Independent));
        assert!(stratified < independent, "{stratified} and {independent}");
    }
}

#[test]
fn the_smallest_probability_is_that_of_present_items() {
    let table = table(SelectorConfig::prioritized(1.0));
    insert_all(&table, &[0.0, 1.0, 3.0, 4.0]);
    let min = || table.try_sample(1).unwrap()[0].min_probability;
    assert_eq!(min(), 1.0 / 8.0);
    table.mutate(&[(3, 16.0)], &[]).unwrap();
    assert_eq!(min(), 1.0 / 20.0);
    table.mutate(&[], &[1]).unwrap();
    assert_eq!(min(), 3.0 / 19.0);
    table.mutate(&[(2, 0.0), (3, 0.0)], &[]).unwrap();
    assert_eq!(min(), 1.0 / 3.0);
}

#[test]
fn new_items_of_the_largest_priority_follow_the_rule_of_the_table() {
    for (rule, expected) in [(MaxPriority::Present, 2.0), (MaxPriority::Ever, 9.0)] {
        for exponent in [1.0, 0.3, -0.5] {
            let table = Table::new(TableConfig {
                sampler: SelectorConfig::prioritized(exponent),
                max_priority: rule,
                ..config(100)
            })
            .unwrap();
            assert_eq!(table.info().max_priority, None);
            insert_one(&table, 0, MAX_PRIORITY);
            assert_eq!(table.info().max_priority, Some(1.0));
            insert_all(&table, &[9.0, 2.0, 0.5]);
            table.mutate(&[], &[0]).unwrap();
            insert_one(&table, 5, MAX_PRIORITY);
            let scan = table.scan(&mut table.begin_scan().unwrap()).unwrap();
            let found = scan.iter().find(|item| item.key == 5).unwrap();
            assert_eq!(found.priority, expected, "{rule:?} with exponent {exponent}");
            assert_eq!(table.watched().max_priority, Some(expected));
            table.reset();
            insert_one(&table, 6, MAX_PRIORITY);
            assert_eq!(table.try_sample(1).unwrap()[0].priority, 1.0);
        }
    }
}

#[test]
fn what_the_remover_cannot_take_is_refused() {
    let table = Table::new(TableConfig { remover: SelectorConfig::prioritized(1.0), ..config(10) })
        .unwrap();
    let log = common::Log::new();
    let confirm: Arc<dyn reverb_engine::Confirm> = log.clone();
    let bad = NewItem { removal_priority: Some(-1.0), ..item(4, 1.0) };
    let error = table.insert(vec![bad], &confirm).unwrap_err();
    assert!(
        error.message().starts_with(
            "removal_priority of item 4 of table t: Priority must not be negative. Got -1"
        ),
        "{error}"
    );
    let good = NewItem { removal_priority: Some(0.0), ..item(4, 1.0) };
    table.insert(vec![good], &confirm).unwrap();
    assert_eq!(log.keys(), [4]);
}
