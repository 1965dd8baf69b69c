// SPDX-License-Identifier: Apache-2.0
//! The HTTP port before and during the life of its server.

use crate::support::callers::Callers;
use crate::support::*;
use base64::Engine;
use reverb_auth::{Right, new_token};
use reverb_server::{HttpPort, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Status and body of a page.
pub(crate) async fn get(port: u16, path: &str) -> (String, String) {
    let (head, body) = get_with(port, path, "").await;
    (head.split(' ').nth(1).unwrap().to_owned(), body)
}

/// Head and body of a page that is asked for with further headers.
async fn get_with(port: u16, path: &str, headers: &str) -> (String, String) {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// A server with tokens: one may sample from table a, the other may only insert. The pages of the
/// server are on a port of this host.
fn start_with_tokens(host: &str) -> (Server, u16, [String; 2]) {
    let callers =
        Callers::new(&[("watcher", &[Right::Sample], &["a"]), ("actor", &[Right::Insert], &["*"])]);
    let tables = vec![table(config("a")), table(config("secret"))];
    let server = Server::start(tables, &callers.options(), &Handle::current()).unwrap();
    let http = HttpPort::open(host, 0, None, &Handle::current()).unwrap();
    let port = http.port();
    server.attach(http);
    (server, port, ["watcher", "actor"].map(|name| callers.token(name).to_owned()))
}

const PAGES: [&str; 3] = ["/", "/api/status", "/api/history?table=a&table=secret"];

#[tokio::test]
async fn pages_about_tables_want_the_right_to_sample() {
    let (server, port, [watcher, actor]) = start_with_tokens("127.0.0.1");
    let as_password = |token: &str| {
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("me:{token}"));
        format!("Authorization: Basic {pair}\r\n")
    };
    for path in PAGES {
        let (head, body) = get_with(port, path, "").await;
        assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
        assert!(head.contains("www-authenticate: Basic realm=\"reverb\""), "{head}");
        assert!(body.starts_with("This server wants a token, as the password"), "{body}");
        let wrong = new_token().unwrap();
        for header in [as_password(&wrong), format!("Authorization: Bearer {wrong}\r\n")] {
            let (head, body) = get_with(port, path, &header).await;
            assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
            let text = format!("This server does not know this token ({}…).\n", &wrong[..8]);
            assert_eq!(body, text);
        }
        for header in [as_password(&watcher), format!("Authorization: Bearer {watcher}\r\n")] {
            let (head, body) = get_with(port, path, &header).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert!(body.contains("\"a\"") || body.contains("<b>a</b>"), "{body}");
            assert!(!body.contains("secret"), "{body}");
        }
        let (head, body) = get_with(port, path, &as_password(&actor)).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
        assert!(body.contains(": token actor may not sample from any table; it may insert."));
    }
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(get(port, path).await.0, "200", "{path}");
    }
    let (_, metrics) = get(port, "/metrics").await;
    assert!(metrics.contains("reverb_auth_failures_total{reason=\"missing\"} 3\n"), "{metrics}");
    assert!(metrics.contains("reverb_auth_failures_total{reason=\"unknown\"} 6\n"), "{metrics}");
    assert!(metrics.contains("reverb_auth_failures_total{reason=\"denied\"} 3\n"), "{metrics}");
    assert!(metrics.contains("reverb_table_items{table=\"secret\"} 0\n"));
    drop(server);
}

#[tokio::test]
async fn a_port_that_others_can_listen_to_reads_no_token() {
    let (_server, port, [watcher, _]) = start_with_tokens("0.0.0.0");
    for path in PAGES {
        for headers in ["", &format!("Authorization: Bearer {watcher}\r\n")] {
            let (head, body) = get_with(port, path, headers).await;
            assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
            assert!(!head.contains("www-authenticate"), "{head}");
            assert!(body.starts_with("This port serves only /livez, /readyz and /metrics: "));
        }
    }
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(get(port, path).await.0, "200", "{path}");
    }
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
