// SPDX-License-Identifier: Apache-2.0
//! A scan of a table, over the network and in process.

use std::sync::Arc;

use crate::support::*;
use prost::Message as _;
use reverb_base::{ErrorKind, Result};
use reverb_data::{Chunk, ItemCondition, Sampled};
use reverb_engine::Table;
use reverb_rpc::status::Code;
use reverb_rpc::target::Loopback;
use reverb_server::{Server, local_shard};
use reverb_wire::generated as proto;
use reverb_wire::transport::{InsertBatch, ScanOptions, ScanStream, Transport};

/// Both transports to a server.
fn transports(server: &Server) -> [Arc<dyn Transport>; 2] {
    [Arc::new(client(server)), local_shard(Loopback::localhost(server.port())).unwrap()]
}

async fn insert(server: &Server, batch: InsertBatch) {
    let count = batch.items.len();
    let mut insert = client(server).open_insert().await.unwrap();
    insert.sink.send(batch).await.unwrap();
    confirmed(&mut insert.confirmations, count).await;
}

async fn rest(stream: &mut dyn ScanStream) -> Result<Vec<Sampled>> {
    let mut items = Vec::new();
    loop {
        let more = soon(stream.receive()).await?;
        if more.is_empty() {
            return Ok(items);
        }
        items.extend(more);
    }
}

async fn scan(transport: &dyn Transport, table: &str) -> Result<Vec<Sampled>> {
    scan_with(transport, table, ScanOptions::default()).await
}

async fn scan_with(
    transport: &dyn Transport,
    table: &str,
    options: ScanOptions<'_>,
) -> Result<Vec<Sampled>> {
    rest(&mut *transport.open_scan(table, options).await?).await
}

fn keys(items: &[Sampled]) -> Vec<u64> {
    items.iter().map(|item| item.key).collect()
}

#[tokio::test]
async fn every_item_comes_once_in_order_and_none_counts_as_sampled() {
    let items = table(config("t"));
    let server = start(vec![Arc::clone(&items), table(config("empty"))]);
    insert(&server, batch("t", (0..900).map(|key| chunk(key, &[key as i32, 1])).collect())).await;
    for transport in transports(&server) {
        let found = scan(&*transport, "t").await.unwrap();
        assert_eq!(keys(&found), (0..900).collect::<Vec<_>>());
        let last = &found[899];
        assert_eq!((last.probability, last.table_size, last.times_sampled), (0.0, 900, 0));
        assert!(last.inserted_at_ns > 1_600_000_000_000_000_000);
        assert_eq!(last.trajectory.decode().unwrap()[0].shape.as_slice(), [1]);
        assert_eq!(keys(&scan(&*transport, "empty").await.unwrap()), [0u64; 0]);
        refused(scan(&*transport, "none").await, ErrorKind::TableNotFound, "");
        assert_eq!(items.info().num_samples, 0);
    }
}

/// Items of three consecutive chunks each, as a writer of overlapping sequences makes them.
fn overlapping(count: u64, bytes: usize) -> InsertBatch {
    let chunks: Vec<Chunk> = (0..count + 2).map(|key| large_chunk(key, bytes)).collect();
    let items = (0..count).map(|key| item(key, "t", 1.0, &chunks[key as usize..key as usize + 3]));
    InsertBatch { items: items.collect(), chunks, keep_chunk_keys: Vec::new() }
}

#[tokio::test]
async fn chunks_that_items_share_are_sent_once_and_arrive_whole() {
    let server = start(vec![table(config("t"))]);
    let sent = overlapping(60, 100_000);
    let expected: Vec<_> =
        sent.items.iter().map(|item| item.trajectory.decode().unwrap()).collect();
    insert(&server, sent).await;
    for transport in transports(&server) {
        let found = scan(&*transport, "t").await.unwrap();
        let decoded: Vec<_> = found.iter().map(|it| it.trajectory.decode().unwrap()).collect();
        assert!(decoded == expected);
    }
    let raw = RawClient::connect(&server).await;
    for (kept_chunk_bytes, chunks) in [(0, 180), (1 << 20, 62)] {
        let mut stream = raw.open_own("Scan").await;
        let request = proto::reverb::ScanRequest {
            table: "t".into(),
            kept_chunk_bytes,
            ..Default::default()
        };
        stream.send(&request).await;
        stream.sender.finish();
        let (mut ended, mut found) = (0, 0);
        while let Ok(message) = stream.next().await {
            let message = proto::SampleStreamResponse::decode(message).unwrap();
            ended += message.entries.iter().filter(|entry| entry.end_of_sequence).count();
            found += message.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        }
        assert_eq!((ended, found), (60, chunks));
    }
}

#[tokio::test]
async fn more_chunks_than_are_kept_arrive_again() {
    let server = start(vec![table(config("t"))]);
    let far: Vec<Chunk> = (0..40).map(|key| large_chunk(key, 1 << 20)).collect();
    // The first chunk is needed again after 40 MiB of others.
    let mut items: Vec<_> =
        far.iter().map(|it| item(it.key(), "t", 1.0, std::slice::from_ref(it))).collect();
    items.push(item(100, "t", 1.0, &[far[0].clone(), far[39].clone()]));
    insert(&server, InsertBatch { items, chunks: far, keep_chunk_keys: Vec::new() }).await;
    for transport in transports(&server) {
        let found = scan(&*transport, "t").await.unwrap();
        assert_eq!(found.len(), 41);
        for item in found {
            item.trajectory.decode().unwrap();
        }
    }
}

#[tokio::test]
async fn a_slow_reader_holds_little_and_a_reader_that_leaves_nothing() {
    let server = start(vec![table(config("t"))]);
    let chunks: Vec<Chunk> = (0..100).map(|key| large_chunk(key, 400_000)).collect();
    let items = chunks.iter().map(|it| item(it.key(), "t", 1.0, std::slice::from_ref(it)));
    let sent = InsertBatch { items: items.collect(), chunks: chunks.clone(), ..Default::default() };
    let local = local_shard(Loopback::localhost(server.port())).unwrap();
    let mut stored = local.open_insert().await.unwrap();
    stored.sink.send(sent).await.unwrap();
    confirmed(&mut stored.confirmations, 100).await;
    drop(stored);
    let held = || chunks.iter().filter(|chunk| chunk.reference_count() > 2).count();
    eventually(|| held() == 0).await;
    let stream = client(&server).open_scan("t", ScanOptions::default()).await.unwrap();
    eventually(|| held() > 5).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    // The reader's chunks, its window, and a few messages.
    let most = (4 << 20) + (4 << 20) + (16 << 20);
    assert!(held() * 400_000 < most, "{} chunks are held", held());
    drop(stream);
    eventually(|| held() == 0).await;
}

#[tokio::test]
async fn a_server_that_stops_ends_scans_with_an_error() {
    // Another server may get its port, and has no table of this name.
    let server = start(vec![table(config("ends"))]);
    let chunks = (0..100).map(|key| large_chunk(key, 400_000)).collect();
    insert(&server, batch("ends", chunks)).await;
    let mut streams = Vec::new();
    for transport in transports(&server) {
        let mut stream = transport.open_scan("ends", ScanOptions::default()).await.unwrap();
        assert!(!soon(stream.receive()).await.unwrap().is_empty());
        streams.push((transport, stream));
    }
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    for (transport, mut stream) in streams {
        let error = rest(&mut *stream).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(soon(stream.receive()).await.unwrap_err(), error, "it stays so");
        assert!(transport.open_scan("ends", ScanOptions::default()).await.is_err());
    }
}

#[tokio::test]
async fn a_table_closed_directly_ends_scans() {
    let items: Arc<Table> = table(config("t"));
    let server = start(vec![Arc::clone(&items)]);
    items.close();
    for transport in transports(&server) {
        refused(scan(&*transport, "t").await, ErrorKind::Cancelled, "");
    }
}

#[tokio::test]
async fn chosen_keys_come_in_their_order_with_the_chosen_columns() {
    let items = table(config("t"));
    let server = start(vec![Arc::clone(&items)]);
    let sent: Vec<_> = (0..900).map(|key| chunk(key, &[key as i32])).collect();
    insert(&server, batch("t", sent)).await;
    items.mutate(&[(3, 5.0), (4, 6.0)], &[7]).unwrap();
    let condition = ItemCondition { priority: (5.0, 5.5), ..ItemCondition::ALL };
    for transport in transports(&server) {
        let found = |options| scan_with(&*transport, "t", options);
        let backwards: Vec<u64> = (0..2000).rev().collect();
        let all = ScanOptions { keys: Some(&backwards), ..Default::default() };
        let expected: Vec<u64> = (0..900).rev().filter(|&key| key != 7).collect();
        assert_eq!(keys(&found(all).await.unwrap()), expected);
        let some = ScanOptions { keys: Some(&[4, 7, 3, 9999, 2]), ..Default::default() };
        assert_eq!(keys(&found(some).await.unwrap()), [4, 3, 2]);
        let both = ScanOptions { condition, ..some };
        assert_eq!(keys(&found(both).await.unwrap()), [3]);
        let none = ScanOptions { keys: Some(&[]), ..Default::default() };
        assert_eq!(keys(&found(none).await.unwrap()), [0u64; 0]);
        let high = ScanOptions { condition, ..Default::default() };
        assert_eq!(keys(&found(high).await.unwrap()), [3]);
        let first = ScanOptions { columns: &[0], ..some };
        assert_eq!(found(first).await.unwrap()[0].trajectory.num_columns(), 1);
        let missing = ScanOptions { columns: &[1], ..some };
        assert_eq!(found(missing).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(items.info().num_samples, 0);
    }
}

#[tokio::test]
async fn odd_requests_are_refused() {
    let server = start(vec![table(config("t"))]);
    let raw = RawClient::connect(&server).await;
    let request = |kept_chunk_bytes| proto::reverb::ScanRequest {
        table: "t".into(),
        kept_chunk_bytes,
        ..Default::default()
    };
    for (requests, code) in [
        (vec![], Code::InvalidArgument),
        (vec![request(0), request(0)], Code::InvalidArgument),
        (vec![request(-5)], Code::Ok),
        (vec![request(i64::MAX)], Code::Ok),
    ] {
        let mut stream = raw.open_own("Scan").await;
        for request in requests {
            stream.send(&request).await;
        }
        stream.sender.finish();
        assert_eq!(stream.status().await.code, code);
    }
    let mut unknown = raw.open_own("Skim").await;
    unknown.sender.finish();
    assert_eq!(unknown.status().await.code, Code::Unimplemented);
    let mut elsewhere = raw.open("Scan").await;
    elsewhere.sender.finish();
    assert_eq!(elsewhere.status().await.code, Code::Unimplemented, "not of the original's service");
}
