// SPDX-License-Identifier: Apache-2.0
//! The port: accepts connections and answers their requests.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use reverb_tls::{ClientCertificate, Protocol, ServerTls, Socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::answer::{Answer, Peer, Request, Site};
use crate::connections::Connections;
use crate::host::AllowedHosts;

const TLS_HANDSHAKE: u8 = 0x16;

/// Maximum size of the head of a request in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;

const MAX_HEADERS: usize = 64;

const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for reading an answer, and for a connection as a whole.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// Delay of the answer to a failed authentication.
const FAILURE_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of such answers on a connection.
const MAX_FAILURES: u32 = 10;

/// Pause after a failed `accept`, as when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves a site, over TLS if it is given, until `stop` completes; then closes the port and all
/// connections.
pub async fn serve<S: Site>(
    listener: TcpListener,
    site: Arc<S>,
    hosts: AllowedHosts,
    tls: Option<Arc<ServerTls>>,
    stop: impl Future<Output = ()>,
) {
    let hosts = Arc::new(hosts);
    let connections = Arc::new(Connections::new(site.max_connections()));
    // Dropping it ends the connections.
    let mut tasks = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection to the HTTP port could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = connections.open().await;
        let site = Arc::clone(&site);
        let hosts = Arc::clone(&hosts);
        let connections = Arc::clone(&connections);
        let tls = tls.clone();
        tasks.spawn(async move {
            let requested = || connections.touch(&connection);
            tokio::select! {
                () = connection.ended() => {}
                () = tokio::time::sleep(CONNECTION_TIMEOUT) => {}
                () = serve_connection(socket, peer, tls.as_deref(), &*site, &hosts, requested) => {}
            }
            connections.close(&connection);
        });
    }
}

/// Begins TLS if the port has it, then answers the requests of a connection until it ends.
async fn serve_connection<S: Site>(
    socket: TcpStream,
    address: SocketAddr,
    tls: Option<&ServerTls>,
    site: &S,
    hosts: &AllowedHosts,
    requested: impl Fn(),
) {
    // This is only an optimisation.
    let _ = socket.set_nodelay(true);
    let (socket, certificate) = match tls {
        None => (Socket::Cleartext(socket), None),
        Some(tls) => match tokio::time::timeout(HEAD_TIMEOUT, begin_tls(socket, tls)).await {
            Ok(Ok(Some(begun))) => begun,
            Ok(Ok(None)) | Err(_) => return,
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS did not begin on the HTTP port");
                return;
            }
        },
    };
    let peer = Peer { address, certificate };
    converse(socket, &peer, site, hosts, requested).await;
}

/// Begins TLS, and returns the certificate of the client. A peer that speaks HTTP without TLS gets
/// an answer that says so.
async fn begin_tls(
    mut socket: TcpStream,
    tls: &ServerTls,
) -> io::Result<Option<(Socket, Option<ClientCertificate>)>> {
    let mut first = [0];
    if socket.peek(&mut first).await? == 1 && first[0] == TLS_HANDSHAKE {
        return tls.accept(socket, Protocol::Http1).await.map(Some);
    }
    let text = "This port speaks HTTPS: write https:// before its address.\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: \
         {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the peer might not receive the
    // answer.
    let mut rest = socket.take(MAX_HEAD_BYTES as u64);
    while rest.read(&mut [0; 1024]).await? > 0 {}
    Ok(None)
}

/// Answers the requests of a connection until it ends; calls `requested` for each.
async fn converse<S: Site>(
    socket: Socket,
    peer: &Peer,
    site: &S,
    hosts: &AllowedHosts,
    requested: impl Fn(),
) {
    let failures = AtomicU32::new(0);
    let service = service_fn(|request: http::Request<Incoming>| {
        requested();
        let answer = answer(site, hosts, &request, peer);
        let has_failed = answer.status == StatusCode::UNAUTHORIZED;
        failures.fetch_add(u32::from(has_failed), Ordering::Relaxed);
        let is_last = failures.load(Ordering::Relaxed) >= MAX_FAILURES;
        async move {
            let mut response = response(answer);
            if has_failed {
                tokio::time::sleep(FAILURE_DELAY).await;
            }
            if is_last {
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the HTTP port ended");
    }
}

fn answer<S: Site>(
    site: &S,
    hosts: &AllowedHosts,
    request: &http::Request<Incoming>,
    peer: &Peer,
) -> Answer {
    if request.headers().get_all(header::HOST).iter().count() > 1 {
        return Answer::text(
            StatusCode::BAD_REQUEST,
            "A request has one header Host, not several.",
        );
    }
    let host = text(request.headers(), &header::HOST);
    if !hosts.allow(host) {
        let line = "This port answers to addresses and to localhost; the Host of this request is another name.";
        return Answer::text(StatusCode::FORBIDDEN, line);
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut answer = Answer::text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.");
        answer.headers.push(("allow", "GET, HEAD".to_owned()));
        return answer;
    }
    let path = request.uri().path();
    if !site.paths().contains(&path) {
        let line = format!("There is no such page. There are: {}", site.paths().join(", "));
        return Answer::text(StatusCode::NOT_FOUND, &line);
    }
    let accept = text(request.headers(), &header::ACCEPT);
    let authorization = text(request.headers(), &header::AUTHORIZATION);
    site.answer(Request { path, query: request.uri().query(), accept, authorization, peer })
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    for (name, value) in answer.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}
