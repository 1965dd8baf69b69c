// SPDX-License-Identifier: Apache-2.0
//! Makes a damaged journal one that can be opened.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use reverb_base::Result;
use reverb_files::Disk;

use crate::changes::{Changes, TableChanges};
use crate::check::{Examined, Report, examine};
use crate::recovered::RecoveredTable;

/// Items in a part of a base.
const PART_ITEMS: usize = 512;

/// Keeps what is before the damage of a stopped server's journal, without the items that lack a
/// part, as a new base. Logs and bases that were there are moved to a directory beside it. Does
/// nothing to a journal that is whole. If it is interrupted, it can be done again.
///
/// # Errors
///
/// As [`check`](crate::check()); `Unavailable` if the disk fails.
pub fn repair(
    path: &Path,
    disk: Arc<dyn Disk>,
    bytes_per_second: u64,
    cancelled: &AtomicBool,
) -> Result<Report> {
    let Examined { mut journal, tables, mut report } =
        examine(path, disk, bytes_per_second, cancelled)?;
    if report.is_damaged() {
        report.moved_to = Some(journal.start_over(tables.into_iter().flat_map(parts_of))?);
    }
    Ok(report)
}

/// The table as parts of a base, the first of which has its settings.
fn parts_of(table: RecoveredTable) -> impl Iterator<Item = Changes> {
    let RecoveredTable { number, settings, counters, items } = table;
    let first = TableChanges { number, settings: Some(settings), counters, ..Default::default() };
    let mut items = items.into_iter().peekable();
    let rest = std::iter::from_fn(move || {
        items.peek()?;
        let mut part = TableChanges { number, ..TableChanges::default() };
        for item in items.by_ref().take(PART_ITEMS) {
            part.items.push(item.key, item.chunks, |out| out.extend_from_slice(&item.body));
            part.priorities.extend(item.priority.map(|it| (item.key, it)));
            part.removal_priorities.extend(item.removal_priority.map(|it| (item.key, it)));
            part.times_sampled.extend(item.times_sampled.map(|it| (item.key, it)));
        }
        Some(part)
    });
    let parts = std::iter::once(first).chain(rest);
    parts.map(|part| Changes { tables: vec![part], ..Changes::default() })
}
