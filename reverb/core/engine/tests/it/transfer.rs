// SPDX-License-Identifier: Apache-2.0
//! Items that come from another server as they were there.
use std::sync::Arc;

use crate::common::{self, chunk, config, insert, insert_all, limiter, scan_rest, trajectory};
use proptest::prelude::*;
use reverb_base::ErrorKind;
use reverb_data::{MemoryConfig, SelectorConfig, StoredItem, TableConfig, WhenFull};
use reverb_engine::{ChangedBy, LimiterHold, SnapshotCut, Table, Transferred};

fn stored(key: u64, inserted_at_ns: i64) -> StoredItem {
    let trajectory = trajectory(&[chunk(key, key, 8)]);
    StoredItem {
        key,
        priority: 2.0,
        removal_priority: None,
        times_sampled: 3,
        inserted_at_ns,
        trajectory,
    }
}

/// Key, time and count of each item, oldest first.
fn scanned(table: &Table) -> Vec<(u64, i64, i32)> {
    let items = scan_rest(table, &mut table.begin_scan().unwrap());
    items.iter().map(|item| (item.key, item.inserted_at_ns, item.times_sampled)).collect()
}

#[test]
fn items_are_as_they_were_and_counters_stay() {
    let rate_limiter = limiter(4.0, 2, 0.0, 8.0);
    let table = Table::new(TableConfig { rate_limiter, ..config(100) }).unwrap();
    let log = insert(&table, (0..9).map(|key| common::item(key, 1.0)).collect());
    assert_eq!(log.keys(), [0, 1], "the others wait for the limiter");
    let before = table.watched();
    let items = (100..120).map(|key| stored(key, key as i64)).chain([stored(1, 5)]).collect();
    assert_eq!(table.transfer(items).unwrap(), Transferred { added: 20, present: 1 });
    let after = table.watched();
    assert_eq!((after.size, after.cursor), (22, before.cursor));
    assert_eq!(after.num_inserts - after.num_deletes, 22);
    let statistics = table.status().statistics;
    assert_eq!((statistics.inserts, log.keys().len()), (2, 2));
    let old = scanned(&table);
    let expected: Vec<_> = (100..120).map(|key| (key, key as i64, 3)).collect();
    assert_eq!(old[..20], expected, "oldest first");
    assert_eq!(old[20].0, 0);
    // Items that are inserted later are newer than all.
    table.try_sample(8).unwrap();
    let newest = scanned(&table);
    assert!(newest.windows(2).all(|pair| pair[0].1 < pair[1].1), "{newest:?}");
}

#[test]
fn a_full_table_evicts_as_usual() {
    let table = Table::new(config(10)).unwrap();
    insert_all(&table, &[1.0; 10]);
    let done = table.transfer((100..104).map(|key| stored(key, 1)).collect()).unwrap();
    assert_eq!(done.added, 4);
    let now = table.watched();
    assert_eq!((now.size, now.num_inserts - now.num_deletes), (10, 10));
    let mut keys: Vec<_> = scanned(&table).iter().map(|item| item.0).collect();
    keys.sort_unstable();
    assert_eq!(keys, [4, 5, 6, 7, 8, 9, 100, 101, 102, 103]);
}

#[test]
fn a_neutral_hold_counts_them_once() {
    let rate_limiter = limiter(2.5, 1, -10.0, 10.0);
    let table = Table::new(TableConfig { rate_limiter, ..config(100) }).unwrap();
    for count in [true, false] {
        let before = table.watched().cursor;
        let hold = LimiterHold::begin(&table, count, &ChangedBy::now("test")).unwrap();
        let first = if count { 100 } else { 200 };
        table.transfer((first..first + 20).map(|key| stored(key, 1)).collect()).unwrap();
        drop(hold);
        assert_eq!(table.watched().cursor, before);
    }
}

#[test]
fn what_cannot_be_stored_is_refused() {
    let sampler = SelectorConfig::prioritized(1.0);
    let memory = MemoryConfig { max_bytes: Some(3000), when_full: WhenFull::Wait };
    let table = Table::new(TableConfig { sampler, memory, ..config(100) }).unwrap();
    let bad = StoredItem { priority: -1.0, ..stored(2, 1) };
    let error = table.transfer(vec![stored(1, 1), bad]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let large = StoredItem { trajectory: trajectory(&[chunk(3, 3, 5000)]), ..stored(3, 1) };
    let error = table.transfer(vec![stored(1, 1), large]).unwrap_err();
    assert!(error.message().contains("could never be stored"), "{error}");
    assert_eq!(table.watched().size, 0);
    let error = table.transfer((0..100).map(|key| stored(key, 1)).collect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert!(error.message().starts_with("Table t has no room for item "), "{error}");
    let size = table.watched().size;
    assert!(size > 3 && table.bytes() <= 3000, "{size} items");
    table.close();
    assert_eq!(table.transfer(vec![stored(500, 1)]).unwrap_err().kind(), ErrorKind::Cancelled);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A snapshot has the items of its moment, even while older items arrive in entries that are
    /// not copied yet, and replace items of the snapshot.
    #[test]
    fn a_snapshot_does_not_see_what_comes_later(
        num_items in 0..2500u64,
        deletes in proptest::collection::vec(0..2500u64, 0..40),
        resets in any::<bool>(),
        later in 1..60u64,
    ) {
        let table = Table::new(config(3000)).unwrap();
        let items: Vec<_> = (0..num_items).map(|key| stored(key, 10 + key as i64)).collect();
        table.transfer(items).unwrap();
        let before = scanned(&table);
        let cut = SnapshotCut::begin(&[Arc::clone(&table)]).unwrap();
        let gone = table.mutate(&[], &deletes).unwrap().len();
        prop_assert!(gone <= deletes.len());
        if resets {
            table.reset();
        }
        let moved = (0..later).map(|key| stored(10_000 + key, 5)).collect();
        table.transfer(moved).unwrap();
        let updates: Vec<_> = (0..later).map(|key| (10_000 + key, 9.0)).collect();
        prop_assert_eq!(table.mutate(&updates, &[10_000]).unwrap(), [10_000]);
        let items = cut.copy().remove(0).items;
        let copied: Vec<_> =
            items.iter().map(|item| (item.key, item.inserted_at_ns, item.times_sampled)).collect();
        prop_assert_eq!(copied, before);
    }
}
