// SPDX-License-Identifier: Apache-2.0
//! Commits of tables as a journal records them, and what it records as items again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use prost::Message;
use reverb_base::{Error, Result};
use reverb_checkpoint::{StoredTable, to_counters_message, to_message};
use reverb_data::{Chunk, StoredItem, TableConfig, TableInfo};
use reverb_engine::{Commit, Table, TableCommit};
use reverb_store::{Items, Recovered, RecoveredItem, TableChanges};
use reverb_wire::codec::item::{ItemHead, RawItem, put_item_with_keys};

/// Number of chunks up to which a list is searched from its begin.
const FEW_CHUNKS: usize = 16;

/// The tables of a journal: their numbers, and what is recorded of each.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    tables: Vec<RecordedTable>,
}

#[derive(Debug)]
struct RecordedTable {
    /// In all records. The place of a table in a server may change from one start to the next.
    number: u32,
    config: Option<Arc<TableConfig>>,
    counters: Vec<u8>,
    /// True if numbers of samples of its items are recorded.
    counts_times: bool,
}

impl Recorder {
    /// Gives tables the numbers that they have in the journal, by name, or new ones.
    pub(crate) fn new(tables: &[Arc<Table>], numbers: &BTreeMap<String, u32>) -> Self {
        let mut next = numbers.values().max().map_or(0, |number| number + 1);
        let tables = tables.iter().map(|table| {
            let number = numbers.get(table.name()).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            RecordedTable { number, config: None, counters: Vec::new(), counts_times: false }
        });
        Self { tables: tables.collect() }
    }

    /// The records of a commit; those of tables in which nothing has changed are left out. Once
    /// taken they have to be written.
    pub(crate) fn record(&mut self, commit: &Commit) -> Vec<TableChanges> {
        let tables = self.tables.iter_mut().zip(&commit.tables);
        tables.filter_map(|(table, commit)| table.record(commit)).collect()
    }

    /// The first part of a base of each table, without items.
    pub(crate) fn begin_base(&self, commit: &Commit) -> Vec<TableChanges> {
        let tables = self.tables.iter().zip(&commit.tables);
        let begin = |(table, commit): (&RecordedTable, &TableCommit)| TableChanges {
            number: table.number,
            settings: Some(settings_of(&commit.info)),
            ..TableChanges::default()
        };
        tables.map(begin).collect()
    }

    /// True if numbers of samples are recorded from this commit on that the last base lacks.
    pub(crate) fn counts_more_times(&mut self, commit: &Commit) -> bool {
        let mut is_new = false;
        for (table, commit) in self.tables.iter_mut().zip(&commit.tables) {
            let counts = commit.info.config.max_times_sampled > 1;
            is_new |= counts && !table.counts_times;
            table.counts_times = counts;
        }
        is_new
    }
}

impl RecordedTable {
    fn record(&mut self, commit: &TableCommit) -> Option<TableChanges> {
        let TableCommit { info, changes } = commit;
        let mut recorded = TableChanges { number: self.number, ..TableChanges::default() };
        let counters = to_counters_message(info).encode_to_vec();
        if self.config.as_ref() != Some(&info.config) {
            recorded.settings = Some(settings_of(info));
        } else if self.counters != counters {
            recorded.counters = Some(counters.clone());
        } else if changes.is_empty() {
            return None;
        }
        (self.config, self.counters) = (Some(Arc::clone(&info.config)), counters);
        recorded.is_reset = changes.is_reset;
        recorded.deleted.clone_from(&changes.deleted);
        recorded.items.reserve(changes.added.len());
        for item in &changes.added {
            put_item(&mut recorded.items, item);
        }
        for item in &changes.changed {
            recorded.priorities.push((item.key, item.priority));
            if let Some(priority) = item.removal_priority {
                recorded.removal_priorities.push((item.key, priority));
            }
            if let Some(times) = item.times_sampled {
                recorded.times_sampled.push((item.key, times.max(0).cast_unsigned().into()));
            }
        }
        Some(recorded)
    }
}

fn settings_of(info: &TableInfo) -> Vec<u8> {
    to_message(info).encode_to_vec()
}

/// Adds an item, whose body refers to its chunks by their positions.
pub(crate) fn put_item(items: &mut Items, item: &StoredItem) {
    let chunks = item.trajectory.chunks();
    let positions: HashMap<usize, usize> = if chunks.len() > FEW_CHUNKS {
        chunks.iter().enumerate().map(|(at, chunk)| (chunk.identity(), at)).collect()
    } else {
        HashMap::new()
    };
    let position = |chunk: &Chunk| {
        let found = positions.get(&chunk.identity()).copied();
        let found = found.or_else(|| chunks.iter().position(|other| other.is_same(chunk)));
        found.expect("a column refers to chunks of its item") as u64
    };
    items.push(item.key, chunks.iter().cloned(), |out| {
        put_item_with_keys(out, &ItemHead::of_stored("", item), &item.trajectory, position);
    });
}

/// The tables that were recovered, and the numbers that their records have.
///
/// # Errors
///
/// `DataLoss` if the settings of one cannot be read.
pub(crate) fn tables_of(
    recovered: &Recovered,
) -> Result<(Vec<StoredTable>, BTreeMap<String, u32>)> {
    let (mut tables, mut numbers) = (Vec::new(), BTreeMap::new());
    for table in &recovered.tables {
        let parsed = StoredTable::parse(&table.settings, table.counters.as_deref())?;
        numbers.insert(parsed.name().to_owned(), table.number);
        tables.push(parsed);
    }
    Ok((tables, numbers))
}

/// The items of a table that were recovered, oldest first.
///
/// # Errors
///
/// `DataLoss` if one cannot be read.
pub(crate) fn items_of(recovered: Vec<RecoveredItem>) -> Result<Vec<StoredItem>> {
    let items: Result<Vec<_>> = recovered.into_iter().map(to_item).collect();
    let mut items = items?;
    items.sort_by_key(|item| item.inserted_at_ns);
    Ok(items)
}

fn to_item(recovered: RecoveredItem) -> Result<StoredItem> {
    let RecoveredItem { key, body, chunks, priority, removal_priority, times_sampled } = recovered;
    let read = || {
        let raw = RawItem::parse(&body)?;
        let trajectory = raw.trajectory(|position| {
            let chunk = usize::try_from(position).ok().and_then(|at| chunks.get(at));
            chunk.ok_or_else(|| Error::data_loss(format!("it has no chunk {position}")))
        })?;
        trajectory.validate()?;
        let times = times_sampled.map(|times| i32::try_from(times).unwrap_or(i32::MAX));
        Ok(StoredItem {
            key,
            priority: priority.unwrap_or(raw.priority),
            removal_priority: removal_priority.or(raw.removal_priority),
            times_sampled: times.unwrap_or(raw.times_sampled),
            inserted_at_ns: raw.inserted_at_ns,
            trajectory,
        })
    };
    read().map_err(|error: Error| Error::data_loss(format!("item {key}: {}", error.message())))
}
