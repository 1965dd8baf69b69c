// SPDX-License-Identifier: Apache-2.0
//! Known behaviour of dm-reverb's tables, as vectors of operations and results.
use crate::common::{
    self, config, insert, insert_all, item, item_of, limiter, min_size, queue, sample_one,
};
use reverb_data::{SelectorConfig, TableConfig};
use reverb_engine::Table;

const MAX_HEAP: SelectorConfig = SelectorConfig::Heap { min_heap: false };
const MIN_HEAP: SelectorConfig = SelectorConfig::Heap { min_heap: true };

#[test]
fn a_ratio_limiter_bounds_inserts_and_samples() {
    let rate_limiter = limiter(2.0, 3, 2.0, 10.0);
    let table = Table::new(TableConfig { rate_limiter, ..config(100) }).unwrap();
    let mut inserts = 0;
    while table.can_insert(1).unwrap() {
        insert(&table, vec![item(inserts, 1.0)]);
        inserts += 1;
    }
    assert_eq!(inserts, 5);
    let mut samples = 0;
    while table.can_sample(1).unwrap() {
        assert_eq!(table.try_sample(1).unwrap().len(), 1);
        samples += 1;
    }
    assert_eq!(samples, 8);
    let can_insert: Vec<bool> = (1..=5).map(|n| table.can_insert(n).unwrap()).collect();
    assert_eq!(can_insert, [true, true, true, true, false]);
    assert!(!table.can_sample(1).unwrap() && !table.can_sample(2).unwrap());
    assert!(table.try_sample(1).is_none());
}

#[test]
fn a_queue_stops_when_full_and_deletes_sampled_items() {
    let table = Table::new(queue(5)).unwrap();
    insert_all(&table, &[1.0; 5]);
    assert!(!table.can_insert(1).unwrap());
    assert!(table.can_sample(5).unwrap() && !table.can_sample(6).unwrap());
    assert_eq!(sample_one(&table).key, 0);
    let info = table.info();
    assert_eq!((info.current_size, info.num_deleted_episodes, info.num_unique_samples), (4, 1, 1));
}

#[test]
fn counters_follow_items_and_episodes() {
    let table = Table::new(TableConfig { max_times_sampled: 2, ..config(2) }).unwrap();
    let counters = || {
        let info = table.info();
        (info.current_size, info.num_episodes, info.num_deleted_episodes, info.num_inserts)
    };
    insert_all(&table, &[1.0; 3]);
    assert_eq!(counters(), (2, 2, 1, 3));
    let steps: Vec<_> = (0..4).map(|step| common::chunk(100 + step, 50, 8)).collect();
    insert(&table, vec![item_of(10, 1.0, &steps[..2])]);
    insert(&table, vec![item_of(11, 1.0, &steps[1..])]);
    assert_eq!(counters(), (2, 1, 3, 5));
    insert(&table, vec![item_of(12, 1.0, &[common::chunk(200, 51, 8)])]);
    assert_eq!(counters(), (2, 2, 3, 6));
    let samples = [sample_one(&table), sample_one(&table)];
    let seen = samples.map(|sample| (sample.key, sample.times_sampled, sample.table_size));
    assert_eq!(seen, [(11, 1, 2), (11, 2, 2)]);
    let info = table.info();
    assert_eq!(counters(), (1, 1, 4, 6));
    assert_eq!((info.num_unique_samples, info.num_samples, info.num_deletes), (1, 2, 5));
}

#[test]
fn a_max_heap_samples_the_highest_and_ties_rotate() {
    let heaps = |max_size| TableConfig { sampler: MAX_HEAP, remover: MIN_HEAP, ..config(max_size) };
    let table = Table::new(heaps(3)).unwrap();
    insert_all(&table, &[5.0, 5.0, 5.0, 1.0, 7.0]);
    for expected in [(4, 7.0), (1, 5.0), (2, 5.0)] {
        let sample = sample_one(&table);
        assert_eq!((sample.key, sample.priority), expected);
        assert_eq!(sample.probability.to_bits(), 1.0f64.to_bits());
        table.mutate(&[], &[sample.key]).unwrap();
    }
    assert_eq!(table.info().current_size, 0);

    let table = Table::new(heaps(3)).unwrap();
    insert_all(&table, &[1.0; 3]);
    assert_eq!(sample_one(&table).key, 0);
    table.mutate(&[(0, 1.0)], &[]).unwrap();
    assert_eq!(sample_one(&table).key, 1);
}

#[test]
fn a_lifo_remover_evicts_the_new_item() {
    let table = Table::new(TableConfig { remover: SelectorConfig::Lifo, ..config(2) }).unwrap();
    insert_all(&table, &[1.0; 5]);
    let info = table.info();
    assert_eq!((info.current_size, info.num_inserts, info.num_deleted_episodes), (2, 5, 3));
    assert_eq!(sample_one(&table).key, 0);
}

#[test]
fn exponent_zero_gives_equal_weights_except_for_zero() {
    let sampler = SelectorConfig::prioritized(0.0);
    let table = Table::new(TableConfig { sampler, ..config(10) }).unwrap();
    insert_all(&table, &[0.0, 1.0, 9.0]);
    let mut seen = [0; 3];
    for sample in table.try_sample(100).unwrap() {
        seen[sample.key as usize] += 1;
        assert_eq!(sample.probability.to_bits(), 0.5f64.to_bits());
    }
    assert!(seen[0] == 0 && seen[1] > 20 && seen[2] > 20, "{seen:?}");

    table.mutate(&[(1, 0.0), (2, 0.0)], &[]).unwrap();
    let mut seen = [0; 3];
    for sample in table.try_sample(100).unwrap() {
        seen[sample.key as usize] += 1;
        assert_eq!(sample.probability.to_bits(), (1.0f64 / 3.0).to_bits());
    }
    assert!(seen.iter().all(|&count| count > 10), "{seen:?}");
}

#[test]
fn an_item_is_deleted_after_its_last_sample() {
    let table =
        Table::new(TableConfig { max_times_sampled: 2, rate_limiter: min_size(2), ..config(10) })
            .unwrap();
    insert_all(&table, &[1.0; 3]);
    let seen: Vec<_> = table
        .try_sample(3)
        .unwrap()
        .iter()
        .map(|sample| (sample.key, sample.times_sampled, sample.table_size))
        .collect();
    assert_eq!(seen, [(0, 1, 3), (0, 2, 3), (1, 1, 2)]);
    assert_eq!(table.info().current_size, 2);
}

#[test]
fn a_table_smaller_than_its_minimum_never_samples() {
    let table = Table::new(TableConfig { rate_limiter: min_size(3), ..config(2) }).unwrap();
    insert_all(&table, &[1.0; 5]);
    assert_eq!(table.info().current_size, 2);
    assert!(!table.can_sample(1).unwrap() && table.can_insert(1).unwrap());
    assert_eq!(
        table.status().sampling.reason.unwrap().to_string(),
        "It will never hold the 3 items that sampling needs (min_size_to_sample): max_size is 2. \
         Raise max_size, or lower min_size_to_sample."
    );
}

#[test]
fn queued_inserts_survive_a_reset() {
    let table = Table::new(queue(1)).unwrap();
    let log = insert(&table, (0..3).map(|key| item(key, 1.0)).collect());
    assert_eq!(*log.confirmed.lock(), [0]);
    for expected in [vec![0, 1], vec![0, 1, 2]] {
        table.reset();
        let info = table.info();
        assert_eq!((info.current_size, info.num_inserts, info.num_deletes), (1, 1, 0));
        assert_eq!(*log.confirmed.lock(), expected);
    }
    assert_eq!(table.queued_inserts(), 0);
}
