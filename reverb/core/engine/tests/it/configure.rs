// SPDX-License-Identifier: Apache-2.0
//! Changing the settings of a table, pausing it, and turning its rate limiter off.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    Log, chunk, config, insert, insert_all, item, item_of, limiter, queue, sample_one, scan_rest,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use reverb_base::{ErrorKind, Result};
use reverb_data::{MemoryConfig, SelectorConfig, TableChange, TableConfig, WhenFull};
use reverb_engine::{ChangedBy, Configured, Confirm, LimiterHold, Table, configure};

fn change(table: &Arc<Table>, change: TableChange) -> Result<Configured> {
    configure(&[(Arc::clone(table), change)], false).map(|mut all| all.remove(0))
}

fn nothing() -> TableChange {
    TableChange::default()
}

fn by() -> ChangedBy {
    ChangedBy::now("learner-0")
}

#[test]
fn a_smaller_table_loses_what_its_remover_selects() {
    let table = Table::new(config(2000)).unwrap();
    insert_all(&table, &[1.0; 2000]);
    let configured = change(&table, TableChange { max_size: Some(700), ..nothing() }).unwrap();
    assert_eq!((configured.before.max_size, configured.after.max_size), (2000, 700));
    let info = table.info();
    assert_eq!((info.current_size, info.config.max_size, info.num_deletes), (700, 700, 1300));
    insert(&table, vec![item(5000, 1.0)]);
    assert_eq!(table.info().current_size, 700);
    change(&table, TableChange { max_size: Some(800), ..nothing() }).unwrap();
    insert(&table, vec![item(5001, 1.0)]);
    assert_eq!(table.info().current_size, 701);
}

#[test]
fn fewer_bytes_evict_and_wait_where_the_table_says_so() {
    for when_full in [WhenFull::Remove, WhenFull::Wait] {
        let memory = MemoryConfig { max_bytes: Some(1 << 20), when_full };
        let table = Table::new(TableConfig { memory, ..config(10_000) }).unwrap();
        insert_all(&table, &[1.0; 2000]);
        let bytes = table.bytes();
        let half = Some(Some(bytes / 2));
        change(&table, TableChange { max_bytes: half, ..nothing() }).unwrap();
        let log = insert(&table, vec![item(9000, 1.0)]);
        if when_full == WhenFull::Remove {
            assert!(table.bytes() <= bytes / 2 && table.info().current_size > 900);
            assert_eq!(log.keys(), [9000]);
        } else {
            assert_eq!((table.bytes(), log.keys()), (bytes, vec![]));
            let why = table.status().inserting.reason.unwrap().to_string();
            assert!(why.starts_with("Inserts wait for memory: the table holds "), "{why}");
            // Without the limit it goes on at once.
            change(&table, TableChange { max_bytes: Some(None), ..nothing() }).unwrap();
            assert_eq!(log.keys(), [9000]);
        }
    }
}

#[test]
fn an_item_that_waits_is_not_made_impossible() {
    let memory = MemoryConfig { max_bytes: Some(1000), when_full: WhenFull::Wait };
    let sampler = SelectorConfig::prioritized(0.5);
    let table = Table::new(TableConfig { memory, sampler, ..config(10_000) }).unwrap();
    insert_all(&table, &[1.0; 20]);
    let large = item_of(777, 1e200, &[chunk(777, 777, 500)]);
    let log = insert(&table, vec![large]);
    assert!(log.keys().is_empty());
    let error = change(&table, TableChange { max_bytes: Some(Some(10)), ..nothing() }).unwrap_err();
    assert!(error.message().contains("it would lose all its items"), "{error}");
    let fewer = TableChange { max_bytes: Some(Some(400)), ..nothing() };
    let error = change(&table, fewer).unwrap_err();
    assert!(error.message().starts_with("Item "), "{error}");
    assert!(error.message().contains("more than max_bytes 400 of table t"), "{error}");
    let steep = TableChange { priority_exponent: Some(2.0), ..nothing() };
    let error = change(&table, steep).unwrap_err();
    assert!(error.message().contains("to the power of priority_exponent 2"), "{error}");
    assert_eq!(table.config().sampler, sampler);
    assert_eq!(table.config().memory.max_bytes, Some(1000));
}

#[test]
fn a_smaller_queue_gives_out_what_is_left() {
    let table = Table::new(queue(100)).unwrap();
    insert_all(&table, &[1.0; 100]);
    let limiter = limiter(1.0, 1, 0.0, 50.0);
    let smaller =
        TableChange { max_size: Some(50), rate_limiter: Some(limiter), ..TableChange::default() };
    let configured = change(&table, smaller).unwrap();
    assert_eq!((configured.info.current_size, table.status().cursor), (50, 50.0));
    assert_eq!(table.try_sample(100).unwrap().len(), 50);
    // The table is empty, and accepts as many inserts as a new one.
    let log = insert(&table, (1000..1060).map(|key| item(key, 1.0)).collect());
    assert_eq!(log.keys().len(), 50);
}

#[test]
fn all_tables_change_or_none() {
    let first = Table::new(config(10)).unwrap();
    let second = Table::new(TableConfig { name: "second".into(), ..config(10) }).unwrap();
    let larger = TableChange { max_size: Some(20), ..nothing() };
    let exponent = TableChange { priority_exponent: Some(1.0), ..nothing() };
    let changes = [(Arc::clone(&first), larger.clone()), (Arc::clone(&second), exponent)];
    let error = configure(&changes, false).unwrap_err();
    assert!(error.message().contains("table second"), "{error}");
    assert_eq!(first.config().max_size, 10);
    let dry = configure(&changes[..1], true).unwrap();
    assert_eq!((dry[0].after.max_size, first.config().max_size), (20, 10));
    second.close();
    let changes = [(Arc::clone(&first), larger.clone()), (Arc::clone(&second), larger)];
    assert_eq!(configure(&changes, false).unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(first.config().max_size, 10);
}

#[test]
fn another_exponent_gives_other_probabilities() {
    let sampler = SelectorConfig::prioritized(1.0);
    let table = Table::new(TableConfig { sampler, ..config(5000) }).unwrap();
    let priorities: Vec<f64> = (0..3000).map(|at| f64::from(at % 7)).collect();
    insert_all(&table, &priorities);
    change(&table, TableChange { priority_exponent: Some(0.5), ..nothing() }).unwrap();
    let weights: f64 = priorities.iter().map(|priority| priority.sqrt()).sum();
    assert!((table.status().mass.unwrap() - weights).abs() < 1e-6);
    for _ in 0..100 {
        let sampled = sample_one(&table);
        assert!((sampled.probability - sampled.priority.sqrt() / weights).abs() < 1e-12);
    }
    table.mutate(&[(0, 49.0)], &[]).unwrap();
    assert!((table.status().mass.unwrap() - weights - 7.0).abs() < 1e-6);
}

#[test]
fn who_waited_goes_on_at_once() {
    let table = Table::new(queue(2)).unwrap();
    let log = insert(&table, (0..5).map(|key| item(key, 1.0)).collect());
    assert_eq!(log.keys(), [0, 1]);
    let larger = limiter(1.0, 1, 0.0, 4.0);
    let change_limiter = TableChange { rate_limiter: Some(larger), ..nothing() };
    change(&table, TableChange { max_size: Some(4), ..change_limiter.clone() }).unwrap();
    assert_eq!(log.keys(), [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_paused_side_waits_and_says_why() {
    let table = Table::new(config(10)).unwrap();
    insert_all(&table, &[1.0; 3]);
    table.pause(true, false, &by()).unwrap();
    let log = insert(&table, vec![item(8, 1.0)]);
    assert_eq!((log.keys(), sample_one(&table).key), (vec![], 0));
    let why = table.status().inserting.reason.unwrap().to_string();
    assert!(why.starts_with("It is paused by learner-0 since "), "{why}");
    // A second pause does not hide the first one.
    table.pause(true, true, &ChangedBy::now("another")).unwrap();
    let error = table.sample(1, Some(Duration::from_millis(5))).await.unwrap_err();
    assert!(error.message().contains("Samples of table t are paused by another"), "{error}");
    let status = table.status();
    assert_eq!(status.inserting.paused().unwrap().client.as_ref(), "learner-0");
    assert!(table.try_sample(1).is_none());
    table.resume(false, true).unwrap();
    assert_eq!((log.keys(), sample_one(&table).key), (vec![], 0));
    table.resume(true, true).unwrap();
    assert_eq!(log.keys(), [8]);
    assert_eq!(table.status().inserting.reason, None);
}

#[test]
fn a_hold_is_given_back_when_it_is_dropped() {
    let table = Table::new(queue(2)).unwrap();
    let hold = LimiterHold::begin(&table, false, &by()).unwrap();
    let log = insert(&table, (0..500).map(|key| item(key, 1.0)).collect());
    assert_eq!(log.keys().len(), 500);
    let error = LimiterHold::begin(&table, true, &ChangedBy::now("b")).unwrap_err();
    assert!(
        error.message().starts_with("The rate limiter of table t is off already, for learner-0"),
        "{error}"
    );
    assert_eq!(table.status().limiter_off.unwrap().client.as_ref(), "learner-0");
    assert_eq!(table.status().cursor, 0.0);
    drop(hold);
    assert_eq!((table.status().cursor, table.status().limiter_off), (0.0, None));
    let info = table.info();
    assert_eq!((info.num_inserts, info.num_samples), (500, 500));
    let log = insert(&table, (500..505).map(|key| item(key, 1.0)).collect());
    assert_eq!(log.keys(), [500, 501]);
}

/// Random changes while others insert, sample and update. After each answer the table is within its
/// limits, and only a remover has removed confirmed items.
#[test]
fn a_storm_of_changes_keeps_the_table_whole() {
    let sampler = SelectorConfig::prioritized(0.6);
    let table = Table::new(TableConfig { sampler, ..config(3000) }).unwrap();
    let stop = AtomicBool::new(false);
    let logs = [Log::new(), Log::new()];
    std::thread::scope(|scope| {
        for (writer, log) in (0u64..).zip(&logs) {
            let (table, stop) = (&table, &stop);
            scope.spawn(move || {
                let confirm: Arc<dyn Confirm> = log.clone();
                for round in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let first = (writer << 40) + round * 50;
                    let items = (first..first + 50).map(|key| item(key, (key % 9) as f64));
                    table.insert(items.collect(), &confirm).unwrap();
                    table.mutate(&[(first, 3.0)], &[]).unwrap();
                }
                // Items that the limiter blocks are confirmed when it is free.
                change(table, TableChange { rate_limiter: Some(free()), ..nothing() }).unwrap();
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    table.try_sample(64);
                }
            });
        }
        let mut rng = SmallRng::seed_from_u64(1);
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let max_size = rng.random_range(1..5000);
            let spi = f64::from(rng.random_range(1..9));
            let bounded = limiter(spi, 1, -50.0, 500.0);
            let asked = TableChange {
                max_size: rng.random_bool(0.5).then_some(max_size),
                max_bytes: rng.random_bool(0.2).then_some(Some(1 << rng.random_range(14..24))),
                max_times_sampled: rng.random_bool(0.2).then_some(rng.random_range(0..9)),
                rate_limiter: rng.random_bool(0.3).then_some(bounded),
                priority_exponent: rng.random_bool(0.3).then_some(rng.random_range(0.0..2.0)),
                ..TableChange::default()
            };
            change(&table, asked).unwrap();
            let status = table.status();
            assert!(status.info.current_size <= status.info.config.max_size);
            let max_bytes = status.info.config.memory.max_bytes.unwrap_or(u64::MAX);
            assert!(status.info.bytes <= max_bytes);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let status = table.status();
    let removed: u64 =
        reverb_engine::Removal::ALL.map(|why| status.statistics.removed.of(why)).iter().sum();
    let confirmed: u64 = logs.iter().map(|log| log.keys().len() as u64).sum();
    assert_eq!(status.statistics.inserts, confirmed);
    assert_eq!(confirmed, removed + status.info.current_size as u64);
    assert!(status.statistics.removed.of(reverb_engine::Removal::Shrunk) > 0);
    // The sums of the tree are those of the priorities.
    let SelectorConfig::Prioritized { priority_exponent, .. } = status.info.config.sampler else {
        panic!("the kind of a selector never changes")
    };
    let weigh =
        |priority: f64| if priority == 0.0 { 0.0 } else { priority.powf(priority_exponent) };
    let items = scan_rest(&table, &mut table.begin_scan().unwrap());
    let weights: f64 = items.iter().map(|item| weigh(item.priority)).sum();
    assert!((status.mass.unwrap() - weights).abs() <= 1e-9 * weights.max(1.0));
}

fn free() -> reverb_data::RateLimiterConfig {
    limiter(1.0, 1, -f64::MAX, f64::MAX)
}
