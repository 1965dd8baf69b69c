// SPDX-License-Identifier: Apache-2.0
//! The port: accepts connections and answers their requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::answer::{Answer, Request, Site};
use crate::connections::Connections;
use crate::host::AllowedHosts;

/// Bytes of the head of a request.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Number of headers of a request.
const MAX_HEADERS: usize = 64;

/// How long a peer may take for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a peer may take to read an answer, and how long it may keep a connection at all.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// How long to wait before the next `accept` after one failed, as when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves a site until `stop` completes; then closes the port and all connections.
pub async fn serve<S: Site>(
    listener: TcpListener,
    site: Arc<S>,
    hosts: AllowedHosts,
    stop: impl Future<Output = ()>,
) {
    let hosts = Arc::new(hosts);
    let connections = Arc::new(Connections::default());
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
        let connection = connections.open();
        let (site, hosts) = (Arc::clone(&site), Arc::clone(&hosts));
        let connections = Arc::clone(&connections);
        tasks.spawn(async move {
            let requested = || connections.touch(&connection);
            tokio::select! {
                () = connection.ended() => {}
                () = tokio::time::sleep(CONNECTION_TIMEOUT) => {}
                () = converse(socket, peer, &*site, &hosts, requested) => {}
            }
            connections.close(&connection);
        });
    }
}

/// Answers the requests of a connection until it ends; calls `requested` for each.
async fn converse<S: Site>(
    socket: TcpStream,
    peer: SocketAddr,
    site: &S,
    hosts: &AllowedHosts,
    requested: impl Fn(),
) {
    // This is only an optimisation.
    let _ = socket.set_nodelay(true);
    let service = service_fn(|request: http::Request<Incoming>| {
        requested();
        let answer = answer(site, hosts, &request, peer);
        std::future::ready(Ok::<_, Infallible>(response(answer)))
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
    peer: SocketAddr,
) -> Answer {
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
