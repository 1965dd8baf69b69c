// SPDX-License-Identifier: Apache-2.0
//! Statistics of a table after a scripted run with known numbers.
use std::sync::Arc;
use std::time::Duration;

use crate::common::{config, insert, insert_all, item, limiter, queue, sample_one};
use reverb_data::{MemoryConfig, NewItem, SelectorConfig, TableChange, TableConfig};
use reverb_engine::{Removal, Table, TableStatus, configure};

/// Items that left, by reason: full, bytes, sampled out, deleted, reset, shrunk, lost, failed,
/// stale, replaced.
fn removed(status: &TableStatus) -> [u64; Removal::ALL.len()] {
    Removal::ALL.map(|reason| status.statistics.removed.of(reason))
}

#[test]
fn every_way_out_of_a_table_is_counted_by_its_reason() {
    let table = Table::new(TableConfig { max_times_sampled: 3, ..config(4) }).unwrap();
    insert_all(&table, &[1.0; 6]); // Two too many: items 2 to 5 stay.
    (0..3).for_each(|_| assert_eq!(sample_one(&table).key, 2));
    sample_one(&table);
    table.mutate(&[(4, 2.0), (77, 2.0)], &[3, 78]).unwrap();
    insert(&table, vec![item(4, 5.0)]); // A known key.
    let other = NewItem { key: 4, replaces: true, ..item(40, 6.0) };
    insert(&table, vec![other.clone()]);
    insert(&table, vec![other]); // The same again, as after a lost confirmation.
    table.evict(1, u64::MAX);
    table.reset();
    insert_all(&table, &[1.0; 3]);
    let smaller = TableChange { max_size: Some(1), ..TableChange::default() };
    configure(&[(Arc::clone(&table), smaller)], false).unwrap();
    let status = table.status();
    assert_eq!(removed(&status), [2, 1, 1, 1, 1, 2, 0, 0, 0, 1]);
    let all = &status.statistics;
    assert_eq!((all.inserts, all.priority_updates), (10, 3));
    assert_eq!((all.sample_ages.count(), all.sample_waits.count()), (4, 4));
    assert_eq!(all.insert_waits.count(), 12, "a known key asks the limiter too");
    // Item 2 was sampled three times, item 3 once, all others never.
    assert_eq!((all.removed.unsampled(), all.removed.sampled().counts()[..4].to_vec()), {
        (7, vec![1, 0, 1, 0])
    });
    assert_eq!(all.removed.sampled().sum(), 4);
    assert!(0 < all.last_sample_ns && all.last_sample_ns <= all.last_insert_ns);
    assert_eq!((status.info.num_inserts, status.cursor, status.mass), (3, 3.0, None));
}

#[test]
fn bytes_are_a_reason_of_their_own() {
    let memory = MemoryConfig { max_bytes: Some(1000), ..MemoryConfig::default() };
    let table = Table::new(TableConfig { memory, ..config(100) }).unwrap();
    insert_all(&table, &[1.0; 20]);
    let status = table.status();
    let left = 20 - status.info.current_size as u64;
    assert!(left > 0);
    assert_eq!(removed(&status), [0, left, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_mass_is_the_sum_of_the_weights() {
    let sampler = SelectorConfig::prioritized(2.0);
    let table = Table::new(TableConfig { sampler, ..config(10) }).unwrap();
    assert_eq!(table.status().mass, Some(0.0));
    insert_all(&table, &[1.0, 2.0, 3.0]);
    table.mutate(&[(0, 4.0)], &[1]).unwrap();
    assert_eq!(table.status().mass, Some(16.0 + 9.0));
}

#[tokio::test]
async fn waiting_is_counted_on_both_sides() {
    const PAUSE: Duration = Duration::from_millis(30);
    let table = Table::new(queue(1)).unwrap();
    let idle = table.status();
    assert_eq!((idle.inserting.oldest_wait, idle.sampling.oldest_wait), (None, None));
    let waiting = Arc::clone(&table);
    let sample = tokio::spawn(async move { waiting.sample(1, None).await });
    while table.info().waiting_samples == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(PAUSE).await;
    assert!(table.status().sampling.oldest_wait.unwrap() >= PAUSE);
    assert!(table.status().sampling.blocked >= PAUSE);
    insert(&table, vec![item(1, 1.0)]);
    sample.await.unwrap().unwrap();

    insert(&table, vec![item(2, 1.0), item(3, 1.0)]);
    tokio::time::sleep(PAUSE).await;
    let status = table.status();
    assert!(status.inserting.oldest_wait.unwrap() >= PAUSE && status.inserting.blocked >= PAUSE);
    assert_eq!(status.sampling.oldest_wait, None);
    sample_one(&table);
    let status = table.status();
    assert_eq!(status.inserting.oldest_wait, None);
    let all = status.statistics;
    // Waits: 30 ms are 30,000 us, more than 2^14.
    let late = |counts: &[u64]| counts[15..].iter().sum::<u64>();
    assert_eq!((late(all.sample_waits.counts()), all.sample_waits.count()), (1, 2));
    assert_eq!((late(all.insert_waits.counts()), all.insert_waits.count()), (1, 3));
    let blocked = (status.inserting.blocked, status.sampling.blocked);
    tokio::time::sleep(PAUSE).await;
    let later = table.status();
    assert_eq!((later.inserting.blocked, later.sampling.blocked), blocked, "nobody waits");
}

#[tokio::test]
async fn a_request_that_is_refused_did_not_get_a_permission() {
    let rate_limiter = limiter(1.0, 1, 0.0, 10.0);
    let table = Table::new(TableConfig { rate_limiter, ..config(10) }).unwrap();
    table.sample(1, Some(Duration::ZERO)).await.unwrap_err();
    table.sample(1, Some(Duration::from_millis(1))).await.unwrap_err();
    let status = table.status();
    assert_eq!(status.statistics.sample_waits.count(), 0);
    assert!(status.sampling.blocked >= Duration::from_millis(1));
    assert_eq!(status.statistics.last_sample_ns, 0);
}

#[test]
fn a_reset_while_a_checkpoint_is_written_is_counted_too() {
    let table = Table::new(config(10)).unwrap();
    insert_all(&table, &[1.0; 3]);
    let cut = reverb_engine::SnapshotCut::begin(std::slice::from_ref(&table)).unwrap();
    table.reset();
    assert_eq!(removed(&table.status()), [0, 0, 0, 0, 3, 0, 0, 0, 0, 0]);
    drop(cut);
}
