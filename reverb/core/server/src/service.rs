// SPDX-License-Identifier: Apache-2.0
//! What a server is made of, and what its calls share.

use std::sync::Arc;
use std::time::SystemTime;

use reverb_data::error::grouped;
use reverb_data::{Result, byte_size};
use reverb_engine::{Forecast, Table, TableChanges};
use reverb_rpc::framing::Gate;
use reverb_rpc::server::{Stop, Traffic};
use reverb_wire::generated::reverb::{StatusRequest, StatusResponse};

use crate::caller::{Authentication, Caller};
use crate::checkpoints::Checkpoints;
use crate::drain::Drain;
use crate::group::Group;
use crate::history::History;
use crate::limits::Limits;
use crate::long_waits::LongWaits;
use crate::memory::Memory;
use crate::process_memory::process_memory;
use crate::rotation::Rotation;
use crate::status;
use crate::streams::Streams;
use crate::tables::Tables;
use crate::writer_places::WriterPlaces;

/// What a server offers, over any transport.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) tables: Tables,
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// Whom it knows.
    pub(crate) authentication: Authentication,
    /// Its certificate and tokens, when they change.
    pub(crate) rotation: Arc<Rotation>,
    pub(crate) stop: Stop,
    pub(crate) drain: Drain,
    pub(crate) limits: Limits,
    pub(crate) memory: Arc<Memory>,
    /// What passes the port.
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) started_at: SystemTime,
    pub(crate) history: History,
    pub(crate) long_waits: LongWaits,
    /// The group that it is a shard of.
    pub(crate) group: Group,
    /// Where writers of the group have begun.
    pub(crate) writer_places: WriterPlaces,
    /// Wakes the watchers of its tables.
    pub(crate) changes: Arc<TableChanges>,
    /// What calls other than insert streams are read through.
    pub(crate) call_gate: Arc<dyn Gate>,
}

impl Service {
    /// Deletes items, then updates priorities. Returns the keys of which there are no items.
    pub(crate) fn mutate(
        &self,
        table: &str,
        updates: &[(u64, f64)],
        deletes: &[u64],
    ) -> Result<Vec<u64>> {
        let (_, table) = self.tables.get(table)?;
        table.mutate(updates, deletes).map_err(|error| self.stop.explain(error))
    }

    /// Saves all tables; returns the path. The save continues if the caller disconnects.
    pub(crate) async fn checkpoint(&self) -> Result<String> {
        let save = self.checkpoints.save(self.tables.all(), self.group.stored_place());
        let saved = self.stop.or(save).await?;
        // Who runs the server may not be who asked, and would not hear of it.
        saved.inspect_err(|error| tracing::error!("{error}"))
    }

    /// Keeps the memory within its limit, and tells once what a table will take.
    pub(crate) fn after_insert(&self, table: Option<&Table>) {
        self.memory.make_room();
        if let Some(table) = table
            && let Some(forecast) = table.take_forecast()
        {
            log_forecast(table, forecast);
        }
    }

    /// What the caller may know of it: nothing of tables that it may not sample from.
    pub(crate) fn status(
        self: &Arc<Self>,
        request: StatusRequest,
        caller: &Caller,
    ) -> StatusResponse {
        status::status(self, request, caller)
    }
}

fn log_forecast(table: &Table, forecast: Forecast) {
    let Forecast { items, item_bytes, bytes } = forecast;
    let limit = process_memory();
    let may_use = limit.map_or_else(String::new, |limit| {
        format!("; this process may use {}", byte_size::describe(limit))
    });
    let text = format!(
        "{} items will take about {} ({} each){may_use}.",
        grouped(items as usize),
        byte_size::describe(bytes),
        byte_size::describe(item_bytes),
    );
    let is_bounded = table.config().memory.max_bytes.is_some_and(|max_bytes| max_bytes <= bytes);
    if !is_bounded && limit.is_some_and(|limit| bytes > limit) {
        tracing::warn!(table = table.name(), "{text} Set max_bytes or a smaller max_size.");
    } else {
        tracing::info!(table = table.name(), "{text}");
    }
}
