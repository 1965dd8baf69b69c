// SPDX-License-Identifier: Apache-2.0
//! Scans of a table that changes meanwhile.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{chunk, config, insert, insert_all, item, item_of, queue, scan_rest};
use reverb_base::ErrorKind;
use reverb_data::{ItemCondition, NewItem, TableConfig};
use reverb_engine::{MAX_SAMPLE_BYTES, Scan, Table};

fn rest(table: &Table, scan: &mut Scan) -> Vec<u64> {
    scan_rest(table, scan).iter().map(|item| item.key).collect()
}

fn scanned(table: &Table) -> Vec<u64> {
    rest(table, &mut table.begin_scan().unwrap())
}

#[test]
fn items_come_oldest_first_whatever_their_entries() {
    let table = Table::new(config(1000)).unwrap();
    insert_all(&table, &[1.0; 20]);
    // Free entries are reused in another order.
    table.mutate(&[(3, 9.0)], &[0, 5, 7]).unwrap();
    for key in 20..25 {
        insert(&table, vec![item(key, 1.0)]);
    }
    insert(&table, vec![item(9, 5.0)]);
    let expected: Vec<u64> = (0..25).filter(|key| ![0, 5, 7].contains(key)).collect();
    assert_eq!(scanned(&table), expected);
}

#[test]
fn items_of_one_call_keep_their_order() {
    let table = Table::new(config(100)).unwrap();
    insert(&table, (0..50).map(|key| item(49 - key, 1.0)).collect());
    assert_eq!(scanned(&table), (0..50).rev().collect::<Vec<_>>());
}

#[test]
fn nothing_is_counted_and_no_limiter_is_asked() {
    let table = Table::new(queue(3)).unwrap();
    insert(&table, (0..5).map(|key| item(key, 1.0)).collect());
    let before = table.info();
    assert_eq!((before.current_size, before.waiting_inserts), (3, 2));
    let items = table.scan(&mut table.begin_scan().unwrap()).unwrap();
    assert_eq!(items.iter().map(|item| item.key).collect::<Vec<_>>(), [0, 1, 2]);
    for item in items {
        assert_eq!((item.times_sampled, item.table_size, item.probability), (0, 3, 0.0));
        assert_eq!((item.priority, item.rate_limited), (1.0, false));
    }
    let after = table.info();
    assert_eq!(reverb_data::TableInfo { worker_time: before.worker_time, ..after }, before);
}

#[test]
fn changes_before_an_item_is_reached_are_seen() {
    let table = Table::new(config(10_000)).unwrap();
    insert_all(&table, &[1.0; 2000]);
    let mut scan = table.begin_scan().unwrap();
    let first = table.scan(&mut scan).unwrap();
    assert!(first.len() < 1000, "the test needs several steps");
    // 1999 is deleted, and a newer item takes its entry. 1998 only gets another priority.
    table.mutate(&[(1998, 7.0)], &[0, 1999]).unwrap();
    insert(&table, vec![item(5000, 1.0), item(5001, 1.0)]);
    let mut items = first;
    items.extend(scan_rest(&table, &mut scan));
    assert_eq!(
        items.iter().map(|item| item.key).collect::<Vec<_>>(),
        (0..1999).collect::<Vec<_>>()
    );
    assert_eq!((items[1998].priority, items[1998].table_size), (7.0, 2000));
    assert_eq!(scanned(&table).last(), Some(&5001));
}

#[test]
fn a_reset_ends_a_scan_even_if_the_table_is_filled_again() {
    let table = Table::new(config(10_000)).unwrap();
    insert_all(&table, &[1.0; 2000]);
    let mut scan = table.begin_scan().unwrap();
    assert!(!table.scan(&mut scan).unwrap().is_empty());
    table.reset();
    insert_all(&table, &[1.0; 1500]);
    assert_eq!(rest(&table, &mut scan), [] as [u64; 0]);
    assert_eq!(scanned(&table).len(), 1500);
}

#[test]
fn large_items_come_a_mebibyte_at_a_time() {
    let table = Table::new(config(10)).unwrap();
    for key in 0..5 {
        insert(&table, vec![item_of(key, 1.0, &[chunk(key, 1, MAX_SAMPLE_BYTES / 2)])]);
    }
    let mut scan = table.begin_scan().unwrap();
    let counts: Vec<usize> = (0..4).map(|_| table.scan(&mut scan).unwrap().len()).collect();
    assert_eq!(counts, [2, 2, 1, 0]);
}

#[test]
fn an_empty_table_and_a_closed_one() {
    let table = Table::new(config(10)).unwrap();
    assert_eq!(scanned(&table), [] as [u64; 0]);
    insert_all(&table, &[1.0]);
    let mut scan = table.begin_scan().unwrap();
    table.close();
    assert_eq!(table.scan(&mut scan).unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(table.begin_scan().unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn items_that_stay_come_once_and_in_order() {
    let table = Table::new(TableConfig { max_size: 30_000, ..config(1) }).unwrap();
    insert_all(&table, &vec![1.0; 20_000]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut key = 100_000;
            while !is_over.load(Ordering::Relaxed) {
                insert(&table, (key..key + 100).map(|key| item(key, 1.0)).collect());
                // Odd keys are deleted, even ones stay.
                let gone = (key..key + 100).map(|key| (key * 7 % 10_000) * 2 + 1);
                let newer = key.saturating_sub(200)..key.saturating_sub(100);
                let deletes: Vec<u64> = gone.chain(newer).collect();
                table.mutate(&[], &deletes).unwrap();
                key += 100;
            }
        });
        for _ in 0..20 {
            let keys = scanned(&table);
            assert!(keys.is_sorted());
            let evens = keys.iter().filter(|&&key| key < 20_000 && key % 2 == 0);
            assert_eq!(evens.count(), 10_000);
            assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

fn priorities(lowest: f64, highest: f64) -> ItemCondition {
    ItemCondition { priority: (lowest, highest), ..ItemCondition::ALL }
}

#[test]
fn a_condition_is_checked_when_listed_and_when_visited() {
    let table = Table::new(config(10_000)).unwrap();
    insert_all(&table, &(0..2000).map(f64::from).collect::<Vec<_>>());
    let mut scan = table.begin_scan_where(priorities(900.0, 1900.0)).unwrap();
    let first = table.scan(&mut scan).unwrap();
    assert!(first.len() < 1000, "the test needs several steps");
    // One leaves the range and one enters it, too late for this scan.
    table.mutate(&[(1900, 1901.0), (0, 950.0)], &[]).unwrap();
    let keys = first.iter().map(|item| item.key).chain(rest(&table, &mut scan));
    assert_eq!(keys.collect::<Vec<_>>(), (900..1900).collect::<Vec<_>>());
    let mut scan = table.begin_scan_where(priorities(900.0, 1900.0)).unwrap();
    assert_eq!(rest(&table, &mut scan).len(), 1001);
}

#[test]
fn keys_are_fetched_in_their_order_without_those_that_left() {
    let table = Table::new(config(10_000)).unwrap();
    insert_all(&table, &[1.0; 2000]);
    table.mutate(&[(6, 9.0)], &[5]).unwrap();
    let keys: Vec<u64> = (0..3000).rev().chain([6, 6]).collect();
    let fetched = |condition| rest(&table, &mut table.begin_fetch(&keys, condition).unwrap());
    let expected: Vec<u64> = (0..2000).rev().filter(|&key| key != 5).chain([6, 6]).collect();
    assert_eq!(fetched(ItemCondition::ALL), expected);
    assert_eq!(fetched(priorities(2.0, 9.0)), [6; 3]);
    assert_eq!(table.info().num_samples, 0);
    // An item that leaves in the middle is left out, and another one in its entry, too.
    let mut scan = table.begin_fetch(&[1, 2, 3], ItemCondition::ALL).unwrap();
    table.mutate(&[], &[2]).unwrap();
    insert(&table, vec![item(7000, 1.0)]);
    assert_eq!(rest(&table, &mut scan), [1, 3]);
}

/// Puts new items in the place of those with these keys.
fn replace(table: &Table, keys: impl IntoIterator<Item = u64>) {
    let new = |key| NewItem { key, replaces: true, ..item(10_000_000 + fresh(), 2.0) };
    insert(table, keys.into_iter().map(new).collect());
}

fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn a_replaced_item_is_read_once_whenever_it_is_replaced() {
    let table = Table::new(config(10_000)).unwrap();
    insert_all(&table, &[1.0; 2000]);
    let all: Vec<u64> = (0..2000).collect();
    // Before the scan begins, between listing and reading, and after some were read.
    replace(&table, 0..10);
    let mut scan = table.begin_scan().unwrap();
    let mut older = table.begin_scan().unwrap();
    replace(&table, 0..2000);
    let mut keys: Vec<u64> = Vec::new();
    loop {
        let some = table.scan_some(&mut scan, 100).unwrap();
        if some.is_empty() {
            break;
        }
        assert!(some.iter().all(|item| item.priority == 2.0));
        keys.extend(some.iter().map(|item| item.key));
        replace(&table, (0..2000).step_by(3));
    }
    keys.sort_unstable();
    assert_eq!(keys, all);
    // Lists of a part at a time, each after more replacements.
    let mut listed = table.begin_unlisted_scan(ItemCondition::ALL).unwrap();
    keys.clear();
    while listed.needs_list() {
        replace(&table, (0..2000).step_by(7));
        table.list(&mut listed, 300).unwrap();
        replace(&table, (0..2000).step_by(5));
        keys.extend(rest(&table, &mut listed));
    }
    keys.sort_unstable();
    assert_eq!(keys, all);
    // A key that left meanwhile and came back is another item.
    table.mutate(&[], &[5, 6]).unwrap();
    insert(&table, vec![item(20_000_000, 1.0), NewItem { key: 5, ..item(20_000_001, 1.0) }]);
    keys = rest(&table, &mut older);
    keys.sort_unstable();
    assert_eq!(keys, all.iter().copied().filter(|key| ![5, 6].contains(key)).collect::<Vec<_>>());
}

#[test]
fn a_fetch_misses_no_key_that_is_being_replaced() {
    let table = Table::new(config(100)).unwrap();
    insert_all(&table, &[1.0; 10]);
    let keys: Vec<u64> = (0..10).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                replace(&table, keys.iter().copied());
            }
        });
        for _ in 0..2000 {
            let mut scan = table.begin_fetch(&keys, ItemCondition::ALL).unwrap();
            replace(&table, [3, 4]);
            assert_eq!(rest(&table, &mut scan), keys);
            assert_eq!(scanned(&table).len(), 10);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn items_are_deleted_by_key_and_by_condition() {
    let table = Table::new(config(100_000)).unwrap();
    insert_all(&table, &(0..40_000).map(f64::from).collect::<Vec<_>>());
    let keys: Vec<u64> = (0..30_000).map(|key| key * 2).collect();
    assert_eq!(table.delete_keys(&keys, &priorities(39_000.0, f64::MAX)).unwrap(), 500);
    assert_eq!(table.delete_keys(&[0, 0, 1, 99_999], &ItemCondition::ALL).unwrap(), 2);
    assert_eq!(table.delete_where(&priorities(39_000.0, f64::MAX)).unwrap(), 500);
    assert_eq!(scanned(&table), (2..39_000).collect::<Vec<_>>());
    let sampled = ItemCondition { times_sampled: (1, i32::MAX), ..ItemCondition::ALL };
    assert_eq!(table.delete_where(&sampled).unwrap(), 0);
    assert_eq!(table.delete_where(&ItemCondition::ALL).unwrap(), 38_998);
    assert_eq!(table.info().current_size, 0);
    table.close();
    assert_eq!(table.delete_where(&sampled).unwrap_err().kind(), ErrorKind::Cancelled);
}
