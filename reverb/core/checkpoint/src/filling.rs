// SPDX-License-Identifier: Apache-2.0
//! Filling the tables of a server with what was stored, before it starts: all of them, or none.

use std::sync::Arc;

use hashbrown::HashMap;
use reverb_base::{Error, Result};
use reverb_data::rollouts::{RolloutSettings, RolloutsInfo, StoredGrowing};
use reverb_data::{MemoryConfig, StoredItem, TableConfig, WhenFull};
use reverb_engine::{Restored, Table};
use reverb_wire::convert::table_info::{settings_of, to_left};
use reverb_wire::generated::PriorityTableCheckpoint;

use crate::settings::{differences, stored_signature};
use crate::stored::StoredTable;

/// Which settings tables get.
#[derive(Debug, Clone, Copy, Default)]
pub struct FillOptions {
    /// True if tables get the stored settings. Otherwise they keep their own.
    pub restore_settings: bool,
    /// True if a table that keeps its own settings may not have another signature than the stored
    /// one.
    pub keep_signatures: bool,
}

/// Tables that are being filled. They change in `install`, and not before.
#[derive(Debug)]
pub struct Filling<'a> {
    tables: &'a [Arc<Table>],
    /// Positions of the stored tables among these.
    targets: Vec<usize>,
    restored: Vec<Restored>,
    about: &'a str,
}

impl<'a> Filling<'a> {
    /// Begins to fill `tables`. Logs each difference between stored settings and those in code.
    /// `about` names where they were stored: `checkpoint /data/7`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no table for a stored one; `FailedPrecondition` for another
    /// signature, or stored settings that are invalid.
    pub fn new(
        tables: &'a [Arc<Table>],
        stored: &[StoredTable],
        options: FillOptions,
        about: &'a str,
    ) -> Result<Self> {
        let by_name: HashMap<&str, usize> =
            tables.iter().enumerate().map(|(at, table)| (table.name(), at)).collect();
        let mut targets = Vec::with_capacity(stored.len());
        for table in stored {
            let Some(&at) = by_name.get(table.name()) else {
                return Err(unknown_table(about, table.name(), tables));
            };
            targets.push(at);
        }
        let mut restored = Vec::with_capacity(targets.len());
        for (table, &at) in stored.iter().zip(&targets) {
            let config = settings_for(table, &tables[at].config(), options, about);
            let new = config.and_then(|config| Restored::new(config, &table.counters()));
            let mut new = new.map_err(|error| error.context(&capitalized(about)))?;
            if let Some(rollouts) = &table.message().rollouts {
                new.set_rollouts(&RolloutsInfo {
                    version: rollouts.version,
                    taken: rollouts.taken,
                    newest: rollouts.newest.as_str().into(),
                    left: to_left(rollouts),
                    ..RolloutsInfo::default()
                });
            }
            restored.push(new);
        }
        Ok(Self { tables, targets, restored, about })
    }

    /// Adds the next item, in order of insertion, to a table by its position among the stored ones.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the table does not accept it.
    pub fn push(&mut self, table: usize, item: StoredItem) -> Result<()> {
        let pushed = self.restored[table].push(item);
        pushed.map_err(|error| error.context(&capitalized(self.about)))
    }

    /// Adds an item with rollouts, before all whole ones.
    ///
    /// # Errors
    ///
    /// `FailedPrecondition` if the table does not accept it.
    pub(crate) fn push_growing(&mut self, table: usize, item: StoredGrowing) -> Result<()> {
        let pushed = self.restored[table].push_growing(item);
        pushed.map_err(|error| error.context(&capitalized(self.about)))
    }

    /// Number of items that were left out, because a table has less room than it had.
    pub fn num_removed(&self) -> u64 {
        self.restored.iter().map(Restored::num_removed).sum()
    }

    /// The contents of the stored tables so far.
    pub(crate) fn restored(&self) -> &[Restored] {
        &self.restored
    }

    /// Fills the tables. Returns all of them in their order; those whose settings were restored are
    /// new objects.
    ///
    /// # Errors
    ///
    /// Those of [`Table::new`].
    pub fn install(self) -> Result<Vec<Arc<Table>>> {
        let mut all = self.tables.to_vec();
        for (mut restored, at) in self.restored.into_iter().zip(self.targets) {
            warn_of_changes(&mut restored, self.about);
            if *all[at].config() != *restored.config() {
                all[at] = Table::new(restored.config().clone())?;
            }
            all[at].install(restored);
        }
        Ok(all)
    }
}

fn capitalized(about: &str) -> String {
    let (first, rest) = about.split_at(1);
    first.to_uppercase() + rest
}

fn unknown_table(about: &str, name: &str, tables: &[Arc<Table>]) -> Error {
    let mut known: Vec<&str> = tables.iter().map(|table| table.name()).collect();
    known.sort_unstable();
    let kind = about.split(' ').next().unwrap_or_default();
    Error::invalid_argument(format!(
        "{} has a table {name}, and the server has none of that name; its tables are: {}. Add the \
         table, or start without this {kind}.",
        capitalized(about),
        known.join(", ")
    ))
}

/// Settings for a table. Logs every difference between the stored ones and those in code.
fn settings_for(
    stored: &StoredTable,
    code: &TableConfig,
    options: FillOptions,
    about: &str,
) -> Result<TableConfig> {
    let differences = differences(stored.message(), code);
    if options.restore_settings {
        for (setting, stored_value, code_value) in &differences {
            tracing::warn!(
                table = %code.name,
                "{about}: {setting} is {stored_value} as stored, not {code_value} as given in code",
            );
        }
        return Ok(TableConfig { seed: code.seed, ..stored.config()? });
    }
    check_rollouts(stored.message(), code)?;
    if options.keep_signatures {
        check_signature(stored.message(), code)?;
    }
    for (setting, stored_value, code_value) in &differences {
        tracing::warn!(
            table = %code.name,
            "{about}: {setting} is {code_value} as given in code, not {stored_value} as stored; \
             restore_settings=True would take the stored settings",
        );
    }
    Ok(code.clone())
}

/// Checks that items with rollouts fit the table: they have the columns and rollouts of their own.
fn check_rollouts(stored: &PriorityTableCheckpoint, code: &TableConfig) -> Result<()> {
    let stored = settings_of(stored.rollouts.as_ref());
    let Some((stored, own)) = stored.as_ref().zip(code.rollouts.as_ref()) else { return Ok(()) };
    let of = |it: &RolloutSettings| {
        format!(
            "num_rollouts {}, {} columns, those of items at {:?}",
            it.num_rollouts, it.num_columns, it.item_columns
        )
    };
    if of(stored) == of(own) {
        return Ok(());
    }
    Err(Error::failed_precondition(format!(
        "Table {} has {} as given in code, and its stored items are for {}. Give the table the \
         stored ones, start without this checkpoint, or take the stored settings with \
         restore_settings=True.",
        code.name,
        of(own),
        of(stored)
    )))
}

/// Checks that the signature of a table is the stored one, if both have one.
fn check_signature(stored: &PriorityTableCheckpoint, code: &TableConfig) -> Result<()> {
    let Some((stored, own)) = stored_signature(stored).zip(code.signature.as_ref()) else {
        return Ok(());
    };
    let Some((own, stored)) = own.flat.first_difference(&stored) else { return Ok(()) };
    Err(Error::failed_precondition(format!(
        "Table {}: the signature of the config has {own}, and the stored one has {stored}. Change \
         the config, start without this checkpoint, or take the stored settings with \
         --restore-settings.",
        code.name,
    )))
}

fn limits(config: &TableConfig) -> String {
    let TableConfig { max_size, memory, .. } = config;
    match memory {
        MemoryConfig { max_bytes: Some(max_bytes), when_full: WhenFull::Remove } => {
            format!("max_size is {max_size} and max_bytes is {max_bytes}")
        }
        _ => format!("max_size is {max_size}"),
    }
}

fn warn_of_changes(restored: &mut Restored, about: &str) {
    let name = restored.config().name.clone();
    if restored.num_removed() > 0 {
        tracing::warn!(
            table = %name,
            "{about}: {} item(s) were removed on loading, because {} now",
            restored.num_removed(),
            limits(restored.config()),
        );
    }
    if restored.repair_counters() {
        tracing::warn!(
            table = %name,
            "{about}: the stored inserts minus deletes did not equal the number of items; deletes \
             were recomputed",
        );
    }
}
