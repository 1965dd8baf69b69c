// SPDX-License-Identifier: Apache-2.0
//! Many tasks on few threads: no item is lost or duplicated, and no bound is exceeded.
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Log, config, item, limiter, queue};
use reverb_data::{SelectorConfig, TableConfig};
use reverb_engine::{Confirm, Table};

const WRITERS: u64 = 6;
const READERS: u64 = 4;

/// Inserts `count` items in messages of different sizes, with back-pressure.
async fn write(table: Arc<Table>, writer: u64, count: u64, log: Arc<Log>) {
    let confirm: Arc<dyn Confirm> = log;
    let mut next = 0;
    while next < count {
        table.wait_for_insert_room().await;
        let end = count.min(next + 1 + next % 7);
        let items = (next..end).map(|at| item(writer * 1_000_000 + at, 1.0)).collect();
        table.insert(items, &confirm).unwrap();
        next = end;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_queue_hands_every_item_out_once() {
    const PER_WRITER: u64 = 2000;
    const TOTAL: u64 = WRITERS * PER_WRITER;
    let table = Table::new(queue(5)).unwrap();
    let log = Log::new();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(Arc::clone(&table), writer, PER_WRITER, log.clone())))
        .collect();
    let readers: Vec<_> = (0..READERS)
        .map(|reader| {
            let table = Arc::clone(&table);
            tokio::spawn(async move {
                let mut seen = Vec::new();
                let mut num = reader as usize;
                // The last waiting reader gets an error.
                loop {
                    num = num % 9 + 1;
                    match table.sample(num, Some(Duration::from_millis(500))).await {
                        Ok(samples) => {
                            assert!((1..=num).contains(&samples.len()));
                            seen.extend(samples.iter().map(|sample| sample.key));
                        }
                        Err(_) if table.info().num_samples == TOTAL as i64 => return seen,
                        Err(_) => {}
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut seen = Vec::new();
    for reader in readers {
        let keys = reader.await.unwrap();
        // Each reader sees a writer's items in the order in which they were written.
        for writer in 0..WRITERS {
            let own: Vec<_> = keys.iter().filter(|&key| key / 1_000_000 == writer).collect();
            assert!(own.is_sorted());
        }
        seen.extend(keys);
    }
    assert_eq!(seen.len() as u64, TOTAL);
    assert_eq!(seen.iter().collect::<HashSet<_>>().len() as u64, TOTAL);
    let confirmed = log.confirmed.lock();
    assert_eq!(confirmed.len() as u64, TOTAL);
    assert_eq!(confirmed.iter().collect::<HashSet<_>>().len() as u64, TOTAL);
    assert_eq!(table.info().current_size, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tight_limiter_holds_its_bounds() {
    const PER_WRITER: u64 = 1000;
    let (min_diff, max_diff, min_size) = (16.0, 24.0, 10);
    let table = Table::new(TableConfig {
        sampler: SelectorConfig::prioritized(1.0),
        rate_limiter: limiter(2.0, min_size, min_diff, max_diff),
        ..config(50)
    })
    .unwrap();
    let log = Log::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (table, is_over) = (Arc::clone(&table), Arc::clone(&is_over));
        tokio::spawn(async move {
            let mut looks = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                let info = table.info();
                let cursor = info.num_inserts as f64 * 2.0 - info.num_samples as f64;
                assert!(cursor <= max_diff, "{cursor}");
                assert!(cursor >= min_diff || info.num_samples == 0, "{cursor}");
                assert!(info.current_size <= 50);
                looks += 1;
                tokio::task::yield_now().await;
            }
            looks
        })
    };
    let readers: Vec<_> = (0..READERS)
        .map(|reader| {
            let table = Arc::clone(&table);
            tokio::spawn(async move {
                let mut total = 0i64;
                while let Ok(samples) = table.sample(reader as usize + 1, None).await {
                    let updates: Vec<_> =
                        samples.iter().map(|sample| (sample.key, total as f64 % 5.0)).collect();
                    total += samples.len() as i64;
                    // Fails once the table is closed, as the next sample will.
                    let _ = table.mutate(&updates, &[]);
                }
                total
            })
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(Arc::clone(&table), writer, PER_WRITER, log.clone())))
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    // The last inserts, and the samples that they allow, need no further calls.
    while table.queued_inserts() > 0 || table.can_sample(1).unwrap() {
        tokio::task::yield_now().await;
    }
    table.close();
    is_over.store(true, Ordering::Relaxed);
    let mut sampled = 0;
    for reader in readers {
        sampled += reader.await.unwrap();
    }
    assert!(watcher.await.unwrap() > 0);
    let info = table.info();
    assert_eq!(info.num_inserts as u64, WRITERS * PER_WRITER);
    assert_eq!(log.confirmed.lock().len() as u64, WRITERS * PER_WRITER);
    assert_eq!(info.num_samples, sampled);
    assert_eq!(sampled, info.num_inserts * 2 - 16, "all that the limiter allows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn abandoned_calls_leave_nothing_behind() {
    const PER_WRITER: u64 = 500;
    let table = Table::new(queue(3)).unwrap();
    let log = Log::new();
    let readers: Vec<_> = (0..READERS)
        .map(|reader| {
            let table = Arc::clone(&table);
            tokio::spawn(async move {
                let mut seen = Vec::new();
                for round in 0.. {
                    // Mostly too short. A late answer must not be lost.
                    let timeout = Duration::from_micros(50 * ((round + reader) % 20));
                    match table.sample(2, Some(timeout)).await {
                        Ok(samples) => seen.extend(samples.iter().map(|sample| sample.key)),
                        Err(error) if error.is_transient() => break,
                        Err(_) => {}
                    }
                    // Some calls are dropped while they wait.
                    tokio::select! {
                        biased;
                        samples = table.sample(1, None) => {
                            let Ok(samples) = samples else { break };
                            seen.extend(samples.iter().map(|sample| sample.key));
                        }
                        () = tokio::task::yield_now() => {}
                    }
                }
                seen
            })
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(Arc::clone(&table), writer, PER_WRITER, log.clone())))
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    while table.info().num_samples < (WRITERS * PER_WRITER) as i64 {
        tokio::task::yield_now().await;
    }
    table.close();
    let mut seen = Vec::new();
    for reader in readers {
        seen.extend(reader.await.unwrap());
    }
    // Items given to a dropped call are lost, but no item comes twice.
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len());
    assert!(seen.len() as u64 > WRITERS * PER_WRITER / 2, "{}", seen.len());
    let info = table.info();
    assert_eq!((info.waiting_samples, info.waiting_inserts, info.current_size), (0, 0, 0));
}
