// SPDX-License-Identifier: Apache-2.0
//! Checks of items and arguments.

use reverb_base::error::grouped;
use reverb_base::{Error, Result};
use reverb_data::rollouts::ItemChange;
use reverb_data::{NewItem, TableConfig, Trajectory, is_max_priority};

use super::state::{REMOVAL_BYTES, TableState};
use crate::selector;

/// Checks a priority with both selectors of a table.
pub(super) fn check_priority(config: &TableConfig, key: u64, priority: f64) -> Result<()> {
    let TableConfig { name, sampler, remover, .. } = config;
    selector::check_priority(sampler, priority)
        .and_then(|()| selector::check_priority(remover, priority))
        .map_err(|error| error.context(&format!("Item {key} of table {name}")))
}

/// Checks the priorities of a new item.
pub(super) fn check_new(config: &TableConfig, item: &NewItem) -> Result<()> {
    if !is_max_priority(item.priority) {
        check_priority(config, item.key, item.priority)?;
    }
    check_removal_priority(config, item.key, item.removal_priority)?;
    check_opening(config, item)
}

/// Checks what an item begins with in a table with rollouts, and that others have none.
fn check_opening(config: &TableConfig, item: &NewItem) -> Result<()> {
    let NewItem { key, trajectory, change, replaces, .. } = item;
    let name = &config.name;
    let Some(settings) = &config.rollouts else {
        return match change {
            None => Ok(()),
            Some(_) => Err(no_rollouts(name)),
        };
    };
    if *replaces {
        return Err(Error::failed_precondition(format!(
            "Table {name} has rollouts, whose items are not replaced; use insert_item with a name."
        )));
    }
    let about = |error: Error| error.context(&format!("Item {key} of table {name}"));
    match change.as_deref() {
        None => {}
        Some(ItemChange::Opens(opening)) => {
            return opening.check(trajectory, settings).map_err(about);
        }
        Some(ItemChange::Grows(_)) => {
            return Err(Error::internal("rollouts of an item do not wait in its queue."));
        }
    }
    let num_columns = trajectory.num_columns();
    if num_columns == settings.num_columns as usize {
        return Ok(());
    }
    Err(about(Error::invalid_argument(format!(
        "it has {num_columns} columns, and the table has {}; only insert_item may leave some out.",
        settings.num_columns
    ))))
}

/// Error for a call that needs a table with rollouts.
pub(super) fn no_rollouts(table: &str) -> Error {
    Error::failed_precondition(format!(
        "Table {table} has no rollouts (Table(rollouts=...)); use sample_batch."
    ))
}

pub(super) fn check_removal_priority(
    config: &TableConfig,
    key: u64,
    priority: Option<f64>,
) -> Result<()> {
    let Some(priority) = priority else { return Ok(()) };
    selector::check_priority(&config.remover, priority).map_err(|error| {
        error.context(&format!("removal_priority of item {key} of table {}", config.name))
    })
}

/// Refuses an item that could never be stored.
pub(super) fn check_bytes(config: &TableConfig, state: &TableState, item: &NewItem) -> Result<()> {
    check_stored_bytes(config, state, item.key, &item.trajectory, item.removal_priority)
}

pub(super) fn check_stored_bytes(
    config: &TableConfig,
    state: &TableState,
    key: u64,
    trajectory: &Trajectory,
    removal_priority: Option<f64>,
) -> Result<()> {
    let Some(max_bytes) = config.memory.max_bytes else { return Ok(()) };
    let removal_bytes = removal_priority.map_or(0, |_| REMOVAL_BYTES);
    let bytes = state.item_bytes() + removal_bytes + trajectory.bytes_with_chunks();
    if bytes <= max_bytes {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "Item {key} takes {} bytes, more than max_bytes {} of table {}; it could never be stored. \
         Insert shorter items or raise max_bytes.",
        grouped(bytes as usize),
        grouped(max_bytes as usize),
        config.name,
    )))
}

pub(super) fn check_count(argument: &str, n: i64) -> Result<()> {
    if n < 1 {
        return Err(Error::invalid_argument(format!("{argument} must be at least 1, got {n}.")));
    }
    Ok(())
}
