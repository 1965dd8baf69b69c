// SPDX-License-Identifier: Apache-2.0
//! Changes of the settings of running tables.

use std::sync::Arc;

use reverb_base::error::grouped;
use reverb_base::{Error, Result};
use reverb_data::{SelectorConfig, TableChange, TableConfig, TableInfo};

use super::checks::{check_bytes, check_new};
use super::clock::Activity;
use super::forecast::ForecastTimes;
use super::takes::{TakeRequest, check_take};
use super::{InsertRoom, Shared, Table, wait_queues};
use crate::selector::NewWeights;

/// Number of items that are evicted, or get new weights, under one lock.
const ITEMS_AT_ONCE: usize = 512;

/// The settings of a table before and after a change.
#[derive(Debug, Clone)]
pub struct Configured {
    /// Settings before the change.
    pub before: Arc<TableConfig>,
    /// Settings after the change.
    pub after: Arc<TableConfig>,
    /// State of the table when the change was complete.
    pub info: TableInfo,
}

impl Configured {
    /// Changed settings: name, value before, value after.
    pub fn changed(&self) -> Vec<(&'static str, String, String)> {
        self.before.changes_to(&self.after)
    }
}

/// Changes the settings of several tables: of all, or of none after an error or with `dry_run`.
/// `tables` must be different, and in the same order in every call.
///
/// Blocked requests continue at once if the new settings allow them. A table that became too large
/// evicts the items selected by its remover before this returns, a few hundred under one lock.
/// Items that are too stale by new settings of rollouts become bare prompts in the same way.
/// Weights with another exponent are made beside the table, which is locked only to read its
/// priorities.
///
/// # Errors
///
/// Errors of [`TableChange::apply`]. `InvalidArgument` if a stored or queued item has a priority
/// that the new exponent does not accept, or if a queued item, or the mean of the stored ones, is
/// larger than the new `max_bytes`. `Cancelled` if a table is closed.
pub fn configure(tables: &[(Arc<Table>, TableChange)], dry_run: bool) -> Result<Vec<Configured>> {
    let _configuring: Vec<_> = tables.iter().map(|(table, _)| table.configuring.lock()).collect();
    let prepared = tables.iter().map(|(table, change)| Prepared::new(table, change));
    let mut prepared = prepared.collect::<Result<Vec<_>>>()?;
    {
        let mut locked: Vec<_> = tables.iter().map(|(table, _)| table.shared.lock()).collect();
        for (shared, prepared) in locked.iter().zip(&mut prepared) {
            prepared.check(shared)?;
        }
        if dry_run {
            return Ok(prepared.into_iter().map(|change| change.configured).collect());
        }
        for (shared, prepared) in locked.iter_mut().zip(&mut prepared) {
            prepared.apply(shared);
        }
    }
    for prepared in &mut prepared {
        prepared.finish()?;
    }
    Ok(prepared.into_iter().map(|change| change.configured).collect())
}

/// A prepared change, which needs little more than the table's lock.
struct Prepared<'a> {
    table: &'a Table,
    configured: Configured,
    /// Weights with the new exponent; the old ones after the exchange.
    weights: Option<NewWeights>,
}

impl<'a> Prepared<'a> {
    fn new(table: &'a Table, change: &TableChange) -> Result<Self> {
        let before = table.config();
        let after = Arc::new(change.apply(&before)?);
        let weights = match after.sampler {
            SelectorConfig::Prioritized { priority_exponent, .. }
                if before.sampler.exponent() != after.sampler.exponent() =>
            {
                Some(weights(table, priority_exponent)?)
            }
            _ => None,
        };
        let configured = Configured { before, after, info: table.info() };
        Ok(Self { table, configured, weights })
    }

    /// Updates the weights, and checks queued items.
    fn check(&mut self, shared: &Shared) -> Result<()> {
        if shared.closed {
            return Err(wait_queues::closed(self.table.name()));
        }
        let after = &self.configured.after;
        if let Some(weights) = &mut self.weights {
            let items = shared.state.items();
            for handle in 0..items.num_entries().max(weights.num_handles()) as u32 {
                match items.in_entry(handle) {
                    Some(item) => weights
                        .set(handle, item.priority())
                        .map_err(|error| of_item(error, item.key(), self.table.name()))?,
                    None => weights.clear(handle),
                }
            }
        }
        if let Some(max_bytes) = after.memory.max_bytes.filter(|_| self.has_fewer_bytes()) {
            let bytes = shared.state.account().bytes();
            let size = shared.state.len() as u64;
            if let Some(average) = bytes.checked_div(size).filter(|average| *average > max_bytes) {
                return Err(Error::invalid_argument(format!(
                    "max_bytes {} is below the {} bytes that an item of table {} takes: it would \
                     lose all its items. Give a larger max_bytes, or reset the table first.",
                    grouped(max_bytes as usize),
                    grouped(average as usize),
                    self.table.name(),
                )));
            }
        }
        for item in shared.queues.queued_items() {
            check_new(after, item)?;
            check_bytes(after, &shared.state, item)?;
        }
        Ok(())
    }

    fn has_fewer_bytes(&self) -> bool {
        let Configured { before, after, .. } = &self.configured;
        let limit = |config: &TableConfig| config.memory.max_bytes.unwrap_or(u64::MAX);
        limit(after) < limit(before)
    }

    fn apply(&mut self, shared: &mut Shared) {
        let after = &self.configured.after;
        shared.config = Arc::clone(after);
        shared.state.configure(after);
        shared.room = InsertRoom::new(after, shared.room.server_bytes);
        shared.forecasts = ForecastTimes::new(after.max_size);
        self.weights = self.weights.take().map(|new| shared.state.swap_weights(new));
    }

    /// Evicts surplus items, and serves requests that are allowed now.
    fn finish(&mut self) -> Result<()> {
        let Configured { after, info, .. } = &mut self.configured;
        loop {
            let is_done = self.table.operate_and(
                Activity::Running,
                |shared, _| shared.state.shrink(after, ITEMS_AT_ONCE),
                |shared, done, is_done| {
                    // A smaller backlog may never have so many items.
                    if after.rollouts.is_some() {
                        let why = |take: &TakeRequest| check_take(after, take.num);
                        shared.queues.takes.refuse(why, done);
                    }
                    *info = shared.info();
                    // Items that are too stale now leave after this, a few at a time.
                    is_done && !shared.state.has_unchecked()
                },
            )?;
            if is_done {
                break;
            }
            std::thread::yield_now();
        }
        self.table.room.notify_waiters();
        Ok(())
    }
}

/// Weights of a table's items with another exponent. Changes of the table meanwhile are left out.
fn weights(table: &Table, exponent: f64) -> Result<NewWeights> {
    let mut weights = NewWeights::new(exponent);
    let mut found = Vec::with_capacity(ITEMS_AT_ONCE);
    for begin in (0..).step_by(ITEMS_AT_ONCE) {
        {
            let shared = table.shared.lock();
            let items = shared.state.items();
            if begin >= items.num_entries() {
                break;
            }
            let entries = items.piece(begin, ITEMS_AT_ONCE);
            found.extend(entries.map(|(handle, item)| (handle, item.key(), item.priority())));
        }
        for (handle, key, priority) in found.drain(..) {
            weights.set(handle, priority).map_err(|error| of_item(error, key, table.name()))?;
        }
    }
    Ok(weights)
}

fn of_item(error: Error, key: u64, table: &str) -> Error {
    error.context(&format!("Item {key} of table {table}"))
}
