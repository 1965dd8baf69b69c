// SPDX-License-Identifier: Apache-2.0
//! The sweep's view of a table: the disk chunks of its items, a piece at a time, and the removal of
//! items whose payload is lost.

use hashbrown::HashSet;
use reverb_data::{Chunk, Trajectory};

use super::Table;
use super::clock::Activity;
use super::statistics::Removal;

/// Number of entries that are visited under one lock: each may cost a cache miss.
const SWEPT_ENTRIES: usize = 128;

/// Number of items that are removed under one lock. Each removal takes one or two microseconds.
const REMOVED_AT_ONCE: usize = 1024;

impl Table {
    /// Appends the disk chunks of the items in the next entries, each once, and the keys of items
    /// with a lost chunk, whose chunks are left out. Returns where to continue; `None` at the end.
    ///
    /// A round begins at 0. It finds every chunk of an item that is in the table from its beginning
    /// to its end, older items mostly first. Never waits; the lock is held for references alone.
    pub fn sweep(
        &self,
        start: usize,
        chunks: &mut Vec<Chunk>,
        lost: &mut Vec<u64>,
    ) -> Option<usize> {
        let mut swept: Vec<(u64, Trajectory)> = Vec::with_capacity(SWEPT_ENTRIES);
        let end = start + SWEPT_ENTRIES;
        let is_over = {
            let shared = self.shared.lock();
            let items = shared.state.items();
            items.piece(start, SWEPT_ENTRIES).for_each(|(_, item)| item.prefetch_trajectory());
            let piece = items.piece(start, SWEPT_ENTRIES);
            swept.extend(piece.map(|(_, item)| (item.key(), item.trajectory())));
            end >= items.num_entries()
        };
        // Neighbouring items share chunks.
        let mut seen = HashSet::new();
        for (key, trajectory) in &swept {
            if trajectory.chunks().iter().any(Chunk::is_lost) {
                lost.push(*key);
                continue;
            }
            let on_disk = trajectory.chunks().iter().filter(|chunk| chunk.is_disk_chunk());
            chunks.extend(on_disk.filter(|chunk| seen.insert(chunk.identity())).cloned());
        }
        (!is_over).then_some(end)
    }

    /// Removes those of the items with these keys that have a lost chunk. Returns their number; 0
    /// if the table is closed. Handles a thousand keys under one lock.
    pub fn remove_lost(&self, keys: &[u64]) -> usize {
        let mut num_removed = 0;
        for keys in keys.chunks(REMOVED_AT_ONCE) {
            let removed = self.operate(Activity::Running, |shared, _| {
                let state = &mut shared.state;
                let remove = |&&key: &&u64| {
                    let items = state.items();
                    let found = items.find(key).map(|handle| items.get(handle).trajectory());
                    let is_lost = |it: &Trajectory| it.chunks().iter().any(Chunk::is_lost);
                    found.as_ref().is_some_and(is_lost) && state.remove(key, Removal::Lost)
                };
                keys.iter().filter(remove).count()
            });
            num_removed += removed.unwrap_or(0);
        }
        if num_removed > 0 {
            // A table that was closed meanwhile serves no request.
            let _ = self.count_impossible_samples();
        }
        num_removed
    }

    /// Bytes of payloads that may be on disk, of each chunk once; part of [`Table::bytes`].
    pub fn payload_bytes(&self) -> u64 {
        self.shared.lock().state.account().payload_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io;
    use std::sync::Arc;

    use proptest::prelude::*;
    use reverb_data::{
        ChunkBuilder, DType, DataFile, HeadsCache, NewItem, Place, ReadAt, SequenceRange, Shape,
        TableConfig, Tensor, TensorData, TrajectoryBuilder,
    };

    use super::super::Confirm;
    use super::super::testing::{IgnoreConfirm, config, removers, selectors};
    use super::*;

    /// A file whose blocks are all bad.
    #[derive(Debug)]
    struct Broken;

    impl ReadAt for Broken {
        fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            Err(io::Error::other("Input/output error"))
        }
    }

    /// A chunk of `[1, num_bytes]`: a disk chunk if it has more than a kilobyte.
    fn chunk(key: u64, num_bytes: usize) -> Chunk {
        let mut builder = ChunkBuilder::new(false);
        let noise = |at: u64| {
            let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
        };
        builder.push(&Tensor {
            dtype: DType::UInt8,
            shape: Shape::from_slice(&[1, num_bytes]),
            data: TensorData::Bytes((0..num_bytes as u64).map(noise).collect()),
        });
        let plain =
            builder.finish(key, SequenceRange { episode_id: key % 5, ..Default::default() });
        Chunk::on_disk(&plain, &mut HeadsCache::default()).unwrap_or(plain)
    }

    fn lose(chunk: &Chunk) {
        let file = DataFile::new(1, "data-0000000001.seg".into(), Box::new(Broken));
        chunk.set_place(Place { file, offset: 8, crc: 0 });
        assert!(chunk.forget());
        chunk.load().unwrap_err();
    }

    fn item(key: u64, chunks: &[&Chunk]) -> NewItem {
        let mut trajectory = TrajectoryBuilder::new();
        for chunk in chunks {
            trajectory.slice(chunk, 0, 0, 1);
        }
        trajectory.end_column(false);
        NewItem::new(key, "t", 1.0, trajectory.finish().unwrap())
    }

    /// All chunks and lost items of one round, in the order in which it finds them.
    fn round(table: &Table) -> (Vec<Chunk>, Vec<u64>) {
        let (mut chunks, mut lost) = (Vec::new(), Vec::new());
        let mut next = Some(0);
        while let Some(start) = next {
            let before = chunks.len();
            next = table.sweep(start, &mut chunks, &mut lost);
            let piece: BTreeSet<usize> = chunks[before..].iter().map(Chunk::identity).collect();
            assert_eq!(piece.len(), chunks.len() - before, "a chunk is there twice");
        }
        (chunks, lost)
    }

    fn keys_of<'a>(chunks: impl IntoIterator<Item = &'a Chunk>) -> BTreeSet<u64> {
        chunks.into_iter().map(Chunk::key).collect()
    }

    const NUM_CHUNKS: usize = 40;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        /// A round finds all disk chunks of a table, and its lost items leave it once each.
        #[test]
        fn a_round_finds_each_disk_chunk_and_each_lost_item(
            sampler in selectors(),
            remover in removers(),
            items in prop::collection::vec(prop::collection::vec(0..NUM_CHUNKS, 1..5), 0..600),
            max_size in 1i64..700,
            deleted in prop::collection::btree_set(0u64..600, 0..200),
            lost in prop::collection::btree_set(0..NUM_CHUNKS, 0..6),
        ) {
            // Every third one is small, so it stays in memory.
            let size = |key: usize| if key.is_multiple_of(3) { 100 } else { 1500 };
            let chunks: Vec<Chunk> =
                (0..NUM_CHUNKS).map(|key| chunk(key as u64, size(key))).collect();
            prop_assert!(chunks.iter().all(|it| it.is_disk_chunk() == (it.key() % 3 != 0)));
            let table = Table::new(TableConfig { sampler, remover, ..config(max_size) }).unwrap();
            let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
            let new = |(key, of): (usize, &Vec<usize>)| {
                let of: BTreeSet<usize> = of.iter().copied().collect();
                item(key as u64, &of.iter().map(|&at| &chunks[at]).collect::<Vec<_>>())
            };
            table.insert(items.iter().enumerate().map(new).collect(), &confirm).unwrap();
            table.mutate(&[], &deleted.iter().copied().collect::<Vec<_>>()).unwrap();
            let present = table.shared.lock().state.keys();
            let of_items = |keys: &[u64]| {
                let of = keys.iter().flat_map(|&key| &items[key as usize]);
                keys_of(of.map(|&at| &chunks[at]).filter(|chunk| chunk.is_disk_chunk()))
            };
            let (found, no_items) = round(&table);
            prop_assert_eq!(keys_of(&found), of_items(&present));
            prop_assert!(no_items.is_empty());

            lost.iter().filter(|&at| at % 3 != 0).for_each(|&at| lose(&chunks[at]));
            let is_lost = |key: u64| items[key as usize].iter().any(|&at| chunks[at].is_lost());
            let (gone, left): (Vec<u64>, Vec<u64>) =
                present.iter().partition(|&&key| is_lost(key));
            let (found, mut keys) = round(&table);
            prop_assert_eq!(keys_of(&found), of_items(&left));
            keys.sort_unstable();
            prop_assert_eq!(&keys, &gone);

            // Keys of other items, unknown ones, and keys that are given again change nothing.
            let twice = [&present[..], &keys[..], &[9999][..]].concat();
            prop_assert_eq!(table.remove_lost(&twice), gone.len());
            prop_assert_eq!(table.remove_lost(&twice), 0);
            prop_assert_eq!(table.shared.lock().state.keys(), left.clone());
            let status = table.status();
            let removed = &status.statistics.removed;
            prop_assert_eq!(removed.of(Removal::Lost), gone.len() as u64);
            let by_reason: u64 = Removal::ALL.map(|reason| removed.of(reason)).iter().sum();
            prop_assert_eq!(status.statistics.inserts, left.len() as u64 + by_reason);
            let payloads = keys_of(&found).into_iter().map(|key| &chunks[key as usize]);
            prop_assert_eq!(table.payload_bytes(), payloads.map(Chunk::payload_bytes).sum::<u64>());
        }
    }

    #[test]
    fn samples_that_only_lost_items_allowed_hold_back_no_insert() {
        let rate_limiter = reverb_data::RateLimiterConfig {
            samples_per_insert: 1.0,
            min_size_to_sample: 1,
            min_diff: 0.0,
            max_diff: 3.0,
        };
        let queue = TableConfig { max_times_sampled: 1, rate_limiter, ..config(10) };
        let table = Table::new(queue).unwrap();
        let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
        let chunks: Vec<Chunk> = (0..5).map(|key| chunk(key, 1500)).collect();
        let items = chunks.iter().map(|chunk| item(chunk.key(), &[chunk])).collect();
        table.insert(items, &confirm).unwrap();
        assert_eq!((table.len(), table.queued_inserts()), (3, 2));
        chunks[..2].iter().for_each(lose);
        assert_eq!(table.remove_lost(&round(&table).1), 2);
        assert_eq!((table.len(), table.queued_inserts()), (3, 0));
        table.close();
        assert_eq!(table.remove_lost(&[2]), 0);
    }
}
