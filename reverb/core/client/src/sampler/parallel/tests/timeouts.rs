// SPDX-License-Identifier: Apache-2.0
//! The rate limiter's timeout: when it ends a sampler, and when it does not.

use super::*;

const TIMEOUT: Duration = Duration::from_millis(100);

fn timing_out(in_flight: usize, workers: usize) -> SamplerOptions {
    SamplerOptions { rate_limiter_timeout: Some(TIMEOUT), ..options(in_flight, workers) }
}

#[tokio::test(start_paused = true)]
async fn it_ends_nothing_while_no_call_waits() {
    let server = Server::allowing(0);
    let sampler = server.sampler(timing_out(4, 1));
    tokio::time::sleep(TIMEOUT * 10).await;
    assert!(server.requests().len() >= 10, "the wait began anew each time");
    server.allow(2);
    assert_eq!(take_one(&sampler).await, 0);
    assert_eq!(take_one(&sampler).await, 1);
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_repeated_are_one_wait_until_an_item_comes() {
    let server = Server::allowing(0);
    let sampler = server.sampler(timing_out(4, 1));
    settle().await;
    assert_eq!(server.waits_since(), None);
    tokio::time::sleep(TIMEOUT * 2).await;
    let since = server.waits_since();
    tokio::time::sleep(TIMEOUT * 4).await;
    assert_eq!((server.waits_since(), since.is_some()), (since, true));
    server.allow(1);
    assert_eq!(take_one(&sampler).await, 0);
    tokio::time::sleep(TIMEOUT * 2).await;
    assert!(server.waits_since() > since, "the wait for the next item is another one");
}

#[tokio::test(start_paused = true)]
async fn it_ends_the_sampler_while_a_call_waits() {
    let server = Server::allowing(3);
    let sampler = server.sampler(timing_out(4, 1));
    for key in 0..3 {
        assert_eq!(take_one(&sampler).await, key);
    }
    tokio::time::sleep(TIMEOUT * 2).await;
    assert_eq!(take(&sampler, 1), (TakeOutcome::Nothing, vec![]), "no call had waited before");
    tokio::time::sleep(TIMEOUT * 2).await;
    assert_eq!(take(&sampler, 1), (TakeOutcome::End, vec![]));
    assert!(sampler.failure().is_none(), "an end is no failure");
    server.allow(10);
    settle().await;
    assert_eq!(take(&sampler, 1), (TakeOutcome::End, vec![]), "the end stays");
}

#[tokio::test(start_paused = true)]
async fn the_first_worker_that_times_out_ends_all() {
    let server = Server::allowing(0);
    let sampler = server.sampler(timing_out(4, 3));
    assert_eq!(take(&sampler, 1).0, TakeOutcome::Nothing);
    tokio::time::sleep(TIMEOUT + MILLISECOND).await;
    assert_eq!(take(&sampler, 1).0, TakeOutcome::End);
    assert_eq!(server.streams(), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn each_batch_of_items_begins_the_wait_anew() {
    let server = Server::allowing(0);
    let sampler = server.sampler(timing_out(4, 1));
    assert_eq!(take(&sampler, 1).0, TakeOutcome::Nothing);
    for key in 0..3 {
        tokio::time::sleep(TIMEOUT * 3 / 4).await;
        server.allow(1);
        assert_eq!(take_one(&sampler).await, key);
        assert_eq!(take(&sampler, 1).0, TakeOutcome::Nothing);
    }
}

#[tokio::test(start_paused = true)]
async fn what_came_before_it_is_still_given_to_a_batch() {
    let server = Server::allowing(5);
    let sampler = server.sampler(timing_out(4, 1));
    settle().await;
    assert_eq!(collect(&sampler, 8), (TakeOutcome::Some, 4));
    settle().await;
    assert_eq!(collect(&sampler, 4), (TakeOutcome::Some, 1));
    tokio::time::sleep(TIMEOUT * 2).await;
    assert_eq!(collect(&sampler, 3), (TakeOutcome::End, 0));
}

#[tokio::test(start_paused = true)]
async fn zero_is_one_attempt_per_call_and_few_without_calls() {
    let server = Server::allowing(0);
    let timeout = Some(Duration::ZERO);
    let sampler = server.sampler(SamplerOptions { rate_limiter_timeout: timeout, ..options(1, 1) });
    tokio::time::sleep(TIMEOUT).await;
    let attempts = server.requests().len();
    assert!((2..=30).contains(&attempts), "{attempts} attempts in 100 ms without a waiting call");
    assert_eq!(take(&sampler, 1).0, TakeOutcome::Nothing);
    tokio::time::sleep(SHORTEST_TIMEOUT + MILLISECOND).await;
    assert_eq!(take(&sampler, 1).0, TakeOutcome::End);
}
