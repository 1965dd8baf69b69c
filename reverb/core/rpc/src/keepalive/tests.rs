// SPDX-License-Identifier: Apache-2.0

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::TcpListener;

use super::*;

#[test]
fn the_defaults_are_ten_and_five_seconds() {
    assert_eq!(Keepalive::from_seconds(Some(10.0), 5.0).unwrap(), Keepalive::default());
    assert_eq!(Keepalive::from_seconds(None, 0.1).unwrap().interval, None);
}

#[test]
fn a_bad_number_of_seconds_is_named() {
    for bad in [0.0, -1.0, 0.09, 86_401.0, f64::NAN, f64::INFINITY] {
        let error = Keepalive::from_seconds(Some(bad), 5.0).unwrap_err();
        let or = ", or None for no pings";
        let text = format!("keepalive_s must be from 0.1 to 86400 seconds{or}, got {bad}");
        assert_eq!(error.message(), text);
        let error = Keepalive::from_seconds(None, bad).unwrap_err();
        let text = format!("keepalive_timeout_s must be from 0.1 to 86400 seconds, got {bad}");
        assert_eq!(error.message(), text);
    }
}

#[test]
fn only_our_own_products_are_ours() {
    for (product, ours) in [
        (PRODUCT, true),
        ("grpc-rust-reverb/99.0.0 (linux)", true),
        ("grpc-c++/1.39.0 grpc-c/18.0.0 (linux; chttp2)", false),
        ("grpc-python/1.60.0", false),
        ("envoy", false),
        ("", false),
    ] {
        assert_eq!(is_ours(Some(&HeaderValue::from_static(product))), ours, "{product}");
    }
    assert!(!is_ours(None));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn tcp_notices_a_peer_that_is_gone_in_half_a_minute() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    for (keepalive, user_timeout_s) in [
        (Keepalive::default(), 28),
        (Keepalive { interval: None, ..Keepalive::default() }, 28),
        (Keepalive::from_seconds(Some(60.0), 20.0).unwrap(), 80),
    ] {
        keepalive.set_tcp_options(&socket);
        let options = SockRef::from(&socket);
        assert!(options.keepalive().unwrap());
        assert_eq!(options.tcp_keepalive_time().unwrap(), Duration::from_secs(10));
        assert_eq!(options.tcp_keepalive_interval().unwrap(), Duration::from_secs(5));
        assert_eq!(options.tcp_keepalive_retries().unwrap(), 4);
        let user_timeout = options.tcp_user_timeout().unwrap();
        assert_eq!(user_timeout, Some(Duration::from_secs(user_timeout_s)));
    }
}

#[tokio::test]
async fn a_socket_records_signs_of_life() -> io::Result<()> {
    let liveness = Arc::new(Liveness::default());
    let (socket, mut peer) = duplex(8);
    let mut socket = WatchedSocket::new(socket, Arc::clone(&liveness));
    socket.write_all(b"12345678").await?;
    assert!(!liveness.take_heard(), "a buffer with room shows nothing about the peer");
    let (written, read) = tokio::join!(socket.write_all(b"9"), peer.read_u8());
    assert_eq!((written?, read?), ((), b'1'));
    assert!(liveness.take_heard(), "the peer made room");
    peer.write_u8(1).await?;
    assert!(!liveness.take_heard());
    assert_eq!(socket.read_u8().await?, 1);
    assert!(liveness.take_heard());
    assert!(!liveness.take_heard());
    Ok(())
}

#[test]
fn calls_are_counted() {
    let liveness = Arc::new(Liveness::default());
    let first = liveness.open_call();
    assert!(!liveness.needs_pings(), "the peer is not identified");
    liveness.identify(Some(&HeaderValue::from_static("grpc-c++/1.39.0")));
    assert!(!liveness.needs_pings());
    liveness.identify(Some(&HeaderValue::from_static(PRODUCT)));
    let second = liveness.open_call();
    drop(first);
    assert!(liveness.needs_pings());
    drop(second);
    assert!(!liveness.needs_pings());
}
