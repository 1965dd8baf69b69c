// SPDX-License-Identifier: Apache-2.0
//! Connection to a server: opened when needed, shared by all calls, reopened when lost.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use h2::client::SendRequest;
use parking_lot::Mutex;
use reverb_tls::{Snapshot, Socket};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::credentials::Security;
use super::driver::{DrivenSocket, Driver};
use super::unix_socket;
use crate::framing::{
    CONNECTION_WINDOW_BYTES, FOR_OPERATORS, MAX_FRAME_BYTES, MAX_HEADER_LIST_BYTES,
    MAX_RESET_STREAMS, SEND_BUFFER_BYTES, SMALL_FRAMES_BUDGET, STREAM_WINDOW_BYTES,
};
use crate::keepalive::{Keepalive, Liveness, WatchedSocket};
use crate::message::Message;
use crate::target::{HostPort, ServerAddress};

/// Time for which an unreachable server is skipped while there are others.
const BACKOFF: Duration = Duration::from_secs(1);

/// The same for a server that did not answer at all: each attempt costs `servers::CONNECT_TIMEOUT`.
const BACKOFF_AFTER_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after the first TLS failure. It ends early if the TLS files of this client change. Each
/// attempt costs both ends a handshake, so each further failure doubles the pause.
const PAUSE_AFTER_TLS_FAILURE: Duration = Duration::from_secs(1);

const MAX_PAUSE_AFTER_TLS_FAILURE: Duration = Duration::from_secs(60);

/// Kind of the error of a server that has no room for one more connection.
const NO_ROOM: io::ErrorKind = io::ErrorKind::ResourceBusy;

/// Options of the connections to the servers of a target.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// Time limit for reaching a server that answers.
    pub connect_timeout: Duration,
    /// PINGs to a server.
    pub keepalive: Keepalive,
    /// TLS and token.
    pub security: Security,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        let connect_timeout = Duration::from_secs(20);
        Self { connect_timeout, keepalive: Keepalive::default(), security: Security::default() }
    }
}

/// Reason for which a server could not be reached.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) error: Arc<io::Error>,
    /// True if another attempt would fail too.
    pub(super) is_lasting: bool,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let is_lasting = error.kind() == io::ErrorKind::InvalidData;
        Self { error: Arc::new(error), is_lasting }
    }
}

/// An open connection. Clones share it; each call uses one.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) handle: SendRequest<Message>,
    pub(super) driver: Arc<Driver>,
    pub(super) liveness: Arc<Liveness>,
    /// Host and port as the user wrote them; `localhost` for a Unix socket.
    pub(super) authority: String,
    /// Name for error texts. It distinguishes servers that share a host name.
    pub(super) peer: String,
}

pub(super) struct Server {
    pub(super) address: ServerAddress,
    /// Several only if they are the same machine: its IPv4 and IPv6 loopback addresses. Empty for a
    /// Unix socket.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) peer: String,
    state: Mutex<State>,
    /// Held while connecting, so that concurrent calls share one attempt.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Liveness of the last connection, which may be lost.
    last: Option<Arc<Liveness>>,
    /// Present, perhaps in the past, if the last attempt to connect has failed.
    backoff_until: Option<Instant>,
    tls_failure: Option<TlsFailure>,
}

/// TLS failure, with the files of this client that it happened with.
struct TlsFailure {
    until: Instant,
    pause: Duration,
    snapshot: Option<Snapshot>,
    failure: Failure,
}

impl Server {
    /// A server that is not connected yet. It needs at least one address, unless it has a Unix
    /// socket.
    pub(super) fn new(address: &ServerAddress, addresses: Vec<SocketAddr>, peer: String) -> Self {
        Self {
            address: address.clone(),
            addresses,
            peer,
            state: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn is_backing_off(&self) -> bool {
        self.state.lock().backoff_until.is_some_and(|until| Instant::now() < until)
    }

    /// True if the server has stopped for good, and nothing has come back at its address.
    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().last.as_ref().is_some_and(|last| last.has_stopped())
    }

    /// True if the server has stopped for good, or could not be reached the last time.
    pub(super) fn is_down(&self) -> bool {
        self.has_ended() || self.state.lock().backoff_until.is_some()
    }

    pub(super) async fn connection(
        &self,
        limit: Duration,
        options: &ConnectionOptions,
    ) -> Result<Connection, Failure> {
        if let Some(connection) = self.open_connection().await {
            return Ok(connection);
        }
        let _guard = self.connecting.lock().await;
        // Another call may have connected meanwhile.
        if let Some(connection) = self.open_connection().await {
            return Ok(connection);
        }
        self.connect(limit, options).await
    }

    /// The open connection, unless it is known to be lost.
    async fn open_connection(&self) -> Option<Connection> {
        let connection = self.state.lock().connection.clone()?;
        connection.driver.catch_up();
        let ready = connection.handle.ready().await.ok();
        if ready.is_none() {
            self.state.lock().connection = None;
        }
        Some(Connection { handle: ready?, ..connection })
    }

    async fn connect(
        &self,
        limit: Duration,
        options: &ConnectionOptions,
    ) -> Result<Connection, Failure> {
        let snapshot = options.security.tls.as_ref().map(|tls| tls.snapshot());
        if let Some(known) = &self.state.lock().tls_failure
            && Instant::now() < known.until
            && known.snapshot == snapshot
        {
            return Err(known.failure.clone());
        }
        let connecting = async {
            match self.connect_to_any(options, snapshot.as_ref(), &[]).await {
                // Another attempt at one of the connections that a full server keeps.
                Err(full) if full.kind() == NO_ROOM && options.security.is_for_operators => {
                    let kept = self.connect_to_any(options, snapshot.as_ref(), FOR_OPERATORS);
                    kept.await.map_err(|_| full)
                }
                connected => connected,
            }
        };
        let connected = match tokio::time::timeout(limit, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {} s", limit.as_secs_f64()),
            )),
        };
        let connected = connected.map_err(Failure::from);
        let mut state = self.state.lock();
        state.connection = connected.as_ref().ok().cloned();
        if let Some(connection) = &state.connection {
            state.last = Some(Arc::clone(&connection.liveness));
        }
        let failure = connected.as_ref().err();
        state.backoff_until = failure.map(|failure| {
            let is_silent = failure.error.kind() == io::ErrorKind::TimedOut;
            Instant::now() + if is_silent { BACKOFF_AFTER_TIMEOUT } else { BACKOFF }
        });
        // Another attempt at a Unix socket costs its server nothing.
        let is_dear = matches!(self.address, ServerAddress::Host(_));
        let lasting = failure.filter(|failure| failure.is_lasting && is_dear).cloned();
        let pause = match &state.tls_failure {
            Some(known) if known.snapshot == snapshot => {
                (2 * known.pause).min(MAX_PAUSE_AFTER_TLS_FAILURE)
            }
            _ => PAUSE_AFTER_TLS_FAILURE,
        };
        state.tls_failure = lasting.map(|failure| TlsFailure {
            until: Instant::now() + pause,
            pause,
            snapshot,
            failure,
        });
        connected
    }

    async fn connect_to_any(
        &self,
        options: &ConnectionOptions,
        snapshot: Option<&Snapshot>,
        first_bytes: &[u8],
    ) -> io::Result<Connection> {
        let host = match &self.address {
            ServerAddress::Host(host) => host,
            ServerAddress::Socket(path) => {
                let socket = unix_socket::connect(path, options.security.has_token()).await?;
                let driver = Driver::new(socket.into());
                let socket = Socket::Cleartext(DrivenSocket(Arc::clone(&driver)));
                return self.establish(driver, socket, options.keepalive, first_bytes).await;
            }
        };
        let mut failure = None;
        for address in &self.addresses {
            match self.connect_to(*address, host, options, snapshot, first_bytes).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.expect("a host has at least one address"))
    }

    async fn connect_to(
        &self,
        address: SocketAddr,
        host: &HostPort,
        options: &ConnectionOptions,
        snapshot: Option<&Snapshot>,
        first_bytes: &[u8],
    ) -> io::Result<Connection> {
        let keepalive = options.keepalive;
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        keepalive.set_tcp_options(&socket);
        let driver = Driver::new(socket.into());
        let socket = DrivenSocket(Arc::clone(&driver));
        let socket = match (&options.security.tls, snapshot) {
            (Some(tls), Some(snapshot)) => tls.connect(snapshot, socket, &host.host).await?,
            _ => Socket::Cleartext(socket),
        };
        self.establish(driver, socket, keepalive, first_bytes).await
    }

    /// Opens a connection and waits for a first answer of the server. A machine may accept
    /// connections although no server process serves them.
    async fn establish<S>(
        &self,
        driver: Arc<Driver>,
        mut socket: S,
        keepalive: Keepalive,
        first_bytes: &[u8],
    ) -> io::Result<Connection>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        socket.write_all(first_bytes).await?;
        let liveness = Arc::new(Liveness::default());
        let (handle, mut connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(MAX_FRAME_BYTES)
            .max_header_list_size(MAX_HEADER_LIST_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .data_frame_budget(SMALL_FRAMES_BUDGET)
            .max_concurrent_reset_streams(MAX_RESET_STREAMS)
            .initial_max_send_streams(usize::MAX)
            .handshake(WatchedSocket::new(socket, Arc::clone(&liveness)))
            .await
            .map_err(closed)?;
        let mut pings = connection.ping_pong().expect("it is taken only here");
        tokio::select! {
            pong = pings.ping(h2::Ping::opaque()) => pong.map_err(closed)?,
            ended = &mut connection => return Err(match ended {
                Ok(()) => io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"),
                Err(error) => closed(error),
            }),
        };
        let peer = self.peer.clone();
        let driven = {
            let peer = peer.clone();
            // The calls on the connection report its end.
            driver.task.start(async move {
                let ended = connection.await;
                tracing::debug!(%peer, ?ended, "the connection ended");
            })
        };
        let connection = Connection {
            handle,
            driver,
            liveness: Arc::clone(&liveness),
            authority: self.address.authority(),
            peer: peer.clone(),
        };
        tokio::spawn(async move {
            tokio::select! {
                () = driven => {}
                () = keepalive.watch(pings, &liveness) => {
                    tracing::debug!(%peer, "closing the connection: no answer to a ping");
                }
            }
        });
        Ok(connection)
    }
}

/// Error of a connection that ended before it could be used.
fn closed(error: h2::Error) -> io::Error {
    if let Some(reason) = reason_to_go_away(&error) {
        return io::Error::new(NO_ROOM, format!("it refused the connection: {reason}"));
    }
    // A server that requires a certificate reports it only after the client's part of the
    // handshake.
    match error.get_io() {
        Some(failure) if failure.kind() == io::ErrorKind::InvalidData => {
            io::Error::new(io::ErrorKind::InvalidData, failure.to_string())
        }
        _ => io::Error::other(error),
    }
}

/// Reason sent by a server that has no room for this connection. h2 only gives it inside its own
/// text; if that has an unexpected form, the whole text is shown.
fn reason_to_go_away(error: &h2::Error) -> Option<String> {
    let is_refusal = error.is_go_away()
        && error.is_remote()
        && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
    let text = is_refusal.then(|| error.to_string())?;
    let (_, reason) = text.split_once(" (b\"")?;
    Some(reason.strip_suffix("\")")?.to_owned())
}

#[cfg(test)]
mod tests;
