// SPDX-License-Identifier: Apache-2.0

use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::client::movable_socket::MovableSocket;
use crate::keepalive::PRODUCT;

const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;

/// A server that records PINGs. It answers the first one, which is part of connecting, and the
/// others unless it is frozen.
#[derive(Default)]
struct Peer {
    pings: Mutex<Vec<Duration>>,
    is_frozen: AtomicBool,
    /// True if it sends a frame every two seconds, even while it is frozen.
    is_talking: AtomicBool,
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [.., a, b, c] = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![a, b, c, kind, flags, 0, 0, 0, 0];
    bytes.extend_from_slice(payload);
    bytes
}

impl Peer {
    async fn serve(self: Arc<Self>, socket: DuplexStream) -> io::Result<()> {
        let began = Instant::now();
        let (mut input, mut output) = tokio::io::split(socket);
        let (replies, mut outbox) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
        tokio::spawn(async move {
            while let Some(bytes) = outbox.recv().await {
                if output.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        let (talker, news) = (Arc::clone(&self), replies.clone());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(2)).await;
                if talker.is_talking.load(Ordering::Relaxed)
                    && news.send(frame(WINDOW_UPDATE, 0, &[0, 0, 0, 1])).is_err()
                {
                    return;
                }
            }
        });
        let _ = replies.send(frame(SETTINGS, 0, &[]));
        input.read_exact(&mut [0; 24]).await?;
        loop {
            let mut head = [0; 9];
            input.read_exact(&mut head).await?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            input.read_exact(&mut payload).await?;
            if head[4] & ACK != 0 || ![SETTINGS, PING].contains(&head[3]) {
                continue;
            }
            if head[3] == PING {
                self.pings.lock().push(began.elapsed());
                while self.is_frozen.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            let payload = if head[3] == PING { payload.as_slice() } else { &[] };
            let _ = replies.send(frame(head[3], ACK, payload));
        }
    }

    /// Seconds at which PINGs arrived, except for the first.
    fn pings(&self) -> Vec<u64> {
        self.pings.lock()[1..].iter().map(Duration::as_secs).collect()
    }
}

fn server() -> Server {
    let address = ServerAddress::Host(HostPort { host: "peer".to_owned(), port: 1 });
    Server::new(&address, Vec::new(), "peer:1".to_owned())
}

async fn connect(keepalive: Keepalive) -> (Arc<Peer>, Connection) {
    let (ours, theirs) = duplex(1 << 16);
    let peer = Arc::new(Peer::default());
    tokio::spawn(Arc::clone(&peer).serve(theirs));
    let connection = server()
        .establish(Driver::new(MovableSocket::closed()), ours, keepalive, &[])
        .await
        .unwrap();
    (peer, connection)
}

fn identify(connection: &Connection) {
    connection.liveness.identify(Some(&HeaderValue::from_static(PRODUCT)));
}

async fn wait_s(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

async fn is_open(connection: &Connection) -> bool {
    connection.handle.clone().ready().await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn pings_are_sent_while_a_call_is_open() {
    let (peer, connection) = connect(Keepalive::default()).await;
    identify(&connection);
    wait_s(35).await;
    assert!(peer.pings().is_empty(), "no call, no ping");
    let call = connection.liveness.open_call();
    wait_s(30).await;
    assert_eq!(peer.pings(), [40, 50, 60]);
    drop(call);
    wait_s(60).await;
    assert_eq!(peer.pings(), [40, 50, 60]);
    assert!(is_open(&connection).await);
}

#[tokio::test(start_paused = true)]
async fn unknown_peers_get_no_pings() {
    let (peer, connection) = connect(Keepalive::default()).await;
    let _call = connection.liveness.open_call();
    connection.liveness.identify(None);
    connection.liveness.identify(Some(&HeaderValue::from_static("envoy")));
    peer.is_frozen.store(true, Ordering::Relaxed);
    wait_s(3600).await;
    assert!(peer.pings().is_empty());
    assert!(is_open(&connection).await);
}

#[tokio::test(start_paused = true)]
async fn pings_can_be_turned_off() {
    let (peer, connection) = connect(Keepalive { interval: None, ..Keepalive::default() }).await;
    identify(&connection);
    let _call = connection.liveness.open_call();
    peer.is_frozen.store(true, Ordering::Relaxed);
    wait_s(3600).await;
    assert!(peer.pings().is_empty());
    assert!(is_open(&connection).await);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_is_gone_after_the_timeout() {
    let (peer, connection) = connect(Keepalive::default()).await;
    identify(&connection);
    let _call = connection.liveness.open_call();
    wait_s(11).await;
    peer.is_frozen.store(true, Ordering::Relaxed);
    wait_s(13).await;
    assert!(is_open(&connection).await);
    wait_s(2).await;
    assert_eq!(peer.pings(), [10, 20]);
    assert!(!is_open(&connection).await);
    assert!(connection.liveness.is_gone());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_was_frozen_for_four_seconds_is_not_gone() {
    let (peer, connection) = connect(Keepalive::default()).await;
    identify(&connection);
    let _call = connection.liveness.open_call();
    wait_s(9).await;
    for _ in 0..10 {
        peer.is_frozen.store(true, Ordering::Relaxed);
        wait_s(4).await;
        peer.is_frozen.store(false, Ordering::Relaxed);
        wait_s(6).await;
    }
    assert!(is_open(&connection).await);
    assert!(!connection.liveness.is_gone());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_other_frames_is_alive() {
    let (peer, connection) = connect(Keepalive::default()).await;
    identify(&connection);
    let _call = connection.liveness.open_call();
    wait_s(5).await;
    peer.is_frozen.store(true, Ordering::Relaxed);
    peer.is_talking.store(true, Ordering::Relaxed);
    wait_s(60).await;
    assert!(is_open(&connection).await);
    peer.is_talking.store(false, Ordering::Relaxed);
    wait_s(8).await;
    assert!(!is_open(&connection).await);
    assert_eq!(peer.pings(), [10], "one ping at a time");
}

#[tokio::test(start_paused = true)]
async fn the_options_set_interval_and_timeout() {
    let keepalive =
        Keepalive { interval: Some(Duration::from_secs(60)), timeout: Duration::from_secs(30) };
    let (peer, connection) = connect(keepalive).await;
    identify(&connection);
    let _call = connection.liveness.open_call();
    peer.is_frozen.store(true, Ordering::Relaxed);
    wait_s(89).await;
    assert!(is_open(&connection).await);
    wait_s(2).await;
    assert!(!is_open(&connection).await);
    assert_eq!(peer.pings(), [60]);
}

#[tokio::test]
async fn a_server_without_room_gives_its_reason() {
    const GOAWAY: u8 = 7;
    let graceful_close =
        frame(GOAWAY, 0, b"\0\0\0\0\0\0\0\x0bthe limit is 3 connections (Limits.x)");
    for first_words in [Vec::new(), frame(SETTINGS, 0, &[])] {
        let (ours, mut theirs) = duplex(1 << 16);
        theirs.write_all(&[&first_words[..], &graceful_close].concat()).await.unwrap();
        let error = server()
            .establish(Driver::new(MovableSocket::closed()), ours, Keepalive::default(), &[])
            .await
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "it refused the connection: the limit is 3 connections (Limits.x)"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_closes_while_connecting_is_reported_as_closed() {
    let (ours, mut theirs) = duplex(1 << 16);
    tokio::spawn(async move {
        let _ = theirs.read_exact(&mut [0; 24]).await;
    });
    let error = server()
        .establish(Driver::new(MovableSocket::closed()), ours, Keepalive::default(), &[])
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("closed") || error.to_string().contains("broken pipe"));
}
