// SPDX-License-Identifier: Apache-2.0
//! Longest wait of another client for the lock of a large table, while one operation runs.
//!
//! `cargo run --release -p reverb-engine --example lock_holds [items [part of a name]]`
//!
//! A second thread takes the lock all the time and notes its longest wait: the longest hold of the
//! operation, with what the machine adds. Each row is the median of five rounds. The rows of
//! `docs/design/engine.md`, "Work under the lock", come from here.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reverb_base::Error;
use reverb_data::{
    Chunk, ChunkBuilder, DType, ItemCondition, MemoryConfig, NewItem, RateLimiterConfig,
    SampleOptions, SelectorConfig, SequenceRange, Shape, StepWindow, StoredItem, TableChange,
    TableConfig, Tensor, TensorData, TrajectoryBuilder,
};
use reverb_engine::{Confirm, SlotSet, SnapshotCut, Table, configure};

const ROUNDS: usize = 5;
/// Steps of most items, and of one in ten thousand.
const SHORT: usize = 3;
const LONG: usize = 40;

struct IgnoreConfirm;

impl Confirm for IgnoreConfirm {
    fn confirmed(&self, keys: &[u64]) {
        black_box(keys);
    }

    fn failed(&self, error: Error) {
        panic!("{error}");
    }
}

/// A window of so many steps.
fn of(length: u32) -> SampleOptions {
    let window = StepWindow { length, before: 0, pads_left: false, pads_right: false };
    SampleOptions { window: Some(window), ..SampleOptions::default() }
}

/// One int64 column, of which all items are parts.
fn chunk() -> Chunk {
    let mut chunk = ChunkBuilder::new(false);
    chunk.push(&Tensor {
        dtype: DType::Int64,
        shape: Shape::from_slice(&[LONG]),
        data: TensorData::Bytes(vec![0; LONG * 8]),
    });
    chunk.finish(1, SequenceRange { episode_id: 1, ..SequenceRange::default() })
}

/// Runs operations that change nothing of note, or that the next round can repeat.
struct Bench {
    num_items: u64,
    only: Option<String>,
    runtime: tokio::runtime::Runtime,
    chunk: Chunk,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let num_items = arguments.next().map_or(1_000_000, |text| text.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let bench = Bench { num_items, only: arguments.next(), runtime, chunk: chunk() };
    println!("{num_items} items; the longest wait of another client, median of {ROUNDS} rounds\n");
    println!("{:58} {:>9} {:>9}", "operation", "hold us", "all us");
    bench.windows();
    bench.samples();
    bench.reads();
    bench.updates();
    bench.changes();
    bench.inserts();
}

impl Bench {
    fn windows(&self) {
        let samplers = [
            ("uniform", SelectorConfig::Uniform),
            ("over steps", SelectorConfig::UniformOverSteps),
            ("prioritized", SelectorConfig::prioritized(0.6)),
            ("recent", SelectorConfig::Recent { expected_age: 1e5 }),
        ];
        for (name, sampler) in samplers {
            if !self.is_asked(&format!("window {name}")) {
                continue;
            }
            let table = self.filled(TableConfig { sampler, ..self.config() });
            self.sample(&table, 1, of(2));
            let mut length = LONG as u32;
            row(&table, &format!("window {name}: rare, 256 of a new length"), || {
                length -= 1;
                self.sample(&table, 256, of(length));
            });
            row(&table, &format!("window {name}: rare, 256 of one length"), || {
                self.sample(&table, 256, of(LONG as u32));
            });
            let distinct = SampleOptions { distinct: true, ..of(LONG as u32) };
            row(&table, &format!("window {name}: rare, 32 distinct"), || {
                self.sample(&table, 32, distinct);
            });
            let mut length = SHORT as u32 + 1;
            row(&table, &format!("window {name}: common, 256 of new padding"), || {
                length += 1;
                let window = StepWindow { length, before: 0, pads_left: false, pads_right: true };
                self.sample(
                    &table,
                    256,
                    SampleOptions { window: Some(window), ..SampleOptions::default() },
                );
            });
            row(&table, &format!("window {name}: none there, with the reason"), || {
                self.sample(&table, 1, of(1000));
            });
        }
        if self.is_asked("window sampled once") {
            let config = TableConfig {
                sampler: SelectorConfig::Uniform,
                max_times_sampled: 1000,
                ..self.config()
            };
            let table = self.filled(config);
            self.sample(&table, 1, of(2));
            row(&table, "window sampled once: rare, 256 at once", || {
                self.sample(&table, 256, of(LONG as u32));
            });
        }
        if self.is_asked("window columns differ") {
            let table = Table::new(self.config()).unwrap();
            self.fill(&table, |key| self.item_of(key, &[SHORT, 2]));
            row(&table, "window columns differ: none there, with the reason", || {
                self.sample(&table, 1, of(2));
            });
        }
    }

    fn samples(&self) {
        if !self.is_asked("sample") {
            return;
        }
        let uniform = TableConfig { sampler: SelectorConfig::Uniform, ..self.config() };
        let table = self.filled(uniform.clone());
        row(&table, "sample: 65,536 at once", || {
            let whole = SampleOptions { all_or_nothing: true, ..SampleOptions::default() };
            self.sample(&table, 65_536, whole);
        });
        let distinct = SampleOptions { distinct: true, ..SampleOptions::default() };
        row(&table, "sample: 65,536 distinct", || self.sample(&table, 65_536, distinct));
        for (name, sampler) in [
            ("uniform", SelectorConfig::Uniform),
            ("prioritized", SelectorConfig::prioritized(0.6)),
            ("recent", SelectorConfig::Recent { expected_age: 100.0 }),
        ] {
            let table = Table::new(TableConfig { sampler, ..self.config() }).unwrap();
            fill_some(&table, 66_000, |key| self.item(key));
            row(&table, &format!("sample {name}: 65,536 distinct of 66,000"), || {
                self.sample(&table, 65_536, distinct);
            });
        }
    }

    fn reads(&self) {
        if !self.is_asked("scan") && !self.is_asked("status") && !self.is_asked("snapshot") {
            return;
        }
        let table = self.filled(self.config());
        let none = ItemCondition { priority: (1e9, f64::INFINITY), ..ItemCondition::ALL };
        row(&table, "scan: begin with a condition", || {
            drop(table.begin_scan_where(none).unwrap());
        });
        row(&table, "scan: all items", || {
            let mut scan = table.begin_scan().unwrap();
            while !table.scan(&mut scan).unwrap().is_empty() {}
        });
        let keys: Vec<u64> = (0..100_000).map(|key| key * 7 % self.num_items).collect();
        row(&table, "scan: 100,000 keys", || {
            let mut scan = table.begin_fetch(&keys, ItemCondition::ALL).unwrap();
            while !table.scan(&mut scan).unwrap().is_empty() {}
        });
        row(&table, "status", || drop(black_box(table.status())));
        row(&table, "snapshot: begin", || {
            drop(SnapshotCut::begin(&[Arc::clone(&table)]).unwrap());
        });
        row(&table, "snapshot: copy", || {
            drop(SnapshotCut::begin(&[Arc::clone(&table)]).unwrap().copy());
        });
    }

    fn updates(&self) {
        if !self.is_asked("update") {
            return;
        }
        let sampler = SelectorConfig::prioritized(0.6);
        let remover = SelectorConfig::Heap { min_heap: true };
        let table = self.filled(TableConfig { sampler, remover, ..self.config() });
        let mut keys = (0..).map(|key: u64| key * 7919 % self.num_items);
        let mut next = |count: usize| keys.by_ref().take(count).collect::<Vec<u64>>();
        let updates: Vec<(u64, f64)> = next(100_000).iter().map(|&key| (key, 0.5)).collect();
        row(&table, "update: 100,000 priorities", || {
            drop(table.mutate(&updates, &[]).unwrap());
        });
        let few = self.num_items as usize / 25;
        let mut parts = next(2 * ROUNDS * few).chunks(few).map(<[u64]>::to_vec).collect::<Vec<_>>();
        row(&table, "update: a 25th of all keys deleted", || {
            drop(table.mutate(&[], &parts.pop().unwrap()).unwrap());
        });
        row(&table, "update: a 25th of all keys deleted, with a condition", || {
            table.delete_keys(&parts.pop().unwrap(), &ItemCondition::ALL).unwrap();
        });
        let none = ItemCondition { priority: (1e9, f64::INFINITY), ..ItemCondition::ALL };
        row(&table, "update: delete where no item is", || {
            table.delete_where(&none).unwrap();
        });
        let limited = TableConfig {
            max_times_sampled: 10,
            rate_limiter: RateLimiterConfig { min_diff: 0.0, ..self.config().rate_limiter },
            ..self.config()
        };
        let table = self.filled(limited);
        row(&table, "update: one key deleted, where samples are limited", || {
            table.delete_keys(&[5], &ItemCondition::ALL).unwrap();
        });
    }

    fn changes(&self) {
        if !self.is_asked("admin") {
            return;
        }
        let sampler = SelectorConfig::prioritized(0.6);
        let table = self.filled(TableConfig { sampler, ..self.config() });
        let change = |change| drop(configure(&[(Arc::clone(&table), change)], false).unwrap());
        let mut exponent = 0.1;
        row(&table, "admin: another priority_exponent", || {
            exponent += 0.1;
            change(TableChange { priority_exponent: Some(exponent), ..TableChange::default() });
        });
        let mut size = self.num_items as i64;
        row(&table, "admin: a max_size that is an eighth smaller", || {
            size -= self.num_items as i64 / 8;
            change(TableChange { max_size: Some(size), ..TableChange::default() });
        });
        let rate_limiter = RateLimiterConfig { min_diff: 0.0, ..self.config().rate_limiter };
        let mut times = 100;
        row(&table, "admin: another max_times_sampled", || {
            times += 1;
            change(TableChange {
                max_times_sampled: Some(times),
                rate_limiter: Some(rate_limiter),
                ..TableChange::default()
            });
        });
        row(&table, "admin: own slots of a group", || {
            table.set_own_slots(&Arc::new(SlotSet::new(0..u16::MAX)));
        });
        let mut key = 2 * self.num_items;
        row(&table, "admin: 10,000 items transferred", || {
            let items = (key..key + 10_000).map(|key| self.stored(key)).collect();
            key += 10_000;
            table.transfer(items).unwrap();
        });
        fill_some(&table, self.num_items / 4, |key| self.item(key + 3 * self.num_items));
        row(&table, "admin: reset", || table.reset());
    }

    fn inserts(&self) {
        let cases = [
            ("fifo, fifo", SelectorConfig::Fifo, SelectorConfig::Fifo),
            ("uniform, fifo", SelectorConfig::Uniform, SelectorConfig::Fifo),
            ("prioritized, fifo", SelectorConfig::prioritized(0.6), SelectorConfig::Fifo),
            ("recent, fifo", SelectorConfig::Recent { expected_age: 1e5 }, SelectorConfig::Fifo),
            (
                "recent, uniform",
                SelectorConfig::Recent { expected_age: 1e5 },
                SelectorConfig::Uniform,
            ),
        ];
        for (name, sampler, remover) in cases {
            if !self.is_asked(&format!("insert {name}")) {
                continue;
            }
            let mut growing = Vec::new();
            let mut full = Vec::new();
            for _ in 0..ROUNDS {
                let config = TableConfig { sampler, remover, ..self.config() };
                let table = Table::new(config).unwrap();
                growing.push(self.fill(&table, |key| self.item(key)));
                full.push(self.fill(&table, |key| self.item(key + self.num_items)));
            }
            print(&format!("insert {name}: 32 items, while it grows"), growing);
            print(&format!("insert {name}: 32 items, when it is full"), full);
        }
        if self.is_asked("insert bytes") {
            let memory = MemoryConfig { max_bytes: Some(1 << 30), ..MemoryConfig::default() };
            let table = self.filled(TableConfig { memory, ..self.config() });
            let used = table.bytes();
            let max_bytes = Some(Some(used));
            let change = TableChange { max_bytes, ..TableChange::default() };
            drop(configure(&[(Arc::clone(&table), change)], false).unwrap());
            let large = |part| {
                let range = SequenceRange { episode_id: 5, ..SequenceRange::default() };
                Chunk::from_slice(part, range, false, &vec![7; used as usize / 10])
            };
            let mut key = 10 * self.num_items;
            row(&table, "insert bytes: an item that evicts a tenth of all", || {
                key += 1;
                let mut trajectory = TrajectoryBuilder::new();
                trajectory.slice(&large(key), 0, 0, 1);
                trajectory.end_column(false);
                let item = NewItem::new(key, "t", 1.0, trajectory.finish().unwrap());
                insert(&table, vec![item]);
            });
        }
    }

    fn config(&self) -> TableConfig {
        TableConfig { seed: Some(1), ..TableConfig::fifo("t", self.num_items as i64) }
    }

    fn filled(&self, config: TableConfig) -> Arc<Table> {
        let table = Table::new(config).unwrap();
        self.fill(&table, |key| self.item(key));
        table
    }

    /// Inserts as many items as the table may have; returns the longest insert.
    fn fill(&self, table: &Arc<Table>, item: impl Fn(u64) -> NewItem) -> (Duration, Duration) {
        fill_some(table, self.num_items, item)
    }

    fn item(&self, key: u64) -> NewItem {
        self.item_of(key, &[if key % 10_000 == 5 { LONG } else { SHORT }])
    }

    fn item_of(&self, key: u64, lengths: &[usize]) -> NewItem {
        let mut trajectory = TrajectoryBuilder::new();
        for &length in lengths {
            trajectory.slice(&self.chunk, 0, 0, length);
            trajectory.end_column(false);
        }
        NewItem::new(key, "t", 1.0 + (key % 10) as f64, trajectory.finish().unwrap())
    }

    fn stored(&self, key: u64) -> StoredItem {
        let NewItem { priority, times_sampled, trajectory, .. } = self.item(key);
        let (removal_priority, inserted_at_ns) = (None, key as i64);
        StoredItem { key, priority, removal_priority, times_sampled, inserted_at_ns, trajectory }
    }

    fn sample(&self, table: &Arc<Table>, count: usize, options: SampleOptions) {
        let sampled = table.sample_with(count, Some(Duration::ZERO), options);
        drop(black_box(self.runtime.block_on(sampled)));
    }

    fn is_asked(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()) || only.contains(name))
    }
}

fn insert(table: &Arc<Table>, items: Vec<NewItem>) {
    let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
    table.insert(items, &confirm).unwrap();
}

fn print(name: &str, mut rounds: Vec<(Duration, Duration)>) {
    let mut median = |by: fn(&(Duration, Duration)) -> Duration| {
        rounds.sort_by_key(by);
        by(&rounds[rounds.len() / 2]).as_micros()
    };
    println!("{name:58} {:>9} {:>9}", median(|hold| hold.0), median(|hold| hold.1));
}

fn fill_some(
    table: &Arc<Table>,
    count: u64,
    item: impl Fn(u64) -> NewItem,
) -> (Duration, Duration) {
    let (mut longest, mut all) = (Duration::ZERO, Duration::ZERO);
    for key in (0..count).step_by(32) {
        let items = (key..count.min(key + 32)).map(&item).collect();
        let start = Instant::now();
        insert(table, items);
        longest = longest.max(start.elapsed());
        all += start.elapsed();
    }
    (longest, all)
}

/// Runs an operation several times, beside a client that takes its lock.
fn row(probed: &Table, name: &str, mut operation: impl FnMut()) {
    let rounds = (0..ROUNDS).map(|_| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let probe = scope.spawn(|| {
                let mut longest = Duration::ZERO;
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    black_box(probed.len());
                    longest = longest.max(start.elapsed());
                }
                longest
            });
            let start = Instant::now();
            operation();
            let all = start.elapsed();
            is_over.store(true, Ordering::Relaxed);
            (probe.join().unwrap(), all)
        })
    });
    print(name, rounds.collect());
}
