// SPDX-License-Identifier: Apache-2.0
//! Waits of calls, and their ends.
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::common::{
    WHOLE, config, insert, insert_all, is_waiting, item, limiter, min_size, queue,
};
use reverb_base::ErrorKind;
use reverb_data::{MemoryConfig, RateLimiterConfig, Sampled, TableChange, TableConfig};
use reverb_engine::{ChangedBy, Confirm, Table, configure};
use tokio::time::Instant;

const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

fn keys(samples: &[Sampled]) -> Vec<u64> {
    samples.iter().map(|sample| sample.key).collect()
}

/// Starts to sample, and returns once the request is queued.
async fn start_sampling(
    table: &Arc<Table>,
    num: usize,
    timeout: Option<Duration>,
) -> tokio::task::JoinHandle<reverb_base::Result<Vec<Sampled>>> {
    let queued = table.info().waiting_samples;
    let waiting = Arc::clone(table);
    let task = tokio::spawn(async move { waiting.sample(num, timeout).await });
    while table.info().waiting_samples == queued {
        tokio::task::yield_now().await;
    }
    task
}

#[tokio::test]
async fn a_timeout_of_zero_is_one_attempt() {
    let table = Table::new(queue(5)).unwrap();
    let error = table.sample(1, NO_WAIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimiterTimeout);
    assert_eq!(
        error.message(),
        "The sample timed out. Table t: 1 more insert allows the next sample. Its rate limiter: 0 \
         item(s), min_size_to_sample 1, 0 insert(s), 0 sample(s), 0 delete(s), samples_per_insert 1, inserts * samples_per_insert \
         - samples = 0, min_diff 0, max_diff 5. (Rate Limiter: Timeout exceeded.)"
    );
    assert_eq!(table.info().waiting_samples, 0);
    insert_all(&table, &[1.0; 3]);
    assert_eq!(keys(&table.sample(5, NO_WAIT).await.unwrap()), [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_the_wait_on_time() {
    let table = Table::new(queue(5)).unwrap();
    let start = Instant::now();
    let error = table.sample(1, Some(Duration::from_millis(1500))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimiterTimeout);
    let waited = start.elapsed();
    assert!((1500..1510).contains(&waited.as_millis()), "{waited:?}");
    assert_eq!(table.info().waiting_samples, 0);
    // The request that timed out takes no items later.
    insert_all(&table, &[1.0]);
    let samples = table.sample(1, Some(Duration::MAX)).await.unwrap();
    assert_eq!(keys(&samples), [0]);
    assert!(!samples[0].rate_limited);
}

#[tokio::test]
async fn a_waiting_sample_gets_what_there_is() {
    let table = Table::new(queue(5)).unwrap();
    let task = start_sampling(&table, 10, None).await;
    insert(&table, vec![item(0, 1.0), item(1, 1.0)]);
    let samples = task.await.unwrap().unwrap();
    assert_eq!(keys(&samples), [0, 1]);
    let rate_limited: Vec<bool> = samples.iter().map(|sample| sample.rate_limited).collect();
    assert_eq!(rate_limited, [true, false]);
}

#[tokio::test]
async fn samples_are_answered_in_order_and_alternate_with_inserts() {
    let table = Table::new(queue(1)).unwrap();
    let mut tasks = Vec::new();
    for num in [1, 2, 5] {
        tasks.push(start_sampling(&table, num, None).await);
    }
    assert!(table.try_sample(1).is_none());
    let log = insert(&table, (0..7).map(|key| item(key, 1.0)).collect());
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(keys(&task.await.unwrap().unwrap()));
    }
    // Each insert allows a sample and each sample allows an insert, until nothing is left.
    assert_eq!(answers, [vec![0], vec![1, 2], vec![3, 4, 5, 6]]);
    assert_eq!(*log.confirmed.lock(), [0, 1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn a_sample_makes_room_for_queued_inserts() {
    let table = Table::new(queue(2)).unwrap();
    let log = insert(&table, (0..6).map(|key| item(key, 1.0)).collect());
    let later = insert(&table, vec![item(6, 1.0)]);
    assert_eq!(*log.confirmed.lock(), [0, 1]);
    assert_eq!(table.queued_inserts(), 5);
    let why = table.status().inserting.reason.unwrap();
    assert_eq!(why.to_string(), "1 more sample allows the next insert.");
    assert_eq!(keys(&table.sample(3, None).await.unwrap()), [0, 1, 2]);
    assert_eq!(*log.confirmed.lock(), [0, 1, 2, 3, 4]);
    assert!(later.confirmed.lock().is_empty(), "inserts stay in order");
    assert_eq!(keys(&table.sample(10, None).await.unwrap()), [3, 4, 5, 6]);
    assert_eq!(*later.confirmed.lock(), [6]);
}

#[tokio::test]
async fn an_item_that_leaves_may_do_more_than_its_sample() {
    for by_sample in [true, false] {
        let limiter = RateLimiterConfig {
            samples_per_insert: 3.0,
            min_size_to_sample: 1,
            min_diff: 0.0,
            max_diff: 3.0,
        };
        let table = Table::new(TableConfig { rate_limiter: limiter, ..queue(5) }).unwrap();
        let log = insert(&table, vec![item(0, 1.0), item(1, 1.0)]);
        assert_eq!(*log.confirmed.lock(), [0]);
        let why = table.status().inserting.reason.unwrap().to_string();
        assert_eq!(
            why,
            "3 more samples allow the next insert. Removing 1 item would also allow it."
        );
        if by_sample {
            assert_eq!(keys(&table.sample(1, None).await.unwrap()), [0]);
        } else {
            table.mutate(&[], &[0]).unwrap();
        }
        assert_eq!(*log.confirmed.lock(), [0, 1]);
    }
}

#[tokio::test]
async fn a_delete_lets_a_queued_insert_in() {
    let table = Table::new(queue(1)).unwrap();
    let log = insert(&table, vec![item(0, 1.0), item(1, 1.0)]);
    table.mutate(&[], &[0]).unwrap();
    assert_eq!(*log.confirmed.lock(), [0, 1]);
}

#[tokio::test]
async fn a_dropped_sample_leaves_the_queue() {
    let table = Table::new(queue(5)).unwrap();
    {
        let mut dropped = pin!(table.sample(1, None));
        assert!(is_waiting(dropped.as_mut()));
        assert_eq!(table.info().waiting_samples, 1);
    }
    assert_eq!(table.info().waiting_samples, 0);
    insert_all(&table, &[1.0]);
    assert_eq!(table.info().num_samples, 0);
    assert_eq!(table.try_sample(1).unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_at_the_timeout_is_not_lost() {
    let table = Table::new(queue(5)).unwrap();
    let mut sampling = pin!(table.sample(1, Some(Duration::from_secs(1))));
    assert!(is_waiting(sampling.as_mut()));
    insert_all(&table, &[1.0]);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(keys(&sampling.await.unwrap()), [0]);
}

#[tokio::test]
async fn samples_taken_by_a_dropped_call_stay_counted() {
    let table = Table::new(queue(5)).unwrap();
    {
        let mut dropped = pin!(table.sample(1, None));
        assert!(is_waiting(dropped.as_mut()));
        insert_all(&table, &[1.0]);
    }
    let info = table.info();
    assert_eq!((info.num_samples, info.current_size), (1, 0));
}

#[tokio::test]
async fn closing_wakes_all_waiters_and_confirms_nothing() {
    let table = Table::new(queue(1)).unwrap();
    let log = insert(&table, (0..3).map(|key| item(key, 1.0)).collect());
    let writer = Arc::clone(&table);
    let room = tokio::spawn(async move { writer.wait_for_insert_room().await });

    let empty = Table::new(queue(1)).unwrap();
    let samples = [
        start_sampling(&empty, 1, None).await,
        start_sampling(&empty, 1, Some(Duration::from_secs(3600))).await,
    ];
    for table in [&table, &empty] {
        table.close();
        table.close();
    }
    room.await.unwrap();
    for sample in samples {
        let error = sample.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert_eq!(error.message(), "RateLimiter has been cancelled: table t is closed.");
    }
    assert_eq!(*log.confirmed.lock(), [0]);
    let failed: Vec<ErrorKind> = log.failed.lock().iter().map(reverb_base::Error::kind).collect();
    assert_eq!(failed, [ErrorKind::Cancelled]);

    let confirm: Arc<dyn reverb_engine::Confirm> = log.clone();
    let refused = [
        table.insert(vec![item(9, 1.0)], &confirm).unwrap_err(),
        table.mutate(&[], &[0]).unwrap_err(),
        table.sample(1, None).await.unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::Cancelled));
    assert!(table.try_sample(1).is_none());
    assert_eq!(table.info().current_size, 1);
}

#[tokio::test]
async fn queued_inserts_of_a_dropped_table_fail() {
    let table = Table::new(queue(1)).unwrap();
    let log = insert(&table, (0..2).map(|key| item(key, 1.0)).collect());
    drop(table);
    assert_eq!((log.confirmed.lock().len(), log.failed.lock().len()), (1, 1));
}

#[tokio::test]
async fn queued_inserts_can_be_cancelled() {
    let table = Table::new(queue(1)).unwrap();
    let gone = insert(&table, (0..3).map(|key| item(key, 1.0)).collect());
    let other = insert(&table, vec![item(3, 1.0)]);
    let confirm: Arc<dyn Confirm> = gone.clone();
    table.cancel_inserts(&confirm);
    assert_eq!(table.queued_inserts(), 1);
    assert_eq!(keys(&table.sample(10, None).await.unwrap()), [0, 3]);
    assert_eq!((&*gone.confirmed.lock(), &*other.confirmed.lock()), (&vec![0], &vec![3]));
    assert!(gone.failed.lock().is_empty());
    table.close();
    table.cancel_inserts(&confirm);
}

#[tokio::test]
async fn cancelled_inserts_leave_room_for_others() {
    let memory = MemoryConfig { max_bytes: Some(2000), ..MemoryConfig::default() };
    let table = Table::new(TableConfig { memory, ..queue(1000) }).unwrap();
    table.pause(true, false, &ChangedBy::now("learner-0")).unwrap();
    for round in 0..10 {
        let log = insert(&table, vec![item(round, 1.0)]);
        let confirm: Arc<dyn Confirm> = log;
        table.cancel_inserts(&confirm);
        let mut room = pin!(table.wait_for_insert_room());
        let poll = std::future::poll_fn(|cx| Poll::Ready(room.as_mut().poll(cx))).await;
        assert!(poll.is_ready(), "round {round}");
    }
}

#[tokio::test]
async fn a_larger_table_wakes_writers_that_wait_for_room() {
    let table = Table::new(queue(1)).unwrap();
    insert(&table, (0..2).map(|key| item(key, 1.0)).collect());
    let mut room = pin!(table.wait_for_insert_room());
    let poll = std::future::poll_fn(|cx| Poll::Ready(room.as_mut().poll(cx))).await;
    assert!(poll.is_pending());
    let larger = TableChange { max_size: Some(100), ..TableChange::default() };
    configure(&[(Arc::clone(&table), larger)], false).unwrap();
    assert_eq!(table.queued_inserts(), 1, "the rate limiter has no room yet");
    let poll = std::future::poll_fn(|cx| Poll::Ready(room.as_mut().poll(cx))).await;
    assert!(poll.is_ready());
}

#[tokio::test]
async fn writers_wait_while_a_tenth_of_the_size_is_queued() {
    for (max_size, room) in [(1, 1), (19, 1), (50, 5), (20_000, 1000)] {
        let rate_limiter = limiter(1.0, 1, 0.0, 1.0);
        let table = Table::new(TableConfig { rate_limiter, ..config(max_size) }).unwrap();
        // One fits, and one less than the limit may be queued.
        insert(&table, (0..room).map(|key| item(key, 1.0)).collect());
        assert_eq!(table.queued_inserts() as u64, room - 1);
        table.wait_for_insert_room().await;
        insert(&table, vec![item(room, 1.0)]);
        let mut waiting = pin!(table.wait_for_insert_room());
        assert!(is_waiting(waiting.as_mut()), "max_size {max_size}");
        assert_eq!(table.try_sample(1).unwrap().len(), 1);
        waiting.await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sample_of_nothing_is_refused() {
    let table = Table::new(config(1)).unwrap();
    let error = table.sample(0, None).await.unwrap_err();
    assert_eq!(error.message(), "num_samples must be at least 1, got 0.");
    assert!(table.try_sample(0).is_none());
}

#[tokio::test]
async fn waiting_is_seen_in_the_worker_times() {
    let table = Table::new(TableConfig { rate_limiter: min_size(1), ..config(5) }).unwrap();
    let task = start_sampling(&table, 1, Some(Duration::from_millis(30))).await;
    assert!(task.await.unwrap().is_err());
    let times = table.info().worker_time;
    assert!((25..1000).contains(&times.waiting_for_inserts_ms), "{times:?}");
    assert_eq!(times.waiting_for_sampling_ms, 0);
}

#[test]
fn waiting_calls_can_be_spawned() {
    fn is_send<T: Send>(_: &T) {}
    fn is_shared<T: Send + Sync>(_: &T) {}
    let table = Table::new(config(1)).unwrap();
    is_shared(&table);
    is_send(&table.sample(1, None));
    is_send(&table.wait_for_insert_room());
}

#[tokio::test]
async fn a_whole_batch_waits_until_all_of_it_is_allowed() {
    let table = Table::new(queue(5)).unwrap();
    let mut waiting = pin!(table.sample_with(4, None, WHOLE));
    for key in 0..4 {
        assert!(is_waiting(waiting.as_mut()), "{key}");
        assert_eq!(table.info().num_samples, 0);
        insert(&table, vec![item(key, 1.0)]);
    }
    assert_eq!(keys(&waiting.await.unwrap()), [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_times_out_lets_those_behind_it_go_on() {
    let table = Table::new(queue(5)).unwrap();
    insert(&table, vec![item(0, 1.0)]);
    let mut batch = pin!(table.sample_with(4, Some(Duration::from_secs(1)), WHOLE));
    assert!(is_waiting(batch.as_mut()));
    let behind = start_sampling(&table, 1, Some(Duration::from_secs(9))).await;
    assert!(batch.await.is_err());
    assert_eq!(keys(&behind.await.unwrap().unwrap()), [0]);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_whole_batch_says_what_is_missing() {
    let table = Table::new(queue(5)).unwrap();
    insert_all(&table, &[1.0, 1.0]);
    let timeout = Some(Duration::from_secs(1));
    let error = table.sample_with(4, timeout, WHOLE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimiterTimeout);
    assert!(
        error.message().contains("the table allows 2 of the 4 samples of the batch now"),
        "{error}"
    );
    assert_eq!(table.info().num_samples, 0);
    assert_eq!(table.try_sample(9).unwrap().len(), 2);

    let error = table.sample_with(6, timeout, WHOLE).await.unwrap_err();
    assert!(error.message().contains("never allows 6 samples at once, but 5 at most"), "{error}");
    let error = table.sample_with(70_000, timeout, WHOLE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("may have 65536 items, got 70000"), "{error}");
}
