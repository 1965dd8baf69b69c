// SPDX-License-Identifier: Apache-2.0
//! Connections to the servers of a target: made when needed, shared by all calls, made anew when
//! lost.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use h2::client::SendRequest;
use parking_lot::Mutex;
use reverb_data::{Error, Result};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::message::Message;
use crate::stream::{
    CONNECTION_WINDOW_BYTES, MAX_FRAME_BYTES, MAX_HEADER_LIST_BYTES, MAX_RESET_STREAMS,
    SEND_BUFFER_BYTES, STREAM_WINDOW_BYTES,
};
use crate::target::{Place, Target};

/// How long to wait for a host that does not answer at all. One that refuses says so at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server that could not be reached is passed over while there are others.
const PASS_OVER: Duration = Duration::from_secs(1);

/// The same for one that did not even refuse: trying it costs `CONNECT_TIMEOUT`.
const PASS_OVER_SILENT: Duration = Duration::from_secs(30);

/// A server that is silent this long is asked whether it is still there, so that who waits for one that lost power
/// does not wait for ever.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// A connection that a call may use.
pub(super) struct Connection {
    pub(super) handle: SendRequest<Message>,
    /// Host and port as the user wrote them.
    pub(super) authority: String,
}

/// All servers of a target.
pub(super) struct Pool {
    target: Target,
    /// Filled by name resolution; emptied when no server could be reached, because names may move.
    servers: tokio::sync::Mutex<Option<Arc<[Server]>>>,
    turn: AtomicUsize,
}

struct Server {
    authority: String,
    /// Several only if they are the same machine: the loopback addresses of both families.
    addresses: Vec<SocketAddr>,
    state: Mutex<State>,
    /// Held while connecting, so that calls at the same time share one attempt.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    handle: Option<SendRequest<Message>>,
    passed_over_until: Option<Instant>,
}

impl Pool {
    pub(super) fn new(target: Target) -> Self {
        Self { target, servers: tokio::sync::Mutex::new(None), turn: AtomicUsize::new(0) }
    }

    /// The connection for the next call.
    ///
    /// # Errors
    ///
    /// `Unavailable` that names every address and why it could not be reached.
    pub(super) async fn connection(&self, limit: Duration) -> Result<Connection> {
        let servers = self.servers().await?;
        // A silent one leaves time for the others.
        let each = limit.div_f64(servers.len() as f64).min(CONNECT_TIMEOUT);
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % servers.len();
        let in_turn = || servers[first..].iter().chain(&servers[..first]);
        let (tried_last, tried_first): (Vec<_>, Vec<_>) =
            in_turn().partition(|server| servers.len() > 1 && server.is_passed_over());
        let mut failures = Vec::new();
        for server in tried_first.into_iter().chain(tried_last) {
            match server.connection(each).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failures.push(format!("{}: {error}", server.authority)),
            }
        }
        *self.servers.lock().await = None;
        Err(Error::unavailable(format!("No server could be reached at {}.", failures.join(", "))))
    }

    async fn servers(&self) -> Result<Arc<[Server]>> {
        let mut servers = self.servers.lock().await;
        if let Some(servers) = &*servers {
            return Ok(Arc::clone(servers));
        }
        let mut found = Vec::new();
        let mut failures = Vec::new();
        for place in &self.target.places {
            match resolve(place).await {
                Ok(resolved) => found.extend(resolved),
                Err(error) => failures.push(format!("{}: {error}", place.authority())),
            }
        }
        if found.is_empty() {
            return Err(Error::unavailable(format!(
                "No server could be reached at {}.",
                failures.join(", ")
            )));
        }
        let found: Arc<[Server]> = found.into();
        *servers = Some(Arc::clone(&found));
        Ok(found)
    }
}

/// The servers behind a name: one for each of its addresses.
async fn resolve(place: &Place) -> io::Result<Vec<Server>> {
    let host = (place.host.as_str(), place.port);
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host(host).await?.collect();
    let server = |addresses| Server {
        authority: place.authority(),
        addresses,
        state: Mutex::default(),
        connecting: tokio::sync::Mutex::new(()),
    };
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    if addresses.iter().all(|address| address.ip().is_loopback()) {
        return Ok(vec![server(addresses)]);
    }
    Ok(addresses.into_iter().map(|address| server(vec![address])).collect())
}

impl Server {
    fn is_passed_over(&self) -> bool {
        self.state.lock().passed_over_until.is_some_and(|until| Instant::now() < until)
    }

    async fn connection(&self, limit: Duration) -> io::Result<Connection> {
        let connection = |handle| Connection { handle, authority: self.authority.clone() };
        if let Some(handle) = self.living_handle().await {
            return Ok(connection(handle));
        }
        let _turn = self.connecting.lock().await;
        // Somebody else may have connected meanwhile.
        if let Some(handle) = self.living_handle().await {
            return Ok(connection(handle));
        }
        self.connect(limit).await.map(connection)
    }

    /// The handle of the connection, unless it is known to be lost.
    async fn living_handle(&self) -> Option<SendRequest<Message>> {
        let handle = self.state.lock().handle.clone()?;
        let ready = handle.ready().await.ok();
        if ready.is_none() {
            self.state.lock().handle = None;
        }
        ready
    }

    async fn connect(&self, limit: Duration) -> io::Result<SendRequest<Message>> {
        let connected = match tokio::time::timeout(limit, self.connect_to_any()).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {} s", limit.as_secs_f64()),
            )),
        };
        let mut state = self.state.lock();
        state.handle = connected.as_ref().ok().cloned();
        state.passed_over_until = connected.as_ref().err().map(|error| {
            let is_silent = error.kind() == io::ErrorKind::TimedOut;
            Instant::now() + if is_silent { PASS_OVER_SILENT } else { PASS_OVER }
        });
        connected
    }

    async fn connect_to_any(&self) -> io::Result<SendRequest<Message>> {
        let mut failure = None;
        for address in &self.addresses {
            match connect_to(*address).await {
                Ok(handle) => return Ok(handle),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.expect("a server has at least one address"))
    }
}

/// A connection on which the server has answered once: that the machine takes connections does not mean that anybody is
/// there to serve them.
async fn connect_to(address: SocketAddr) -> io::Result<SendRequest<Message>> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    // It only makes things better; where it cannot be had, the connection works without.
    let _ =
        SockRef::from(&socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_AFTER));
    let (handle, mut connection) = h2::client::Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .initial_max_send_streams(usize::MAX)
        .handshake(socket)
        .await
        .map_err(io::Error::other)?;
    let mut pings = connection.ping_pong().expect("nobody took it before");
    tokio::spawn(async move {
        // The calls on the connection report its end; here it is only driven.
        if let Err(error) = connection.await {
            log::debug!("the connection to {address} ended: {error}");
        }
    });
    pings.ping(h2::Ping::opaque()).await.map_err(io::Error::other)?;
    Ok(handle)
}
