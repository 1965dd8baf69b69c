// SPDX-License-Identifier: Apache-2.0
//! A port as its peers see it, also those who mean harm.
#![allow(clippy::unwrap_used, reason = "tests may")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use reverb_http::{AllowedHosts, Answer, Request, Site, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

struct Pages;

impl Site for Pages {
    fn paths(&self) -> &'static [&'static str] {
        &["/", "/down"]
    }

    fn answer(&self, request: Request<'_>) -> Answer {
        match request.path {
            "/" => Answer::ok("text/html", format!("{:?} {}", request.query, request.accept)),
            _ => Answer::text(StatusCode::SERVICE_UNAVAILABLE, "loading"),
        }
    }
}

/// Starts a port; returns its address, and the sender that stops it.
async fn start() -> (SocketAddr, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(serve(listener, Arc::new(Pages), AllowedHosts::of("127.0.0.1"), None, async {
        let _ = stopped.await;
    }));
    (address, stop)
}

/// Complete answer of the port to these bytes.
async fn answer_to(address: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    let _ = socket.read_to_string(&mut text).await;
    text
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
}

#[tokio::test]
async fn pages_are_answered() {
    let (address, _stop) = start().await;
    let text = answer_to(address, &get("/?a=1", "Accept: text/html\r\n")).await;
    assert!(text.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n"), "{text}");
    assert!(text.contains("cache-control: no-store") && text.ends_with("Some(\"a=1\") text/html"));
    let text = answer_to(address, &get("/down", "")).await;
    assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with("\r\n\r\nloading\n"), "{text}");
    let text = answer_to(address, &get("/", "").replace("GET", "HEAD")).await;
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\n"), "{text}");
}

#[tokio::test]
async fn what_is_not_offered_is_refused_in_words() {
    let (address, _stop) = start().await;
    let text = answer_to(address, &get("/nothing", "")).await;
    assert!(text.starts_with("HTTP/1.1 404 "), "{text}");
    assert!(text.ends_with("There is no such page. There are: /, /down\n"), "{text}");
    let post = get("/", "Content-Length: 3\r\n").replace("GET", "POST") + "abc";
    let text = answer_to(address, &post).await;
    assert!(text.starts_with("HTTP/1.1 405 ") && text.contains("allow: GET, HEAD"), "{text}");
    let text = answer_to(address, &get("/", "").replace("localhost", "evil.example")).await;
    assert!(text.starts_with("HTTP/1.1 403 "), "{text}");
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let (address, _stop) = start().await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = get("/", "").replace("Connection: close\r\n", "");
    for _ in 0..100 {
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut buffer = [0; 1024];
        let read = socket.read(&mut buffer).await.unwrap();
        assert!(buffer[..read].starts_with(b"HTTP/1.1 200 OK"));
    }
}

#[tokio::test]
async fn large_heads_and_garbage_end_the_connection() {
    let (address, _stop) = start().await;
    let text = answer_to(address, &get("/", &format!("X: {}\r\n", "x".repeat(64 << 10)))).await;
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431 "), "{text}");
    let many = "X: 1\r\n".repeat(1000);
    let text = answer_to(address, &get("/", &many)).await;
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431 "), "{text}");
    for garbage in ["\0\0\0\0\0\0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\u{16}\u{3}\u{1}"]
    {
        let text = tokio::time::timeout(Duration::from_secs(8), answer_to(address, garbage));
        let text = text.await.unwrap();
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert!(answer_to(address, &get("/", "")).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_head_that_comes_byte_by_byte_is_cut_off() {
    let (address, _stop) = start().await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    let began = tokio::time::Instant::now();
    while socket.write_all(b"G").await.is_ok() && began.elapsed() < Duration::from_secs(20) {
        let mut byte = [0; 64];
        let read = tokio::time::timeout(Duration::from_millis(200), socket.read(&mut byte)).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            break;
        }
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn many_open_connections_shut_nobody_out() {
    let (address, _stop) = start().await;
    let mut open = Vec::new();
    for i in 0..500 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        if i % 2 == 0 {
            let _ = socket.write_all(b"GET / HT").await;
        }
        open.push(socket);
    }
    let request = get("/", "");
    let answer = tokio::time::timeout(Duration::from_secs(5), answer_to(address, &request));
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn stopping_closes_the_port_and_its_connections() {
    let (address, stop) = start().await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    drop(stop);
    assert!(matches!(socket.read(&mut [0; 8]).await, Ok(0) | Err(_)));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(TcpStream::connect(address).await.is_err());
}
