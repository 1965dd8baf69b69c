// SPDX-License-Identifier: Apache-2.0
//! A server: start, stop, and periodic saves.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use reverb_data::{Error, Result};
use reverb_engine::Table;
use reverb_rpc::Keepalive;
use reverb_wire::generated::reverb::StatusResponse;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::checkpoints::{CheckpointOptions, Checkpoints};
use crate::limits::Limits;
use crate::local;
use crate::memory::{CallGate, Memory};
use crate::service::Service;
use crate::tables::Tables;
use reverb_rpc::server::{self as rpc, StopSender, stop_signal};

/// Maximum time that `stop` waits for the port to close and the streams to end.
const MAX_STOP_WAIT: Duration = Duration::from_secs(5);

/// Where a server listens, and how it treats its clients.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Host name or address; all addresses of the machine if absent.
    pub host: Option<String>,
    /// Port; 0 picks a free one.
    pub port: u16,
    /// Where and when to save the tables.
    pub checkpoints: CheckpointOptions,
    /// When to ping clients to see whether they are alive.
    pub keepalive: Keepalive,
    /// What one peer may take.
    pub limits: Limits,
    /// Bytes that chunks and items may take. There is no limit if it is absent.
    pub max_bytes: Option<u64>,
}

/// Serves tables, over gRPC and to callers in this process, until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    service: Arc<Service>,
    port: u16,
    stop: StopSender,
    done: Arc<Done>,
}

/// Whether the port is closed and all streams have ended, for threads and for tasks.
#[derive(Debug)]
struct Done {
    threads: Mutex<bool>,
    changed: Condvar,
    tasks: watch::Sender<bool>,
}

impl Server {
    /// Opens the port and serves on `runtime`, which must have I/O and time enabled.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there are no tables, if two have the same name, if a limit is out of
    /// its range, or if the port cannot be opened.
    pub fn start(
        tables: Vec<Arc<Table>>,
        options: &ServerOptions,
        runtime: &Handle,
    ) -> Result<Self> {
        options.limits.validate()?;
        let (stop_sender, stop) = stop_signal();
        let checkpoints = Checkpoints::new(options.checkpoints.clone(), runtime.clone());
        let (tables, limits) = (Tables::new(tables)?, options.limits);
        let memory = Arc::new(Memory::new(options.max_bytes, tables.all())?);
        let call_gate = Arc::new(CallGate::new(&memory));
        let service = Service { tables, checkpoints, stop, limits, memory, call_gate };
        let service = Arc::new(service);
        let listener = rpc::bind(options.host.as_deref(), options.port)?;
        let (listener, port) = {
            let _runtime = runtime.enter();
            let listener = TcpListener::from_std(listener).map_err(|error| listening(&error))?;
            let port = listener.local_addr().map_err(|error| listening(&error))?.port();
            (listener, port)
        };
        for table in service.tables.all() {
            table.join_server(&service.memory.account, limits.queued_bytes as u64);
        }
        service.memory.make_room();
        let window = service.memory.stream_window_bytes();
        let done = Arc::new(Done {
            threads: Mutex::new(false),
            changed: Condvar::new(),
            tasks: watch::Sender::new(false),
        });
        runtime.spawn({
            let (service, done) = (Arc::clone(&service), DoneGuard(Arc::clone(&done)));
            let (stop, keepalive) = (service.stop.clone(), options.keepalive);
            async move {
                rpc::serve(listener, service, stop, keepalive, limits.of_connections(window)).await;
                drop(done);
            }
        });
        if let Some(interval) = options.checkpoints.interval {
            runtime.spawn(save_periodically(Arc::clone(&service), interval));
        }
        local::register(port, options.host.as_deref(), &service);
        Ok(Self { service, port, stop: stop_sender, done })
    }

    /// The port that it listens on, or listened on before it stopped.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its tables, in the order in which they were given.
    pub fn tables(&self) -> &[Arc<Table>] {
        self.service.tables.all()
    }

    /// Whether it has not been stopped yet.
    pub fn is_running(&self) -> bool {
        !self.service.stop.is_stopped()
    }

    /// Saves all tables; returns the path of the checkpoint.
    ///
    /// # Errors
    ///
    /// Those of [`reverb_checkpoint::save()`]; `Unavailable` if the server is stopped meanwhile.
    pub async fn checkpoint(&self) -> Result<String> {
        self.service.checkpoint().await
    }

    /// What its memory is used for. Answers after the server has stopped too.
    pub fn status(&self) -> StatusResponse {
        self.service.status()
    }

    /// Stops the server: wakes all waiting callers, ends all streams with `UNAVAILABLE` and closes
    /// the port. Confirmed items stay in the tables. A checkpoint in progress is cancelled.
    ///
    /// Blocks until that is done, except on a thread of a runtime, which must not be blocked; use
    /// `wait` there. Stopping twice has no effect.
    pub fn stop(&self) {
        local::unregister(self.port, &self.service);
        // This order: callers that a closed table wakes must see that the server is stopping.
        self.stop.stop();
        self.service.tables.close();
        self.service.checkpoints.cancel();
        if Handle::try_current().is_err() {
            self.service.checkpoints.wait_for_end(MAX_STOP_WAIT);
            let mut is_done = self.done.threads.lock();
            if !*is_done {
                self.done.changed.wait_for(&mut is_done, MAX_STOP_WAIT);
            }
        }
    }

    /// Waits until the server is stopped and its port is closed.
    pub async fn wait(&self) {
        // The sender lives as long as `self`.
        let _ = self.done.tasks.subscribe().wait_for(|&done| done).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Saves every `interval`, measured from the start of the last periodic save, until the server
/// stops.
async fn save_periodically(service: Arc<Service>, interval: Duration) {
    let mut clock = tokio::time::interval(interval);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick completes immediately.
    clock.tick().await;
    while service.stop.or(clock.tick()).await.is_ok() {
        if let Err(error) = service.checkpoint().await
            && !service.stop.is_stopped()
        {
            log::error!("{error} The next attempt is in {interval:?}.");
        }
    }
}

/// Reports the end even if the task is dropped together with its runtime.
struct DoneGuard(Arc<Done>);

impl Drop for DoneGuard {
    fn drop(&mut self) {
        *self.0.threads.lock() = true;
        self.0.changed.notify_all();
        self.0.tasks.send_replace(true);
    }
}

fn listening(error: &std::io::Error) -> Error {
    Error::internal(format!("The port was opened but cannot be used: {error}."))
}
