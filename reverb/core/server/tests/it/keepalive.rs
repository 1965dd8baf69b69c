// SPDX-License-Identifier: Apache-2.0
//! Peers that vanish, and which peers are sent pings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use http::{HeaderMap, header};
use reverb_base::{Error, ErrorKind};
use reverb_engine::{Confirm, Table};
use reverb_rpc::Keepalive;
use reverb_rpc::client::ConnectionOptions;
use reverb_rpc::keepalive::PRODUCT;
use reverb_server::{Server, ServerOptions};
use reverb_wire::transport::{SampleRequest, Transport};
use reverb_wire::{GrpcTransport, generated as proto};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

const QUICK: Keepalive =
    Keepalive { interval: Some(Duration::from_millis(100)), timeout: Duration::from_millis(500) };

/// Longer than either end waits before it gives up on the other.
const LONG: Duration = Duration::from_millis(1500);

const NEVER: Keepalive = Keepalive { interval: None, timeout: Duration::from_secs(1) };

/// A proxy between a client and a server.
struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_cut: AtomicBool,
    /// PING frames of clients and of the server, without acknowledgements.
    from_clients: AtomicUsize,
    from_server: AtomicUsize,
}

impl Proxy {
    async fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let (shared, server) = (Arc::clone(&state), server.port());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                let (client_input, client_output) = client.into_split();
                let (server_input, server_output) = server.into_split();
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let count = |_: &State| &state.from_clients;
                    let _ = forward(&state, count, client_input, server_output, 24).await;
                });
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let count = |_: &State| &state.from_server;
                    let _ = forward(&state, count, server_input, client_output, 0).await;
                });
            }
        });
        Self { port, state }
    }

    /// From now on nothing arrives at either end, and neither end is notified.
    fn cut(&self) {
        self.state.is_cut.store(true, Ordering::Relaxed);
    }

    fn pings(&self) -> (usize, usize) {
        let State { from_clients, from_server, .. } = &*self.state;
        (from_clients.load(Ordering::Relaxed), from_server.load(Ordering::Relaxed))
    }

    fn client(&self, keepalive: Keepalive) -> GrpcTransport {
        let options = ConnectionOptions { keepalive, ..ConnectionOptions::default() };
        GrpcTransport::with_options(&format!("127.0.0.1:{}", self.port), options).unwrap()
    }
}

/// Forwards frames from one end to the other, the first `preface` bytes unchanged.
async fn forward<'a>(
    state: &'a State,
    count: impl Fn(&'a State) -> &'a AtomicUsize,
    mut input: OwnedReadHalf,
    mut output: OwnedWriteHalf,
    preface: usize,
) -> std::io::Result<()> {
    let mut bytes = vec![0; preface];
    input.read_exact(&mut bytes).await?;
    output.write_all(&bytes).await?;
    loop {
        let mut head = [0; 9];
        input.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        bytes.resize(length, 0);
        input.read_exact(&mut bytes).await?;
        if state.is_cut.load(Ordering::Relaxed) {
            // The sockets stay open: a machine that loses power closes none.
            std::future::pending::<()>().await;
        }
        if head[3] == 6 && head[4] & 1 == 0 {
            count(state).fetch_add(1, Ordering::Relaxed);
        }
        output.write_all(&head).await?;
        output.write_all(&bytes).await?;
    }
}

fn start_with(tables: &[Arc<Table>], keepalive: Keepalive) -> Server {
    let options = ServerOptions { keepalive, ..ServerOptions::default() };
    Server::start(tables.to_vec(), &options, &Handle::current()).unwrap()
}

/// A confirmation callback for inserts that are not awaited.
fn ignore() -> Arc<dyn Confirm> {
    struct Ignore;
    impl Confirm for Ignore {
        fn confirmed(&self, _: &[u64]) {}
        fn failed(&self, _: Error) {}
    }
    Arc::new(Ignore)
}

#[tokio::test]
async fn both_ends_ping_while_a_call_waits_for_its_first_answer() {
    let table = table(config("t"));
    let server = start_with(&[table], QUICK);
    let proxy = Proxy::to(&server).await;
    let client = proxy.client(QUICK);
    // No call is open before and after these calls, and connecting takes one ping.
    client.server_info().await.unwrap();
    tokio::time::sleep(LONG / 3).await;
    assert_eq!(proxy.pings(), (1, 0));
    let mut stream = client.open_sample().await.unwrap();
    stream.request(&SampleRequest::new("t", 1, None)).unwrap();
    let sampling = tokio::spawn(async move { stream.receive().await.is_ok() });
    eventually(|| proxy.pings().0 >= 4 && proxy.pings().1 >= 3).await;
    sampling.abort();
    tokio::time::sleep(LONG / 5).await;
    let pings = proxy.pings();
    tokio::time::sleep(LONG / 3).await;
    assert_eq!(proxy.pings(), pings);
}

#[tokio::test]
async fn a_first_call_identifies_the_server_while_it_waits() {
    let (empty, full) = (table(config("t")), table(queue("q", 1)));
    let server = start_with(&[empty, Arc::clone(&full)], NEVER);
    let proxy = Proxy::to(&server).await;
    let client = proxy.client(QUICK);
    let mut sample = client.open_sample().await.unwrap();
    sample.request(&SampleRequest::new("t", 1, None)).unwrap();
    let sampling = tokio::spawn(async move { sample.receive().await.is_ok() });
    eventually(|| proxy.pings().0 >= 3).await;
    assert_eq!(proxy.pings().1, 0, "this server sends none");
    sampling.abort();

    let proxy = Proxy::to(&server).await;
    let client = proxy.client(QUICK);
    full.insert(vec![item(1, "q", 1.0, &[chunk(1, &[1])])], &ignore()).unwrap();
    let mut insert = client.open_insert().await.unwrap();
    insert.sink.send(batch("q", vec![chunk(2, &[2])])).await.unwrap();
    eventually(|| proxy.pings().0 >= 3).await;
    assert!(insert.confirmations.try_recv().is_err());
}

#[tokio::test]
async fn strangers_get_no_ping_and_no_early_headers() {
    let server = start_with(&[table(config("t"))], QUICK);
    let proxy = Proxy::to(&server).await;
    let request = proto::SampleStreamRequest {
        table: "t".into(),
        num_samples: 1,
        ..proto::SampleStreamRequest::default()
    };
    for user_agent in [None, Some("grpc-c++/1.39.0 grpc-c/18.0.0 (linux; chttp2)")] {
        let client = RawClient::connect_to(proxy.port).await;
        let mut headers = HeaderMap::new();
        headers.extend(user_agent.map(|it| (header::USER_AGENT, it.parse().unwrap())));
        let mut stream = client.open_with("SampleStream", headers).await;
        stream.send(&request).await;
        assert!(tokio::time::timeout(LONG / 2, stream.next()).await.is_err());
        assert_eq!(proxy.pings(), (0, 0));
    }
    let client = RawClient::connect_to(proxy.port).await;
    let headers = HeaderMap::from_iter([(header::USER_AGENT, PRODUCT.parse().unwrap())]);
    let mut stream = client.open_with("SampleStream", headers).await;
    stream.send(&request).await;
    let answering = tokio::spawn(async move { stream.next().await });
    eventually(|| proxy.pings().1 >= 3).await;
    answering.abort();
}

#[tokio::test]
async fn both_ends_notice_a_lost_network() {
    let (empty, full) = (table(config("t")), table(queue("q", 1)));
    let server = start_with(&[Arc::clone(&empty), Arc::clone(&full)], QUICK);
    let proxy = Proxy::to(&server).await;
    let client = proxy.client(QUICK);
    let mut sample = client.open_sample().await.unwrap();
    sample.request(&SampleRequest::new("t", 1, None)).unwrap();
    let mut insert = client.open_insert().await.unwrap();
    let chunks = (1..=3).map(|key| chunk(key, &[1])).collect();
    insert.sink.send(batch("q", chunks)).await.unwrap();
    assert_eq!(confirmed(&mut insert.confirmations, 1).await, [1]);
    eventually(|| full.queued_inserts() == 2).await;
    proxy.cut();
    assert_eq!(empty.info().waiting_samples, 1);
    let text = format!(
        "The server at 127.0.0.1:{} did not answer a ping within 0.5 s (keepalive_timeout_s).",
        proxy.port
    );
    let error = soon(sample.receive()).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, text.as_str()));
    let error = soon(insert.confirmations.recv()).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, text.as_str()));
    // Neither the sampler nor the writer's items wait at the server any more.
    eventually(|| full.queued_inserts() == 0 && empty.info().waiting_samples == 0).await;
    assert_eq!(full.sample(10, Some(Duration::ZERO)).await.unwrap().len(), 1);
}

#[tokio::test]
async fn without_pings_both_ends_wait() {
    let table = table(config("t"));
    let server = start_with(&[Arc::clone(&table)], NEVER);
    let proxy = Proxy::to(&server).await;
    let mut sample = proxy.client(NEVER).open_sample().await.unwrap();
    sample.request(&SampleRequest::new("t", 1, None)).unwrap();
    eventually(|| table.info().waiting_samples == 1).await;
    proxy.cut();
    assert!(tokio::time::timeout(LONG, sample.receive()).await.is_err());
    assert!(proxy.pings().0 <= 1);
}
