// SPDX-License-Identifier: Apache-2.0
//! A server: start, stop, and periodic saves.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use reverb_auth::Authenticator;
use reverb_base::{Error, Result};
use reverb_engine::{ChangedBy, Table};
use reverb_rpc::Keepalive;
use reverb_rpc::client::own_name;
use reverb_wire::calls;
use reverb_wire::generated::reverb::{
    ConfigureTablesRequest, ConfigureTablesResponse, ShardMap, StatusRequest, StatusResponse,
    SyncRequest, SyncResponse,
};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;

use crate::observe::long_waits::LongWaits;
use crate::observe::timeline::Timeline;
use crate::service::Service;
use crate::service::caller::{Authentication, Caller};
use crate::service::calls::{Answer as _, CallContext};
use crate::service::checkpoints::{CheckpointOptions, Checkpoints};
use crate::service::done::{Done, DoneGuard};
use crate::service::drain::Drain;
use crate::service::http_port::HttpPort;
use crate::service::leases::Holders;
use crate::service::limits::Limits;
use crate::service::local::{self, Address};
use crate::service::memory::{CallGate, Memory};
use crate::service::rotation::Rotation;
use crate::service::status::status;
use crate::service::store::{StoreOptions, Tier};
use crate::service::tables::Tables;
use crate::service::writer_places::WriterPlaces;
use reverb_rpc::server::{
    self as rpc, Listeners, PortOptions, PortTls, StopSender, Traffic, stop_signal,
};

/// Maximum time that `stop` waits for the end of a save.
const MAX_STOP_WAIT: Duration = Duration::from_secs(5);

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Host name or address to listen on; all addresses of the machine if absent.
    pub host: Option<String>,
    /// Port; 0 picks a free one.
    pub port: u16,
    /// Path of a Unix socket to listen on besides the port, without TLS. Its directory is created.
    pub unix_path: Option<PathBuf>,
    /// Place and times of checkpoints.
    pub checkpoints: CheckpointOptions,
    /// Pings that detect dead clients.
    pub keepalive: Keepalive,
    /// Limits of one peer.
    pub limits: Limits,
    /// Limit of the bytes of chunks and items; unlimited if absent.
    pub max_bytes: Option<u64>,
    /// Directory for payloads that exceed `max_bytes`, if any.
    pub store: Option<StoreOptions>,
    /// TLS of the port, if any.
    pub tls: Option<PortTls>,
    /// HTTP port that will be attached, named to clients that look for it at this port.
    pub http_port: Option<u16>,
    /// Authentication of callers. Without it, and in this process, every caller has every right.
    pub authenticator: Option<Arc<Authenticator>>,
    /// True if tokens may cross a network in cleartext.
    pub insecure_tokens: bool,
    /// Group that the server is a shard of, if known at the start.
    pub shard: Option<ShardOptions>,
    /// How long leases last after the connection to their client is lost.
    pub lease_grace: Duration,
}

/// Position of a server in a group.
#[derive(Debug, Clone)]
pub struct ShardOptions {
    /// The map that the server reports until it gets a newer one.
    pub map: ShardMap,
    /// Index of this server in the map.
    pub index: i32,
    /// True if its rate limiters start closed and wait for windows from a coordinator. Other shards
    /// may already have all the room, so a shard must not start with a part of it.
    pub is_coordinated: bool,
    /// True if the group runs already, and gives the server its map: it may have another size than
    /// in this one.
    pub rejoins: bool,
}

/// Serves tables, over gRPC and to callers in this process, until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    pub(super) service: Arc<Service>,
    address: SocketAddr,
    unix_path: Option<PathBuf>,
    http_port: Option<u16>,
    stop: StopSender,
    done: Arc<Done>,
    http: Mutex<Option<HttpPort>>,
}

impl Server {
    /// Opens the port, and serves on `runtime`, which must have I/O and time enabled.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there are no tables, two have the same name, a limit is out of range,
    /// the port or Unix socket cannot be opened, tokens would arrive in cleartext from other
    /// machines, or the map of the group is invalid.
    pub fn start(
        tables: Vec<Arc<Table>>,
        options: &ServerOptions,
        runtime: &Handle,
    ) -> Result<Self> {
        let never = &AtomicBool::new(false);
        let tier = Tier::open(options, runtime, never)?;
        let recovered = tier
            .as_ref()
            .map_or(Ok(None), |tier| tier.recover(&tables, options.shard.as_ref(), never))?;
        Self::start_with(recovered.unwrap_or(tables), options, tier, runtime)
    }

    /// Like `start`, with a store that is open already.
    pub(crate) fn start_with(
        tables: Vec<Arc<Table>>,
        options: &ServerOptions,
        tier: Option<Arc<Tier>>,
        runtime: &Handle,
    ) -> Result<Self> {
        options.limits.validate()?;
        let (stop_sender, stop) = stop_signal();
        let checkpoints = Checkpoints::new(options.checkpoints.clone(), runtime.clone());
        let tables = Tables::new(tables)?;
        let limits = options.limits.cut_to_files();
        let memory = Arc::new(Memory::new(options.max_bytes, tables.all(), tier)?);
        let call_gate = Arc::new(CallGate::new(&memory));
        let traffic = Arc::new(Traffic::new(calls::all().map(|row| row.path).collect()));
        let authentication =
            Authentication::new(options.authenticator.clone(), options.insecure_tokens);
        let tls = options.tls.as_ref().map(|port| Arc::clone(&port.tls));
        let streams = Arc::default();
        let timeline = Timeline::new(tables.all(), &streams, &stop, runtime);
        let service = Service {
            tables,
            checkpoints,
            authentication,
            rotation: Rotation::new(tls, options.authenticator.clone()),
            stop,
            drain: Drain::default(),
            limits,
            memory,
            traffic,
            streams,
            started_at: SystemTime::now(),
            timeline,
            long_waits: LongWaits::default(),
            group: Arc::default(),
            writer_places: WriterPlaces::default(),
            holders: Holders::new(options.lease_grace),
            changes: Arc::default(),
            call_gate,
        };
        let service = Arc::new(service);
        let (listener, address) = listen(options.host.as_deref(), options.port, runtime)?;
        service.authentication.check_address(address, options.tls.is_some())?;
        let (listeners, unix_path) = {
            let _runtime = runtime.enter();
            with_unix_socket(Listeners::new(listener), options.unix_path.as_deref())?
        };
        for table in service.tables.all() {
            let queued_bytes = limits.queued_bytes as u64;
            table.join_server(&service.memory.account, queued_bytes, &service.changes);
        }
        if let Some(shard) = &options.shard {
            service.join_group(shard)?;
        }
        if let Some(tier) = &service.memory.tier {
            tier.begin(&service.memory, service.tables.all(), &service.group)?;
        }
        service.memory.make_room();
        // A shard's tables depend on the bounds of the group.
        if options.shard.is_none() {
            service.tables.warn_of_prospects();
        }
        let window = service.memory.stream_window_bytes();
        let hint = match options.http_port {
            Some(port) => format!("Metrics and probes are on port {port}."),
            None => "For metrics and probes, start the server with an HTTP port (http_port, \
                     --http-port)."
                .to_owned(),
        };
        let done = Arc::new(Done::default());
        runtime.spawn({
            let service = Arc::clone(&service);
            let done = DoneGuard(Arc::clone(&done));
            let stop = service.stop.clone();
            let keepalive = options.keepalive;
            let tls = options.tls.clone();
            async move {
                let limits = limits.of_connections(window);
                let traffic = Arc::clone(&service.traffic);
                let outgoing = Arc::clone(&service.memory.outgoing);
                let wants_tokens = service.authentication.is_on();
                let options =
                    PortOptions { keepalive, limits, traffic, outgoing, hint, tls, wants_tokens };
                rpc::serve(listeners, service, stop, options).await;
                drop(done);
            }
        });
        if let Some(interval) = options.checkpoints.interval {
            runtime.spawn(save_periodically(Arc::clone(&service), interval));
        }
        for address in local_addresses(address, unix_path.as_deref()) {
            local::register(address, &service);
        }
        service.rotation.warn_of_certificate(SystemTime::now());
        runtime.spawn(Arc::clone(&service.rotation).watch(service.stop.clone()));
        Ok(Self {
            service,
            address,
            unix_path,
            http_port: options.http_port,
            stop: stop_sender,
            done,
            http: Mutex::default(),
        })
    }

    /// Reads certificates and tokens again; returns a line for each changed part. May block
    /// briefly.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with all problems. A part with a problem keeps its old contents.
    pub fn reload_security(&self) -> Result<Vec<String>> {
        self.service.rotation.reload()
    }

    /// Serves the status on an HTTP port until the server stops.
    pub fn attach(&self, http: HttpPort) {
        http.attach(&self.service);
        *self.http.lock() = Some(http);
    }

    /// Port that the server listens on, or listened on before it stopped.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// HTTP port of the options, which stays known after a stop.
    pub fn http_port(&self) -> Option<u16> {
        self.http_port
    }

    /// Absolute path of the Unix socket, which stays known after the server has stopped.
    pub fn unix_path(&self) -> Option<&Path> {
        self.unix_path.as_deref()
    }

    /// Tables, in the order in which they were given.
    pub fn tables(&self) -> &[Arc<Table>] {
        self.service.tables.all()
    }

    /// True until the server is stopped.
    pub fn is_running(&self) -> bool {
        !self.service.stop.is_stopped()
    }

    /// Saves all tables; returns the path of the checkpoint.
    ///
    /// # Errors
    ///
    /// Errors of [`reverb_checkpoint::save()`]; `Unavailable` if the server is stopped meanwhile.
    pub async fn checkpoint(&self) -> Result<String> {
        self.service.checkpoint().await
    }

    /// Status of the server. Works after a stop too.
    pub fn status(&self, request: StatusRequest) -> StatusResponse {
        status(&self.service, request, &Caller::default())
    }

    /// Waits until all that was confirmed is on disk.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` without a journal, `DeadlineExceeded` after the time of the request,
    /// `Unavailable` if the server is stopped.
    pub async fn sync(&self, request: SyncRequest) -> Result<SyncResponse> {
        let (caller, changed_by) = (&Caller::default(), ChangedBy::now(own_name()));
        let context = CallContext { caller, changed_by, is_local: true };
        request.answer(&self.service, &context).await
    }

    /// Changes the settings of all tables of a request, or of none.
    ///
    /// # Errors
    ///
    /// Errors of [`reverb_engine::configure`], `TableNotFound`, and `InvalidArgument` for a table
    /// that is named twice.
    pub async fn configure(
        &self,
        request: &ConfigureTablesRequest,
    ) -> Result<ConfigureTablesResponse> {
        self.service.configure(request, &ChangedBy::now(own_name())).await
    }

    /// Ends all streams of items with `UNAVAILABLE` and accepts no new ones; other calls continue.
    /// With `is_final` clients learn that the server does not come back. Waits at most `timeout`,
    /// and returns the number of network streams that are still open.
    pub async fn drain(&self, timeout: Duration, is_final: bool) -> usize {
        self.service.drain(timeout, ChangedBy::now(own_name()), is_final).await
    }

    /// Stops the server: wakes all blocked callers, ends all streams with `UNAVAILABLE`, closes its
    /// ports, and removes its Unix socket. Confirmed items stay in the tables. A running checkpoint
    /// is cancelled.
    ///
    /// Blocks until that is done, except on a thread of a runtime; use `wait` there. Stopping twice
    /// has no effect.
    pub fn stop(&self) {
        // The log has what was lost.
        let _ = self.end(false);
    }

    /// Like `stop`. With `is_final` clients that wait, or hold a stream, learn that the server does
    /// not come back.
    ///
    /// # Errors
    ///
    /// `DataLoss` if the last commit of a journal did not reach the disk. The server has stopped.
    pub fn end(&self, is_final: bool) -> Result<()> {
        for address in local_addresses(self.address, self.unix_path.as_deref()) {
            local::unregister(&address, &self.service, is_final);
        }
        // Stopped first, so that callers that a closed table wakes see a stopping server.
        self.stop.stop(is_final);
        self.service.tables.close();
        self.service.checkpoints.cancel();
        let http = self.http.lock().take();
        drop(http);
        if Handle::try_current().is_err() {
            self.service.checkpoints.wait_for_end(MAX_STOP_WAIT);
            self.done.wait();
        }
        self.service.memory.tier.as_ref().map_or(Ok(()), |tier| tier.stop())
    }

    /// Waits until the server has stopped and its port is closed.
    pub async fn wait(&self) {
        self.done.ended().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Saves every `interval`, measured from the start of the last periodic save, until the stop.
async fn save_periodically(service: Arc<Service>, interval: Duration) {
    let mut clock = tokio::time::interval(interval);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick completes immediately.
    clock.tick().await;
    while service.stop.or(clock.tick()).await.is_ok() {
        if let Err(error) = service.checkpoint().await
            && !service.stop.is_stopped()
        {
            tracing::error!("{error} The next attempt is in {interval:?}.");
        }
    }
}

/// The addresses at which clients of this process find a server.
fn local_addresses(address: SocketAddr, unix_path: Option<&Path>) -> Vec<Address> {
    let socket = unix_path.map(|path| Address::Socket(path.to_owned()));
    std::iter::once(address.into()).chain(socket).collect()
}

#[cfg(unix)]
fn with_unix_socket(
    listeners: Listeners,
    path: Option<&Path>,
) -> Result<(Listeners, Option<PathBuf>)> {
    let Some(path) = path else { return Ok((listeners, None)) };
    let port = rpc::UnixPort::bind(path)?;
    let path = port.path().to_owned();
    Ok((listeners.with_unix(port), Some(path)))
}

#[cfg(not(unix))]
fn with_unix_socket(
    listeners: Listeners,
    path: Option<&Path>,
) -> Result<(Listeners, Option<PathBuf>)> {
    match path {
        None => Ok((listeners, None)),
        Some(_) => Err(Error::invalid_argument("unix_path: this system has no Unix sockets")),
    }
}

/// Opens a port for a task of `runtime`; returns its address, too.
///
/// # Errors
///
/// `InvalidArgument` if the port cannot be opened.
pub(crate) fn listen(
    host: Option<&str>,
    port: u16,
    runtime: &Handle,
) -> Result<(TcpListener, SocketAddr)> {
    let unusable = |error: std::io::Error| {
        Error::internal(format!("The port was opened but cannot be used: {error}."))
    };
    let listener = rpc::bind(host, port)?;
    let _runtime = runtime.enter();
    let listener = TcpListener::from_std(listener).map_err(unusable)?;
    let address = listener.local_addr().map_err(unusable)?;
    Ok((listener, address))
}
