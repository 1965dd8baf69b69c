// SPDX-License-Identifier: Apache-2.0
//! Commits: what has changed in several tables since the commit before, at one moment of all.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use reverb_base::Result;
use reverb_data::TableInfo;

use super::changes::{ChangeRecorder, Changes};
use super::clock::Activity;
use super::snapshot::{SnapshotCut, lock_all};
use super::{Shared, Table};

/// What has changed in several tables from one moment to the next.
#[derive(Debug)]
pub struct Commit {
    /// The tables in the given order.
    pub tables: Vec<TableCommit>,
    /// The later moment.
    pub taken_at: SystemTime,
    /// Time for which all tables were locked together.
    pub locked: Duration,
}

/// One table of a commit.
#[derive(Debug)]
pub struct TableCommit {
    /// Settings and counters at the later moment.
    pub info: TableInfo,
    /// Changes of its items. None of a table that does not record them.
    pub changes: Changes,
}

/// What a table has that is not on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unsynced {
    /// Time of the oldest change, whether a commit was taken of it or not.
    pub since: Option<Instant>,
    /// Bytes of the changes since the last commit, without the data of the items.
    pub bytes: usize,
}

impl Commit {
    /// Takes the changes of `tables`, which must all be different, since their last commit. Closed
    /// tables have commits too.
    ///
    /// It must be on disk, and told so by [`Table::set_synced`], before the next one is taken, also
    /// if it is empty: changes that have left again hold back inserts too.
    pub fn take(tables: &[Arc<Table>]) -> Self {
        let mut all = lock_all(tables);
        let start = Instant::now();
        let taken_at = SystemTime::now();
        let tables = all.iter_mut().map(|shared| shared.take_commit()).collect();
        Self { tables, taken_at, locked: start.elapsed() }
    }

    /// Takes a commit and begins a snapshot of the same moment.
    ///
    /// # Errors
    ///
    /// Those of [`SnapshotCut::begin`]; no commit was taken then.
    pub fn take_with_snapshot(tables: &[Arc<Table>]) -> Result<(Self, SnapshotCut)> {
        let mut commits = Vec::with_capacity(tables.len());
        let cut = SnapshotCut::begin_and(tables, |shared| commits.push(shared.take_commit()))?;
        let (taken_at, locked) = (cut.taken_at(), cut.locked());
        Ok((Self { tables: commits, taken_at, locked }, cut))
    }
}

impl Shared {
    fn take_commit(&mut self) -> TableCommit {
        let changes = self.state.changes_mut().map(ChangeRecorder::take);
        TableCommit { info: self.info(), changes: changes.unwrap_or_default() }
    }
}

impl Table {
    /// Records changes for commits from now on. The items that are there count as those of a
    /// commit. Inserts wait from an age of the oldest change that is not on disk of `max_lag` on.
    ///
    /// Not for a table whose server may still fail to start: it loses its items again.
    pub fn record_changes(&self, max_lag: Duration) {
        self.shared.lock().state.record_changes(ChangeRecorder::new(max_lag));
    }

    /// Every commit that was taken of this table is on disk. Inserts that wait for that go on.
    pub fn set_synced(&self) {
        let set_synced = |shared: &mut Shared| {
            if let Some(changes) = shared.state.changes_mut() {
                changes.set_synced();
            }
        };
        if self.operate(Activity::Running, |shared, _| set_synced(shared)).is_err() {
            // A closed table has nothing that waits.
            set_synced(&mut self.shared.lock());
        }
    }

    /// What is not on disk; nothing if the table records no changes.
    pub fn unsynced(&self) -> Unsynced {
        let shared = self.shared.lock();
        let unsynced =
            |changes: &ChangeRecorder| Unsynced { since: changes.oldest(), bytes: changes.bytes() };
        shared.state.changes().map(unsynced).unwrap_or_default()
    }
}
