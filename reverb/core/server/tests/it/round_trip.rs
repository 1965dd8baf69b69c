// SPDX-License-Identifier: Apache-2.0
//! Every call of a client, over the network and in process: both must behave the same.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use reverb_base::ErrorKind;
use reverb_data::{RateLimiterConfig, SelectorConfig, TableConfig, TensorData};
use reverb_rpc::target::Loopback;
use reverb_server::{Server, local_shard};
use reverb_wire::generated::CheckpointRequest;
use reverb_wire::generated::reverb::CheckpointStatusRequest;
use reverb_wire::transport::{InsertBatch, SampleRequest, Transport};

/// Both transports to a server.
fn transports(server: &Server) -> [Arc<dyn Transport>; 2] {
    [
        Arc::new(client(server)),
        local_shard(Loopback::localhost(server.port())).expect("it runs in this process"),
    ]
}

#[tokio::test]
async fn what_is_inserted_is_sampled() {
    for way in 0..2 {
        let tables = vec![table(config("a")), table(queue("b", 10))];
        let server = start(tables);
        let transport = &transports(&server)[way];
        assert_eq!(transport.is_local(), way == 1);
        let mut insert = transport.open_insert().await.unwrap();
        let chunks = vec![chunk(1, &[10, 11]), chunk(2, &[20])];
        let items = vec![item(5, "a", 0.5, &chunks), item(6, "b", 1.5, &chunks[1..])];
        let batch = InsertBatch { chunks, items, keep_chunk_keys: vec![2] };
        insert.sink.send(batch).await.unwrap();
        assert_eq!(confirmed(&mut insert.confirmations, 2).await, [5, 6]);

        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("b", 1, None)).unwrap();
        samples.request(&SampleRequest::new("a", 2, None)).unwrap();
        let got = received(&mut *samples, 3).await.unwrap();
        assert_eq!(got.iter().map(|it| it.key).collect::<Vec<_>>(), [6, 5, 5]);
        assert_eq!(got.iter().map(|it| it.times_sampled).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!((got[0].priority, got[1].priority), (1.5, 0.5));
        assert_eq!((got[0].table_size, got[0].probability), (1, 1.0));
        assert!(got[0].inserted_at_ns > 1_600_000_000_000_000_000);
        let content: Vec<u8> = [10i32, 20].iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(got[1].trajectory.decode().unwrap()[0].data, TensorData::Bytes(content));
    }
}

#[tokio::test]
async fn a_writer_that_closes_its_half_still_gets_all_confirmations() {
    for way in 0..2 {
        let queue_table = table(queue("q", 2));
        let server = start(vec![Arc::clone(&queue_table)]);
        let transport = &transports(&server)[way];
        let mut insert = transport.open_insert().await.unwrap();
        let chunks = (1..=3).map(|key| chunk(key, &[1])).collect();
        insert.sink.send(batch("q", chunks)).await.unwrap();
        assert_eq!(confirmed(&mut insert.confirmations, 2).await, [1, 2]);
        drop(insert.sink);
        // The third insert waits for room, and so does the end of the stream.
        assert!(insert.confirmations.try_recv().is_err());
        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("q", 1, None)).unwrap();
        received(&mut *samples, 1).await.unwrap();
        assert_eq!(confirmed(&mut insert.confirmations, 1).await, [3]);
        assert!(soon(insert.confirmations.recv()).await.is_none());
    }
}

#[tokio::test]
async fn priorities_are_changed_and_items_deleted() {
    for way in 0..2 {
        let prioritized = SelectorConfig::prioritized(1.0);
        let items = table(TableConfig { sampler: prioritized, ..config("p") });
        let server = start(vec![Arc::clone(&items)]);
        let transport = &transports(&server)[way];
        let mut insert = transport.open_insert().await.unwrap();
        let chunks = (1..=3).map(|key| chunk(key, &[1])).collect();
        insert.sink.send(batch("p", chunks)).await.unwrap();
        confirmed(&mut insert.confirmations, 3).await;

        let updates = vec![(1, 0.0), (2, 4.0), (99, 1.0)];
        transport.mutate_priorities("p", &updates, &[3, 98]).await.unwrap();
        assert_eq!(items.info().current_size, 2);
        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("p", 20, None)).unwrap();
        let got = received(&mut *samples, 20).await.unwrap();
        assert!(got.iter().all(|it| it.key == 2 && it.priority == 4.0 && it.probability == 1.0));

        for bad in [f64::NAN, -1.0] {
            refused(
                transport.mutate_priorities("p", &[(1, bad)], &[]).await,
                ErrorKind::InvalidArgument,
                "",
            );
        }
        transport.call(reset("p")).await.unwrap();
        assert_eq!(items.info().current_size, 0);
    }
}

#[tokio::test]
async fn a_bad_priority_is_refused_and_the_table_still_works() {
    for way in 0..2 {
        let prioritized = SelectorConfig::prioritized(1.0);
        let server = start(vec![table(TableConfig { sampler: prioritized, ..config("p") })]);
        let transport = &transports(&server)[way];
        for bad in [f64::NAN, -1.0] {
            let mut insert = transport.open_insert().await.unwrap();
            let chunk = chunk(1, &[1]);
            let items = vec![item(1, "p", bad, std::slice::from_ref(&chunk))];
            let batch = InsertBatch { chunks: vec![chunk], items, keep_chunk_keys: vec![] };
            let error = match insert.sink.send(batch).await {
                Err(error) => error,
                Ok(()) => soon(insert.confirmations.recv()).await.unwrap().unwrap_err(),
            };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let mut insert = transport.open_insert().await.unwrap();
        insert.sink.send(batch("p", vec![chunk(2, &[1])])).await.unwrap();
        assert_eq!(confirmed(&mut insert.confirmations, 1).await, [2]);
    }
}

#[tokio::test]
async fn an_unknown_table_fails_with_the_names_of_the_tables() {
    let server = start(vec![table(config("b")), table(config("a"))]);
    for transport in transports(&server) {
        let expected = "Priority table x was not found. The tables of this server are: a, b.";
        let check = |error: reverb_base::Error| {
            assert_eq!(error.kind(), ErrorKind::TableNotFound);
            assert_eq!(error.message(), expected);
        };
        check(transport.call(reset("x")).await.unwrap_err());
        check(transport.mutate_priorities("x", &[], &[]).await.unwrap_err());
        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("x", 1, None)).unwrap();
        check(received(&mut *samples, 1).await.unwrap_err());
        let mut insert = transport.open_insert().await.unwrap();
        let error = match insert.sink.send(batch("x", vec![chunk(1, &[1])])).await {
            Err(error) => error,
            Ok(()) => soon(insert.confirmations.recv()).await.unwrap().unwrap_err(),
        };
        check(error);
    }
}

#[tokio::test]
async fn a_timeout_is_reported_and_earlier_samples_are_delivered() {
    let server = start(vec![table(queue("q", 10))]);
    for transport in transports(&server) {
        let mut insert = transport.open_insert().await.unwrap();
        insert.sink.send(batch("q", vec![chunk(1, &[1])])).await.unwrap();
        confirmed(&mut insert.confirmations, 1).await;
        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("q", 3, Some(Duration::from_millis(30)))).unwrap();
        assert_eq!(received(&mut *samples, 1).await.unwrap().len(), 1);
        for _ in 0..2 {
            let error = soon(samples.receive()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::RateLimiterTimeout, "{error}");
            assert!(
                error.message().contains("Table q: 1 more insert allows the next sample. "),
                "{error}"
            );
        }
        // Zero means one attempt, over every transport.
        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("q", 1, Some(Duration::ZERO))).unwrap();
        refused(soon(samples.receive()).await, ErrorKind::RateLimiterTimeout, "");
    }
}

#[tokio::test]
async fn the_description_of_a_server_has_every_part() {
    let limiter = RateLimiterConfig { min_size_to_sample: 3, ..unlimited() };
    let heap = SelectorConfig::Heap { min_heap: false };
    let server = start(vec![
        table(TableConfig { remover: heap, rate_limiter: limiter, ..config("a") }),
        table(config("b")),
    ]);
    let [remote, local] = transports(&server);
    let info = remote.server_info().await.unwrap();
    assert_eq!(info.tables.len(), 2);
    let a = &info.tables[0];
    assert_eq!((a.name.as_str(), a.max_size), ("a", 1000));
    assert!(a.sampler_options.as_ref().unwrap().is_deterministic);
    let remover = a.remover_options.as_ref().unwrap();
    assert!(matches!(
        remover.distribution,
        Some(reverb_wire::generated::key_distribution_options::Distribution::Heap(_))
    ));
    let limiter = a.rate_limiter_info.as_ref().unwrap();
    assert_eq!((limiter.min_size_to_sample, limiter.max_diff), (3, f64::MAX));
    assert_eq!(limiter.insert_stats.as_ref().unwrap().completed, 0);
    assert!(a.signature.is_none() && a.table_worker_time.is_some());
    let same = local.server_info().await.unwrap();
    assert_eq!(same.tables_state_id, info.tables_state_id);
    assert_eq!(same.tables[0].name, "a");
    for transport in [remote, local] {
        let saved = transport.call(CheckpointRequest {}).await.unwrap();
        let path = std::path::PathBuf::from(saved.checkpoint_path);
        assert!(path.join("DONE").exists());
        let status = transport.call(CheckpointStatusRequest {}).await.unwrap();
        assert_eq!((status.latest_path, status.is_saving), (path.display().to_string(), false));
    }
    let saved = transports(&server)[0].call(CheckpointStatusRequest {}).await.unwrap();
    assert_eq!((saved.num_saved, saved.num_failed), (2, 0));
    let root = std::path::PathBuf::from(saved.latest_path).parent().unwrap().to_owned();
    std::fs::remove_dir_all(root).unwrap();
}

#[tokio::test]
async fn many_small_samples_come_completely_and_in_order() {
    let server = start(vec![table(TableConfig { max_size: 5000, ..queue("q", 5000) })]);
    for transport in transports(&server) {
        let mut insert = transport.open_insert().await.unwrap();
        for first in (0..2000).step_by(100) {
            let chunks = (first..first + 100).map(|key| chunk(key, &[key as i32])).collect();
            insert.sink.send(batch("q", chunks)).await.unwrap();
        }
        confirmed(&mut insert.confirmations, 2000).await;
        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("q", 1500, None)).unwrap();
        samples.request(&SampleRequest::new("q", 500, None)).unwrap();
        let got = received(&mut *samples, 2000).await.unwrap();
        assert!(got.iter().map(|it| it.key).eq(0..2000));
    }
}

#[tokio::test]
async fn large_items_are_cut_and_put_together() {
    let server = start(vec![table(config("a"))]);
    let transport = client(&server);
    let chunks: Vec<_> = (0..7).map(|key| large_chunk(key, 614_400)).collect();
    let mut insert = transport.open_insert().await.unwrap();
    let items = vec![item(1, "a", 1.0, &chunks)];
    insert
        .sink
        .send(InsertBatch { chunks: chunks.clone(), items, keep_chunk_keys: vec![] })
        .await
        .unwrap();
    confirmed(&mut insert.confirmations, 1).await;
    let mut samples = transport.open_sample().await.unwrap();
    samples.request(&SampleRequest::new("a", 3, None)).unwrap();
    for sample in received(&mut *samples, 3).await.unwrap() {
        let got = sample.trajectory.chunks();
        assert_eq!(got.len(), 7);
        assert!(got.iter().zip(&chunks).all(|(a, b)| a.key() == b.key() && a.has_payload_of(b)));
    }
}
