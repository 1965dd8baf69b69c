// SPDX-License-Identifier: Apache-2.0
//! A connection to a server: its handshakes, and the calls on it.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header;
use parking_lot::Mutex;
use reverb_tls::{Protocol, Socket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::Instrument;

use super::accepted::{Accepted, PeerAddress};
use super::authority::PlainAuthority;
use super::call::{self, Handler};
use super::first_bytes::{self, Spoken};
use super::handshakes::{Handshake, Handshakes};
use super::listener::PortOptions;
use super::outgoing::{Outbox, OutgoingOfConnection};
use super::peer::{Link, Peer};
use super::refused_connections::RefusedConnections;
use super::responder::{self, Responder};
use super::stop::Stop;
use super::stream_limit::StreamLimit;
use crate::BoxFuture;
use crate::frames::{
    CONNECTION_WINDOW_BYTES, MAX_FRAME_BYTES, MAX_HEADER_LIST_BYTES, MAX_RESET_STREAMS,
    SEND_BUFFER_BYTES,
};
use crate::keepalive::{Liveness, WatchedSocket};
use crate::message::Message;
use crate::status::{Code, Status, WANTS_TLS};

/// How long peers may take to receive their last messages when the server shuts down.
const GRACE: Duration = Duration::from_secs(1);

/// Time limit for all handshakes. Without it, connections that never finish them would use up the
/// file descriptors.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// State shared by the connections of a port.
pub(super) struct Shared<H> {
    pub(super) handler: Arc<H>,
    pub(super) stop: Stop,
    pub(super) streams: Arc<StreamLimit>,
    /// Room for connections whose handshakes are done.
    pub(super) room: Arc<Semaphore>,
    pub(super) refused: Mutex<RefusedConnections>,
    pub(super) handshakes: Arc<Handshakes>,
    pub(super) options: PortOptions,
}

/// A connection whose handshakes are done.
struct Open {
    connection: h2::server::Connection<WatchedSocket<PlainAuthority<Socket>>, Message>,
    liveness: Arc<Liveness>,
    peer: Arc<Peer>,
    /// Whether it has no TLS and should have it: all calls are refused.
    lacks_tls: bool,
    _room: OwnedSemaphorePermit,
}

/// Serves a connection until it ends.
pub(super) async fn serve<H: Handler>(
    socket: Accepted,
    peer: PeerAddress,
    handshake: Handshake,
    shared: Arc<Shared<H>>,
) {
    let _counted = shared.options.traffic.open();
    let opened = {
        let handshake = handshake;
        let opening = tokio::time::timeout(HANDSHAKE_TIMEOUT, open(socket, peer, &shared));
        shared.stop.or(handshake.or_displaced(opening)).await
    };
    let Ok(Some(Ok(Some(opened)))) = opened else { return };
    if let Err(error) = serve_streams(opened, &shared).await {
        tracing::debug!(%peer, %error, "the connection ended");
    }
}

/// Does the handshakes. `None` if the peer was told to go, or has gone.
async fn open<H>(accepted: Accepted, address: PeerAddress, shared: &Shared<H>) -> Option<Open> {
    accepted.set_options(shared.options.keepalive);
    let is_unix = accepted.is_unix();
    let tls = shared.options.tls.as_ref().filter(|_| !is_unix);
    // With TLS, there is no telling before it has begun.
    if tls.is_none() && shared.room.available_permits() == 0 {
        shared.refused.lock().refuse(Socket::from(accepted), address);
        return None;
    }
    let protocol = Spoken::recognize(&accepted).await.ok()?;
    let (socket, link) = match (protocol, tls, accepted) {
        (Spoken::Http1, _, accepted) => {
            let answer = first_bytes::answer_http1(accepted.into(), &shared.options.hint);
            return say(Box::pin(answer)).await;
        }
        (Spoken::Tls, Some(port), Accepted::Tcp(socket)) => {
            match port.tls.accept(socket, Protocol::Http2).await {
                Ok((socket, names)) => {
                    (socket, Link::Tls { certificate_names: names.unwrap_or_default() })
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(peer = %address, "refused the connection: {error}");
                    return None;
                }
                Err(error) => {
                    tracing::debug!(peer = %address, %error, "TLS did not begin");
                    return None;
                }
            }
        }
        (Spoken::Tls, _, accepted) => {
            tracing::warn!(
                peer = %address,
                "it tries TLS; this port has none: use a client without TLS"
            );
            return say(Box::pin(first_bytes::answer_tls(accepted.into()))).await;
        }
        (Spoken::Http2, _, accepted) => (accepted.into(), Link::Cleartext),
    };
    let Ok(room) = Arc::clone(&shared.room).try_acquire_owned() else {
        shared.refused.lock().refuse(socket, address);
        return None;
    };
    let lacks_tls = tls.is_some() && link == Link::Cleartext;
    let liveness = Arc::new(Liveness::counted(&shared.options.traffic));
    let limits = shared.options.limits;
    let socket = PlainAuthority::new(socket, is_unix);
    let connection = h2::server::Builder::new()
        .initial_window_size(limits.stream_window_bytes)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(limits.streams_per_connection)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .handshake::<_, Message>(WatchedSocket::new(socket, Arc::clone(&liveness)))
        .await;
    match connection {
        Ok(connection) => {
            let peer = Arc::new(Peer::new(address, link));
            Some(Open { connection, liveness, peer, lacks_tls, _room: room })
        }
        Err(error) => {
            tracing::debug!(peer = %address, %error, "the connection ended");
            None
        }
    }
}

/// Says last words. Whether the peer hears them is up to the peer.
async fn say<T>(words: BoxFuture<'_, io::Result<()>>) -> Option<T> {
    let _ = tokio::time::timeout(GRACE, words).await;
    None
}

/// The answer to every call of a peer that has no TLS and should have it.
fn wants_tls() -> Status {
    Status {
        code: Code::FailedPrecondition,
        message: format!(
            "{WANTS_TLS}: write the address as grpcs://host:port. A client of dm-reverb has no TLS \
             and needs a tunnel, such as stunnel."
        ),
    }
}

async fn serve_streams<H: Handler>(
    opened: Open,
    shared: &Arc<Shared<H>>,
) -> std::result::Result<(), h2::Error> {
    let Open { mut connection, liveness, peer, lacks_tls, _room } = opened;
    let PortOptions { keepalive, limits, traffic, tls, outgoing, .. } = &shared.options;
    let outgoing = OutgoingOfConnection::new(outgoing);
    let pings = connection.ping_pong().expect("it is taken only here");
    let mut gone = pin!(keepalive.watch(pings, &liveness));
    let max_age = tls.as_ref().filter(|_| peer.is_encrypted()).and_then(|it| it.max_connection_age);
    let mut renewal = max_age.map(|age| Instant::now() + age);
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
            () = sleep_until(renewal), if renewal.is_some() => {
                connection.graceful_shutdown();
                renewal = None;
                continue;
            }
            () = &mut gone => {
                tracing::debug!("closing the connection: no answer to a ping");
                return Ok(());
            }
        };
        let Some(stream) = accepted else { return Ok(()) };
        let (request, response) = stream?;
        liveness.identify(request.headers().get(header::USER_AGENT));
        if lacks_tls {
            responder::end_with(response, &wants_tls());
            continue;
        }
        let open_stream = match shared.streams.open(liveness.open_calls(), peer.name()) {
            Ok(open_stream) => open_stream,
            Err(error) => {
                let status = Status::from_error(&error);
                traffic.count_end(request.uri().path(), status.code, error.limit());
                responder::end_with(response, &status);
                continue;
            }
        };
        let call = liveness.open_call();
        let (shared, peer) = (Arc::clone(shared), Arc::clone(&peer));
        let (unread, outbox) = (limits.unread_timeout, Outbox::new(&outgoing));
        let span = tracing::debug_span!("call", method = request.uri().path());
        let call = async move {
            let responder =
                Responder::new(response, call, &peer, request.headers(), unread, outbox);
            let traffic = &shared.options.traffic;
            call::run(&shared.handler, &shared.stop, traffic, request, responder).await;
            drop(open_stream);
        };
        tokio::spawn(call.instrument(span));
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
