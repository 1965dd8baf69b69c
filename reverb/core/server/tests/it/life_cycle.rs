// SPDX-License-Identifier: Apache-2.0
//! Servers that start, stop and restart, and clients that disconnect.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use reverb_base::ErrorKind;
use reverb_rpc::status::Code;
use reverb_rpc::target::Loopback;
use reverb_server::{Server, ServerOptions, local_shard};
use reverb_wire::GrpcTransport;
use reverb_wire::transport::{InsertBatch, SampleRequest, Transport};
use tokio::runtime::Handle;

fn start_error(tables: Vec<Arc<reverb_engine::Table>>, port: u16) -> reverb_base::Error {
    let options = ServerOptions { port, ..ServerOptions::default() };
    Server::start(tables, &options, &Handle::current()).unwrap_err()
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let error = start_error(vec![], 0);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("at least one table"), "{error}");
    let twins = vec![table(config("a")), table(config("b")), table(config("a"))];
    let error = start_error(twins, 0);
    assert_eq!(error.message(), "Names of tables must be unique; there are several called a.");

    let server = start(vec![table(config("a"))]);
    let error = start_error(vec![table(config("b"))], server.port());
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains(&format!("port {}", server.port())), "{error}");
    assert!(error.message().contains("port 0 takes any free one"), "{error}");
}

#[tokio::test]
async fn a_server_answers_on_both_ip_versions() {
    let server = start(vec![table(config("a"))]);
    for host in ["127.0.0.1", "[::1]", "localhost", "ipv4:127.0.0.1", "dns:///localhost"] {
        let transport = GrpcTransport::new(&format!("{host}:{}", server.port())).unwrap();
        assert_eq!(transport.server_info().await.unwrap().tables.len(), 1, "{host}");
    }
}

#[tokio::test]
async fn a_server_listens_on_its_host_and_port() {
    let options = ServerOptions { host: Some("127.0.0.1".into()), ..ServerOptions::default() };
    let server = Server::start(vec![table(config("a"))], &options, &Handle::current()).unwrap();
    let info = |host: &str| {
        let transport = GrpcTransport::new(&format!("{host}:{}", server.port())).unwrap();
        async move { transport.server_info().await }
    };
    info("127.0.0.1").await.unwrap();
    info("localhost").await.unwrap();
    refused(info("[::1]").await, ErrorKind::Unavailable, &format!("[::1]:{}", server.port()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_wakes_everybody_and_keeps_what_was_confirmed() {
    for is_local in [false, true] {
        let items = table(queue("q", 2));
        let full = table(queue("full", 1));
        let server = start(vec![Arc::clone(&items), Arc::clone(&full)]);
        let transport: Arc<dyn Transport> = if is_local {
            local_shard(Loopback::localhost(server.port())).unwrap()
        } else {
            Arc::new(client(&server))
        };
        let mut insert = transport.open_insert().await.unwrap();
        let chunks = (1..=3).map(|key| chunk(key, &[1])).collect();
        insert.sink.send(batch("q", chunks)).await.unwrap();
        assert_eq!(confirmed(&mut insert.confirmations, 2).await, [1, 2]);
        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("q", 2, None)).unwrap();
        received(&mut *samples, 2).await.unwrap();
        confirmed(&mut insert.confirmations, 1).await;
        let mut idle = transport.open_sample().await.unwrap();
        idle.request(&SampleRequest::new("q", 2, None)).unwrap();
        received(&mut *idle, 1).await.unwrap();

        // One reader and one insert are waiting.
        let waiting = tokio::spawn(async move { idle.receive().await });
        eventually(|| items.info().waiting_samples == 1).await;
        let chunks = vec![chunk(11, &[1]), chunk(12, &[1])];
        insert.sink.send(batch("full", chunks)).await.unwrap();
        assert_eq!(confirmed(&mut insert.confirmations, 1).await, [11]);
        eventually(|| full.info().waiting_inserts == 1).await;
        server.stop();
        server.stop();
        soon(server.wait()).await;
        assert!(!server.is_running());
        refused(soon(waiting).await.unwrap(), ErrorKind::Unavailable, "");
        let end = soon(insert.confirmations.recv()).await.unwrap().unwrap_err();
        assert!(end.is_transient(), "{end}");
        let error = soon(insert.sink.send(batch("q", vec![chunk(9, &[1])]))).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        let error = soon(transport.server_info()).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(soon(transport.open_sample()).await.is_err());
        assert!(local_shard(Loopback::localhost(server.port())).is_none());
        assert_eq!(items.info().num_inserts, 3);
        assert_eq!((full.info().num_inserts, full.info().current_size), (1, 1));
    }
}

#[tokio::test]
async fn an_insert_that_waits_when_the_server_stops_is_not_confirmed() {
    let items = table(queue("q", 1));
    let server = start(vec![Arc::clone(&items)]);
    let raw = RawClient::connect(&server).await;
    let mut stream = raw.open("InsertStream").await;
    let (a, b) = (chunk(1, &[1]), chunk(2, &[2]));
    stream
        .send(&reverb_wire::generated::InsertStreamRequest {
            chunks: vec![raw_chunk(&a), raw_chunk(&b)],
            items: vec![
                raw_item(1, "q", vec![raw_slice(1, 0, 1)]),
                raw_item(2, "q", vec![raw_slice(2, 0, 1)]),
            ],
            keep_chunk_keys: vec![],
            max_wait_ms: None,
        })
        .await;
    assert_eq!(stream.keys(1).await, [1]);
    server.stop();
    let status = stream.next().await.unwrap_err();
    assert_eq!(
        (status.code, status.message.as_str()),
        (Code::Unavailable, "The server is stopping.")
    );
    assert_eq!(items.info().current_size, 1);
    soon(server.wait()).await;
}

#[tokio::test]
async fn a_server_comes_back_on_its_port_and_is_found_at_once() {
    let server = start(vec![table(config("a"))]);
    let port = server.port();
    let transport = client(&server);
    let first = transport.server_info().await.unwrap().tables_state_id;
    server.stop();
    soon(server.wait()).await;
    refused(transport.server_info().await, ErrorKind::Unavailable, &format!("localhost:{port}"));

    let server = start_on(vec![table(config("a"))], port);
    let again = tokio::time::timeout(Duration::from_secs(1), transport.server_info());
    let second = again.await.unwrap().unwrap().tables_state_id;
    assert_ne!(first, second);
    drop(server);
}

#[tokio::test]
async fn several_servers_take_turns_and_those_that_are_down_are_passed_over() {
    let servers: Vec<Server> = (0..3).map(|_| start(vec![table(config("a"))])).collect();
    let places: Vec<String> =
        servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let transport = GrpcTransport::new(&format!("ipv4:{}", places.join(","))).unwrap();
    let mut seen = HashSet::new();
    for _ in 0..3 {
        seen.insert(transport.server_info().await.unwrap().tables_state_id);
    }
    assert_eq!(seen.len(), 3);
    servers[1].stop();
    soon(servers[1].wait()).await;
    let mut seen = HashSet::new();
    for _ in 0..6 {
        seen.insert(transport.server_info().await.unwrap().tables_state_id);
    }
    assert_eq!(seen.len(), 2);
    for server in &servers {
        server.stop();
        soon(server.wait()).await;
    }
    let error = transport.server_info().await.unwrap_err();
    assert!(places.iter().all(|place| error.message().contains(place)), "{error}");
}

#[tokio::test]
async fn a_writer_that_vanishes_leaves_no_references() {
    let items = table(queue("q", 2));
    let server = start(vec![Arc::clone(&items)]);
    let transport = client(&server);
    let mut insert = transport.open_insert().await.unwrap();
    // Held by the stream alone, then by items of the table.
    let held: Vec<_> = (1..=50).map(|key| chunk(key, &[key as i32])).collect();
    let first = vec![item(1, "q", 1.0, &held[..1])];
    let keep_chunk_keys = (1..=50).collect();
    insert
        .sink
        .send(InsertBatch { chunks: held.clone(), items: first, keep_chunk_keys })
        .await
        .unwrap();
    confirmed(&mut insert.confirmations, 1).await;
    let sample = items.try_sample(1).unwrap().remove(0);
    // Held by the stream and by this sample.
    let kept = &sample.trajectory.chunks()[0];
    assert_eq!(kept.reference_count(), 2);
    drop(insert);
    eventually(|| kept.reference_count() == 1).await;
}

#[tokio::test]
async fn an_insert_that_was_read_happens_even_if_its_writer_vanishes() {
    let items = table(queue("q", 1));
    let server = start(vec![Arc::clone(&items)]);
    let transport = client(&server);
    let mut insert = transport.open_insert().await.unwrap();
    let chunks = vec![chunk(1, &[1]), chunk(2, &[2])];
    insert.sink.send(batch("q", chunks)).await.unwrap();
    confirmed(&mut insert.confirmations, 1).await;
    eventually(|| items.info().waiting_inserts == 1).await;
    drop(insert);
    items.try_sample(1).unwrap();
    eventually(|| items.info().num_inserts == 2).await;
}

#[tokio::test]
async fn a_blocked_table_blocks_only_its_writers() {
    let blocked = table(queue("q", 10));
    let server = start(vec![Arc::clone(&blocked), table(config("t"))]);
    let transport = client(&server);
    let mut insert = transport.open_insert().await.unwrap();
    let send = async {
        // More than fits into the stream's window.
        for key in 0..1000 {
            insert.sink.send(batch("q", vec![large_chunk(key, 100_000)])).await.unwrap();
        }
    };
    assert!(tokio::time::timeout(Duration::from_millis(500), send).await.is_err());
    assert!(blocked.info().waiting_inserts <= 2, "{}", blocked.info().waiting_inserts);
    // The connection serves other streams meanwhile.
    let mut other = transport.open_insert().await.unwrap();
    other.sink.send(batch("t", vec![large_chunk(1, 20 << 20)])).await.unwrap();
    confirmed(&mut other.confirmations, 1).await;
    soon(transport.server_info()).await.unwrap();
    let mut samples = transport.open_sample().await.unwrap();
    samples.request(&SampleRequest::new("q", 20, None)).unwrap();
    received(&mut *samples, 20).await.unwrap();
}

#[tokio::test]
async fn streams_may_be_cancelled_by_the_thousand() {
    let server = start(vec![table(config("t"))]);
    let transport = client(&server);
    for _ in 0..3000 {
        let mut samples = transport.open_sample().await.unwrap();
        samples.request(&SampleRequest::new("t", 1, None)).unwrap();
        drop(samples);
    }
    soon(transport.server_info()).await.unwrap();
}

#[tokio::test]
async fn only_a_loopback_address_can_mean_a_server_of_this_process() {
    let server = start(vec![table(config("t"))]);
    let port = Loopback::of(&format!("localhost:{}", server.port())).unwrap();
    let shard = local_shard(port).unwrap();
    assert!(shard.is_local() && shard.may_withdraw());
    assert_eq!(Loopback::of("example.com:80"), None);
    drop(server);
    assert!(local_shard(port).is_none());
}
