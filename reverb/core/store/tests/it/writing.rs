// SPDX-License-Identifier: Apache-2.0
//! Payloads go to disk and come back.

use std::os::unix::fs::PermissionsExt;

use reverb_base::StoreState;
use reverb_data::Chunk;
use reverb_files::FailingDisk;

use crate::chunks::{bytes_on_disk, check, on_disk, plain};
use crate::{data_files, eventually, open, options};

#[test]
fn a_forgotten_payload_is_read_from_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(options(directory.path()), &FailingDisk::default());
    let chunks: Vec<Chunk> = (0..10).map(|key| on_disk(key, 2000 + key as usize)).collect();
    assert!(store.write(chunks[..5].to_vec(), false));
    assert!(store.write(chunks[5..].to_vec(), true));
    store.wait_until_written();
    for (key, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk.resident().is_some(), key < 5);
        assert!(chunk.forget() == (key < 5) && chunk.place().unwrap().offset.is_multiple_of(8));
        check(chunk, 2000 + key);
    }
    let status = store.status();
    let payloads: usize = chunks.iter().map(Chunk::payload_len).sum();
    assert_eq!((status.reads, status.read_bytes), (10, payloads as u64));
    assert!(status.write_speed > 0.0 && status.written_bytes >= payloads as u64);
    assert_eq!((status.live_bytes, status.dead_bytes), (bytes_on_disk(&chunks), 0));
    assert_eq!((status.state, status.waiting_bytes), (StoreState::Ok, 0));
    let file = directory.path().join("data-0000000001.seg");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn nothing_is_written_twice_or_for_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    let store = open(options(directory.path()), &disk);
    let chunks: Vec<Chunk> = (0..3).map(|key| on_disk(key, 2000)).collect();
    store.write(chunks.clone(), false);
    store.write(chunks.clone(), true);
    store.write(vec![plain(7, 2000)], true);
    store.wait_until_written();
    assert!(chunks.iter().all(|chunk| chunk.resident().is_none()));
    let written = store.status().written_bytes;
    assert_eq!(written, bytes_on_disk(&chunks));
    disk.set(|faults| faults.bytes_per_second = Some(0));
    let slow = on_disk(4, 2000);
    store.write(vec![slow.clone()], false);
    // These are dropped while the store is busy.
    store.write((10..20).map(|key| on_disk(key, 2000)).collect(), false);
    disk.set(|faults| faults.bytes_per_second = None);
    store.wait_until_written();
    assert_eq!(store.status().written_bytes, written + bytes_on_disk([&slow]));
}

#[test]
fn large_payloads_are_written_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    disk.set(|faults| faults.short_writes = Some(100_001));
    let store = open(options(directory.path()), &disk);
    let lengths = [2000, 3 << 20, 2000, (1 << 20) + 1];
    let chunks: Vec<Chunk> = (0..).zip(lengths).map(|(key, len)| on_disk(key, len)).collect();
    store.write(chunks.clone(), true);
    store.wait_until_written();
    for (chunk, len) in chunks.iter().zip(lengths) {
        assert!(chunk.resident().is_none());
        check(chunk, len);
    }
    assert_eq!(store.status().errors, []);
}

#[test]
fn a_file_without_live_bytes_is_deleted_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(options(directory.path()), &FailingDisk::default());
    let mut files: Vec<Vec<Chunk>> = Vec::new();
    for first in [0, 10, 20] {
        files.push((first..first + 10).map(|key| on_disk(key, 2000)).collect());
        store.write(files.last().unwrap().clone(), true);
        store.wait_until_written();
    }
    let names = data_files(directory.path());
    assert_eq!(names.len(), 3);
    let kept = files[1].pop().unwrap();
    files.remove(1);
    assert_eq!(store.status().live_bytes, bytes_on_disk(files.iter().flatten().chain([&kept])));
    files.remove(0);
    eventually(|| data_files(directory.path()) == names[1..]);
    drop(kept);
    eventually(|| data_files(directory.path()) == names[2..]);
    // The last one may still be written to.
    files.clear();
    assert_eq!(store.status().live_bytes, 0);
    let next = on_disk(1, 30_000);
    store.write(vec![next.clone()], true);
    store.wait_until_written();
    eventually(|| data_files(directory.path()) == ["data-0000000004.seg"]);
    check(&next, 30_000);
}

#[test]
fn a_stop_deletes_the_files_and_readers_keep_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(options(directory.path()), &FailingDisk::default());
    let chunk = on_disk(1, 2000);
    store.write(vec![chunk.clone()], true);
    store.wait_until_written();
    std::fs::write(directory.path().join("mine"), "x").unwrap();
    store.stop();
    assert!(!store.write(vec![on_disk(2, 2000)], false));
    drop(store);
    assert!(data_files(directory.path()).is_empty() && directory.path().join("mine").exists());
    check(&chunk, 2000);
    let again = open(options(directory.path()), &FailingDisk::default());
    assert_eq!(again.status().num_files, 0);
}
