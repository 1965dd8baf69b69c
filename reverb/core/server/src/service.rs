// SPDX-License-Identifier: Apache-2.0
//! How a server starts, its calls and streams, its memory and checkpoints; here the state that
//! these share.

mod blocking;
mod caller;
mod calls;
mod checkpoints;
mod done;
mod drain;
mod group;
mod health;
mod held_chunks;
mod http_port;
mod insert_stream;
mod leases;
mod limiter_hold;
mod limits;
mod local;
mod memory;
mod open;
mod process_memory;
mod reader_room;
mod reflection;
mod rotation;
mod router;
mod sample_stream;
mod scan_stream;
mod selection;
mod server;
mod status;
mod store;
mod tables;
mod throttle;
mod transfer;
mod watch_stream;
mod writer_places;

use std::sync::Arc;
use std::time::SystemTime;

use reverb_base::error::grouped;
use reverb_base::{Result, byte_size};
use reverb_engine::{Forecast, Table, TableChanges};
use reverb_rpc::framing::Gate;
use reverb_rpc::server::{Stop, Traffic};
use reverb_wire::generated::reverb::StoreStatus;

use crate::observe::long_waits::LongWaits;
use crate::observe::streams::Streams;
use crate::observe::timeline::Timeline;
use caller::Authentication;
use checkpoints::Checkpoints;
use drain::Drain;
use group::Group;
use memory::Memory;
use rotation::Rotation;
use tables::Tables;
use writer_places::WriterPlaces;

pub use checkpoints::CheckpointOptions;
pub use http_port::HttpPort;
use leases::Holders;
pub use limits::Limits;
pub use local::{local_has_ended, local_shard, local_shard_of_id, local_shard_of_socket};
pub use open::{Config, HttpOptions, Opened};
pub use process_memory::process_memory;
pub use server::{Server, ServerOptions, ShardOptions};
pub use status::warn_of_long_waits;
pub use store::{JournalOptions, StoreOptions};

/// A server's state and calls, independent of the transport.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) tables: Tables,
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// Authentication of callers.
    pub(crate) authentication: Authentication,
    /// Reload of certificate and tokens.
    pub(crate) rotation: Arc<Rotation>,
    pub(crate) stop: Stop,
    pub(crate) drain: Drain,
    pub(crate) limits: Limits,
    pub(crate) memory: Arc<Memory>,
    /// Counters of the port.
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) started_at: SystemTime,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) long_waits: LongWaits,
    /// Group that the server is a shard of.
    pub(crate) group: Arc<Group>,
    /// Shards at which writers of the group started recently.
    pub(crate) writer_places: WriterPlaces,
    /// Clients with leases on items with rollouts.
    pub(crate) holders: Holders,
    /// Wakes the watchers of its tables.
    pub(crate) changes: Arc<TableChanges>,
    /// Gate through which all calls except insert streams are read.
    pub(crate) call_gate: Arc<dyn Gate>,
}

impl Service {
    /// Deletes items, then updates priorities. Returns the keys that have no items.
    pub(crate) fn mutate(
        &self,
        table: &str,
        updates: &[(u64, f64)],
        deletes: &[u64],
    ) -> Result<Vec<u64>> {
        let (_, table) = self.tables.get(table)?;
        table.mutate(updates, deletes).map_err(|error| self.stop.explain(error))
    }

    /// Saves all tables; returns the path. The save continues if the caller disconnects. The caller
    /// says what became of an error.
    pub(crate) async fn checkpoint(&self) -> Result<String> {
        let save = self.checkpoints.save(self.tables.all(), self.group.stored_place());
        self.stop.or(save).await?
    }

    /// Status of the store; `None` without one.
    pub(crate) fn store_status(&self) -> Option<StoreStatus> {
        self.memory.tier.as_ref().map(|tier| tier.status(&self.memory))
    }

    /// Keeps memory within its limit, and logs once how much memory a table will need.
    pub(crate) fn after_insert(&self, table: Option<&Table>) {
        self.memory.make_room();
        if let Some(table) = table
            && let Some(forecast) = table.take_forecast()
        {
            log_forecast(table, forecast, self.memory.room_for(table.bytes()));
        }
    }
}

/// Logs a forecast, as a warning if the table cannot come to hold so much. `room` is the memory
/// that the server leaves to it.
fn log_forecast(table: &Table, forecast: Forecast, room: Option<u64>) {
    let Forecast { items, item_bytes, bytes } = forecast;
    let described = byte_size::describe;
    let number = grouped(items as usize);
    let each = described(item_bytes);
    let limits = [("the table", table.config().memory.max_bytes), ("the server", room)];
    let limits = limits.into_iter().filter_map(|(of, limit)| Some((limit?, of)));
    if let Some((limit, of)) = limits.min().filter(|(limit, _)| *limit < bytes) {
        let held = grouped(forecast.held(limit) as usize);
        tracing::warn!(
            table = table.name(),
            "{number} items (max_size) would take about {} ({each} each), and max_bytes of {of} \
             leaves {} for them: the table will hold about {held}. Raise max_bytes, or set a \
             smaller max_size.",
            described(bytes),
            described(limit)
        );
        return;
    }
    let limit = process_memory();
    let may_use = limit
        .map_or_else(String::new, |limit| format!("; this process may use {}", described(limit)));
    let text =
        format!("{number} items will take about {} ({each} each){may_use}.", described(bytes));
    if limit.is_some_and(|limit| bytes > limit) {
        tracing::warn!(table = table.name(), "{text} Set max_bytes or a smaller max_size.");
    } else {
        tracing::info!(table = table.name(), "{text}");
    }
}
