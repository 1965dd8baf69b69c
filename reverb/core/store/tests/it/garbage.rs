// SPDX-License-Identifier: Apache-2.0
//! Files are emptied when there is too much garbage.

use reverb_base::StoreState;
use reverb_data::Chunk;
use reverb_files::{FailingDisk, Space};
use reverb_store::{Store, StoreOptions};

use crate::chunks::{bytes_on_disk, check, on_disk};
use crate::{data_files, eventually, open, options};

/// Writes chunks in groups, each to a file of its own.
fn write_files(store: &Store, num_files: u64) -> Vec<Option<Chunk>> {
    let mut chunks = Vec::new();
    for file in 0..num_files {
        let group: Vec<_> = (0..10).map(|key| on_disk(file * 10 + key, 2000)).collect();
        store.write(group.clone(), true);
        store.wait_until_written();
        chunks.extend(group.into_iter().map(Some));
    }
    chunks
}

/// What the sweep does.
fn move_all(store: &Store, chunks: &[Option<Chunk>]) {
    let to_empty = store.to_empty();
    let is_moved = |chunk: &&Chunk| chunk.place().is_some_and(|place| to_empty.contains(&place));
    assert!(store.move_out(chunks.iter().flatten().filter(is_moved).cloned().collect()));
    store.wait_until_written();
}

#[test]
fn the_emptiest_files_are_emptied() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(options(directory.path()), &FailingDisk::default());
    let mut chunks = write_files(&store, 8);
    let names = data_files(directory.path());
    assert!(names.len() == 8 && store.to_empty().is_empty());
    // Files 1 and 2 keep one payload of ten, file 3 nine.
    for (number, chunk) in chunks.iter_mut().enumerate().take(30) {
        if (number < 20) == (number % 10 > 0) {
            *chunk = None;
        }
    }
    assert_eq!(store.status().dead_bytes, bytes_on_disk(&[on_disk(1, 2000)]) * 19);
    assert!(store.to_empty().is_empty(), "24 % are few");
    for chunk in &mut chunks[41..48] {
        *chunk = None;
    }
    let to_empty = store.to_empty();
    let is_chosen =
        |index: usize| to_empty.contains(&chunks[index].as_ref().unwrap().place().unwrap());
    assert!(is_chosen(0) && is_chosen(10) && !is_chosen(21) && !is_chosen(50));
    // The others stay where they are, also if they are given.
    let before: Vec<_> =
        chunks.iter().flatten().map(|it| it.place().unwrap().file.number()).collect();
    store.move_out(chunks.iter().flatten().cloned().collect());
    store.wait_until_written();
    let after: Vec<_> =
        chunks.iter().flatten().map(|it| it.place().unwrap().file.number()).collect();
    assert_eq!(before[2..11], after[2..11]);
    assert!(after[0] > 8 && after[1] > 8);
    eventually(|| data_files(directory.path())[0] == "data-0000000003.seg");
    for chunk in chunks.iter().flatten() {
        check(chunk, 2000);
    }
    let status = store.status();
    assert!(status.dead_bytes * 100 < status.live_bytes * 30, "{status:?}");
    assert!(status.moved_bytes < status.written_bytes / 4);
    assert!(store.to_empty().is_empty());
}

#[test]
fn a_full_store_empties_files_for_less_garbage_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { max_bytes: Some(256 << 10), ..options(directory.path()) };
    let store = open(options, &FailingDisk::default());
    let mut chunks = write_files(&store, 20);
    assert_eq!((store.status().state, store.status().max_bytes), (StoreState::Full, 256 << 10));
    assert!(!store.write(vec![on_disk(900, 2000)], true));
    let left_out = chunks.iter().flatten().filter(|chunk| chunk.place().is_none()).count();
    assert!((80..=110).contains(&left_out), "{left_out}");
    chunks.retain(|chunk| chunk.as_ref().unwrap().place().is_some());
    for chunk in chunks.iter_mut().step_by(5) {
        *chunk = None;
    }
    assert!(!store.to_empty().is_empty(), "20 % are enough");
    eventually(|| {
        move_all(&store, &chunks);
        let status = store.status();
        status.live_bytes + status.dead_bytes + (90 << 10) <= status.max_bytes
    });
    for chunk in chunks.iter().flatten() {
        check(chunk, 2000);
    }
    eventually(|| {
        let more = on_disk(901, 2000);
        store.write(vec![more.clone()], true);
        store.wait_until_written();
        more.place().is_some()
    });
    assert_eq!(store.status().state, StoreState::Ok);
}

#[test]
fn without_a_budget_a_twentieth_of_the_disk_stays_free() {
    let directory = tempfile::tempdir().unwrap();
    let disk = FailingDisk::default();
    let space = |available_bytes| Space { total_bytes: 1 << 20, available_bytes };
    disk.set(|faults| faults.space = Some(space(60_000)));
    let store = open(options(directory.path()), &disk);
    assert_eq!(store.status().max_bytes, 60_000 - (1 << 20) / 20);
    let chunk = on_disk(1, 2000);
    store.write(vec![chunk.clone()], true);
    store.wait_until_written();
    assert_eq!(store.status().state, StoreState::Full);
    assert!(chunk.resident().is_some() && data_files(directory.path()).is_empty());
}
