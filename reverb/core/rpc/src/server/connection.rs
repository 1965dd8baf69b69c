// SPDX-License-Identifier: Apache-2.0
//! A connection to a server: its handshakes, and its calls.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, header};
use parking_lot::Mutex;
use reverb_base::error::grouped;
use reverb_tls::{Protocol, Socket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::Instrument;

use super::accepted::{Accepted, PeerAddress};
use super::admissions::{Admissions, Departure, KEPT_NEWCOMERS};
use super::by_age::{ByAge, Entry};
use super::call::{self, Handler};
use super::files::{Files, OpenFile, max_files};
use super::first_bytes::{self, PeerProtocol};
use super::gathering_socket::GatheringSocket;
use super::graceful_close;
use super::handshakes::{Handshake, Handshakes};
use super::listener::{ConnectionLimits, PortOptions};
use super::outgoing::{Outbox, OutgoingOfConnection};
use super::peer::{Encryption, Peer};
use super::preface::{self, WithPreface};
use super::refused_connections::{RefusedConnections, goaway};
use super::responder::{self, Responder};
use super::sharing_socket::{ReadingPause, SharingSocket};
use super::stop::Stop;
use super::stream_limit::StreamLimit;
use super::turns::Turns;
use super::unadmitted_calls::{self, CountedCall, UnadmittedCalls};
use crate::BoxFuture;
use crate::framing::{
    CONNECTION_WINDOW_BYTES, MAX_FRAME_BYTES, MAX_HEADER_LIST_BYTES, MAX_RESET_STREAMS,
    SEND_BUFFER_BYTES, SMALL_FRAMES_BUDGET, UnreadBytes,
};
use crate::keepalive::{Liveness, WatchedSocket};
use crate::message::Message;
use crate::status::{Code, Status, WANTS_TLS};

/// Time in which peers can receive their last messages when the server shuts down.
const GRACE: Duration = Duration::from_secs(1);

/// Time limit for all handshakes. Without it, connections that never finish them would use up the
/// file descriptors.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for the last message to a connection that is closed to make room. Its few bytes fit
/// into the socket, unless the peer does not read.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_millis(10);

/// Time limit for closing a connection whose room is needed.
const ROOM_TIMEOUT: Duration = Duration::from_millis(100);

/// Time limit for the first bytes of a peer that there is no room for, unless they ask for a
/// connection that is kept for operators.
const NO_ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of connections beyond the limit that are kept for operators.
pub(super) const KEPT_FOR_OPERATORS: usize = 8;

/// Age after which such a connection takes no more calls, so that each operator gets one.
const MAX_AGE_OF_KEPT: Duration = Duration::from_secs(10);

/// Number of calls that a connection begins before other connections are served.
const CALLS_AT_ONCE: u32 = 4;

/// Time between two checks whether a connection's callers would still be admitted. With the time
/// until a server notices changed files, and the grace period, a revoked connection ends within 20
/// s.
const REVIEW_INTERVAL: Duration = Duration::from_secs(5);

/// State shared by the connections of a port.
pub(super) struct Shared<H> {
    pub(super) handler: Arc<H>,
    pub(super) stop: Stop,
    pub(super) streams: Arc<StreamLimit>,
    pub(super) unadmitted: UnadmittedCalls,
    /// Limit on connections whose handshakes are done.
    pub(super) room: Arc<Semaphore>,
    pub(super) newcomers: Arc<ByAge>,
    /// The same two for connections that are kept for operators.
    pub(super) kept: (Arc<Semaphore>, Arc<ByAge>),
    pub(super) refused: Mutex<RefusedConnections>,
    pub(super) handshakes: Handshakes,
    pub(super) files: Arc<Files>,
    pub(super) options: PortOptions,
}

impl<H> Shared<H> {
    /// Returns true if callers must authenticate, by a token or by a certificate.
    fn is_guarded(&self) -> bool {
        let PortOptions { tls, wants_tokens, .. } = &self.options;
        *wants_tokens || tls.as_ref().is_some_and(|port| port.tls.asks_for_certificates())
    }

    /// Closes the oldest connection without an admitted call; returns true if there was one.
    pub(super) fn end_oldest(&self) -> bool {
        self.newcomers.end_oldest(KEPT_NEWCOMERS) || self.handshakes.end_oldest(KEPT_NEWCOMERS)
    }

    /// Closes such connections while too few file descriptors are left. `newest` is the descriptor
    /// that was opened last.
    pub(super) async fn keep_files(&self, mut newest: Option<usize>) {
        while self.files.are_scarce(newest.take()) && self.end_oldest() {
            tracing::warn!(
                "nearly all of the {} open files are used (ulimit -n): closed the oldest \
                 connection without an admitted call",
                grouped(max_files())
            );
            let _ = tokio::time::timeout(ROOM_TIMEOUT, self.files.closed()).await;
        }
    }

    /// Age after which a connection takes no more calls.
    fn max_age(&self, is_kept: bool, peer: &Peer) -> Option<Duration> {
        let tls = self.options.tls.as_ref().filter(|_| peer.is_encrypted());
        let max_age = tls.and_then(|port| port.max_connection_age);
        if is_kept { Some(MAX_AGE_OF_KEPT) } else { max_age }
    }

    /// Ends a call before it begins. `limit` is the name of the limit that it exceeds, if any.
    fn refuse_call(
        &self,
        request: &Request<RecvStream>,
        response: SendResponse<Message>,
        status: &Status,
        limit: Option<&str>,
    ) {
        let counters = self.options.traffic.of_call(request.uri().path());
        counters.count_refused(status.code, limit);
        responder::end_with(response, status);
    }

    /// Returns true if there is no room for one more connection.
    fn is_full(&self) -> bool {
        self.room.available_permits() == 0 && self.newcomers.len() <= KEPT_NEWCOMERS
    }

    /// Place of one more connection; without room, one of those that are kept for operators.
    async fn take_place(&self, is_for_operators: bool) -> Option<Place> {
        if let Some(room) = self.take_room().await {
            return Some(Place { newcomer: self.newcomers.open(), is_kept: false, _room: room });
        }
        if !is_for_operators {
            return None;
        }
        let (room, newcomers) = &self.kept;
        if room.available_permits() == 0 {
            newcomers.end_oldest(0);
        }
        let room = tokio::time::timeout(ROOM_TIMEOUT, Arc::clone(room).acquire_owned());
        let room = room.await.ok()?.ok()?;
        Some(Place { newcomer: newcomers.open(), is_kept: true, _room: room })
    }

    /// Permit for one more connection. The oldest one without an admitted call may be closed for
    /// it.
    async fn take_room(&self) -> Option<OwnedSemaphorePermit> {
        let room = Arc::clone(&self.room);
        if room.available_permits() == 0 && self.newcomers.end_oldest(KEPT_NEWCOMERS) {
            tracing::warn!(
                "there are {} connections, which is the limit (Limits.connections; at most {} open \
                 files, ulimit -n): closed the oldest one without an admitted call",
                grouped(self.options.limits.connections),
                grouped(max_files())
            );
            return tokio::time::timeout(ROOM_TIMEOUT, room.acquire_owned()).await.ok()?.ok();
        }
        room.try_acquire_owned().ok()
    }
}

/// Place among the connections of a server.
struct Place {
    newcomer: Entry,
    /// True if it is kept for operators: all other calls are refused.
    is_kept: bool,
    _room: OwnedSemaphorePermit,
}

struct Open {
    connection: Connection,
    socket: ConnectionSocket,
    reading_pause: ReadingPause,
    liveness: Arc<Liveness>,
    peer: Arc<Peer>,
    /// True if it lacks TLS although the port requires it: all calls are refused.
    lacks_tls: bool,
    place: Place,
}

type Accept = Result<(Request<RecvStream>, SendResponse<Message>), h2::Error>;

type ConnectionSocket = GatheringSocket<WatchedSocket<SharingSocket<WithPreface<Socket>>>>;

type Connection = h2::server::Connection<ConnectionSocket, Message>;

/// Serves a connection until it ends. Its file is closed before it stops to count.
pub(super) async fn serve<H: Handler>(
    socket: Accepted,
    peer: PeerAddress,
    _file: OpenFile,
    handshake: Handshake,
    shared: Arc<Shared<H>>,
) {
    let _counted = shared.options.traffic.open();
    let opened = {
        let handshake = handshake;
        // On the heap: otherwise the task of a connection would keep memory for it until its end.
        let opening = Box::pin(open(socket, peer, &shared));
        let opening = tokio::time::timeout(HANDSHAKE_TIMEOUT + GRACE, opening);
        shared.stop.or(handshake.or_displaced(opening)).await
    };
    let Ok(Some(Ok(Some(opened)))) = opened else { return };
    if let Err(error) = serve_streams(opened, &shared).await {
        tracing::debug!(%peer, %error, "the connection ended");
    }
}

/// Does the handshakes. `None` if the connection was closed.
async fn open<H>(accepted: Accepted, address: PeerAddress, shared: &Shared<H>) -> Option<Open> {
    accepted.set_options(shared.options.keepalive);
    let is_unix = accepted.is_unix();
    let tls = shared.options.tls.as_ref().filter(|_| !is_unix);
    // With TLS, a reason can only be sent after the TLS handshake.
    let is_full = tls.is_none() && shared.is_full();
    let timeout = Instant::now() + if is_full { NO_ROOM_TIMEOUT } else { HANDSHAKE_TIMEOUT };
    let spoken = tokio::time::timeout_at(timeout, PeerProtocol::recognize(&accepted));
    let Ok(protocol) = spoken.await else {
        if is_full {
            shared.refused.lock().refuse(Socket::from(accepted), address);
            return None;
        }
        // A peer that has begun TLS could not read an HTTP/2 frame.
        return if tls.is_none() { dismiss(accepted.into()).await } else { None };
    };
    let protocol = protocol.ok()?;
    let (mut socket, encryption) = match (protocol, tls, accepted) {
        (PeerProtocol::Http1, _, accepted) => {
            let answer = first_bytes::answer_http1(accepted.into(), &shared.options.hint);
            return send_last(Box::pin(answer)).await;
        }
        (PeerProtocol::Tls, Some(port), Accepted::Tcp(socket)) => {
            match port.tls.accept(socket, Protocol::Http2).await {
                Ok((socket, certificate)) => (socket, Encryption::Tls(certificate)),
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
        (PeerProtocol::Tls, _, accepted) => {
            tracing::warn!(
                peer = %address,
                "it tries TLS; this port has none: use a client without TLS"
            );
            return send_last(Box::pin(first_bytes::answer_tls(accepted.into()))).await;
        }
        (PeerProtocol::Http2, _, accepted) => (accepted.into(), Encryption::Cleartext),
    };
    let mut preface_bytes = Vec::new();
    let preface = preface::read_preface(&mut socket, &mut preface_bytes);
    let is_for_operators = match tokio::time::timeout_at(timeout, preface).await {
        Ok(read) => read.ok()?,
        Err(_) if is_full => false,
        Err(_) => return dismiss(socket).await,
    };
    let Some(place) = shared.take_place(is_for_operators).await else {
        shared.refused.lock().refuse(socket, address);
        return None;
    };
    let lacks_tls = tls.is_some() && encryption == Encryption::Cleartext;
    let liveness = Arc::new(Liveness::counted(&shared.options.traffic));
    let limits = shared.options.limits;
    let socket = WithPreface::new(socket, preface_bytes, is_unix);
    let is_unadmitted = shared.options.wants_tokens || lacks_tls;
    let reading_pause = ReadingPause::default();
    let socket = SharingSocket::new(socket, reading_pause.clone());
    let socket = GatheringSocket::new(WatchedSocket::new(socket, Arc::clone(&liveness)));
    let handshake = begin_http2(&socket, limits, is_unadmitted);
    let connection = place.newcomer.or_displaced(handshake).await?;
    match connection {
        Ok(connection) => {
            let peer = Arc::new(Peer::new(address, encryption));
            Some(Open { connection, socket, reading_pause, liveness, peer, lacks_tls, place })
        }
        Err(error) => {
            tracing::debug!(peer = %address, %error, "the connection ended");
            None
        }
    }
}

/// Does the handshake of HTTP/2. A peer is unadmitted if its first call has to show who it is.
async fn begin_http2(
    socket: &ConnectionSocket,
    limits: ConnectionLimits,
    is_unadmitted: bool,
) -> Result<Connection, h2::Error> {
    // Peers without an admission cannot have more unread bytes than that here.
    let (window, frame) = if is_unadmitted {
        (unadmitted_calls::WINDOW_BYTES, unadmitted_calls::FRAME_BYTES)
    } else {
        (CONNECTION_WINDOW_BYTES, MAX_FRAME_BYTES)
    };
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(limits.stream_window_bytes)
        .initial_connection_window_size(window)
        .max_frame_size(frame)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .data_frame_budget(SMALL_FRAMES_BUDGET)
        .max_concurrent_streams(limits.streams_per_connection)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS);
    let mut handshake = pin!(builder.handshake::<_, Message>(socket.clone()));
    poll_fn(|context| {
        let connection = handshake.as_mut().poll(context);
        socket.write_gathered(context);
        connection
    })
    .await
}

/// Closes a connection whose peer has sent no preface.
async fn dismiss<T>(socket: Socket) -> Option<T> {
    let message = goaway(h2::Reason::NO_ERROR, "The client sent nothing.");
    send_last(Box::pin(async { graceful_close::close(socket, &message).await })).await
}

/// Sends the last bytes. The peer may not read them.
async fn send_last<T>(sending: BoxFuture<'_, io::Result<()>>) -> Option<T> {
    let _ = tokio::time::timeout(GRACE, sending).await;
    None
}

/// Answer to every call of a peer without TLS at a port that requires it.
fn wants_tls() -> Status {
    Status::new(
        Code::FailedPrecondition,
        format!(
            "{WANTS_TLS}: write the address as grpcs://host:port. A client of dm-reverb has no TLS \
             and needs a tunnel, such as stunnel."
        ),
    )
}

async fn serve_streams<H: Handler>(
    opened: Open,
    shared: &Arc<Shared<H>>,
) -> std::result::Result<(), h2::Error> {
    let Open { mut connection, socket, reading_pause, liveness, peer, lacks_tls, place } = opened;
    let Place { newcomer, is_kept, _room } = place;
    let PortOptions { keepalive, outgoing, .. } = &shared.options;
    let outgoing = OutgoingOfConnection::new(outgoing);
    let unread = UnreadBytes::default();
    let pings = connection.ping_pong().expect("it is taken only here");
    let mut gone = pin!(keepalive.watch(pings, &liveness));
    let mut renewal = shared.max_age(is_kept, &peer).map(|age| Instant::now() + age);
    let mut admissions = Admissions::new(newcomer, shared.is_guarded());
    let mut review = shared.is_guarded().then(|| Instant::now() + REVIEW_INTERVAL);
    let turns = Turns::new();
    let mut begun = 0;
    let mut deadline = None;
    loop {
        let accepted = tokio::select! {
            accepted = accept(&mut connection, &socket, &reading_pause, &mut begun) => accepted,
            () = shared.stop.stopped(), if deadline.is_none() => {
                connection.graceful_shutdown();
                deadline = Some(Instant::now() + GRACE);
                continue;
            }
            answered = peer.failed_often(), if deadline.is_none() => {
                connection.graceful_shutdown();
                deadline = Some(answered + GRACE);
                continue;
            }
            () = sleep_until(deadline), if deadline.is_some() => return Ok(()),
            () = sleep_until(renewal), if renewal.is_some() => {
                // The peer of a kept one may not read this, and others need its place.
                if is_kept && liveness.open_calls() == 0 {
                    return leave(connection).await;
                }
                connection.graceful_shutdown();
                renewal = is_kept.then(|| Instant::now() + GRACE);
                continue;
            }
            departure = admissions.must_go(GRACE) => match departure {
                Departure::Now => return leave(connection).await,
                Departure::Soon => {
                    connection.graceful_shutdown();
                    continue;
                }
                Departure::Over => return Ok(()),
            },
            () = sleep_until(review), if review.is_some() && deadline.is_none() => {
                review = Some(Instant::now() + REVIEW_INTERVAL);
                let still_admits = |admission: &_| shared.handler.still_admits(admission);
                if !admissions.holds(still_admits) || peer.has_expired(SystemTime::now()) {
                    log_expiry(&peer);
                    connection.graceful_shutdown();
                    deadline = Some(Instant::now() + GRACE);
                }
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
            shared.refuse_call(&request, response, &wants_tls(), None);
            continue;
        }
        let authorization = request.headers().get(header::AUTHORIZATION);
        // A header that is not text holds no token.
        let authorization = authorization.map(|value| value.to_str().unwrap_or_default());
        let (caller, admission) =
            shared.handler.identify(request.uri().path(), &peer, authorization);
        if is_kept && !shared.handler.is_for_operators(request.uri().path(), &caller) {
            let status = shared.refused.lock().status();
            shared.refuse_call(&request, response, &status, Some("connections"));
            connection.graceful_shutdown();
            deadline = deadline.or_else(|| Some(Instant::now() + GRACE));
            continue;
        }
        if let Some(admission) = admission
            && admissions.admit(admission)
        {
            connection.set_target_window_size(CONNECTION_WINDOW_BYTES);
        }
        let new = NewCall {
            request,
            response,
            caller,
            is_known: admissions.is_known(),
            outbox: Outbox::new(&outgoing),
            unread_bytes: unread.clone(),
        };
        begin_call(shared, &turns, &peer, &liveness, new);
        begun += 1;
        if begun == CALLS_AT_ONCE {
            begun = 0;
            reading_pause.begin();
            tokio::task::yield_now().await;
        }
    }
}

fn log_expiry(peer: &Peer) {
    let peer = peer.name().trim_start_matches("client ");
    tracing::info!(
        peer,
        "closed a connection: its token or certificate has expired or was removed"
    );
}

/// The next call. In a pause the socket is read once all calls that were read have begun. `begun`
/// counts calls that came without a wait.
async fn accept(
    connection: &mut Connection,
    socket: &ConnectionSocket,
    pause: &ReadingPause,
    begun: &mut u32,
) -> Option<Accept> {
    poll_fn(|context| {
        let mut accepted = connection.poll_accept(context);
        if accepted.is_pending() && pause.end() {
            accepted = connection.poll_accept(context);
        }
        socket.write_gathered(context);
        if accepted.is_pending() {
            *begun = 0;
        }
        accepted
    })
    .await
}

/// A call whose headers have arrived.
struct NewCall<C> {
    request: Request<RecvStream>,
    response: SendResponse<Message>,
    caller: C,
    /// True if the connection has an admission.
    is_known: bool,
    outbox: Outbox,
    unread_bytes: UnreadBytes,
}

/// Starts a call in a task of its own, or refuses it if there are too many.
fn begin_call<H: Handler>(
    shared: &Arc<Shared<H>>,
    turns: &Arc<Turns>,
    peer: &Arc<Peer>,
    liveness: &Arc<Liveness>,
    new: NewCall<H::Caller>,
) {
    let NewCall { request, response, caller, is_known, outbox, unread_bytes } = new;
    let others = liveness.open_calls();
    let counted = if is_known || !shared.options.wants_tokens {
        let open = shared.streams.open(others, peer.name());
        open.map(|open| CountedCall::Admitted { _open: open })
    } else {
        shared.unadmitted.open(others)
    };
    let counted = match counted {
        Ok(counted) => counted,
        Err(error) => {
            let status = Status::from_error(&error);
            return shared.refuse_call(&request, response, &status, error.limit());
        }
    };
    let call = liveness.open_call();
    let shared = Arc::clone(shared);
    let peer = Arc::clone(peer);
    let unread = shared.options.limits.unread_timeout;
    let span = tracing::debug_span!("call", method = request.uri().path());
    let call = async move {
        let Shared { handler, stop, options, .. } = &*shared;
        let counters = options.traffic.of_call(request.uri().path());
        let headers = request.headers();
        let responder = Responder::new(response, call, counters, &peer, headers, unread, outbox);
        call::run(handler, stop, request, caller, counted, unread_bytes, responder).await;
    };
    turns.spawn(call.instrument(span));
}

/// Sends GOAWAY and closes the connection.
async fn leave(mut connection: Connection) -> std::result::Result<(), h2::Error> {
    connection.abrupt_shutdown(h2::Reason::NO_ERROR);
    let closed = poll_fn(|context| connection.poll_closed(context));
    tokio::time::timeout(LAST_MESSAGE_TIMEOUT, closed).await.unwrap_or(Ok(()))
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
