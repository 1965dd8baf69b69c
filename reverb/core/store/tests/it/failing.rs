// SPDX-License-Identifier: Apache-2.0
//! Disks that fail: nothing is lost but what cannot be read back.

use std::time::{Duration, Instant};

use reverb_base::ErrorKind;
use reverb_base::StoreState;
use reverb_data::Chunk;
use reverb_files::{Errno, FailingDisk, Faults};
use reverb_store::{DiskErrors, Store, StoreOptions};

use crate::chunks::{bytes_on_disk, check, on_disk};
use crate::{data_files, eventually, open, options};

fn write(store: &Store, chunks: &[Chunk]) -> bool {
    let is_taken = store.write(chunks.to_vec(), true);
    store.wait_until_written();
    is_taken
}

#[track_caller]
fn check_all(chunks: &[Chunk], num_bytes: usize) {
    for chunk in chunks {
        check(chunk, num_bytes);
    }
}

fn errors(call: &'static str, kind: &'static str, count: u64) -> Vec<DiskErrors> {
    vec![DiskErrors { call, kind, count }]
}

#[test]
fn payloads_stay_in_memory_until_the_disk_works_again() {
    for (error, kind) in [(Errno::IO, "io"), (Errno::ROFS, "read_only"), (Errno::DQUOT, "quota")] {
        let directory = tempfile::tempdir().unwrap();
        let disk = FailingDisk::default();
        let at_once = StoreOptions { retry_after: Duration::ZERO, ..options(directory.path()) };
        let store = open(at_once, &disk);
        let chunks: Vec<Chunk> = (0..4).map(|key| on_disk(key, 2000)).collect();
        assert!(write(&store, &chunks[..2]));
        disk.set(|faults| faults.write_error = Some(error));
        assert!(write(&store, &chunks[2..]));
        let status = store.status();
        assert_eq!(status.state, StoreState::Failing);
        let text = status.failure.unwrap().error;
        let file = directory.path().join("data-0000000001.seg");
        let start = format!("cannot write {}: ", file.display());
        assert!(text.starts_with(&start), "{text}");
        assert_eq!((status.errors, status.waiting_bytes), (errors("write", kind, 1), 0));
        assert!(chunks[2..].iter().all(|chunk| chunk.place().is_none()));
        assert!(chunks[2].resident().is_some());
        // What was written before is read as ever.
        check(&chunks[0], 2000);
        disk.set(|faults| *faults = Faults::default());
        assert!(write(&store, &chunks[2..]));
        assert_eq!(store.status().state, StoreState::Ok);
        assert_eq!(chunks[2].place().unwrap().file.number(), 2, "the first file is closed");
        check_all(&chunks, 2000);
    }
}

#[test]
fn a_disk_that_failed_is_left_alone_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    disk.set(|faults| faults.write_error = Some(Errno::IO));
    let hour = Duration::from_secs(3600);
    let store = open(StoreOptions { retry_after: hour, ..options(directory.path()) }, &disk);
    let chunk = on_disk(1, 2000);
    assert!(write(&store, std::slice::from_ref(&chunk)));
    // Its head was not written.
    eventually(|| data_files(directory.path()).is_empty());
    disk.set(|faults| *faults = Faults::default());
    assert!(!write(&store, std::slice::from_ref(&chunk)) && !store.move_out(vec![chunk.clone()]));
    assert_eq!(store.status().errors, errors("write", "io", 1));
    assert!(chunk.place().is_none());
}

#[test]
fn a_full_disk_is_tried_again_when_a_file_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    let hour = Duration::from_secs(3600);
    let store = open(StoreOptions { retry_after: hour, ..options(directory.path()) }, &disk);
    let first: Vec<Chunk> = (0..10).map(|key| on_disk(key, 2000)).collect();
    assert!(write(&store, &first));
    disk.set(|faults| faults.room = Some(5000));
    let second: Vec<Chunk> = (10..20).map(|key| on_disk(key, 2000)).collect();
    assert!(write(&store, &second));
    let status = store.status();
    assert_eq!(status.state, StoreState::Failing);
    assert_eq!(status.errors, errors("write", "no_space", 1));
    assert_eq!(status.live_bytes, bytes_on_disk(&first));
    // The second file had a part of a write, and nobody needs it.
    eventually(|| data_files(directory.path()) == ["data-0000000001.seg"]);
    assert!(second.iter().all(|chunk| chunk.resident().is_some() && chunk.place().is_none()));
    disk.set(|faults| faults.room = None);
    drop(first);
    eventually(|| write(&store, &second));
    eventually(|| data_files(directory.path()) == ["data-0000000003.seg"]);
    check_all(&second, 2000);
}

#[test]
fn a_wrong_byte_costs_its_payload_alone() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    let store = open(options(directory.path()), &disk);
    let chunks: Vec<Chunk> = (0..3).map(|key| on_disk(key, 2000)).collect();
    assert!(write(&store, &chunks));
    disk.set(|faults| faults.wrong_byte = true);
    let error = chunks[1].load().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert!(error.message().starts_with("data-0000000001.seg at "), "{error}");
    disk.set(|faults| *faults = Faults { read_error: Some(Errno::IO), ..Faults::default() });
    assert_eq!(chunks[2].load().unwrap_err().kind(), ErrorKind::DataLoss);
    disk.set(|faults| *faults = Faults::default());
    assert_eq!(chunks.iter().map(Chunk::is_lost).collect::<Vec<_>>(), [false, true, true]);
    check(&chunks[0], 2000);
    let both = [errors("read", "checksum", 1), errors("read", "io", 1)].concat();
    assert_eq!(store.status().errors, both);
}

#[test]
fn a_file_that_others_damage_or_delete_costs_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(options(directory.path()), &FailingDisk::default());
    let chunks: Vec<Chunk> = (0..30).map(|key| on_disk(key, 2000)).collect();
    for group in chunks.chunks(10) {
        assert!(write(&store, group));
    }
    let names = data_files(directory.path());
    let at = |index: usize| directory.path().join(&names[index]);
    std::fs::OpenOptions::new().write(true).open(at(0)).unwrap().set_len(5000).unwrap();
    std::fs::remove_file(at(1)).unwrap();
    assert!(chunks[9].load().is_err() && chunks[9].is_lost());
    // The store has it open.
    check(&chunks[10], 2000);
    check(&chunks[29], 2000);
    let mut chunks = chunks;
    chunks.drain(..20);
    eventually(|| store.status().num_files == 1);
    assert_eq!(store.status().errors, errors("read", "too_short", 1));
}

#[test]
fn a_slow_disk_makes_those_wait_that_give_it_more() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    disk.set(|faults| faults.bytes_per_second = Some(0));
    let store = open(options(directory.path()), &disk);
    let chunks: Vec<Chunk> = (0..3).map(|key| on_disk(key, 20 << 20)).collect();
    for chunk in &chunks[..2] {
        assert!(store.write(vec![chunk.clone()], true));
    }
    assert!(store.waiting_bytes() > 40 << 20);
    std::thread::scope(|scope| {
        let third = scope.spawn(|| store.write(vec![chunks[2].clone()], true));
        disk.set(|faults| faults.bytes_per_second = Some(1 << 40));
        assert!(third.join().unwrap());
    });
    store.wait_until_written();
    assert_eq!((store.waiting_bytes(), store.status().state), (0, StoreState::Ok));
    check_all(&chunks, 20 << 20);
}

#[test]
fn a_disk_that_hangs_ends_no_stop_and_frees_those_that_wait() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    disk.set(|faults| faults.bytes_per_second = Some(0));
    let store = open(options(directory.path()), &disk);
    let chunks: Vec<Chunk> = (0..2).map(|key| on_disk(key, 33 << 20)).collect();
    store.write(vec![chunks[0].clone()], true);
    eventually(|| data_files(directory.path()).len() == 1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| store.write(vec![chunks[1].clone()], true));
        let start = Instant::now();
        store.stop();
        assert!(start.elapsed() >= Duration::from_secs(5));
        assert!(!waits.join().unwrap());
    });
    drop(store);
    check(&chunks[0], 33 << 20);
    // The thread has the lock until the disk answers.
    let other = Store::open(options(directory.path()), std::sync::Arc::new(disk.clone()));
    assert!(other.is_err());
    disk.set(|faults| *faults = Faults::default());
    eventually(|| {
        Store::open(options(directory.path()), std::sync::Arc::new(disk.clone())).is_ok()
    });
}

#[test]
fn a_file_that_cannot_be_deleted_is_counted_until_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    let store = open(options(directory.path()), &disk);
    let mut groups: Vec<Vec<Chunk>> =
        (0..4).map(|file| (0..10).map(|key| on_disk(file * 10 + key, 2000)).collect()).collect();
    for group in &groups {
        assert!(write(&store, group));
    }
    disk.set(|faults| faults.delete_error = Some(Errno::ACCESS));
    let bytes = bytes_on_disk(&groups.remove(0));
    eventually(|| store.status().errors == errors("delete", "permission", 1));
    assert_eq!((store.status().dead_bytes, store.status().num_files), (bytes, 4));
    disk.set(|faults| *faults = Faults::default());
    groups.remove(0);
    eventually(|| store.status().num_files == 2);
    assert_eq!(data_files(directory.path()), ["data-0000000003.seg", "data-0000000004.seg"]);
}
