// SPDX-License-Identifier: Apache-2.0
//! The HTTP port before and during the life of its server.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use reverb_server::HttpPort;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Status and body of a page.
async fn get(port: u16, path: &str) -> (String, String) {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}

fn answer(status: &str, body: &str) -> (String, String) {
    (status.to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_port_says_whether_the_tables_are_loaded() {
    let http = HttpPort::open("127.0.0.1", 0, None, &Handle::current()).unwrap();
    let port = http.port();
    let loading = answer("503", "not ready: the tables are loading\n");
    assert_eq!(get(port, "/livez").await, answer("200", "alive\n"));
    for path in ["/readyz", "/metrics", "/api/status"] {
        assert_eq!(get(port, path).await, loading, "{path}");
    }
    let server = start(vec![table(config("a"))]);
    server.attach(http);
    assert_eq!(get(port, "/readyz").await, answer("200", "ready\n"));
    assert!(get(port, "/metrics").await.1.contains("reverb_table_items{table=\"a\"} 0\n"));
    server.stop();
    eventually(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_err()).await;
}

#[tokio::test]
async fn a_port_whose_server_never_comes_closes() {
    let http = HttpPort::open("127.0.0.1", 0, None, &Handle::current()).unwrap();
    let port = http.port();
    drop(http);
    eventually(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_err()).await;
}
