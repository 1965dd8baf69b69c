// SPDX-License-Identifier: Apache-2.0
//! A member: a client's view of one shard, with its connections and last reports.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use reverb_base::{Error, Result};
use reverb_data::KeySlots;
use reverb_wire::Calls as _;
use reverb_wire::calls::Call;
use reverb_wire::generated::reverb::DirectoryRequest;
use reverb_wire::shard::Shard;
use reverb_wire::transport::ShardRoute;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::table_stats::TableStats;
use crate::transport::of_shard;

/// Time limit for a Unix socket on this machine, which answers at once.
const SOCKET_PATIENCE: Duration = Duration::from_secs(1);

/// A connection to one server.
pub trait ShardConnection: Send + Sync {
    /// The server. The call can return another object later, if the server moves into this process.
    fn shard(&self) -> Result<Arc<dyn Shard>>;
}

/// Makes connections to servers.
pub trait Connect: Send + Sync {
    /// Makes a connection; it opens on first use. A server with this id in the same process is used
    /// directly, even if the address does not show that it is local.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a malformed address.
    fn connect(&self, address: &str, server_id: Option<u64>) -> Result<Box<dyn ShardConnection>>;

    /// Makes a connection over a Unix socket of this machine, if the path exists. The caller must
    /// check the id of the server.
    fn connect_socket(&self, unix_path: &str) -> Option<Box<dyn ShardConnection>>;
}

/// Availability of a shard.
#[derive(Debug, Clone)]
pub(crate) enum State {
    /// Not asked yet.
    New,
    /// The last call was answered.
    Up,
    /// The last call failed.
    Down(Error),
}

/// A shard of a group.
pub struct Member {
    /// Index in the group.
    pub(crate) index: i32,
    /// Address, used to connect and in messages.
    pub(crate) address: String,
    connection: Box<dyn ShardConnection>,
    /// Connection over a Unix socket, used once `is_socket_proved`: the server's id is right.
    socket: Option<Box<dyn ShardConnection>>,
    is_socket_proved: AtomicBool,
    /// Key slots of the shard; `None` if it owns none and so gets no items.
    pub(crate) route: Option<ShardRoute>,
    /// Relative share of inserts that the shard gets.
    pub(crate) weight: f64,
    pub(crate) is_draining: bool,
    pub(crate) is_coordinator: bool,
    state: Mutex<State>,
    last_seen: Mutex<Option<Instant>>,
    server_id: Mutex<Option<u64>>,
    tables: RwLock<HashMap<String, Arc<TableStats>>>,
    /// False for servers of dm-reverb, which lack the calls of shards.
    is_ours: AtomicBool,
    /// True while a watch reports changes of its tables.
    pub(crate) is_watched: AtomicBool,
    /// Number of insert streams of all clients to this shard, as last reported.
    pub(crate) reported_writers: AtomicI64,
    /// Number of insert streams of this client to this shard.
    pub(crate) num_writers: AtomicUsize,
    /// Wakes the health task of this member.
    pub(crate) look: Notify,
    task: Mutex<Option<AbortHandle>>,
}

/// Arguments of [`Member::new`].
pub(crate) struct MemberConfig {
    pub(crate) index: i32,
    pub(crate) address: String,
    pub(crate) weight: f64,
    pub(crate) is_draining: bool,
    pub(crate) is_coordinator: bool,
    pub(crate) server_id: Option<u64>,
}

impl Member {
    pub(crate) fn new(
        config: MemberConfig,
        connection: Box<dyn ShardConnection>,
        slots: Option<KeySlots>,
    ) -> Self {
        let MemberConfig { index, address, weight, is_draining, is_coordinator, server_id } =
            config;
        Self {
            index,
            address,
            connection,
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
            reported_writers: AtomicI64::new(0),
            num_writers: AtomicUsize::new(0),
            look: Notify::new(),
            task: Mutex::new(None),
        }
    }

    /// Adds a connection over a Unix socket of this machine.
    pub(crate) fn with_socket(mut self, socket: Option<Box<dyn ShardConnection>>) -> Self {
        self.socket = socket;
        self
    }

    /// The server, over the Unix socket if it is proved.
    pub(crate) fn shard(&self) -> Result<Arc<dyn Shard>> {
        match &self.socket {
            Some(socket) if self.is_socket_proved.load(Ordering::Relaxed) => socket.shard(),
            _ => self.connection.shard(),
        }
    }

    /// Makes a small call; an error names the shard.
    pub(crate) async fn call<C: Call>(&self, request: C) -> Result<C::Answer> {
        let answer = async { self.shard()?.call(request).await }.await;
        answer.map_err(|error| of_shard(error, &self.name()))
    }

    /// Checks the server's id over the Unix socket. Containers can have equal paths and host names,
    /// so only the id identifies a server.
    pub(crate) async fn prove_socket(&self, server_id: u64) {
        let Some(socket) = &self.socket else { return };
        let asked = async { socket.shard()?.call(DirectoryRequest::default()).await };
        let answer = tokio::time::timeout(SOCKET_PATIENCE, asked).await;
        let is_right = matches!(answer, Ok(Ok(answer)) if answer.server_id == server_id);
        self.is_socket_proved.store(is_right, Ordering::Relaxed);
    }

    /// Name in messages: "shard 3 (host:8000)".
    pub(crate) fn name(&self) -> String {
        format!("shard {} ({})", self.index, self.address)
    }

    pub(crate) fn is_down(&self) -> bool {
        matches!(*self.state.lock(), State::Down(_))
    }

    /// True if the server has stopped for good, and nothing has come back at its address.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(&*self.state.lock(), State::Down(error) if error.is_final())
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

    /// Records an answer, and the server's id if known.
    pub(crate) fn came_up(&self, server_id: Option<u64>) {
        *self.last_seen.lock() = Some(Instant::now());
        if let Some(id) = server_id {
            let before = self.server_id.lock().replace(id);
            if before.is_some_and(|before| before != id) {
                self.tables.read().values().for_each(|stats| stats.forget());
            }
        }
        let before = std::mem::replace(&mut *self.state.lock(), State::Up);
        if let State::Down(error) = before {
            tracing::info!(
                peer = self.address,
                shard = self.index,
                "the shard answers again; its last error: {error}"
            );
        }
    }

    /// Records a failed call.
    pub(crate) fn went_down(&self, error: &Error) {
        let mut state = self.state.lock();
        let was_down = matches!(*state, State::Down(_));
        // That nobody listens any more is no news of a server that has stopped for good.
        let is_known = matches!(&*state, State::Down(known) if known.is_final());
        if !is_known || error.is_final() {
            *state = State::Down(error.clone());
        }
        drop(state);
        self.tables.read().values().for_each(|stats| stats.doubt_keys());
        if !was_down {
            tracing::warn!(
                peer = self.address, shard = self.index, %error,
                "a shard does not answer; the others continue without it"
            );
            self.look.notify_one();
        }
    }

    /// Error of a call that this shard alone can answer. If it has stopped for good, nobody should
    /// wait for it, although others of its group continue.
    pub(crate) fn is_needed(&self, error: Error) -> Error {
        if error.is_final() {
            self.went_down(&error);
        }
        if error.is_gone() && self.has_ended() {
            return Error::unavailable(format!("{} has stopped for good.", self.name())).lasting();
        }
        of_shard(error, &self.name())
    }

    /// Statistics of a table; created empty on first use.
    pub(crate) fn stats(&self, table: &str) -> Arc<TableStats> {
        if let Some(stats) = self.tables.read().get(table) {
            return Arc::clone(stats);
        }
        Arc::clone(self.tables.write().entry(table.to_owned()).or_default())
    }

    /// Sum of the fill levels of these tables, if all are known.
    pub(crate) fn share<'a>(&self, mut tables: impl Iterator<Item = &'a str>) -> Option<f64> {
        tables.try_fold(0.0, |sum, table| Some(sum + self.stats(table).now().share?))
    }

    /// Ends the health task.
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
