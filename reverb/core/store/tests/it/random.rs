// SPDX-License-Identifier: Apache-2.0
//! Random programs: each live chunk has its bytes, and each file a live chunk.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use reverb_data::Chunk;
use reverb_files::{Errno, FailingDisk, Faults};
use reverb_store::StoreOptions;

use crate::chunks::{bytes_on_disk, check, on_disk};
use crate::{data_files, eventually, open, options};

#[derive(Debug, Clone)]
enum Step {
    Add {
        num_bytes: usize,
    },
    /// Of a part of the chunks, from a point on.
    Write {
        from: usize,
        count: usize,
        forget: bool,
    },
    Drop {
        from: usize,
        step: usize,
    },
    Forget {
        at: usize,
    },
    Move,
    Fail {
        what: u8,
    },
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1100..6000_usize).prop_map(|num_bytes| Step::Add { num_bytes }),
        4 => (0..64_usize, 1..20_usize, any::<bool>())
            .prop_map(|(from, count, forget)| Step::Write { from, count, forget }),
        1 => (0..64_usize, 1..6_usize).prop_map(|(from, step)| Step::Drop { from, step }),
        1 => (0..64_usize).prop_map(|at| Step::Forget { at }),
        2 => Just(Step::Move),
        1 => (0..6_u8).prop_map(|what| Step::Fail { what }),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 1..150)
}

fn fault(what: u8) -> Faults {
    let mut faults = Faults::default();
    match what {
        0 => faults.write_error = Some(Errno::IO),
        1 => faults.room = Some(10_000),
        2 => faults.short_writes = Some(777),
        3 => faults.delete_error = Some(Errno::BUSY),
        _ => {}
    }
    faults
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn live_chunks_have_their_bytes_and_files_have_live_chunks(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let disk = FailingDisk::default();
        let at_once = StoreOptions { retry_after: Duration::ZERO, ..options(directory.path()) };
        let store = open(at_once, &disk);
        let mut chunks: Vec<(Chunk, usize)> = Vec::new();
        for step in steps {
            let clones = |from: usize, count: usize| {
                let from = from.min(chunks.len());
                let part = &chunks[from..(from + count).min(chunks.len())];
                part.iter().map(|(chunk, _)| chunk.clone()).collect::<Vec<_>>()
            };
            match step {
                Step::Add { num_bytes } => {
                    for _ in 0..4 {
                        chunks.push((on_disk(num_bytes as u64, num_bytes), num_bytes));
                    }
                }
                Step::Write { from, count, forget } => {
                    prop_assert!(store.write(clones(from, count), forget));
                }
                Step::Drop { from, step } => {
                    let mut number = 0;
                    chunks.retain(|_| {
                        number += 1;
                        number <= from || number % step != 0
                    });
                }
                Step::Forget { at } => {
                    if let Some((chunk, num_bytes)) = chunks.get(at) {
                        let was_forgotten = chunk.forget();
                        prop_assert!(!was_forgotten || chunk.place().is_some());
                        check(chunk, *num_bytes);
                    }
                }
                Step::Move => {
                    let to_empty = store.to_empty();
                    let mut moved = clones(0, chunks.len());
                    moved.retain(|it| it.place().is_some_and(|place| to_empty.contains(&place)));
                    prop_assert!(store.move_out(moved));
                }
                Step::Fail { what } => disk.set(|faults| *faults = fault(what)),
                Step::Wait => store.wait_until_written(),
            }
        }
        disk.set(|faults| *faults = Faults::default());
        store.wait_until_written();
        let on_disk = || chunks.iter().map(|(it, _)| it).filter(|it| it.place().is_some());
        // What was given up is let go a moment later.
        eventually(|| store.status().live_bytes == bytes_on_disk(on_disk()));
        for (chunk, num_bytes) in &chunks {
            check(chunk, *num_bytes);
        }
        // Each of these fills a file, so that at last one dies, and with it all are deleted that
        // could not be before.
        for key in [1, 2, 3] {
            let last = crate::chunks::on_disk(key, 300_000);
            store.write(vec![last.clone()], true);
            store.wait_until_written();
            prop_assert!(last.place().is_some());
        }
        let needed: BTreeSet<_> = on_disk().map(|it| it.place().unwrap().file.number()).collect();
        eventually(|| data_files(directory.path()).len() <= needed.len() + 1);
        prop_assert_eq!(store.status().live_bytes, bytes_on_disk(on_disk()));
        drop(store);
        prop_assert!(data_files(directory.path()).is_empty());
        for (chunk, num_bytes) in &chunks {
            check(chunk, *num_bytes);
        }
    }
}
