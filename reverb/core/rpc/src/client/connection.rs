// SPDX-License-Identifier: Apache-2.0
//! The connection to a server: opened when needed, shared by all calls, reopened when lost.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use h2::client::SendRequest;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::driver::Driver;
use crate::frames::{
    CONNECTION_WINDOW_BYTES, MAX_FRAME_BYTES, MAX_HEADER_LIST_BYTES, MAX_RESET_STREAMS,
    SEND_BUFFER_BYTES, STREAM_WINDOW_BYTES,
};
use crate::keepalive::{Keepalive, Liveness, WatchedSocket};
use crate::message::Message;
use crate::target::HostPort;

/// How long an unreachable server is skipped while there are others.
const BACKOFF: Duration = Duration::from_secs(1);

/// The same for a server that did not answer at all: trying it costs `pool::CONNECT_TIMEOUT`.
const BACKOFF_AFTER_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection that a call may use.
pub(super) struct Connection {
    pub(super) handle: SendRequest<Message>,
    pub(super) driver: Driver,
    pub(super) liveness: Arc<Liveness>,
    /// Host and port as the user wrote them.
    pub(super) authority: String,
    /// Name for error texts. It distinguishes servers that share a host name.
    pub(super) peer: String,
}

/// The part of an open connection that all calls share.
#[derive(Clone)]
struct Link {
    handle: SendRequest<Message>,
    driver: Driver,
    liveness: Arc<Liveness>,
}

pub(super) struct Server {
    pub(super) host_port: HostPort,
    /// Several only if they are the same machine: its IPv4 and IPv6 loopback addresses.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) peer: String,
    state: Mutex<State>,
    /// Held while connecting, so that concurrent calls share one attempt.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    link: Option<Link>,
    backoff_until: Option<Instant>,
}

impl Server {
    /// A server with at least one address. It is not connected yet.
    pub(super) fn new(host_port: &HostPort, addresses: Vec<SocketAddr>, peer: String) -> Self {
        Self {
            host_port: host_port.clone(),
            addresses,
            peer,
            state: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn is_backing_off(&self) -> bool {
        self.state.lock().backoff_until.is_some_and(|until| Instant::now() < until)
    }

    pub(super) async fn connection(
        &self,
        limit: Duration,
        keepalive: Keepalive,
    ) -> io::Result<Connection> {
        let connection = |Link { handle, driver, liveness }| Connection {
            handle,
            driver,
            liveness,
            authority: self.host_port.authority(),
            peer: self.peer.clone(),
        };
        if let Some(link) = self.open_link().await {
            return Ok(connection(link));
        }
        let _guard = self.connecting.lock().await;
        // Another call may have connected meanwhile.
        if let Some(link) = self.open_link().await {
            return Ok(connection(link));
        }
        self.connect(limit, keepalive).await.map(connection)
    }

    /// The open connection, unless it is known to be lost.
    async fn open_link(&self) -> Option<Link> {
        let Link { handle, driver, liveness } = self.state.lock().link.clone()?;
        let ready = handle.ready().await.ok();
        if ready.is_none() {
            self.state.lock().link = None;
        }
        Some(Link { handle: ready?, driver, liveness })
    }

    async fn connect(&self, limit: Duration, keepalive: Keepalive) -> io::Result<Link> {
        let connected = match tokio::time::timeout(limit, self.connect_to_any(keepalive)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {} s", limit.as_secs_f64()),
            )),
        };
        let mut state = self.state.lock();
        state.link = connected.as_ref().ok().cloned();
        state.backoff_until = connected.as_ref().err().map(|error| {
            let is_silent = error.kind() == io::ErrorKind::TimedOut;
            Instant::now() + if is_silent { BACKOFF_AFTER_TIMEOUT } else { BACKOFF }
        });
        connected
    }

    async fn connect_to_any(&self, keepalive: Keepalive) -> io::Result<Link> {
        let mut failure = None;
        for address in &self.addresses {
            match self.connect_to(*address, keepalive).await {
                Ok(link) => return Ok(link),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.expect("a server has at least one address"))
    }

    async fn connect_to(&self, address: SocketAddr, keepalive: Keepalive) -> io::Result<Link> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        keepalive.set_tcp_options(&socket);
        establish(socket, keepalive, self.peer.clone()).await
    }
}

/// Opens a connection and waits for a first answer of the server. A machine may accept connections
/// although no server process serves them.
async fn establish<S>(socket: S, keepalive: Keepalive, peer: String) -> io::Result<Link>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let liveness = Arc::new(Liveness::default());
    let (handle, mut connection) = h2::client::Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .initial_max_send_streams(usize::MAX)
        .handshake(WatchedSocket::new(socket, Arc::clone(&liveness)))
        .await
        .map_err(io::Error::other)?;
    let mut pings = connection.ping_pong().expect("it is taken only here");
    tokio::select! {
        pong = pings.ping(h2::Ping::opaque()) => pong.map_err(io::Error::other)?,
        ended = &mut connection => return Err(closed(ended)),
    };
    let (driver, task) = Driver::new(connection);
    let link = Link { handle, driver, liveness: Arc::clone(&liveness) };
    tokio::spawn(async move {
        // The calls on the connection report its end. This task only drives it.
        tokio::select! {
            ended = task => tracing::debug!(%peer, ?ended, "the connection ended"),
            () = keepalive.watch(pings, &liveness) => {
                tracing::debug!(%peer, "closing the connection: no answer to a ping");
            }
        }
    });
    Ok(link)
}

fn closed(ended: Result<(), h2::Error>) -> io::Error {
    match ended {
        Ok(()) => io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"),
        Err(error) => match reason_to_go_away(&error) {
            Some(reason) => io::Error::other(format!("it refused the connection: {reason}")),
            None => io::Error::other(error),
        },
    }
}

/// The text of a server that has no room for this connection. h2 gives it as a part of its own text
/// only; if that has another form, the whole of it is shown.
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
