// SPDX-License-Identifier: Apache-2.0
//! Journals on disks that work: what comes back, the order of calls, which files there are.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use reverb_base::ErrorKind;
use reverb_data::{Chunk, HeadsCache};
use reverb_files::{Call, Disk, Restart, SimulatedDisk, SystemDisk};
use reverb_store::{Changes, Journal, Recovered, Store, StoreOptions};

use crate::options;
use crate::tables::{Seen, Tables, check_chunk, held, take_part};

/// Keys of a small chunk and of chunks whose payloads go to disk.
pub(crate) const SMALL: u64 = 7;
pub(crate) const LARGE: u64 = 4;

pub(crate) fn open(path: &Path, disk: &(impl Disk + Clone + 'static)) -> (Journal, Recovered) {
    Journal::open(options(path), Arc::new(disk.clone()), &AtomicBool::new(false)).unwrap()
}

pub(crate) fn chunk(key: u64) -> Chunk {
    held(key, &mut HeadsCache::default())
}

/// Commits what has changed, and returns what is compared of it.
pub(crate) fn commit(journal: &mut Journal, tables: &mut Tables) -> Seen {
    let (changes, seen) = tables.take_changes();
    journal.commit(&changes).unwrap();
    seen
}

/// A base of the last commit in parts of two items.
pub(crate) fn base(journal: &mut Journal, tables: &Tables) {
    journal.begin_base().unwrap();
    let mut snapshot = tables.snapshot();
    while let Some(part) = take_part(&mut snapshot, 2) {
        journal.put_part(&part).unwrap();
    }
    journal.end_base().unwrap();
}

/// Starts again after the power was lost, and compares.
fn check_recovery(path: &Path, disk: &SimulatedDisk, journal: Journal, seen: &Seen) -> Journal {
    drop(journal);
    disk.restart(Restart::Machine);
    let (journal, recovered) = open(path, disk);
    let (tables, found) = Tables::recovered(&recovered, 0);
    assert_eq!(found, *seen);
    tables.chunks().for_each(check_chunk);
    journal
}

#[test]
fn items_come_back_with_all_that_was_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (mut journal, recovered) = open(path, &SystemDisk);
    assert_eq!((recovered.commit, recovered.tables.len(), recovered.dropped_bytes), (0, 0, 0));
    let mut tables = Tables::new(0);
    let shared = chunk(LARGE);
    tables.insert(0, 1, vec![shared.clone(), chunk(SMALL)]);
    tables.insert(0, 2, vec![shared.clone()]);
    tables.insert(1, 1, vec![]);
    tables.note(b"step 1".to_vec());
    commit(&mut journal, &mut tables);
    tables.change(0, 0, |values| values.priority = 0.25);
    tables.change(0, 1, |values| values.times_sampled = 300);
    tables.delete(1, 0);
    let seen = commit(&mut journal, &mut tables);
    drop(journal);
    let (_journal, recovered) = open(path, &SystemDisk);
    let (again, found) = Tables::recovered(&recovered, 0);
    assert_eq!((recovered.commit, found), (2, seen));
    let chunks: Vec<&Chunk> = again.chunks().collect();
    let is_shared = |it: &&&Chunk| it.key() == LARGE && it.is_same(chunks[0]);
    assert_eq!(chunks.iter().filter(is_shared).count(), 2, "one chunk, and two references");
    assert!(chunks.iter().all(|it| it.is_disk_chunk() == it.resident().is_none()));
    chunks.into_iter().for_each(check_chunk);
    assert!(recovered.at.elapsed().unwrap().as_secs() < 60);
}

/// Compares the calls since the last time; several writes of a file count as one.
#[track_caller]
fn expect(disk: &SimulatedDisk, expected: &str) {
    let mut calls: Vec<String> = Vec::new();
    for Call { what, name } in disk.take_calls() {
        let name = name.trim_end_matches(".seg").replace("000000000", "");
        calls.push(if what == "sync directory" {
            what.to_owned()
        } else {
            format!("{what} {name}")
        });
    }
    calls.dedup();
    assert_eq!(calls.join(", "), expected);
}

/// Calls that create a log or a base.
fn creation(name: &str) -> String {
    let part = format!("{name}.part");
    format!("create {part}, write {part}, sync {part}, rename {name}, sync directory")
}

#[test]
fn calls_come_in_an_order_that_survives_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let disk = SimulatedDisk::new(0);
    let (mut journal, _) = open(path, &disk);
    expect(&disk, &format!("{}, {}", creation("log-1"), creation("base-1")));
    let mut tables = Tables::new(0);
    tables.insert(0, 1, vec![chunk(LARGE)]);
    commit(&mut journal, &mut tables);
    expect(
        &disk,
        "create data-2, write data-2, sync data-2, sync directory, write log-1, sync log-1",
    );
    tables.insert(0, 2, vec![chunk(LARGE + 7)]);
    commit(&mut journal, &mut tables);
    expect(&disk, "write data-2, sync data-2, write log-1, sync log-1");
    tables.insert(0, 3, vec![chunk(SMALL)]);
    let seen = commit(&mut journal, &mut tables);
    expect(&disk, "write log-1, sync log-1");
    base(&mut journal, &tables);
    expect(&disk, &format!("{}, {}", creation("log-3"), creation("base-3")));
    base(&mut journal, &tables);
    let created = format!("{}, {}", creation("log-4"), creation("base-4"));
    expect(&disk, &format!("{created}, delete log-1, delete base-1"));
    check_recovery(path, &disk, journal, &seen);
}

#[test]
fn a_dead_file_outlives_the_commit_in_which_it_died() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let disk = SimulatedDisk::new(0);
    let (mut journal, _) = open(path, &disk);
    let mut tables = Tables::new(0);
    // A file is full with a payload, and is closed when the next one comes.
    (0..9).for_each(|at| tables.insert(0, at, vec![chunk(2 + 7 * at)]));
    commit(&mut journal, &mut tables);
    let file = path.join("data-0000000002.seg");
    assert!(disk.open(&file).is_ok() && disk.open(&path.join("data-0000000004.seg")).is_ok());
    (0..9).for_each(|_| tables.delete(0, 0));
    let has_deleted = |disk: &SimulatedDisk| {
        disk.take_calls()
            .iter()
            .position(|call| call.what == "delete" && call.name == "data-0000000002.seg")
    };
    let seen = commit(&mut journal, &mut tables);
    assert_eq!(has_deleted(&disk), None);
    let seen_later = commit(&mut journal, &mut tables);
    assert_eq!(seen, seen_later);
    let at = has_deleted(&disk);
    assert_eq!(at, Some(3), "after the frame is written and synced");
    check_recovery(path, &disk, journal, &seen);
    let names = disk.list(path).unwrap();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with("data-")), "{names:?}");
}

#[test]
fn the_same_commit_goes_to_new_files_after_a_failure() {
    for seed in 0..40 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let disk = SimulatedDisk::new(seed);
        let (mut journal, _) = open(path, &disk);
        let mut tables = Tables::new(0);
        tables.insert(0, 1, vec![chunk(LARGE)]);
        commit(&mut journal, &mut tables);
        tables.insert(0, 2, vec![chunk(LARGE + 7), chunk(SMALL)]);
        tables.insert(0, 3, vec![chunk(LARGE + 7)]);
        let (changes, seen) = tables.take_changes();
        disk.take_calls();
        disk.set_failing(if seed % 2 == 0 { 1000 } else { 200 });
        let mut touched = Vec::new();
        let mut num_failures = 0;
        while let Err(error) = journal.commit(&changes) {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.message().starts_with("The store cannot "), "{error}");
            let calls = disk.take_calls();
            let again =
                calls.iter().find(|call| call.what != "delete" && touched.contains(&call.name));
            assert_eq!(again, None, "{calls:?}");
            touched
                .extend(calls.into_iter().map(|call| call.name).filter(|it| it.ends_with("seg")));
            num_failures += 1;
            if num_failures == 5 {
                disk.set_failing(0);
            }
        }
        disk.set_failing(0);
        assert_eq!(journal.last_commit(), 2);
        check_recovery(path, &disk, journal, &seen);
    }
}

#[test]
fn a_log_that_could_not_be_created_leads_nobody_astray() {
    let mut tables = Tables::new(0);
    let (changes, _) = tables.take_changes();
    for seed in 0..100 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let disk = SimulatedDisk::new(seed);
        let (mut journal, _) = open(path, &disk);
        journal.commit(&changes).unwrap();
        // The frame of commit 2 can be read, and then the logs that would say that it is not there.
        disk.set_failing_call("sync", 1000);
        journal.commit(&changes).unwrap_err();
        disk.set_failing_call("sync directory", 1000);
        (0..5).for_each(|_| drop(journal.commit(&changes).unwrap_err()));
        let mut least = 1;
        for restart in [Restart::Process, Restart::Machine, Restart::Process] {
            drop(journal);
            disk.restart(restart);
            let opened = open(path, &disk);
            assert!(opened.1.commit >= least, "{} is below {least}", opened.1.commit);
            (journal, least) = (opened.0, opened.1.commit);
        }
    }
}

#[test]
fn numbers_that_records_name_are_not_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (mut journal, _) = open(path, &SystemDisk);
    let mut tables = Tables::new(0);
    tables.insert(0, 1, vec![chunk(LARGE)]);
    commit(&mut journal, &mut tables);
    tables.delete(0, 0);
    commit(&mut journal, &mut tables);
    drop(journal);
    std::fs::remove_file(path.join("data-0000000002.seg")).unwrap();
    let (mut journal, _) = open(path, &SystemDisk);
    tables.insert(0, 1, vec![chunk(LARGE)]);
    commit(&mut journal, &mut tables);
    let mut names = SystemDisk.list(path).unwrap();
    names.sort();
    let expected = [
        "LOCK",
        "base-0000000001.seg",
        "data-0000000004.seg",
        "log-0000000001.seg",
        "log-0000000003.seg",
    ];
    assert_eq!(names, expected);
}

#[test]
fn the_last_notes_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (mut journal, _) = open(path, &SystemDisk);
    let mut tables = Tables::new(0);
    for step in 0..20 {
        tables.note(format!("step {step}").into_bytes());
        commit(&mut journal, &mut tables);
        if step == 17 {
            base(&mut journal, &tables);
        }
    }
    drop(journal);
    let (_journal, recovered) = open(path, &SystemDisk);
    let texts: Vec<_> = recovered.notes.iter().map(|it| it.text.clone()).collect();
    let expected: Vec<_> = (4..20).map(|step| format!("step {step}").into_bytes()).collect();
    assert_eq!((texts, recovered.commit), (expected, 20));
    assert_eq!(recovered.notes[0].client, "trainer");
}

#[test]
fn a_chunk_that_only_a_stream_held_is_recorded_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let disk = SimulatedDisk::new(0);
    let (mut journal, _) = open(path, &disk);
    let mut tables = Tables::new(0);
    let (large, small) = (chunk(LARGE), chunk(SMALL));
    tables.insert(0, 1, vec![large.clone(), small.clone()]);
    commit(&mut journal, &mut tables);
    tables.delete(0, 0);
    commit(&mut journal, &mut tables);
    base(&mut journal, &tables);
    // The log and the base before go.
    base(&mut journal, &tables);
    assert!(large.forget());
    tables.insert(0, 2, vec![large.clone(), small]);
    let seen = commit(&mut journal, &mut tables);
    check_recovery(path, &disk, journal, &seen);
}

#[test]
fn a_tier_and_a_journal_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = Store::open(options(path), Arc::new(SystemDisk)).unwrap();
    store.write(vec![chunk(LARGE)], true);
    store.wait_until_written();
    std::mem::forget(store);
    let in_use =
        Journal::open(options(path), Arc::new(SystemDisk), &AtomicBool::new(false)).unwrap_err();
    assert!(in_use.message().ends_with("is in use by this process"), "{in_use}");
    let other = tempfile::tempdir().unwrap();
    drop(open(other.path(), &SystemDisk));
    let refused = Store::open(options(other.path()), Arc::new(SystemDisk)).unwrap_err();
    assert!(refused.message().contains("is a journal"), "{refused}");
}

#[test]
fn a_full_journal_says_so_and_writes_what_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let options = StoreOptions { max_bytes: Some(200 << 10), ..options(path) };
    let (mut journal, _) =
        Journal::open(options, Arc::new(SystemDisk), &AtomicBool::new(false)).unwrap();
    let mut tables = Tables::new(0);
    let insert = |tables: &mut Tables, key| tables.insert(0, key, vec![chunk(2 + 7 * key)]);
    (0..12).for_each(|key| insert(&mut tables, key));
    commit(&mut journal, &mut tables);
    assert!(!journal.is_full());
    (12..30).for_each(|key| insert(&mut tables, key));
    commit(&mut journal, &mut tables);
    assert!(journal.is_full());
    (0..25).for_each(|_| tables.delete(0, 0));
    commit(&mut journal, &mut tables);
    let seen = commit(&mut journal, &mut tables);
    assert!(!journal.is_full());
    drop(journal);
    assert_eq!(Tables::recovered(&open(path, &SystemDisk).1, 0).1, seen);
}

#[test]
fn a_part_without_a_base_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path(), &SystemDisk);
    for refused in [journal.put_part(&Changes::default()), journal.end_base()] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::FailedPrecondition);
    }
    journal.begin_base().unwrap();
    journal.abandon_base();
    assert!(journal.end_base().is_err() && !journal.wants_base());
}
