// SPDX-License-Identifier: Apache-2.0
//! Single items: bad input, repeated keys, sizes and memory.
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::{Log, chunk, config, insert, insert_all, item, item_of, queue, sample_one};
use reverb_base::ErrorKind;
use reverb_data::{NewItem, RateLimiterConfig, SelectorConfig, TableConfig};
use reverb_engine::{Confirm, MAX_SAMPLE_BYTES, Table};

const PRIORITIZED: SelectorConfig = SelectorConfig::prioritized(2.0);

#[test]
fn bad_priorities_change_nothing() {
    let plain = config(10);
    let as_sampler = TableConfig { sampler: PRIORITIZED, ..config(10) };
    let as_remover = TableConfig { remover: PRIORITIZED, ..config(10) };
    let negative = "Priority must not be negative. Got -1 for a prioritized selector.";
    let infinite = "Priority must be finite for a prioritized selector, got inf.";
    let large = "Priority 1e200 to the power of priority_exponent 2 must be at most 1e298.";
    for (config, priority, text) in [
        (&plain, f64::NAN, "Priority must not be NaN."),
        (&as_sampler, f64::NAN, "Priority must not be NaN."),
        (&as_sampler, -1.0, negative),
        (&as_remover, -1.0, negative),
        (&as_sampler, f64::INFINITY, infinite),
        (&as_remover, 1e200, large),
    ] {
        let table = Table::new(config.clone()).unwrap();
        insert_all(&table, &[1.0; 2]);
        let log = Log::new();
        let confirm: Arc<dyn Confirm> = log.clone();
        let error = table.insert(vec![item(5, 1.0), item(6, priority)], &confirm).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.message(), format!("Item 6 of table t: {text}"));
        let error = table.mutate(&[(0, 3.0), (1, priority)], &[0]).unwrap_err();
        assert_eq!(error.message(), format!("Item 1 of table t: {text}"));

        assert!(log.confirmed.lock().is_empty() && log.failed.lock().is_empty());
        assert_eq!((table.info().current_size, table.info().num_inserts), (2, 2));
        // The table still works, with the old priorities.
        table.mutate(&[], &[0]).unwrap();
        let sample = sample_one(&table);
        assert_eq!((sample.key, sample.priority.to_bits()), (1, 1.0f64.to_bits()));
        assert_eq!(sample.probability.to_bits(), 1.0f64.to_bits());
    }
    let table = Table::new(plain).unwrap();
    insert_all(&table, &[-1.0, f64::INFINITY]);
    assert_eq!(table.info().current_size, 2);
}

#[test]
fn a_repeated_key_only_updates_the_priority() {
    let table = Table::new(TableConfig { sampler: SelectorConfig::Lifo, ..config(3) }).unwrap();
    insert_all(&table, &[1.0; 2]);
    let log = insert(&table, vec![item_of(0, 9.0, &[chunk(70, 70, 8)])]);
    assert_eq!(*log.confirmed.lock(), [0]);
    let info = table.info();
    assert_eq!((info.current_size, info.num_inserts, info.num_episodes), (2, 2, 2));
    assert_eq!(sample_one(&table).key, 1, "the order stays");
    table.mutate(&[], &[1]).unwrap();
    let sample = sample_one(&table);
    assert_eq!((sample.key, sample.priority.to_bits()), (0, 9.0f64.to_bits()));
    assert_eq!(sample.trajectory.chunks()[0].key(), 0, "the data stays");

    // The insert still waits for the limiter.
    let table = Table::new(queue(1)).unwrap();
    let log = insert(&table, vec![item(0, 1.0), item(0, 2.0)]);
    assert_eq!(*log.confirmed.lock(), [0]);
    assert_eq!(sample_one(&table).key, 0);
    assert_eq!(*log.confirmed.lock(), [0, 0], "by then the key was free again");
}

#[test]
fn deletes_come_before_updates_and_unknown_keys_are_ignored() {
    let table = Table::new(config(3)).unwrap();
    insert_all(&table, &[1.0; 2]);
    table.mutate(&[(0, 5.0), (1, 6.0), (99, 1.0)], &[0, 98]).unwrap();
    assert_eq!(table.info().num_deletes, 1);
    let sample = sample_one(&table);
    assert_eq!((sample.key, sample.priority.to_bits()), (1, 6.0f64.to_bits()));
}

#[test]
fn the_count_of_samples_may_come_with_an_item() {
    let table = Table::new(TableConfig { max_times_sampled: 3, ..config(3) }).unwrap();
    let with_count = |key, times_sampled| vec![NewItem { times_sampled, ..item(key, 1.0) }];
    insert(&table, with_count(0, 1));
    insert(&table, with_count(1, 7));
    let seen: Vec<_> = table
        .try_sample(3)
        .unwrap()
        .iter()
        .map(|sample| (sample.key, sample.times_sampled))
        .collect();
    assert_eq!(seen, [(0, 2), (0, 3), (1, 8)]);
    let info = table.info();
    assert_eq!((info.current_size, info.num_unique_samples), (0, 0));
}

#[test]
fn a_sample_has_the_insertion_time() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64;
    let table = Table::new(config(1)).unwrap();
    let before = now();
    insert_all(&table, &[1.0]);
    let sample = sample_one(&table);
    assert!((before..=now()).contains(&sample.inserted_at_ns));
}

#[test]
fn a_request_is_full_at_one_mebibyte() {
    let table = Table::new(config(10)).unwrap();
    for key in 0..4 {
        insert(&table, vec![item_of(key, 1.0, &[chunk(key, 1, MAX_SAMPLE_BYTES / 2 - 1)])]);
    }
    let info = table.info();
    assert_eq!(info.num_chunks, 4);
    let values = 4 * (MAX_SAMPLE_BYTES as u64 / 2 - 1);
    assert!((values..values + 2000).contains(&info.bytes), "{}", info.bytes);
    assert_eq!(table.try_sample(10).unwrap().len(), 3);
    table.reset();
    insert(&table, vec![item_of(0, 1.0, &[chunk(0, 1, MAX_SAMPLE_BYTES)])]);
    assert_eq!(table.try_sample(10).unwrap().len(), 1, "at least one");
}

#[test]
fn a_request_for_endless_samples_of_nothing_ends() {
    let table = Table::new(config(1)).unwrap();
    insert(&table, vec![item_of(0, 1.0, &[chunk(0, 1, 0)])]);
    assert_eq!(table.try_sample(usize::MAX).unwrap().len(), 65_536);
}

#[test]
fn chunks_are_freed_with_the_last_reference() {
    let shared = chunk(1, 1, 100);
    let table = Table::new(TableConfig { max_times_sampled: 2, ..config(3) }).unwrap();
    let other = Table::new(config(3)).unwrap();
    for key in 0..3 {
        insert(&table, vec![item_of(key, 1.0, std::slice::from_ref(&shared))]);
    }
    insert(&other, vec![item_of(0, 1.0, std::slice::from_ref(&shared))]);
    assert_eq!(shared.reference_count(), 5);
    insert(&table, vec![item(3, 1.0)]);
    assert_eq!(shared.reference_count(), 4, "evicted");
    table.mutate(&[], &[1]).unwrap();
    assert_eq!(shared.reference_count(), 3, "deleted");
    let samples = table.try_sample(2).unwrap();
    assert_eq!(shared.reference_count(), 4, "used up, but both samples refer to it");
    drop(samples);
    assert_eq!(shared.reference_count(), 2);
    other.reset();
    assert_eq!(shared.reference_count(), 1);

    let table = Table::new(queue(1)).unwrap();
    for key in 0..3 {
        insert(&table, vec![item_of(key, 1.0, std::slice::from_ref(&shared))]);
    }
    assert_eq!(shared.reference_count(), 4);
    table.close();
    assert_eq!(shared.reference_count(), 2, "queued inserts are freed");
    drop(table);
    assert_eq!(shared.reference_count(), 1);
}

#[test]
fn counts_below_one_are_refused() {
    let table = Table::new(config(1)).unwrap();
    for n in [0, -1] {
        assert_eq!(
            table.can_sample(n).unwrap_err().message(),
            format!("num_samples must be at least 1, got {n}.")
        );
        assert_eq!(
            table.can_insert(n).unwrap_err().message(),
            format!("num_inserts must be at least 1, got {n}.")
        );
    }
}

#[test]
fn bad_configurations_are_named() {
    let text = |config| Table::new(config).unwrap_err().message().to_owned();
    let name = String::new();
    assert_eq!(text(TableConfig { name, ..config(1) }), "name of a table must not be empty.");
    for max_size in [0, -3, 1 << 31] {
        assert_eq!(
            text(config(max_size)),
            format!("Table t: max_size must be at least 1 and at most 2147483647, got {max_size}.")
        );
    }
    let remover = SelectorConfig::prioritized(f64::NAN);
    assert_eq!(
        text(TableConfig { remover, ..config(1) }),
        "Table t: priority_exponent must be finite, got NaN."
    );
    let rate_limiter = RateLimiterConfig { min_size_to_sample: 0, ..config(1).rate_limiter };
    assert_eq!(
        text(TableConfig { rate_limiter, ..config(1) }),
        "Table t: min_size_to_sample must be at least 1, got 0."
    );
}
