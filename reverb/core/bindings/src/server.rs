// SPDX-License-Identifier: Apache-2.0
//! The server, for Python.

use std::path::PathBuf;
use std::time::Duration;

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reverb_checkpoint::ServerName;
use reverb_rpc::Keepalive;
use reverb_rpc::socket_path::SocketPath;
use reverb_server::{
    CheckpointOptions, HttpOptions, JournalOptions, Server as Core, ServerOptions, ShardOptions,
    StoreOptions,
};
use reverb_wire::generated::reverb::StatusRequest;

use crate::checkpoint::blocking_until_ended;
use crate::client::{decoded, seconds};
use crate::error::OrRaise;
use crate::process::{Local, runtime};
use crate::security::ServerSecurity;
use crate::table::Table;
use crate::wait::wait;

/// Serves from construction until it is stopped or dropped.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Server {
    core: Local<Core>,
    tables: Vec<Py<Table>>,
    root: Option<PathBuf>,
    group: String,
}

/// Settings of a server, besides its tables.
#[derive(FromPyObject)]
pub(crate) struct Config {
    port: u16,
    host: Option<String>,
    checkpoints: Checkpoints,
    lease_grace_s: f64,
    checkpoint_interval_s: Option<f64>,
    keepalive_s: Option<f64>,
    keepalive_timeout_s: f64,
    limits: Limits,
    max_bytes: Option<u64>,
    store: Option<Store>,
    http_port: Option<u16>,
    http_host: String,
    security: Option<ServerSecurity>,
    unix_path: Option<PathBuf>,
    shard: Option<Shard>,
}

impl Config {
    fn core(self) -> PyResult<reverb_server::Config> {
        let security = self.security.as_ref();
        let host = self.http_host;
        let tls = security.is_some_and(|security| security.http_tls);
        let interval = self.checkpoint_interval_s.map(Duration::from_secs_f64);
        Ok(reverb_server::Config {
            load: self.checkpoints.load.clone(),
            fallback: self.checkpoints.fallback.clone(),
            restore_settings: self.checkpoints.restore_settings,
            keep_signatures: self.checkpoints.keep_signatures,
            http: self.http_port.map(|port| HttpOptions { host, port, tls }),
            server: ServerOptions {
                host: self.host,
                port: self.port,
                unix_path: self.unix_path,
                checkpoints: CheckpointOptions { interval, ..self.checkpoints.options()? },
                keepalive: Keepalive::from_seconds(self.keepalive_s, self.keepalive_timeout_s)
                    .or_raise()?,
                limits: self.limits.core(),
                max_bytes: self.max_bytes,
                store: self.store.map(Store::options),
                tls: security.map_or(Ok(None), ServerSecurity::tls).or_raise()?,
                authenticator: security
                    .map_or(Ok(None), ServerSecurity::authenticator)
                    .or_raise()?,
                insecure_tokens: security.is_some_and(|security| security.insecure_tokens),
                shard: self.shard.map(Shard::options).transpose()?,
                lease_grace: Duration::from_secs_f64(self.lease_grace_s),
                ..ServerOptions::default()
            },
        })
    }
}

/// Where a server saves its tables, and the checkpoint that it loads.
#[derive(FromPyObject)]
pub(crate) struct Checkpoints {
    #[pyo3(attribute("path"))]
    root: Option<PathBuf>,
    group: String,
    #[pyo3(attribute("fallback_checkpoint_path"))]
    fallback: Option<PathBuf>,
    keep_latest: usize,
    restore_settings: bool,
    keep_signatures: bool,
    name: Option<String>,
    load: Option<PathBuf>,
}

impl Checkpoints {
    fn options(&self) -> PyResult<CheckpointOptions> {
        Ok(CheckpointOptions {
            root: self.root.clone(),
            group: self.group.clone(),
            keep_latest: self.keep_latest,
            name: server_name(self.name.as_deref())?,
            ..CheckpointOptions::default()
        })
    }
}

/// Limits on one peer; `None` is the default.
#[derive(FromPyObject)]
pub(crate) struct Limits {
    message_bytes: Option<usize>,
    call_bytes: Option<usize>,
    stream_bytes: Option<usize>,
    queued_bytes: Option<usize>,
    connections: Option<usize>,
    streams: Option<usize>,
    streams_per_connection: Option<usize>,
    unread_timeout_s: Option<f64>,
}

impl Limits {
    fn core(&self) -> reverb_server::Limits {
        let default = reverb_server::Limits::default();
        reverb_server::Limits {
            message_bytes: self.message_bytes.unwrap_or(default.message_bytes),
            call_bytes: self.call_bytes.unwrap_or(default.call_bytes),
            stream_bytes: self.stream_bytes.unwrap_or(default.stream_bytes),
            queued_bytes: self.queued_bytes.unwrap_or(default.queued_bytes),
            connections: self.connections.unwrap_or(default.connections),
            streams: self.streams.unwrap_or(default.streams),
            streams_per_connection: self
                .streams_per_connection
                .unwrap_or(default.streams_per_connection),
            unread_timeout: self
                .unread_timeout_s
                .map_or(default.unread_timeout, Duration::from_secs_f64),
        }
    }
}

/// Directory for payloads that exceed the memory, and for a journal.
#[derive(FromPyObject)]
pub(crate) struct Store {
    path: PathBuf,
    max_bytes: Option<u64>,
    journal: bool,
    sync_interval_s: f64,
    restore_settings: bool,
    #[pyo3(attribute("_forgets_at_once"))]
    forgets_at_once: bool,
}

impl Store {
    fn options(self) -> StoreOptions {
        let Self { path, max_bytes, forgets_at_once, .. } = self;
        let journal = self.journal.then(|| JournalOptions {
            sync_interval: Duration::from_secs_f64(self.sync_interval_s),
            restore_settings: self.restore_settings,
        });
        StoreOptions { path, max_bytes, journal, forgets_at_once }
    }
}

/// Index of a server in a group, and the map.
#[derive(FromPyObject)]
pub(crate) struct Shard {
    /// A serialized `ShardMap`.
    map: Vec<u8>,
    index: i32,
    is_coordinated: bool,
    rejoins: bool,
}

impl Shard {
    fn options(self) -> PyResult<ShardOptions> {
        let Self { map, index, is_coordinated, rejoins } = self;
        Ok(ShardOptions { map: decoded(&map)?, index, is_coordinated, rejoins })
    }
}

/// Server name for files.
pub(crate) fn server_name(name: Option<&str>) -> PyResult<Option<ServerName>> {
    name.map(str::parse).transpose().or_raise()
}

/// Memory that this process may use in bytes; `None` if the system does not report it.
#[pyfunction]
pub(crate) fn process_memory() -> Option<u64> {
    reverb_server::process_memory()
}

/// Rejects an invalid server name.
#[pyfunction]
#[pyo3(signature = (name))]
pub(crate) fn check_server_name(name: &str) -> PyResult<()> {
    server_name(Some(name)).map(drop)
}

/// Rejects limits that no server accepts.
#[pyfunction]
#[pyo3(signature = (limits))]
pub(crate) fn check_limits(limits: Limits) -> PyResult<()> {
    limits.core().validate().or_raise()
}

/// Rejects a path that cannot be a server's Unix socket.
#[pyfunction]
#[pyo3(signature = (path))]
pub(crate) fn check_unix_path(path: PathBuf) -> PyResult<()> {
    SocketPath::from_root(path).map(drop).or_raise()
}

#[pymethods]
impl Server {
    /// Ctrl-C cancels the load of a checkpoint.
    #[new]
    #[pyo3(signature = (tables, config))]
    fn new(py: Python<'_>, tables: Vec<Py<Table>>, config: Config) -> PyResult<Self> {
        let engines: PyResult<Vec<_>> = tables.iter().map(|table| table.get().engine()).collect();
        let engines = engines?;
        let claims = Claims::new(&tables)?;
        let root = config.checkpoints.root.clone();
        let group = config.checkpoints.group.clone();
        let is_limited = config.max_bytes.is_some();
        let config = config.core()?;
        let opened = blocking_until_ended(py, move |progress| {
            Core::open(engines, config, runtime().handle(), progress)
        })?;
        if is_limited {
            reverb_allocator::keep_little();
        }
        let core = py.detach(|| opened.start()).or_raise()?;
        claims.keep();
        for (table, engine) in tables.iter().zip(core.tables()) {
            table.get().replace_engine(engine);
        }
        Ok(Self { core: Local::new(core), tables, root, group })
    }

    /// Saves all tables. Blocks until the checkpoint is complete.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<String> {
        self.core.origin().check("Server").or_raise()?;
        wait(py, self.core.checkpoint())
    }

    /// A serialized `StatusResponse`.
    #[pyo3(signature = (with_streams))]
    fn status<'py>(&self, py: Python<'py>, with_streams: bool) -> PyResult<Bound<'py, PyBytes>> {
        self.core.origin().check("Server").or_raise()?;
        let status = py.detach(|| self.core.status(StatusRequest { with_streams }));
        Ok(PyBytes::new(py, &status.encode_to_vec()))
    }

    /// Takes and returns serialized messages.
    #[pyo3(signature = (request))]
    fn configure_tables<'py>(
        &self,
        py: Python<'py>,
        request: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.core.origin().check("Server").or_raise()?;
        let request = decoded(request)?;
        let answer = wait(py, self.core.configure(&request))?;
        Ok(PyBytes::new(py, &answer.encode_to_vec()))
    }

    /// Takes and returns serialized messages.
    #[pyo3(signature = (request))]
    fn sync<'py>(&self, py: Python<'py>, request: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        self.core.origin().check("Server").or_raise()?;
        let answer = wait(py, self.core.sync(decoded(request)?))?;
        Ok(PyBytes::new(py, &answer.encode_to_vec()))
    }

    /// Ends all streams; returns the number that was still open after `timeout_s`.
    #[pyo3(signature = (timeout_s, is_final))]
    fn drain(&self, py: Python<'_>, timeout_s: f64, is_final: bool) -> PyResult<usize> {
        self.core.origin().check("Server").or_raise()?;
        let timeout = seconds("drain_s", timeout_s)?;
        wait(py, async { Ok(self.core.drain(timeout, is_final).await) })
    }

    /// Reads certificates and tokens again; returns a line for each part that has changed.
    fn reload_security(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.core.origin().check("Server").or_raise()?;
        py.detach(|| self.core.reload_security()).or_raise()
    }

    fn port(&self) -> u16 {
        self.core.port()
    }

    /// Address of its Unix socket.
    fn unix_address(&self) -> PyResult<Option<String>> {
        let path = self.core.unix_path().map(|path| SocketPath::new(path.to_owned()));
        Ok(path.transpose().or_raise()?.map(|path| path.address()))
    }

    fn http_port(&self) -> Option<u16> {
        self.core.http_port()
    }

    #[pyo3(signature = (is_final))]
    fn stop(&self, py: Python<'_>, is_final: bool) -> PyResult<()> {
        if !self.core.origin().is_here() {
            return Ok(());
        }
        py.detach(|| self.core.end(is_final)).or_raise()
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.core.origin().check("Server").or_raise()?;
        wait(py, async {
            self.core.wait().await;
            Ok(())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tables: PyResult<Vec<String>> =
            self.tables.iter().map(|table| Ok(table.bind(py).repr()?.to_string())).collect();
        let root = self.root.as_ref().map_or_else(String::new, |root| root.display().to_string());
        Ok(format!(
            "Server(port={}, reverb_service=ReverbServiceAsync(tables=[{}], \
             checkpointer=TFRecordCheckpointer(root_dir={root}, group={})))",
            self.port(),
            tables?.join(", "),
            self.group
        ))
    }
}

/// Tables that are claimed for a server, and released unless it starts.
struct Claims<'a>(Vec<&'a Py<Table>>);

impl<'a> Claims<'a> {
    fn new(tables: &'a [Py<Table>]) -> PyResult<Self> {
        let mut claims = Self(Vec::with_capacity(tables.len()));
        for table in tables {
            table.get().claim()?;
            claims.0.push(table);
        }
        Ok(claims)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|table| table.get().release());
    }
}

impl Drop for Server {
    #[expect(clippy::disallowed_methods, reason = "no lock is held")]
    fn drop(&mut self) {
        if self.core.origin().is_here() {
            // The garbage collector holds the GIL, and stopping waits for the listener.
            Python::attach(|py| py.detach(|| self.core.stop()));
        }
    }
}
