// SPDX-License-Identifier: Apache-2.0
//! What a journal gives back at a start, until the tables have it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use reverb_base::byte_size;
use reverb_base::error::grouped;
use reverb_base::figures::seconds;
use reverb_base::{Error, ErrorKind, Result};
use reverb_checkpoint::{FillOptions, Filling};
use reverb_data::ShardIdentity;
use reverb_engine::Table;
use reverb_store::{Note, Recovered, check_not_cancelled};

use super::record::{items_of, tables_of};

/// What a journal gave back.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Until the tables have it.
    recovered: Option<Recovered>,
    /// Numbers of the tables in its records.
    numbers: BTreeMap<String, u32>,
    /// The place in a group that the items belong to, if there are any.
    shard: Option<ShardIdentity>,
    began_at: Option<Instant>,
    done: Option<Done>,
}

/// Tables that have what a journal gave back.
#[derive(Debug)]
pub(crate) struct Filled {
    /// Those whose settings were restored are new objects.
    pub(crate) tables: Vec<Arc<Table>>,
    /// Items for which they had no room.
    pub(crate) num_removed: u64,
}

/// A recovery that is over.
#[derive(Debug, Clone)]
pub(crate) struct Done {
    /// The moment to which the tables belong, and its commit.
    pub(crate) at: SystemTime,
    pub(crate) commit: u64,
    pub(crate) num_items: u64,
    /// The last notes, in order.
    pub(crate) notes: Vec<Note>,
    pub(crate) took: Duration,
    /// Bytes of a commit that was not finished.
    pub(crate) dropped_bytes: u64,
}

impl Recovery {
    pub(crate) fn new(recovered: Recovered, began_at: Instant) -> Self {
        let has_items = recovered.tables.iter().any(|table| !table.items.is_empty());
        let shard = recovered.shard.clone().filter(|_| has_items);
        let (recovered, began_at) = (Some(recovered), Some(began_at));
        Self { recovered, shard, began_at, ..Self::default() }
    }

    /// The moment to which the tables belong, if there was a journal.
    pub(crate) fn at(&self) -> Option<SystemTime> {
        let waits = self.recovered.as_ref().filter(|it| !it.tables.is_empty());
        waits.map(|it| it.at).or_else(|| self.done.as_ref().map(|it| it.at))
    }

    pub(crate) fn numbers(&self) -> &BTreeMap<String, u32> {
        &self.numbers
    }

    pub(crate) fn done(&self) -> Option<&Done> {
        self.done.as_ref()
    }

    pub(crate) fn shard(&self) -> Option<&ShardIdentity> {
        self.shard.as_ref()
    }

    /// Fills tables; see `Tier::recover`.
    pub(crate) fn fill(
        &mut self,
        tables: &[Arc<Table>],
        restore_settings: bool,
        about: &str,
        cancelled: &AtomicBool,
    ) -> Result<Option<Filled>> {
        let recovered = self.recovered.take().filter(|it| !it.tables.is_empty());
        let Some(recovered) = recovered else { return Ok(None) };
        let damaged = |error: Error| match error.kind() {
            ErrorKind::DataLoss => {
                Error::data_loss(format!("{about} is damaged: {}", error.message()))
            }
            _ => error,
        };
        let (stored, numbers) = tables_of(&recovered).map_err(damaged)?;
        let options = FillOptions { restore_settings, keep_signatures: false };
        let mut filling = Filling::new(tables, &stored, options, about)?;
        let Recovered { commit, at, tables: contents, notes, dropped_bytes, .. } = recovered;
        let mut num_items = 0;
        for (position, table) in contents.into_iter().enumerate() {
            for item in items_of(table.items).map_err(damaged)? {
                num_items += 1;
                check_not_cancelled(cancelled)?;
                filling.push(position, item)?;
            }
        }
        let num_removed = filling.num_removed();
        let tables = filling.install()?;
        self.numbers = numbers;
        let took = self.began_at.map_or(Duration::ZERO, |began_at| began_at.elapsed());
        let dropped = if dropped_bytes > 0 {
            format!("; {} of an unfinished commit dropped", byte_size::describe(dropped_bytes))
        } else {
            String::new()
        };
        tracing::info!(
            "{about}: {} items as of commit {commit}, {} ago, in {}{dropped}",
            grouped(num_items as usize),
            seconds(at.elapsed().unwrap_or_default()),
            seconds(took),
        );
        self.done = Some(Done { at, commit, num_items, notes, took, dropped_bytes });
        Ok(Some(Filled { tables, num_removed }))
    }
}
