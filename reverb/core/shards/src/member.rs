// SPDX-License-Identifier: Apache-2.0
//! A shard as its clients see it: how to reach it, and what it said last.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use reverb_data::{Error, KeySlots, Result};
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::DirectoryRequest;
use reverb_wire::shard::Shard;
use reverb_wire::transport::ShardRoute;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::facts::TableFacts;

/// Who listens on a socket of this machine answers at once.
const SOCKET_PATIENCE: Duration = Duration::from_secs(1);

/// Leads to one server.
pub trait Line: Send + Sync {
    /// The server. It may have moved into this process meanwhile.
    fn shard(&self) -> Result<Arc<dyn Shard>>;
}

/// Makes lines to servers, by their addresses.
pub trait Dial: Send + Sync {
    /// A line; it connects on first use. The server that has the id, if it is known, may be in this
    /// process at an address that does not say so.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an address that cannot be.
    fn dial(&self, address: &str, server_id: Option<u64>) -> Result<Box<dyn Line>>;

    /// A line over a Unix socket of this machine, if there is one at the path. Whoever listens
    /// there has to prove its id.
    fn dial_socket(&self, unix_path: &str) -> Option<Box<dyn Line>>;
}

/// Whether a shard can be used.
#[derive(Debug, Clone)]
pub(crate) enum State {
    /// Nothing was heard of it yet.
    New,
    /// It answers.
    Up,
    /// It does not.
    Down(Error),
}

/// A shard of a group.
pub struct Member {
    /// Its place in the group.
    pub(crate) index: i32,
    /// For people, and to reach it.
    pub(crate) address: String,
    line: Box<dyn Line>,
    /// A shorter way on the same machine, and whether the right server is at its end.
    socket: Option<Box<dyn Line>>,
    is_socket_proved: AtomicBool,
    /// `None` if it owns no slots; then it gets no items.
    pub(crate) route: Option<ShardRoute>,
    /// Its share of the inserts.
    pub(crate) weight: f64,
    pub(crate) is_draining: bool,
    pub(crate) is_coordinator: bool,
    state: Mutex<State>,
    last_seen: Mutex<Option<Instant>>,
    server_id: Mutex<Option<u64>>,
    tables: RwLock<HashMap<String, Arc<TableFacts>>>,
    /// Whether it has the calls of shards; those of dm-reverb have not.
    is_ours: AtomicBool,
    /// Whether a watch tells of its tables as they change.
    pub(crate) is_watched: AtomicBool,
    /// Insert streams of all clients that lead to it, as it has told last.
    pub(crate) told_writers: AtomicI64,
    /// Insert streams of this client that lead to it.
    pub(crate) num_writers: AtomicUsize,
    /// Wakes the task that looks after it.
    pub(crate) look: Notify,
    task: Mutex<Option<AbortHandle>>,
}

/// What makes a member.
pub(crate) struct Place {
    pub(crate) index: i32,
    pub(crate) address: String,
    pub(crate) weight: f64,
    pub(crate) is_draining: bool,
    pub(crate) is_coordinator: bool,
    pub(crate) server_id: Option<u64>,
}

impl Member {
    pub(crate) fn new(place: Place, line: Box<dyn Line>, slots: Option<KeySlots>) -> Self {
        let Place { index, address, weight, is_draining, is_coordinator, server_id } = place;
        Self {
            index,
            address,
            line,
            socket: None,
            is_socket_proved: AtomicBool::new(false),
            route: slots.map(|slots| ShardRoute { index, slots: Arc::new(slots) }),
            weight: if weight > 0.0 { weight } else { 1.0 },
            is_draining,
            is_coordinator,
            state: Mutex::new(State::New),
            last_seen: Mutex::new(None),
            server_id: Mutex::new(server_id),
            tables: RwLock::default(),
            is_ours: AtomicBool::new(true),
            is_watched: AtomicBool::new(false),
            told_writers: AtomicI64::new(0),
            num_writers: AtomicUsize::new(0),
            look: Notify::new(),
            task: Mutex::new(None),
        }
    }

    /// With a shorter way on the same machine.
    pub(crate) fn with_socket(mut self, socket: Option<Box<dyn Line>>) -> Self {
        self.socket = socket;
        self
    }

    /// The server.
    pub(crate) fn shard(&self) -> Result<Arc<dyn Shard>> {
        match &self.socket {
            Some(socket) if self.is_socket_proved.load(Ordering::Relaxed) => socket.shard(),
            _ => self.line.shard(),
        }
    }

    /// Asks who is at the end of the socket. Paths, like host names, are alike in containers: only
    /// the server with the right id may be used.
    pub(crate) async fn prove_socket(&self, server_id: u64) {
        let Some(socket) = &self.socket else { return };
        let asked = async { socket.shard()?.call(DirectoryRequest::default()).await };
        let answer = tokio::time::timeout(SOCKET_PATIENCE, asked).await;
        let is_right = matches!(answer, Ok(Ok(answer)) if answer.server_id == server_id);
        self.is_socket_proved.store(is_right, Ordering::Relaxed);
    }

    /// "shard 3 (host:8000)".
    pub(crate) fn name(&self) -> String {
        format!("shard {} ({})", self.index, self.address)
    }

    pub(crate) fn is_down(&self) -> bool {
        matches!(*self.state.lock(), State::Down(_))
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().clone()
    }

    pub(crate) fn last_seen(&self) -> Option<Instant> {
        *self.last_seen.lock()
    }

    pub(crate) fn server_id(&self) -> Option<u64> {
        *self.server_id.lock()
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ours(&self, is_ours: bool) {
        self.is_ours.store(is_ours, Ordering::Relaxed);
    }

    /// It has answered. `server_id` says who, if it is known.
    pub(crate) fn came_up(&self, server_id: Option<u64>) {
        *self.last_seen.lock() = Some(Instant::now());
        if let Some(id) = server_id {
            let before = self.server_id.lock().replace(id);
            if before.is_some_and(|before| before != id) {
                self.tables.read().values().for_each(|facts| facts.forget());
            }
        }
        let before = std::mem::replace(&mut *self.state.lock(), State::Up);
        if let State::Down(error) = before {
            tracing::info!(
                peer = self.address,
                shard = self.index,
                "a shard is back, after: {error}"
            );
        }
    }

    /// It did not answer.
    pub(crate) fn went_down(&self, error: &Error) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Down(error.clone()));
        self.tables.read().values().for_each(|facts| facts.doubt_keys());
        if !matches!(before, State::Down(_)) {
            tracing::warn!(
                peer = self.address, shard = self.index, %error,
                "a shard does not answer; the others go on without it"
            );
            self.look.notify_one();
        }
    }

    /// What is known of a table.
    pub(crate) fn facts(&self, table: &str) -> Arc<TableFacts> {
        if let Some(facts) = self.tables.read().get(table) {
            return Arc::clone(facts);
        }
        Arc::clone(self.tables.write().entry(table.to_owned()).or_default())
    }

    /// How full these tables are together, if that is known of all.
    pub(crate) fn share<'a>(&self, mut tables: impl Iterator<Item = &'a str>) -> Option<f64> {
        tables.try_fold(0.0, |sum, table| Some(sum + self.facts(table).now().share?))
    }

    /// Nobody looks after it any more.
    pub(crate) fn end_task(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    pub(crate) fn set_task(&self, task: AbortHandle) {
        *self.task.lock() = Some(task);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end_task();
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("index", &self.index)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
