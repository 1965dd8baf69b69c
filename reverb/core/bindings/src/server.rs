// SPDX-License-Identifier: Apache-2.0
//! The server as Python sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reverb_checkpoint::{Held, LoadOptions, Loaded, ServerName};
use reverb_engine::Table as Engine;
use reverb_rpc::Keepalive;
use reverb_rpc::socket_path::SocketPath;
use reverb_server::{CheckpointOptions, HttpPort, Server as Core, ServerOptions, ShardOptions};
use reverb_wire::generated::reverb::StatusRequest;

use crate::checkpoint::blocking;
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
    http_port: Option<u16>,
    tables: Vec<Py<Table>>,
    root: Option<PathBuf>,
    group: String,
}

/// Where a server saves its tables, and which checkpoint it starts with.
#[derive(FromPyObject)]
pub(crate) struct Checkpoints {
    #[pyo3(attribute("path"))]
    root: Option<PathBuf>,
    group: String,
    #[pyo3(attribute("fallback_checkpoint_path"))]
    fallback: Option<PathBuf>,
    keep_latest: usize,
    restore_settings: bool,
    name: Option<String>,
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

/// What one peer may take; `None` is the default.
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

/// The place of a server in a group.
#[derive(FromPyObject)]
pub(crate) struct Shard {
    /// A serialized `ShardMap`.
    map: Vec<u8>,
    index: i32,
    is_coordinated: bool,
}

impl Shard {
    fn options(self) -> PyResult<ShardOptions> {
        let Self { map, index, is_coordinated } = self;
        Ok(ShardOptions { map: decoded(&map)?, index, is_coordinated })
    }
}

/// Rejects a number that is no port.
fn port_number(argument: &str, port: i64) -> reverb_data::Result<u16> {
    u16::try_from(port).map_err(|_| {
        reverb_data::Error::invalid_argument(format!(
            "{argument} must be between 0 and 65535, got {port}"
        ))
    })
}

/// The path of a Unix socket, from the root of the file system.
fn socket_path(path: &Path) -> reverb_data::Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|error| {
        reverb_data::Error::invalid_argument(format!("unix_path {}: {error}", path.display()))
    })?;
    SocketPath::new(absolute.clone()).map_err(|error| error.context("unix_path"))?;
    Ok(absolute)
}

/// The server name as it is written into files.
pub(crate) fn server_name(name: Option<&str>) -> PyResult<Option<ServerName>> {
    name.map(str::parse).transpose().or_raise()
}

/// Bytes that this process may use; `None` if the system does not tell.
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

/// Loads the latest checkpoint, if there is one. Ctrl-C cancels it.
fn load(
    py: Python<'_>,
    checkpoints: &Checkpoints,
    options: &CheckpointOptions,
    tables: &[Arc<Engine>],
) -> PyResult<(Option<Loaded>, Held)> {
    let Some(root) = checkpoints.root.clone() else { return Ok((None, Held::default())) };
    let options = LoadOptions {
        root,
        fallback: checkpoints.fallback.clone(),
        name: options.name.clone(),
        restore_settings: checkpoints.restore_settings,
    };
    let tables = tables.to_vec();
    blocking(py, move |progress| {
        let mut held = Held::default();
        let loaded = reverb_checkpoint::load(&tables, &options, progress, &mut held)?;
        Ok((loaded, held))
    })
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (tables, port, host, checkpoints, checkpoint_interval_s, keepalive_s, keepalive_timeout_s, limits, max_bytes, http_port, http_host, security, unix_path, shard))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        tables: Vec<Py<Table>>,
        port: i64,
        host: Option<String>,
        checkpoints: Checkpoints,
        checkpoint_interval_s: Option<f64>,
        keepalive_s: Option<f64>,
        keepalive_timeout_s: f64,
        limits: Limits,
        max_bytes: Option<u64>,
        http_port: Option<i64>,
        http_host: &str,
        security: Option<ServerSecurity>,
        unix_path: Option<PathBuf>,
        shard: Option<Shard>,
    ) -> PyResult<Self> {
        let port = port_number("port", port).or_raise()?;
        let http_port = http_port.map(|it| port_number("http_port", it)).transpose().or_raise()?;
        let keepalive = Keepalive::from_seconds(keepalive_s, keepalive_timeout_s).or_raise()?;
        // A path that cannot be one should not wait until a checkpoint is loaded.
        let unix_path = unix_path.map(|path| socket_path(&path)).transpose().or_raise()?;
        let engines: PyResult<Vec<_>> = tables.iter().map(|table| table.get().engine()).collect();
        let mut engines = engines?;
        let claims = Claims::new(&tables)?;
        let mut options = checkpoints.options()?;
        options.interval = checkpoint_interval_s.map(Duration::from_secs_f64);
        let tls = security.as_ref().map_or(Ok(None), ServerSecurity::tls).or_raise()?;
        let authenticator =
            security.as_ref().map_or(Ok(None), ServerSecurity::authenticator).or_raise()?;
        let insecure_tokens = security.as_ref().is_some_and(|it| it.insecure_tokens);
        let http_tls = security.as_ref().and_then(|it| it.http_tls(tls.as_ref()));
        // It tells that the tables are loading, and closes if that fails.
        let open = |port| HttpPort::open(http_host, port, http_tls.clone(), runtime().handle());
        let http = http_port.map(open).transpose().or_raise()?;
        let (loaded, held) = load(py, &checkpoints, &options, &engines)?;
        options.held = Arc::new(held.into());
        if let Some(loaded) = loaded {
            options.restored_from = Some(loaded.path);
            engines = loaded.tables;
        }
        if max_bytes.is_some() {
            reverb_allocator::keep_little();
        }
        let limits = limits.core();
        let http_port = http.as_ref().map(HttpPort::port);
        let options = ServerOptions {
            host,
            port,
            unix_path,
            checkpoints: options,
            keepalive,
            limits,
            max_bytes,
            http_port,
            tls,
            authenticator,
            insecure_tokens,
            shard: shard.map(Shard::options).transpose()?,
        };
        let core = py.detach(|| {
            let started = Core::start(engines.clone(), &options, runtime().handle());
            if started.is_err() {
                // Removes the items of a checkpoint: the caller gets its tables back unchanged.
                for table in &engines {
                    table.reset();
                }
            }
            started
        });
        let core = core.or_raise()?;
        if let Some(http) = http {
            core.attach(http);
        }
        claims.keep();
        for (table, engine) in tables.iter().zip(&engines) {
            table.get().replace_engine(engine);
        }
        Ok(Self {
            core: Local::new(core),
            http_port,
            tables,
            root: checkpoints.root,
            group: checkpoints.group,
        })
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

    /// Ends all streams; returns how many were still open after `timeout_s`.
    #[pyo3(signature = (timeout_s))]
    fn drain(&self, py: Python<'_>, timeout_s: f64) -> PyResult<usize> {
        self.core.origin().check("Server").or_raise()?;
        let timeout = seconds("drain_s", timeout_s)?;
        wait(py, async { Ok(self.core.drain(timeout).await) })
    }

    /// Reads certificates and tokens again; returns a line for each part that has changed.
    fn reload_security(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.core.origin().check("Server").or_raise()?;
        py.detach(|| self.core.reload_security()).or_raise()
    }

    fn port(&self) -> u16 {
        self.core.port()
    }

    /// The address of its Unix socket.
    fn unix_address(&self) -> PyResult<Option<String>> {
        let path = self.core.unix_path().map(|path| SocketPath::new(path.to_owned()));
        Ok(path.transpose().or_raise()?.map(|path| path.address()))
    }

    fn http_port(&self) -> Option<u16> {
        self.http_port
    }

    fn stop(&self, py: Python<'_>) {
        if self.core.origin().is_here() {
            py.detach(|| self.core.stop());
        }
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
    fn drop(&mut self) {
        if self.core.origin().is_here() {
            // The garbage collector holds the GIL, and stopping waits for the listener.
            Python::attach(|py| py.detach(|| self.core.stop()));
        }
    }
}
