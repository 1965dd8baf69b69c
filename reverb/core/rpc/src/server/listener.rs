// SPDX-License-Identifier: Apache-2.0
//! The port of a server, and the connections to it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::keepalive::Keepalive;
use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_tls::ServerTls;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::Instrument;

use super::accepted::{Accepted, PeerAddress};
use super::call::Handler;
use super::connection::{self, Shared};
use super::files::{Files, max_files};
use super::handshakes::Handshakes;
use super::outgoing::Outgoing;
use super::refused_connections::RefusedConnections;
use super::stop::Stop;
use super::stream_limit::StreamLimit;
use super::traffic::Traffic;
use super::unadmitted_calls::UnadmittedCalls;
#[cfg(unix)]
use super::unix_socket::UnixPort;

/// Maximum number of connections in the queue of `accept`.
pub(super) const BACKLOG: i32 = 1024;

/// Limits on connections and streams of a server.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of concurrent streams of all connections.
    pub streams: usize,
    /// Maximum number of concurrent streams of one connection. A peer waits before it opens more.
    pub streams_per_connection: u32,
    /// Bytes of a stream that a peer may send before they are read.
    pub stream_window_bytes: u32,
    /// How long a peer may leave sent data unread.
    pub unread_timeout: Duration,
}

/// TLS of a port.
#[derive(Debug, Clone)]
pub struct PortTls {
    /// Its certificate.
    pub tls: Arc<ServerTls>,
    /// Age after which a connection takes no more calls, so that its peer connects again:
    /// certificates are verified only at the beginning. Open calls continue.
    pub max_connection_age: Option<Duration>,
}

/// Options of a port.
#[derive(Debug)]
pub struct PortOptions {
    /// PINGs to its peers.
    pub keepalive: Keepalive,
    /// Limits on its peers.
    pub limits: ConnectionLimits,
    /// Counters of its traffic.
    pub traffic: Arc<Traffic>,
    /// Memory for answers that are not sent yet.
    pub outgoing: Arc<Outgoing>,
    /// Sentence for HTTP/1 peers: the address to use instead.
    pub hint: String,
    /// `None` without TLS.
    pub tls: Option<PortTls>,
    /// True if calls must authenticate, for example by a token.
    pub wants_tokens: bool,
}

/// Pause after a failed `accept`, as when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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
    #[cfg(unix)]
    super::listening::remember(&socket);
    Ok(socket.into())
}

/// Sockets of a server: its port, and a Unix socket if it has one.
#[derive(Debug)]
pub struct Listeners {
    tcp: TcpListener,
    #[cfg(unix)]
    unix: Option<UnixPort>,
}

impl Listeners {
    /// Listens on a port alone.
    pub fn new(tcp: TcpListener) -> Self {
        Self {
            tcp,
            #[cfg(unix)]
            unix: None,
        }
    }

    /// Listens on a Unix socket, too.
    #[cfg(unix)]
    #[must_use]
    pub fn with_unix(self, unix: UnixPort) -> Self {
        Self { unix: Some(unix), ..self }
    }

    /// The next connection. Cancel safe.
    async fn accept(&self) -> io::Result<(Accepted, PeerAddress)> {
        #[cfg(unix)]
        if let Some(port) = &self.unix {
            return tokio::select! {
                accepted = accept_tcp(&self.tcp) => accepted,
                accepted = accept_unix(&port.listener) => accepted,
            };
        }
        accept_tcp(&self.tcp).await
    }
}

async fn accept_tcp(listener: &TcpListener) -> io::Result<(Accepted, PeerAddress)> {
    let (socket, peer) = listener.accept().await?;
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    Ok((Accepted::Tcp(socket), PeerAddress::Network(peer)))
}

#[cfg(unix)]
async fn accept_unix(listener: &UnixListener) -> io::Result<(Accepted, PeerAddress)> {
    let (socket, _) = listener.accept().await?;
    let peer = socket.peer_cred()?;
    let pid = peer.pid().filter(|pid| *pid > 0);
    Ok((Accepted::Unix(socket), PeerAddress::Process { pid, uid: peer.uid() }))
}

/// Accepts connections until the server shuts down. Then closes the port, and gives the streams the
/// time `GRACE` to end.
///
/// A connection beyond the limit is closed at once. Its peer sees an unavailable server and the
/// reason, and tries again. A peer that speaks another protocol gets an answer that says so.
pub async fn serve<H: Handler>(
    listeners: Listeners,
    handler: Arc<H>,
    stop: Stop,
    options: PortOptions,
) {
    let limits = options.limits;
    let shared = Arc::new(Shared {
        handler,
        stop,
        streams: Arc::new(StreamLimit::new(limits.streams)),
        room: Arc::new(Semaphore::new(limits.connections)),
        refused: Mutex::new(RefusedConnections::new(limits.connections, &options.traffic)),
        handshakes: Handshakes::new(max_files()),
        newcomers: Arc::default(),
        kept: (Arc::new(Semaphore::new(connection::KEPT_FOR_OPERATORS)), Arc::default()),
        unadmitted: UnadmittedCalls::default(),
        files: Arc::new(Files::default()),
        options,
    });
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.stop.stopped() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listeners.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                // Costs nothing unless debug lines are shown.
                let span = tracing::debug_span!("connection", %peer);
                let file = shared.files.open();
                let newest = socket.file_number();
                let Ok(handshake) = shared.stop.or(shared.handshakes.begin()).await else { break };
                let shared_too = Arc::clone(&shared);
                let connection = connection::serve(socket, peer, file, handshake, shared_too);
                connections.spawn(connection.instrument(span));
                shared.keep_files(newest).await;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                shared.end_oldest();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listeners);
    while connections.join_next().await.is_some() {}
}
