// SPDX-License-Identifier: Apache-2.0
//! Rules for requests on a sample stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use prost::Message as _;
use reverb_base::error::SENT_RATE_LIMITER_TIMEOUT;
use reverb_data::{SelectorConfig, TableConfig};
use reverb_rpc::status::Code;
use reverb_wire::generated as proto;
use reverb_wire::transport::{SampleRequest, Transport};

fn ask(table: &str, num_samples: i64, timeout_ms: Option<i64>) -> proto::SampleStreamRequest {
    proto::SampleStreamRequest {
        table: table.into(),
        num_samples,
        rate_limiter_timeout: timeout_ms.map(|milliseconds| proto::Timeout { milliseconds }),
        ..proto::SampleStreamRequest::default()
    }
}

async fn keys(stream: &mut RawStream, count: usize) -> Vec<u64> {
    let mut keys = Vec::new();
    while keys.len() < count {
        let message = proto::SampleStreamResponse::decode(stream.next().await.unwrap()).unwrap();
        let infos = message.entries.into_iter().filter_map(|entry| entry.info);
        keys.extend(infos.map(|info| info.item.unwrap().key));
    }
    keys
}

async fn fill(server: &reverb_server::Server, table: &str, first: u64, count: u64) {
    let transport = client(server);
    let mut insert = transport.open_insert().await.unwrap();
    let chunks = (first..first + count).map(|key| chunk(key, &[1])).collect();
    insert.sink.send(batch(table, chunks)).await.unwrap();
    confirmed(&mut insert.confirmations, count as usize).await;
}

#[tokio::test]
async fn a_request_for_nothing_is_refused() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    for (number, text) in
        [(0, "`num_samples` must be > 0 (got0)."), (-1, "`num_samples` must be > 0 (got-1).")]
    {
        let mut stream = raw.open("SampleStream").await;
        stream.send(&ask("t", number, None)).await;
        let status = stream.status().await;
        assert_eq!((status.code, status.message.as_str()), (Code::InvalidArgument, text));
    }
}

#[tokio::test]
async fn batches_that_cannot_be_are_refused() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    for (batch_size, position) in [(0, 0), (3, 3), (3, u64::MAX)] {
        let mut stream = raw.open("SampleStream").await;
        let stacking = proto::sample_stream_request::Stacking { batch_size, position };
        stream
            .send(&proto::SampleStreamRequest { stacking: Some(stacking), ..ask("t", 1, None) })
            .await;
        let status = stream.status().await;
        assert_eq!(status.code, Code::InvalidArgument);
        assert_eq!(
            status.message,
            format!(
                "`stacking` needs a `batch_size` of at least 1 and a `position` below it, got \
                 {batch_size} and {position}."
            )
        );
    }
}

#[tokio::test]
async fn an_epoch_ends_a_request_and_not_its_stream() {
    let shuffle = SelectorConfig::Shuffle { seed: None };
    let server = start(vec![table(TableConfig { sampler: shuffle, ..config("t") })]);
    fill(&server, "t", 1, 3).await;
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open("SampleStream").await;
    let epoch = |begin, up_to| Some(proto::sample_stream_request::Epoch { begin, up_to });
    let all = |epoch| proto::SampleStreamRequest { epoch, ..ask("t", 9, None) };
    for (within, count) in [(epoch(true, 0), 3), (epoch(false, 0), 0), (epoch(false, 1), 3)] {
        stream.send(&all(within)).await;
        assert_eq!(keys(&mut stream, count).await.len(), count);
        let last = proto::SampleStreamResponse::decode(stream.next().await.unwrap()).unwrap();
        assert_eq!((last.entries.len(), last.epoch_is_over), (0, true));
    }
    for (all_or_nothing, distinct) in [(true, false), (false, true)] {
        let mut stream = raw.open("SampleStream").await;
        let request = all(epoch(true, 0));
        stream.send(&proto::SampleStreamRequest { all_or_nothing, distinct, ..request }).await;
        let status = stream.status().await;
        assert_eq!(status.code, Code::InvalidArgument);
        assert!(status.message.starts_with("`epoch` may not be set together with"));
    }
}

#[tokio::test]
async fn zero_negative_and_no_timeout_wait_for_ever() {
    let items = table(queue("q", 10));
    let server = start(vec![Arc::clone(&items)]);
    let raw = RawClient::connect(&server).await;
    for (key, timeout) in [(1, None), (2, Some(0)), (3, Some(-1))] {
        let mut stream = raw.open("SampleStream").await;
        stream.send(&ask("q", 1, timeout)).await;
        eventually(|| items.info().waiting_samples == 1).await;
        fill(&server, "q", key, 1).await;
        assert_eq!(keys(&mut stream, 1).await, [key]);
    }
}

#[tokio::test]
async fn a_timeout_has_the_text_that_old_clients_match_and_keeps_what_was_sampled() {
    let server = start(vec![table(queue("q", 10))]);
    fill(&server, "q", 1, 1).await;
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open("SampleStream").await;
    let start = Instant::now();
    stream.send(&ask("q", 3, Some(100))).await;
    assert_eq!(keys(&mut stream, 1).await, [1]);
    let status = stream.status().await;
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(status.message.contains(SENT_RATE_LIMITER_TIMEOUT), "{}", status.message);
    assert!(start.elapsed() >= Duration::from_millis(100));
}

#[tokio::test]
async fn requests_are_answered_in_order_and_then_the_stream_ends() {
    let server = start(vec![table(queue("q", 10)), table(queue("r", 10))]);
    fill(&server, "q", 1, 3).await;
    fill(&server, "r", 11, 1).await;
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open("SampleStream").await;
    stream.send(&ask("q", 2, None)).await;
    stream.send(&ask("r", 1, None)).await;
    stream.send(&ask("q", 1, None)).await;
    stream.sender.finish();
    assert_eq!(keys(&mut stream, 4).await, [1, 2, 11, 3]);
    assert_eq!(stream.status().await.code, Code::Ok);
    let mut silent = raw.open("SampleStream").await;
    silent.sender.finish();
    assert_eq!(silent.status().await.code, Code::Ok);
}

#[tokio::test]
async fn a_reader_that_disconnects_leaves_the_wait_queue() {
    let items = table(queue("q", 10));
    let server = start(vec![Arc::clone(&items)]);
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open("SampleStream").await;
    stream.send(&ask("q", 1, None)).await;
    eventually(|| items.info().waiting_samples == 1).await;
    drop(stream);
    eventually(|| items.info().waiting_samples == 0).await;
    fill(&server, "q", 1, 1).await;
    assert_eq!(items.info().num_samples, 0);
}

#[tokio::test]
async fn a_slow_reader_holds_the_sampling_up() {
    let items = table(config("t"));
    let server = start(vec![Arc::clone(&items)]);
    let transport = client(&server);
    let mut insert = transport.open_insert().await.unwrap();
    insert.sink.send(batch("t", vec![large_chunk(1, 1 << 20)])).await.unwrap();
    confirmed(&mut insert.confirmations, 1).await;
    let mut samples = transport.open_sample().await.unwrap();
    samples.request(&SampleRequest::new("t", 1000, None)).unwrap();
    // The window of a stream and the buffers of both ends, far below the requested gigabyte.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let taken = items.info().num_samples;
    assert!((1..40).contains(&taken), "{taken} samples taken");
    assert_eq!(received(&mut *samples, 1000).await.unwrap().len(), 1000);
}
