// SPDX-License-Identifier: Apache-2.0
//! The port of a server, and the connections to it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::BoxFuture;
use crate::frames::{
    CONNECTION_WINDOW_BYTES, MAX_FRAME_BYTES, MAX_HEADER_LIST_BYTES, MAX_RESET_STREAMS,
    SEND_BUFFER_BYTES,
};
use crate::keepalive::{Keepalive, Liveness, WatchedSocket};
use crate::message::Message;
use crate::status::Status;
use http::header;
use reverb_data::{Error, Result};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

use super::call::{self, Handler};
use super::first_bytes::{self, Spoken};
use super::peer::{Link, Peer};
use super::refused_connections::RefusedConnections;
use super::responder::{self, Responder};
use super::stop::Stop;
use super::stream_limit::StreamLimit;
use super::traffic::Traffic;

/// Number of connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How many connections and streams a server accepts.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Number of connections.
    pub connections: usize,
    /// Number of concurrent streams of all connections.
    pub streams: usize,
    /// Number of concurrent streams of one connection. A peer waits with more.
    pub streams_per_connection: u32,
    /// Bytes of a stream that a peer may send before they are read.
    pub stream_window_bytes: u32,
    /// How long a peer may read nothing of what waits for it.
    pub unread_timeout: Duration,
}

/// How long peers may take to receive their last messages when the server shuts down.
const GRACE: Duration = Duration::from_secs(1);

/// How long to wait before the next `accept` after one failed, as when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time limit for the HTTP/2 handshake. Without it, connections that never send one would use up
/// the file descriptors.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens the port, for IPv4 and IPv6 unless `host` is given. Port 0 takes any free port.
///
/// # Errors
///
/// `InvalidArgument` that names the port and suggests what to do.
pub fn bind(host: Option<&str>, port: u16) -> Result<std::net::TcpListener> {
    let addresses: Vec<SocketAddr> = match host {
        Some(host) => (host, port)
            .to_socket_addrs()
            .map_err(|error| cannot_listen(host, port, &error))?
            .collect(),
        None => vec![
            (IpAddr::V6(Ipv6Addr::UNSPECIFIED), port).into(),
            (IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into(),
        ],
    };
    let mut failure = None;
    for address in addresses {
        match listen(address) {
            Ok(listener) => return Ok(listener),
            // Without IPv6 the next address may work. If the port is in use, no other address
            // helps.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                failure = Some(error);
                break;
            }
            Err(error) => failure = Some(error),
        }
    }
    let failure = failure.unwrap_or_else(|| io::Error::other("the host has no address"));
    Err(cannot_listen(host.unwrap_or("[::]"), port, &failure))
}

fn cannot_listen(host: &str, port: u16, error: &io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => "Another process has it: stop that one or choose another port",
        io::ErrorKind::PermissionDenied => "Choose a port of 1024 or above",
        _ => "Choose another host or port",
    };
    Error::invalid_argument(format!(
        "The server cannot listen on port {port} of {host}: {error}. {advice}; \
         port 0 takes any free one."
    ))
}

fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // On Windows the same option would let a second server share the port.
    #[cfg(not(windows))]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// State shared by the connections of a server.
struct Shared<H> {
    handler: Arc<H>,
    stop: Stop,
    keepalive: Keepalive,
    limits: ConnectionLimits,
    streams: Arc<StreamLimit>,
    traffic: Arc<Traffic>,
    hint: String,
}

/// Accepts connections until the server shuts down. Then closes the port, and gives the streams the
/// time `GRACE` to end.
///
/// A connection beyond the limit is closed at once. Its peer sees an unavailable server and the
/// reason, and tries again. A peer that speaks HTTP/1 or TLS is told that this is gRPC; `hint` is a
/// sentence that says where else to go.
pub async fn serve<H: Handler>(
    listener: TcpListener,
    handler: Arc<H>,
    stop: Stop,
    keepalive: Keepalive,
    limits: ConnectionLimits,
    traffic: Arc<Traffic>,
    hint: String,
) {
    let streams = Arc::new(StreamLimit::new(limits.streams));
    let mut connections = JoinSet::new();
    let mut refused = RefusedConnections::new(limits.connections, &traffic);
    let shared = Shared { handler, stop, keepalive, limits, streams, traffic, hint };
    let shared = Arc::new(shared);
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.stop.stopped() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) if connections.len() >= limits.connections => {
                refused.refuse(socket, peer);
            }
            Ok((socket, peer)) => {
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                // Costs nothing unless debug lines are shown.
                let span = tracing::debug_span!("connection", %peer);
                let connection = serve_connection(socket, peer, Arc::clone(&shared));
                connections.spawn(connection.instrument(span));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, refused));
    while connections.join_next().await.is_some() {}
}

async fn serve_connection<H: Handler>(socket: TcpStream, peer: SocketAddr, shared: Arc<Shared<H>>) {
    let _open = shared.traffic.open();
    if let Err(error) = serve_streams(socket, peer, &shared).await {
        tracing::debug!(%peer, %error, "the connection ended");
    }
}

async fn serve_streams<H: Handler>(
    socket: TcpStream,
    peer: SocketAddr,
    shared: &Arc<Shared<H>>,
) -> std::result::Result<(), h2::Error> {
    // This is only an optimisation. The connection also works without it.
    let _ = socket.set_nodelay(true);
    let Some(socket) = recognized(socket, peer, shared).await else { return Ok(()) };
    shared.keepalive.set_tcp_options(&socket);
    let liveness = Arc::new(Liveness::counted(&shared.traffic));
    let socket = WatchedSocket::new(socket, Arc::clone(&liveness));
    let handshake = h2::server::Builder::new()
        .initial_window_size(shared.limits.stream_window_bytes)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(shared.limits.streams_per_connection)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .handshake::<_, Message>(socket);
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake);
    let Ok(Ok(connection)) = shared.stop.or(handshake).await else { return Ok(()) };
    let mut connection = connection?;
    let pings = connection.ping_pong().expect("it is taken only here");
    let mut gone = pin!(shared.keepalive.watch(pings, &liveness));
    let peer = Arc::new(Peer::new(peer, Link::Cleartext));
    let mut deadline = None;
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = shared.stop.stopped(), if deadline.is_none() => {
                connection.graceful_shutdown();
                deadline = Some(Instant::now() + GRACE);
                continue;
            }
            () = peer.failed_often(), if deadline.is_none() => {
                connection.graceful_shutdown();
                deadline = Some(Instant::now() + GRACE);
                continue;
            }
            () = sleep_until(deadline), if deadline.is_some() => return Ok(()),
            () = &mut gone => {
                tracing::debug!("closing the connection: no answer to a ping");
                return Ok(());
            }
        };
        let Some(stream) = accepted else { return Ok(()) };
        let (request, response) = stream?;
        liveness.identify(request.headers().get(header::USER_AGENT));
        let open_stream = match shared.streams.open(liveness.open_calls(), peer.name()) {
            Ok(open_stream) => open_stream,
            Err(error) => {
                let status = Status::from_error(&error);
                shared.traffic.count_end(request.uri().path(), status.code, error.limit());
                responder::end_with(response, &status);
                continue;
            }
        };
        let call = liveness.open_call();
        let (shared, peer) = (Arc::clone(shared), Arc::clone(&peer));
        let span = tracing::debug_span!("call", method = request.uri().path());
        let call = async move {
            let unread = shared.limits.unread_timeout;
            let responder = Responder::new(response, call, &peer, request.headers(), unread);
            call::run(&shared.handler, &shared.stop, &shared.traffic, request, responder).await;
            drop(open_stream);
        };
        tokio::spawn(call.instrument(span));
    }
}

/// The socket of a peer that speaks HTTP/2. Others are told what this is.
async fn recognized<H>(
    socket: TcpStream,
    peer: SocketAddr,
    shared: &Shared<H>,
) -> Option<TcpStream> {
    let recognized = tokio::time::timeout(HANDSHAKE_TIMEOUT, Spoken::recognize(&socket));
    let Ok(Ok(Ok(protocol))) = shared.stop.or(recognized).await else { return None };
    let last_words: BoxFuture<'_, io::Result<()>> = match protocol {
        Spoken::Http2 => return Some(socket),
        Spoken::Http1 => Box::pin(first_bytes::answer_http1(socket, &shared.hint)),
        Spoken::Tls => {
            tracing::warn!(%peer, "it tries TLS; this port has none: use a client without TLS");
            Box::pin(first_bytes::answer_tls(socket))
        }
    };
    // Whether the peer hears them is up to the peer.
    let _ = shared.stop.or(tokio::time::timeout(GRACE, last_words)).await;
    None
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
