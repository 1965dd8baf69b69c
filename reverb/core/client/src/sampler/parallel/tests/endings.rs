// SPDX-License-Identifier: Apache-2.0
//! Errors, and closing a sampler.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn kind(sampler: &Sampler) -> ErrorKind {
    let mut out = Vec::new();
    let error = sampler.take(1, false, &mut out).unwrap_err();
    assert!(out.is_empty());
    error.kind()
}

#[tokio::test(start_paused = true)]
async fn an_error_is_given_to_every_later_call() {
    let server = Server::open();
    server.fail_at(6, Error::table_not_found(server::TABLE, &[]));
    let sampler = server.sampler(options(4, 1));
    for key in 0..4 {
        assert_eq!(take_one(&sampler).await, key);
    }
    settle().await;
    for _ in 0..3 {
        assert_eq!(kind(&sampler), ErrorKind::TableNotFound);
        assert_eq!(sampler.failure().unwrap().kind(), ErrorKind::TableNotFound);
    }
    settle().await;
    assert_eq!(server.streams(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_comes_before_must_succeed() {
    let server = Server::open();
    let mismatch = async { Err(Error::invalid_argument("not this signature")) };
    let news = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&news);
    let count = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let sampler = Sampler::start(&server.client(), server::TABLE, options(4, 2), mismatch, count);
    settle().await;
    assert_eq!(kind(&sampler), ErrorKind::InvalidArgument);
    assert_eq!(server.streams(), (0, 0));
    assert_eq!(news.load(Ordering::Relaxed), 1, "a waiting call is notified");
}

#[tokio::test(start_paused = true)]
async fn items_and_the_end_are_announced() {
    let server = Server::allowing(0);
    let news = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&news);
    let count = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let options = SamplerOptions { max_samples: Some(2), ..options(4, 1) };
    let _sampler =
        Sampler::start(&server.client(), server::TABLE, options, async { Ok(false) }, count);
    settle().await;
    assert_eq!(news.load(Ordering::Relaxed), 0);
    server.allow(1);
    settle().await;
    assert_eq!(news.load(Ordering::Relaxed), 1);
    server.allow(1);
    settle().await;
    assert!(news.load(Ordering::Relaxed) >= 2);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_workers() {
    let server = Server::allowing(4);
    let sampler = server.sampler(options(4, 3));
    settle().await;
    assert_eq!(server.streams(), (3, 0));
    sampler.close();
    assert_eq!(take(&sampler, 1), (TakeOutcome::End, vec![]), "what was fetched is dropped");
    settle().await;
    assert_eq!(server.streams(), (3, 3));
    let requested = server.requested();
    server.allow(100);
    settle().await;
    assert_eq!(server.requested(), requested);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_workers_that_all_wait_for_the_rate_limiter() {
    let server = Server::allowing(0);
    let sampler = server.sampler(options(4, 3));
    settle().await;
    assert_eq!(server.streams(), (3, 0));
    sampler.close();
    settle().await;
    assert_eq!(server.streams(), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn dropping_closes() {
    let server = Server::open();
    drop(server.sampler(options(4, 3)));
    let sampler = server.sampler(options(4, 1));
    settle().await;
    drop(sampler);
    settle().await;
    let (opened, closed) = server.streams();
    assert_eq!(opened, closed);
}
