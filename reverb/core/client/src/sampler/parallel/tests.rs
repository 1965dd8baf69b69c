// SPDX-License-Identifier: Apache-2.0
//! Tests with paused time, which advances only when all tasks are idle.

use super::*;

mod endings;
mod server;
mod stacked;
mod timeouts;

use server::Server;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Options with `in_flight` items per worker and `workers`.
fn options(in_flight: usize, workers: usize) -> SamplerOptions {
    SamplerOptions {
        max_in_flight_samples_per_worker: in_flight,
        num_workers: workers,
        ..SamplerOptions::default()
    }
}

/// Waits until every task is idle. Paused time does not advance before.
async fn settle() {
    tokio::time::sleep(MILLISECOND).await;
}

/// Takes up to `max` items that have arrived, like a caller that uses items one by one.
fn take(sampler: &Sampler, max: usize) -> (TakeOutcome, Vec<u64>) {
    let mut out = Vec::new();
    let taken = sampler.take(max, false, &mut out).unwrap();
    (taken, out.iter().map(|sample| sample.key).collect())
}

/// Takes one item, which must have arrived.
async fn take_one(sampler: &Sampler) -> u64 {
    settle().await;
    let (taken, keys) = take(sampler, 1);
    assert_eq!((taken, keys.len()), (TakeOutcome::Some, 1));
    keys[0]
}

/// Takes all items, until the end.
async fn take_all(sampler: &Sampler) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        match take(sampler, 64) {
            (TakeOutcome::End, _) => return all,
            (TakeOutcome::Nothing, _) => settle().await,
            (TakeOutcome::Some, keys) => all.extend(keys),
        }
    }
}

/// Collects items for a batch that lacks `missing` items.
fn collect(sampler: &Sampler, missing: usize) -> (TakeOutcome, usize) {
    let mut out = Vec::new();
    let taken = sampler.take(missing, true, &mut out).unwrap();
    (taken, out.len())
}

mod in_flight {
    use super::*;

    /// Number of requested items at the start, after one was taken, and after `in_flight + 1` were
    /// taken.
    async fn counts(in_flight: usize, workers: usize) -> [usize; 3] {
        let server = Server::open();
        let sampler = server.sampler(options(in_flight, workers));
        settle().await;
        let at_the_start = server.requested();
        take_one(&sampler).await;
        settle().await;
        let after_one = server.requested();
        for _ in 0..in_flight {
            take_one(&sampler).await;
        }
        settle().await;
        [at_the_start, after_one, server.requested()]
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_exact_where_few_are_in_flight() {
        assert_eq!(counts(1, 1).await, [1, 2, 3]);
        assert_eq!(counts(1, 3).await, [3, 4, 5]);
        assert_eq!(counts(4, 1).await, [4, 4, 8]);
        assert_eq!(counts(4, 3).await, [12, 12, 16]);
        assert_eq!(counts(10, 1).await, [10, 10, 20]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_could_take_more_at_once_changes_nothing() {
        let server = Server::open();
        let sampler = server.sampler(options(4, 1));
        settle().await;
        // The last item of a request is handed out alone, because the next request is sent when it
        // is taken.
        assert_eq!(take(&sampler, 64), (TakeOutcome::Some, vec![0, 1, 2]));
        settle().await;
        assert_eq!(server.requested(), 4);
        assert_eq!(take(&sampler, 64), (TakeOutcome::Some, vec![3]));
        settle().await;
        assert_eq!(server.requests(), [(0, 4), (0, 4)]);
        assert_eq!(take(&sampler, 64), (TakeOutcome::Some, vec![4, 5, 6]));
    }

    #[tokio::test(start_paused = true)]
    async fn many_are_asked_for_in_halves() {
        let server = Server::open();
        let sampler = server.sampler(options(100, 1));
        settle().await;
        assert_eq!(server.requests(), [(0, 50), (0, 50)]);
        for _ in 0..50 {
            take_one(&sampler).await;
        }
        settle().await;
        assert_eq!(server.requested(), 100, "the caller still works on the fiftieth");
        take_one(&sampler).await;
        settle().await;
        assert_eq!(server.requested(), 150);
    }

    #[tokio::test(start_paused = true)]
    async fn one_worker_keeps_the_order() {
        let server = Server::open();
        let sampler = server.sampler(SamplerOptions { max_samples: Some(1000), ..options(40, 1) });
        assert_eq!(take_all(&sampler).await, (0..1000).collect::<Vec<_>>());
    }
}

mod max_samples {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn several_workers_ask_for_exactly_as_many() {
        for max_samples in [1, 3, 4, 10, 11, 12, 100] {
            let server = Server::open();
            let sampler =
                server.sampler(SamplerOptions { max_samples: Some(max_samples), ..options(4, 3) });
            let mut keys = take_all(&sampler).await;
            keys.sort_unstable();
            assert_eq!(keys, (0..max_samples).collect::<Vec<_>>());
            assert_eq!(server.requested() as u64, max_samples);
            assert_eq!(take(&sampler, 1), (TakeOutcome::End, vec![]), "the end stays");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_worker_is_started_that_would_have_less_than_a_request_to_do() {
        let server = Server::open();
        let _sampler = server.sampler(SamplerOptions { max_samples: Some(9), ..options(4, 3) });
        settle().await;
        assert_eq!(server.requests(), [(0, 4), (1, 4)]);
    }
}

mod max_samples_per_stream {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_new_stream_follows() {
        let server = Server::open();
        let sampler = server.sampler(SamplerOptions {
            max_samples: Some(8),
            max_samples_per_stream: 3,
            ..options(2, 1)
        });
        assert_eq!(take_all(&sampler).await, (0..8).collect::<Vec<_>>());
        assert_eq!(server.requests(), [(0, 2), (0, 1), (1, 2), (1, 1), (2, 2)]);
        assert_eq!(server.streams(), (3, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn each_worker_counts_for_itself() {
        let server = Server::open();
        let sampler = server.sampler(SamplerOptions {
            max_samples: Some(12),
            max_samples_per_stream: 2,
            ..options(2, 3)
        });
        assert_eq!(take_all(&sampler).await.len(), 12);
        let mut requests = server.requests();
        requests.sort_unstable();
        assert_eq!(requests, (0..6).map(|stream| (stream, 2)).collect::<Vec<_>>());
    }
}

mod lost_streams {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_what_was_in_flight_is_lost() {
        let server = Server::open();
        // The stream fails with items 6 and 7 on it.
        server.fail_at(6, Error::unavailable("the server went away"));
        let sampler = server.sampler(SamplerOptions { max_samples: Some(12), ..options(4, 1) });
        let keys = take_all(&sampler).await;
        assert_eq!(keys, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]);
        // Only the items that did not arrive are requested again.
        assert_eq!(server.requests(), [(0, 4), (0, 4), (1, 2), (1, 4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn other_workers_go_on() {
        let server = Server::open();
        server.fail_at(1, Error::cancelled("the server restarts"));
        for _ in 0..5 {
            server.refuse(Error::unavailable("not there yet"));
        }
        let sampler = server.sampler(SamplerOptions { max_samples: Some(40), ..options(4, 3) });
        let keys = take_all(&sampler).await;
        assert_eq!(keys.len(), 40);
        assert!(keys.contains(&0) && !keys.contains(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_comes_late_is_waited_for() {
        let server = Server::open();
        for _ in 0..8 {
            server.refuse(Error::unavailable("not there yet"));
        }
        let sampler = server.sampler(options(1, 1));
        assert_eq!(take(&sampler, 1).0, TakeOutcome::Nothing);
        // Pauses double: 1 + 2 + 4 + ... + 128 ms.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(take(&sampler, 1), (TakeOutcome::Some, vec![0]));
    }
}

mod batches {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_that_is_missing_is_asked_for_in_one_go() {
        let server = Server::open();
        let sampler = server.sampler(options(4, 1));
        settle().await;
        assert_eq!(collect(&sampler, 32), (TakeOutcome::Some, 4));
        settle().await;
        // Beyond the batch, the usual number of items is in flight.
        assert_eq!(server.requests(), [(0, 4), (0, 28), (0, 4)]);
        assert_eq!(collect(&sampler, 28), (TakeOutcome::Some, 28));
        settle().await;
        assert_eq!(server.requested(), 36, "they are there for the next batch");
        assert_eq!(collect(&sampler, 32), (TakeOutcome::Some, 4));
        settle().await;
        assert_eq!(server.requests()[3..], [(0, 28), (0, 4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn several_workers_share_a_batch_without_asking_twice() {
        let server = Server::allowing(12);
        let sampler = server.sampler(options(4, 3));
        settle().await;
        assert_eq!(collect(&sampler, 64), (TakeOutcome::Some, 12));
        settle().await;
        let mut counts: Vec<_> = server.requests()[3..].iter().map(|(_, count)| *count).collect();
        counts.sort_unstable();
        assert_eq!(counts, [4, 4, 52], "the batch by one, what is in flight by the others");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_asked_for_beyond_max_samples() {
        let server = Server::open();
        let sampler = server.sampler(SamplerOptions { max_samples: Some(10), ..options(4, 1) });
        let mut sizes = Vec::new();
        loop {
            settle().await;
            match collect(&sampler, 32) {
                (TakeOutcome::End, _) => break,
                (_, count) => sizes.push(count),
            }
        }
        assert_eq!(sizes, [4, 6]);
        assert_eq!(server.requests(), [(0, 4), (0, 6)]);
    }
}
