// SPDX-License-Identifier: Apache-2.0
//! Commits of tables in use.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{config, insert, is_waiting, item, limiter, trajectory};
use proptest::prelude::*;
use reverb_data::{ItemCondition, StoredItem, TableChange, TableConfig};
use reverb_engine::{Changes, Commit, SnapshotCut, Table, TableSnapshot, WaitReason, configure};
use tokio::time::timeout;

fn recorded(config: TableConfig) -> Arc<Table> {
    let table = Table::new(config).unwrap();
    table.record_changes(Duration::from_secs(3600));
    table
}

#[derive(Debug, Clone)]
enum Step {
    /// Some of them may wait for samples.
    Insert(u64, u64),
    Transfer(u64),
    Sample(usize),
    Mutate(Vec<(u64, f64)>, Vec<u64>),
    DeleteWhere(f64),
    Evict(usize),
    Shrink(i64),
    Reset,
    Commit,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let key = 0..60u64;
    let update = (key.clone(), 0.0..9.0);
    let step = prop_oneof![
        6 => (key.clone(), 1..30u64).prop_map(|(first, count)| Step::Insert(first, count)),
        2 => key.clone().prop_map(Step::Transfer),
        5 => (1..9usize).prop_map(Step::Sample),
        4 => (prop::collection::vec(update, 0..20), prop::collection::vec(key, 0..5))
            .prop_map(|(updates, deletes)| Step::Mutate(updates, deletes)),
        1 => (0.0..9.0).prop_map(Step::DeleteWhere),
        1 => (1..5usize).prop_map(Step::Evict),
        1 => (5..40i64).prop_map(Step::Shrink),
        1 => Just(Step::Reset),
        4 => Just(Step::Commit),
    ];
    prop::collection::vec((0..2usize, step), 1..60)
}

fn apply(table: &Arc<Table>, step: &Step) {
    match step {
        Step::Insert(first, count) => {
            drop(insert(table, (*first..first + count).map(|key| item(key, 1.0)).collect()));
        }
        &Step::Transfer(key) => {
            let (trajectory, inserted_at_ns) = (trajectory(item(key, 1.0).trajectory.chunks()), 5);
            let item = StoredItem {
                key,
                priority: 2.0,
                removal_priority: Some(3.0),
                times_sampled: 0,
                inserted_at_ns,
                trajectory,
            };
            table.transfer(vec![item]).unwrap();
        }
        Step::Sample(num) => drop(table.try_sample(*num)),
        Step::Mutate(updates, deletes) => drop(table.mutate(updates, deletes).unwrap()),
        &Step::DeleteWhere(from) => {
            let condition = ItemCondition { priority: (from, f64::INFINITY), ..ItemCondition::ALL };
            table.delete_where(&condition).unwrap();
        }
        Step::Evict(num) => drop(table.evict(*num, u64::MAX)),
        &Step::Shrink(max_size) => {
            let change = TableChange { max_size: Some(max_size), ..TableChange::default() };
            configure(&[(Arc::clone(table), change)], false).unwrap();
        }
        Step::Reset => table.reset(),
        Step::Commit => {}
    }
}

fn apply_changes(items: &mut BTreeMap<u64, StoredItem>, changes: Changes) {
    if changes.is_reset {
        items.clear();
    }
    changes.deleted.iter().for_each(|key| drop(items.remove(key)));
    items.extend(changes.added.into_iter().map(|item| (item.key, item)));
    for changed in changes.changed {
        let item = items.get_mut(&changed.key).unwrap();
        item.priority = changed.priority;
        item.removal_priority = changed.removal_priority;
        item.times_sampled = changed.times_sampled.unwrap_or(item.times_sampled);
    }
}

/// All that is stored of items, oldest first.
fn describe<'a>(items: impl Iterator<Item = &'a StoredItem>) -> Vec<String> {
    let mut items: Vec<&StoredItem> = items.collect();
    items.sort_by_key(|item| (item.inserted_at_ns, item.key));
    let describe = |item: &&StoredItem| {
        let StoredItem { key, priority, removal_priority, times_sampled, inserted_at_ns, .. } =
            item;
        let chunk = item.trajectory.chunks()[0].identity();
        format!("{key} {priority} {removal_priority:?} {times_sampled} {inserted_at_ns} {chunk}")
    };
    items.iter().map(describe).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The changes of all commits are a snapshot of the same moment.
    #[test]
    fn commits_are_the_tables(steps in steps()) {
        let queue = TableConfig {
            max_times_sampled: 2,
            rate_limiter: limiter(1.0, 1, -4.0, 20.0),
            ..config(40)
        };
        let tables = [recorded(queue.clone()), recorded(queue)];
        let mut stored = [BTreeMap::new(), BTreeMap::new()];
        let last = (0, Step::Commit);
        for (which, step) in steps.iter().chain([&last]) {
            apply(&tables[*which], step);
            let Step::Commit = step else { continue };
            let (commit, cut) = Commit::take_with_snapshot(&tables).unwrap();
            prop_assert_eq!(commit.taken_at, cut.taken_at());
            // What happens now is in the next commit, and not in the snapshot.
            apply(&tables[0], &Step::Insert(1000, 3));
            apply(&tables[0], &Step::Mutate(vec![(7, 8.0)], vec![8]));
            let snapshots = cut.copy();
            let both = stored.iter_mut().zip(commit.tables).zip(snapshots);
            for ((stored, table), TableSnapshot { info, items, .. }) in both {
                apply_changes(stored, table.changes);
                prop_assert_eq!(describe(stored.values()), describe(items.iter()));
                let counters = |info: &reverb_data::TableInfo| {
                    let episodes = (info.num_episodes, info.num_deleted_episodes);
                    let calls = (info.num_inserts, info.num_samples, info.num_deletes);
                    (info.current_size, calls, episodes, info.num_unique_samples, info.totals)
                };
                prop_assert_eq!(counters(&table.info), counters(&info));
            }
        }
    }
}

#[test]
fn nothing_is_recorded_before_the_call() {
    let table = Table::new(config(10)).unwrap();
    drop(insert(&table, vec![item(1, 1.0), item(2, 1.0)]));
    let tables = [Arc::clone(&table)];
    assert!(Commit::take(&tables).tables[0].changes.is_empty());
    table.reset();
    drop(insert(&table, vec![item(3, 1.0), item(4, 1.0)]));
    table.record_changes(Duration::from_secs(1));
    table.mutate(&[(3, 2.0)], &[4]).unwrap();
    let Changes { is_reset, deleted, added, changed } =
        Commit::take(&tables).tables.remove(0).changes;
    assert_eq!((is_reset, deleted, added.len()), (false, vec![4], 0));
    assert_eq!(changed.iter().map(|item| item.key).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_snapshot_that_is_refused_takes_no_commit() {
    let tables = [recorded(config(10))];
    drop(insert(&tables[0], vec![item(1, 1.0)]));
    let cut = SnapshotCut::begin(&tables).unwrap();
    assert!(Commit::take_with_snapshot(&tables).is_err());
    drop(cut);
    assert_eq!(Commit::take(&tables).tables[0].changes.added.len(), 1);
}

#[test]
fn a_closed_table_has_a_last_commit() {
    let table = recorded(config(10));
    drop(insert(&table, vec![item(1, 1.0)]));
    table.close();
    assert!(table.unsynced().since.is_some() && table.unsynced().bytes > 0);
    let commit = Commit::take(&[Arc::clone(&table)]);
    assert_eq!(commit.tables[0].changes.added.len(), 1);
    assert_eq!((table.unsynced().since.is_some(), table.unsynced().bytes), (true, 0));
    table.set_synced();
    assert_eq!(table.unsynced().since, None);
}

/// A table whose inserts wait for each change to be on disk.
fn impatient() -> Arc<Table> {
    let table = Table::new(config(10)).unwrap();
    table.record_changes(Duration::ZERO);
    table
}

#[test]
fn inserts_wait_while_the_disk_is_behind() {
    let table = impatient();
    let log = insert(&table, vec![item(1, 1.0), item(2, 1.0)]);
    assert_eq!(log.keys(), [1, 2]);
    let log = insert(&table, vec![item(3, 1.0), item(4, 1.0)]);
    let status = table.status();
    assert_eq!((log.keys().len(), status.info.waiting_inserts), (0, 2));
    let Some(WaitReason::Disk { lag }) = status.inserting.reason else {
        panic!("{:?}", status.inserting.reason);
    };
    assert!(lag < Duration::from_secs(60));
    // Everything else goes on.
    assert_eq!(table.mutate(&[(1, 2.0)], &[2]).unwrap(), [0; 0]);
    assert_eq!(table.try_sample(1).unwrap()[0].key, 1);
    let moved = Commit::take(&[impatient_with(5)]).tables.remove(0).changes.added;
    assert_eq!(table.transfer(moved).unwrap().added, 1);
    let tables = [Arc::clone(&table)];
    assert_eq!(Commit::take(&tables).tables[0].changes.added.len(), 2);
    // A commit is not on disk when it is taken, and not all that is on disk is all that there is.
    table.mutate(&[(1, 3.0)], &[]).unwrap();
    table.set_synced();
    assert_eq!(log.keys(), [0; 0]);
    drop(Commit::take(&tables));
    table.set_synced();
    assert_eq!(log.keys(), [3, 4]);
    assert!(table.unsynced().since.is_some());
}

fn impatient_with(key: u64) -> Arc<Table> {
    let table = impatient();
    drop(insert(&table, vec![item(key, 1.0)]));
    table
}

#[test]
fn a_journal_that_is_behind_says_so() {
    let reason = WaitReason::Disk { lag: Duration::from_millis(3100) };
    let text = "An insert waits for the disk: the journal is 3.1 s behind.";
    assert_eq!(reason.to_string(), text);
    assert_eq!(reason.cause(), "the journal is 3.1 s behind");
}

#[tokio::test(start_paused = true)]
async fn a_commit_on_disk_wakes_writers_that_wait_for_room() {
    let table = impatient_with(1);
    assert!(is_waiting(pin!(table.wait_for_insert_room())));
    let writer = Arc::clone(&table);
    let room = tokio::spawn(async move {
        timeout(Duration::from_secs(60), writer.wait_for_insert_room()).await
    });
    tokio::task::yield_now().await;
    drop(Commit::take(&[Arc::clone(&table)]));
    table.set_synced();
    room.await.unwrap().unwrap();
    // So does the end of the table.
    drop(insert(&table, vec![item(2, 1.0)]));
    let mut room = pin!(table.wait_for_insert_room());
    assert!(is_waiting(room.as_mut()));
    table.close();
    timeout(Duration::from_secs(60), room).await.unwrap();
}
