// SPDX-License-Identifier: Apache-2.0
//! Loaded tables equal the saved ones, and damaged checkpoints are not loaded.
#![allow(clippy::unwrap_used, reason = "tests may")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use reverb_base::{Error, ErrorKind, Result};
use reverb_checkpoint::{Held, LoadOptions, Loaded, Progress, SaveOptions, Stored, load, save};
use reverb_data::{
    Chunk, ChunkBuilder, DType, DataFile, HeadsCache, NewItem, Place, ReadAt, Sampled,
    SequenceRange, Shape, TableConfig, Tensor, TensorData, TrajectoryBuilder,
};
use reverb_engine::{Confirm, Table};

fn config(name: &str, max_size: i64) -> TableConfig {
    TableConfig::fifo(name, max_size)
}

fn tables(max_size: i64) -> Vec<Arc<Table>> {
    ["a", "b"].map(|name| Table::new(config(name, max_size)).unwrap()).to_vec()
}

fn chunk(key: u64, values: &[i32]) -> Chunk {
    let mut builder = ChunkBuilder::new(false);
    builder.push(&Tensor {
        dtype: DType::Int32,
        shape: Shape::from_slice(&[values.len()]),
        data: TensorData::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
    });
    let range = SequenceRange { episode_id: key / 10, start: 0, end: 2, sparse: false };
    builder.finish(key, range)
}

/// An item of steps 2 and 0 of a chunk of three.
fn insert(table: &Table, key: u64, chunk: &Chunk) {
    let mut trajectory = TrajectoryBuilder::new();
    trajectory.slice(chunk, 0, 2, 1);
    trajectory.slice(chunk, 0, 0, 1);
    trajectory.end_column(false);
    let trajectory = trajectory.finish().unwrap();
    let item = NewItem::new(key, table.name(), key as f64 / 2.0, trajectory);
    let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
    table.insert(vec![item], &confirm).unwrap();
}

struct IgnoreConfirm;

impl Confirm for IgnoreConfirm {
    fn confirmed(&self, _keys: &[u64]) {}

    fn failed(&self, error: Error) {
        panic!("{error}");
    }
}

fn all(table: &Table) -> Vec<Sampled> {
    let mut scan = table.begin_scan().unwrap();
    let mut all = Vec::new();
    loop {
        let items = table.scan(&mut scan).unwrap();
        if items.is_empty() {
            return all;
        }
        all.extend(items);
    }
}

/// All parts of a table that a checkpoint stores, as text.
fn content(table: &Table) -> String {
    let info = table.info();
    let counters = (info.num_inserts, info.num_samples, info.num_deletes, info.num_unique_samples);
    let items = all(table);
    let items = items.iter().map(|item| {
        let data = item.trajectory.decode().unwrap();
        format!(
            "{} {} {} {} {data:?}",
            item.key, item.priority, item.times_sampled, item.inserted_at_ns
        )
    });
    format!("{counters:?} {:?}", items.collect::<Vec<_>>())
}

fn save_to(root: &Path, tables: &[Arc<Table>]) -> PathBuf {
    let (progress, mut held) = (Progress::default(), Held::default());
    save(tables, &save_options(root), &progress, &mut held).unwrap().path
}

fn save_options(root: &Path) -> SaveOptions {
    SaveOptions { root: root.to_owned(), keep_latest: 1, ..SaveOptions::default() }
}

fn load_from(root: &Path, tables: &[Arc<Table>]) -> Result<Option<Loaded>> {
    let root = root.to_owned();
    let options = LoadOptions {
        root,
        load: None,
        fallback: None,
        name: None,
        restore_settings: false,
        keep_signatures: true,
    };
    load(tables, &options, &Arc::default(), &mut Held::default(), Ok)
}

/// A data file in memory.
#[derive(Debug)]
struct Payload(Vec<u8>);

impl ReadAt for Payload {
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
        bytes.copy_from_slice(&self.0[offset as usize..][..bytes.len()]);
        Ok(())
    }
}

/// The same chunk on disk, forgotten; with another checksum if it is to be damaged.
fn forgotten(plain: &Chunk, is_damaged: bool) -> Chunk {
    let payload = plain.payload();
    let disk = Chunk::on_disk(plain, &mut HeadsCache::default()).unwrap();
    let crc = crc32c::crc32c(&payload) ^ u32::from(is_damaged);
    let bytes = [&[0; 8], &*payload].concat();
    let file = DataFile::new(1, "data-0000000001.seg".into(), Box::new(Payload(bytes)));
    disk.set_place(Place { file, offset: 8, crc });
    assert!(disk.forget());
    disk
}

#[test]
fn payloads_on_disk_are_saved_like_those_in_memory() {
    let [in_memory, on_disk] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let plain: Vec<Chunk> = (0..200)
        .map(|key| chunk(key, &(0..500).map(|at| at * at * (key as i32 + 7)).collect::<Vec<_>>()))
        .collect();
    let disk: Vec<Chunk> = plain.iter().map(|chunk| forgotten(chunk, false)).collect();
    for (root, chunks) in [(&in_memory, &plain), (&on_disk, &disk)] {
        let tables = tables(1000);
        chunks.iter().zip(0..).for_each(|(chunk, key)| insert(&tables[0], key, chunk));
        save_to(root.path(), &tables);
    }
    assert!(disk.iter().all(|chunk| chunk.resident().is_none()), "a save keeps nothing in memory");
    let data = |root: &tempfile::TempDir| {
        let loaded = tables(1000);
        load_from(root.path(), &loaded).unwrap().unwrap();
        let items = all(&loaded[0]);
        items.iter().map(|item| item.trajectory.decode().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(data(&on_disk), data(&in_memory));
}

#[test]
fn a_payload_that_cannot_be_read_back_ends_the_save() {
    let root = tempfile::tempdir().unwrap();
    let tables = tables(10);
    let values: Vec<i32> = (0..500).map(|at| at * at * 7).collect();
    insert(&tables[0], 1, &chunk(1, &values));
    let before = save_to(root.path(), &tables);
    insert(&tables[0], 2, &forgotten(&chunk(2, &values), true));
    let (progress, mut held) = (Progress::default(), Held::default());
    let error = save(&tables, &save_options(root.path()), &progress, &mut held).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DataLoss);
    assert_eq!(
        error.message(),
        "Checkpoint: a payload cannot be read back: data-0000000001.seg at 8: checksum differs"
    );
    let left: Vec<PathBuf> =
        fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.contains(&before), "{left:?}");
    assert!(left.iter().all(|path| !path.to_string_lossy().contains(".partial-")), "{left:?}");
    assert_eq!(tables[0].remove_lost(&[1, 2]), 1);
    save_to(root.path(), &tables);
}

#[test]
fn tables_come_back_as_they_were() {
    let root = tempfile::tempdir().unwrap();
    let saved = tables(5000);
    assert!(load_from(root.path(), &saved).unwrap().is_none());
    for key in 0..6000 {
        insert(&saved[0], key, &chunk(key, &[key as i32, -1, 7]));
    }
    // A large chunk, shared by items of both tables.
    let values: Vec<i32> = (0..300_000).collect();
    let large = chunk(1 << 40, &values);
    for key in 0..3 {
        insert(&saved[0], 10_000 + key, &large);
        insert(&saved[1], 10_000 + key, &large);
    }
    saved[0].try_sample(3).unwrap();
    let path = save_to(root.path(), &saved);
    let loaded = tables(5000);
    let result = load_from(root.path(), &loaded).unwrap().unwrap();
    assert_eq!((result.path, result.num_items), (path.clone(), 5003));
    for (saved, loaded) in saved.iter().zip(&loaded) {
        assert_eq!(content(saved), content(loaded));
    }
    let statistics = Stored::open(&path, None).unwrap().statistics(&Arc::default()).unwrap();
    assert_eq!(statistics[0].num_chunks, 4998);
    assert_eq!((statistics[1].num_chunks, statistics[1].lengths.as_slice()), (1, &[2, 2, 2][..]));
}

#[test]
fn different_chunks_of_one_key_stay_different() {
    let root = tempfile::tempdir().unwrap();
    let saved = tables(10);
    insert(&saved[0], 1, &chunk(7, &[1, 2, 3]));
    insert(&saved[0], 2, &chunk(7, &[4, 5, 6]));
    insert(&saved[1], 3, &chunk(7, &[1, 2, 3]));
    save_to(root.path(), &saved);
    let loaded = tables(10);
    load_from(root.path(), &loaded).unwrap().unwrap();
    assert_eq!(content(&saved[0]), content(&loaded[0]));
    assert_eq!(content(&saved[1]), content(&loaded[1]));
}

/// The increase of a thread's niceness by a save of so many items of one chunk.
#[cfg(target_os = "linux")]
fn niceness_of_a_save(items: u64, values: &[i32]) -> i32 {
    use rustix::process::getpriority_process;

    let tables = tables(5000);
    let chunk = chunk(7, values);
    (0..items).for_each(|key| insert(&tables[0], key, &chunk));
    let in_a_thread = move || {
        let root = tempfile::tempdir().unwrap();
        let before = getpriority_process(None).unwrap();
        save_to(root.path(), &tables);
        getpriority_process(None).unwrap() - before
    };
    std::thread::spawn(in_a_thread).join().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn only_a_large_save_yields_to_other_threads() {
    let noise: Vec<_> = (0..300_000).map(|_| rand::random()).collect();
    assert_eq!(niceness_of_a_save(0, &[1, 2, 3]), 0);
    assert_eq!(niceness_of_a_save(4096, &[1, 2, 3]), 0);
    assert!(niceness_of_a_save(4097, &[1, 2, 3]) > 0);
    assert!(niceness_of_a_save(1, &noise) > 0);
}

#[test]
fn a_cancelled_save_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let saved = tables(10);
    insert(&saved[0], 1, &chunk(1, &[1, 2, 3]));
    let progress = Progress::default();
    progress.cancel();
    let error =
        save(&saved, &save_options(root.path()), &progress, &mut Held::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// A damaged file is an error or makes no difference, and never causes a panic.
    #[test]
    fn damage_is_never_loaded(
        file in 0..4usize,
        place in any::<prop::sample::Index>(),
        flip in 1..=255u8,
        cut in any::<bool>(),
    ) {
        let root = tempfile::tempdir().unwrap();
        let saved = tables(10);
        for key in 0..6 {
            insert(&saved[key as usize % 2], key, &chunk(key, &[1, key as i32, 3]));
        }
        let path = save_to(root.path(), &saved);
        let names = ["tables.tfrecord", "items.tfrecord", "chunks.tfrecord", "DONE"];
        let file = path.join(names[file]);
        let mut bytes = fs::read(&file).unwrap();
        let at = place.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip }
        fs::write(&file, bytes).unwrap();
        let loaded = tables(10);
        match load_from(root.path(), &loaded) {
            Ok(None) => prop_assert!(false, "a damaged checkpoint is not none"),
            Ok(Some(_)) => {
                prop_assert_eq!(content(&saved[0]), content(&loaded[0]));
                prop_assert_eq!(content(&saved[1]), content(&loaded[1]));
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::DataLoss);
                prop_assert!(error.message().contains(file.to_str().unwrap()), "{}", error);
                prop_assert_eq!(loaded[0].info().current_size, 0);
            }
        }
    }
}
