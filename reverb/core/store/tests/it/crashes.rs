// SPDX-License-Identifier: Apache-2.0
//! Random histories on a disk that stops, fails and forgets: after each start, tables are as they
//! were at one commit, at least the last one that was said to be on disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use reverb_data::{Chunk, HeadsCache};
use reverb_files::{Disk, Restart, SimulatedDisk};
use reverb_store::{Changes, Journal, StoreOptions};

use crate::options;
use crate::tables::{Seen, Table, Tables, check_chunk, held, take_part};

#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A stream gets chunks.
    Stream(usize),
    DropStreams,
    Insert {
        table: usize,
        key: u64,
        picks: Vec<usize>,
    },
    Change {
        table: usize,
        at: usize,
        what: u8,
    },
    Delete {
        table: usize,
        at: usize,
        count: usize,
    },
    Reset {
        table: usize,
    },
    Settings {
        table: usize,
    },
    Note,
    Join,
    /// Payloads are written before a commit.
    Write,
    Commit,
    BeginBase,
    Part {
        most: usize,
    },
    EndBase,
    Forget,
    Move,
    Fail {
        per_thousand: u64,
    },
    StopIn {
        calls: u64,
        restart: Restart,
        stop_again: Option<u64>,
    },
    Restart(Restart),
}

pub(crate) fn restart() -> impl Strategy<Value = Restart> {
    prop_oneof![Just(Restart::Process), Just(Restart::Machine)]
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let picks = prop::collection::vec(0..16_usize, 0..4);
    let table = 0..2_usize;
    let step = prop_oneof![
        6 => (1..5_usize).prop_map(Step::Stream),
        1 => Just(Step::DropStreams),
        14 => (table.clone(), 0..24_u64, picks)
            .prop_map(|(table, key, picks)| Step::Insert { table, key, picks }),
        6 => (table.clone(), 0..24_usize, 0..4_u8)
            .prop_map(|(table, at, what)| Step::Change { table, at, what }),
        4 => (table.clone(), 0..24_usize, 1..8_usize)
            .prop_map(|(table, at, count)| Step::Delete { table, at, count }),
        1 => table.clone().prop_map(|table| Step::Reset { table }),
        1 => table.prop_map(|table| Step::Settings { table }),
        1 => Just(Step::Note),
        1 => Just(Step::Join),
        1 => Just(Step::Write),
        12 => Just(Step::Commit),
        2 => Just(Step::BeginBase),
        6 => (1..12_usize).prop_map(|most| Step::Part { most }),
        3 => Just(Step::EndBase),
        2 => Just(Step::Forget),
        2 => Just(Step::Move),
        2 => prop_oneof![Just(0), Just(0), 20..300_u64]
            .prop_map(|per_thousand| Step::Fail { per_thousand }),
        2 => (0..40_u64, restart(), prop::option::of(0..12_u64)).prop_map(
            |(calls, restart, stop_again)| Step::StopIn { calls, restart, stop_again }
        ),
        1 => restart().prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..160)
}

pub(crate) struct History {
    pub(crate) disk: SimulatedDisk,
    pub(crate) options: StoreOptions,
    pub(crate) journal: Option<Journal>,
    tables: Tables,
    streams: Vec<Chunk>,
    heads: HeadsCache,
    next_chunk: u64,
    /// A commit that is to be given again.
    waiting: Option<Changes>,
    snapshot: Option<Vec<(usize, Table)>>,
    /// All commits that began, and the last one that is on disk for sure.
    pub(crate) commits: BTreeMap<u64, Seen>,
    /// Those that a start did not find, by their numbers, which later ones have got. Their frames
    /// may be there, behind the end of a log that counts.
    pub(crate) given_up: Vec<(u64, Seen)>,
    synced: u64,
    restart: Restart,
    stop_again: Option<u64>,
}

impl History {
    pub(crate) fn new(directory: &Path, seed: u64) -> Self {
        let mut history = Self {
            disk: SimulatedDisk::new(seed),
            options: options(directory),
            journal: None,
            tables: Tables::new(0),
            streams: Vec::new(),
            heads: HeadsCache::default(),
            next_chunk: 1,
            waiting: None,
            snapshot: None,
            commits: BTreeMap::from([(0, Seen::default())]),
            given_up: Vec::new(),
            synced: 0,
            restart: Restart::Machine,
            stop_again: None,
        };
        history.open();
        history
    }

    /// Starts, again and again if the disk stops meanwhile, and compares.
    fn open(&mut self) {
        self.journal = None;
        self.streams.clear();
        (self.waiting, self.snapshot) = (None, None);
        self.tables = Tables::new(self.tables.next());
        let (journal, recovered) = loop {
            if let Some(calls) = self.stop_again.take() {
                self.disk.stop_in(calls);
            }
            match Journal::open(
                self.options.clone(),
                Arc::new(self.disk.clone()),
                &AtomicBool::new(false),
            ) {
                // It may have stopped at a deletion, which is not needed.
                Ok(opened) if !self.disk.has_stopped() => break opened,
                Ok(opened) => drop(opened),
                Err(error) => assert!(self.disk.has_stopped(), "{error}"),
            }
            self.disk.restart(self.restart);
        };
        let newest = *self.commits.last_key_value().unwrap().0;
        let commit = recovered.commit;
        assert!(
            (self.synced..=newest).contains(&commit),
            "commit {commit} is not from {} to {newest}",
            self.synced
        );
        let (tables, seen) = Tables::recovered(&recovered, self.tables.next());
        assert_eq!(seen, self.commits[&commit], "commit {commit}");
        drop(recovered);
        (self.tables, self.journal) = (tables, Some(journal));
        self.tables.chunks().for_each(check_chunk);
        self.synced = commit;
        self.given_up.extend(self.commits.split_off(&(commit + 1)));
    }

    fn journal(&mut self) -> &mut Journal {
        self.journal.as_mut().unwrap()
    }

    /// Starts again if the disk has stopped.
    fn after<T>(&mut self, result: reverb_base::Result<T>) -> Option<T> {
        if self.disk.has_stopped() {
            self.disk.restart(self.restart);
            self.open();
        }
        result.ok()
    }

    fn commit(&mut self) -> bool {
        let changes = self.waiting.take().unwrap_or_else(|| {
            let (changes, seen) = self.tables.take_changes();
            let number = self.journal().last_commit() + 1;
            self.commits.insert(number, seen);
            changes
        });
        let committed = self.journal().commit(&changes);
        self.waiting = committed.is_err().then_some(changes);
        if let Ok(committed) = &committed {
            assert_eq!(committed.commit, self.synced + 1);
            self.synced = committed.commit;
        }
        let is_running = !self.disk.has_stopped();
        self.after(committed).is_some() && is_running
    }

    fn pick(&self, picks: &[usize]) -> Vec<Chunk> {
        let mut chunks: Vec<Chunk> = Vec::new();
        for pick in picks {
            let picked = self.streams.get(pick % self.streams.len().max(1));
            let picked = picked.filter(|chunk| !chunks.iter().any(|it| it.is_same(chunk)));
            chunks.extend(picked.cloned());
        }
        chunks
    }

    pub(crate) fn run(&mut self, step: Step) {
        match step {
            Step::Stream(count) => {
                for _ in 0..count {
                    self.streams.push(held(self.next_chunk, &mut self.heads));
                    self.next_chunk += 1;
                }
                let excess = self.streams.len().saturating_sub(16);
                self.streams.drain(..excess);
            }
            Step::DropStreams => self.streams.clear(),
            Step::Insert { table, key, picks } => {
                let chunks = self.pick(&picks);
                self.tables.insert(table, key, chunks);
            }
            Step::Change { table, at, what } => {
                self.tables.change(table, at, |values| match what {
                    0 => values.removal_priority += 1.0,
                    1 => values.times_sampled += 1,
                    _ => values.priority += 0.5,
                });
            }
            Step::Delete { table, at, count } => {
                (0..count).for_each(|_| self.tables.delete(table, at));
            }
            Step::Reset { table } => self.tables.reset(table),
            Step::Settings { table } => self.tables.tables[table].settings += 1,
            Step::Note => self.tables.note(b"a note".to_vec()),
            Step::Join => self.tables.join(),
            Step::Write => {
                let chunks: Vec<Chunk> = self.tables.chunks().cloned().collect();
                let written = self.journal().write(&chunks);
                self.after(written);
            }
            Step::Commit => drop(self.commit()),
            Step::BeginBase => {
                // A base is of a commit, since which nothing has changed.
                let has_waited = self.waiting.is_some();
                if self.commit() && (!has_waited || self.commit()) {
                    let begun = self.journal().begin_base();
                    self.snapshot = begun.is_ok().then(|| self.tables.snapshot());
                    self.after(begun);
                }
            }
            Step::Part { most } => {
                if let Some(mut snapshot) = self.snapshot.take() {
                    if let Some(part) = take_part(&mut snapshot, most) {
                        let put = self.journal().put_part(&part);
                        self.snapshot = put.is_ok().then_some(snapshot);
                        self.after(put);
                    } else {
                        self.snapshot = Some(snapshot);
                    }
                }
            }
            Step::EndBase => {
                while self.snapshot.as_ref().is_some_and(|snapshot| !snapshot.is_empty()) {
                    self.run(Step::Part { most: 5 });
                }
                if self.snapshot.take().is_some() {
                    let ended = self.journal().end_base();
                    self.after(ended);
                }
            }
            Step::Forget => {
                let chunks = self.tables.chunks().chain(&self.streams);
                let forgotten = chunks.filter(|chunk| chunk.forget());
                let first = forgotten.last().cloned();
                first.iter().for_each(check_chunk);
            }
            Step::Move => {
                let to_empty = self.journal().observer().to_empty();
                let mut moved: Vec<Chunk> = self.tables.chunks().cloned().collect();
                moved.retain(|it| it.place().is_some_and(|place| to_empty.contains(&place)));
                if self.waiting.is_none() {
                    let (mut changes, seen) = self.tables.take_changes();
                    changes.moved = moved;
                    let number = self.journal().last_commit() + 1;
                    self.commits.insert(number, seen);
                    self.waiting = Some(changes);
                }
                self.commit();
            }
            Step::Fail { per_thousand } => self.disk.set_failing(per_thousand),
            Step::StopIn { calls, restart, stop_again } => {
                (self.restart, self.stop_again) = (restart, stop_again);
                self.disk.stop_in(calls);
            }
            Step::Restart(restart) => {
                self.disk.restart(restart);
                self.open();
            }
        }
    }

    /// A disk that works: a few commits and bases later nothing is left that nobody needs.
    fn end(mut self) {
        for restart in [Restart::Process, Restart::Machine] {
            self.disk.restart(restart);
            self.open();
        }
        for _ in 0..2 {
            self.run(Step::BeginBase);
            self.run(Step::EndBase);
        }
        self.run(Step::Commit);
        self.run(Step::Commit);
        let names = self.disk.list(&self.options.path).unwrap();
        let count = |prefix: &str| {
            let names = names.iter().map(|name| name.to_string_lossy());
            names.filter(|name| name.starts_with(prefix) && name.ends_with(".seg")).count()
        };
        assert_eq!(count("base-"), 2, "{names:?}");
        self.run(Step::Restart(Restart::Machine));
    }
}

pub(crate) fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_come_back_as_of_one_commit(seed in any::<u64>(), steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::new(directory.path(), seed);
        for step in steps {
            history.run(step);
        }
        history.end();
    }
}
