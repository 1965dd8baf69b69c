// SPDX-License-Identifier: Apache-2.0
//! Time per operation and memory per item of one table, for each kind of sampler.
//!
//! `cargo run --release -p reverb-engine --example table_speed [items [case [commit]]]`
//!
//! With a third number, changes are recorded, and a commit is taken after that many of them.
//!
//! Items are as small as a transition of a small environment: one chunk of about 60 encoded bytes,
//! episodes of 200 items. Operations access random items, which is the worst case for the
//! processor's caches.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use reverb_base::Error;
use reverb_data::{
    Chunk, Draw, NewItem, SelectorConfig, SequenceRange, TableConfig, TrajectoryBuilder,
};
use reverb_engine::{Commit, Confirm, Table};

const BATCH: usize = 256;
const ROUNDS: usize = 400;
/// Items of one insert call, as in one message.
const MESSAGE: usize = 32;

struct IgnoreConfirm;

impl Confirm for IgnoreConfirm {
    fn confirmed(&self, keys: &[u64]) {
        black_box(keys);
    }

    fn failed(&self, error: Error) {
        panic!("{error}");
    }
}

fn main() {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse().unwrap()).collect();
    let prioritized = SelectorConfig::prioritized(0.6);
    let stratified = SelectorConfig::Prioritized { priority_exponent: 0.6, draw: Draw::Stratified };
    let cases = [
        (SelectorConfig::Uniform, SelectorConfig::Fifo),
        (prioritized, SelectorConfig::Fifo),
        (SelectorConfig::Fifo, SelectorConfig::Fifo),
        (SelectorConfig::Heap { min_heap: false }, SelectorConfig::Fifo),
        (prioritized, SelectorConfig::Heap { min_heap: true }),
        (stratified, SelectorConfig::Fifo),
        (SelectorConfig::Shuffle { seed: None }, SelectorConfig::Fifo),
        (SelectorConfig::Recent { expected_age: 1e5 }, SelectorConfig::Fifo),
    ];
    if let [num_items, case, ref commit @ ..] = arguments[..] {
        let (sampler, remover) = cases[case];
        return measure(num_items, sampler, remover, commit.first().copied());
    }
    let num_items = arguments.first().copied().unwrap_or(1_000_000);
    println!("{num_items} items; medians of {ROUNDS} rounds where in batches");
    println!(
        "{:34} {:>10} {:>10} {:>13} {:>13} {:>8}",
        "sampler, remover", "insert ns", "evict ns", "sample256 us", "update256 us", "B/item"
    );
    // Each case has its own process, so that none reuses memory that another has freed.
    for case in 0..cases.len() {
        let program = std::env::current_exe().unwrap();
        let arguments = [num_items.to_string(), case.to_string()];
        std::process::Command::new(program).args(arguments).status().unwrap();
    }
}

fn measure(
    num_items: usize,
    sampler: SelectorConfig,
    remover: SelectorConfig,
    commit_after: Option<usize>,
) {
    let table = Table::new(TableConfig {
        sampler,
        remover,
        seed: Some(1),
        ..TableConfig::fifo("speed", num_items as i64)
    })
    .unwrap();
    let mut num_changes = 0;
    let mut commit = |changes| {
        num_changes += changes;
        if commit_after.is_some_and(|limit| num_changes >= limit) {
            num_changes = 0;
            drop(black_box(Commit::take(std::slice::from_ref(&table))));
            table.set_synced();
        }
    };
    if commit_after.is_some() {
        table.record_changes(Duration::from_secs(3600));
    }
    let mut rng = SmallRng::seed_from_u64(2);
    let mut keys = Vec::new();
    let mut source = Source::default();
    let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);

    let memory = resident_bytes();
    let mut insert = |keys: &mut Vec<u64>, rng: &mut SmallRng, count: usize| {
        let mut spent = Duration::ZERO;
        for _ in 0..count / MESSAGE {
            let items: Vec<NewItem> = (0..MESSAGE).map(|_| source.next(rng)).collect();
            keys.extend(items.iter().map(|item| item.key));
            let start = Instant::now();
            table.insert(items, &confirm).unwrap();
            spent += start.elapsed();
            commit(MESSAGE);
        }
        spent.as_nanos() / count as u128
    };
    let insert_ns = insert(&mut keys, &mut rng, num_items);
    let per_item = resident_bytes().saturating_sub(memory) / num_items;
    let evict_ns = insert(&mut keys, &mut rng, num_items / 4);
    let keys = &keys[keys.len() - num_items / MESSAGE * MESSAGE..];

    let sample = median(|| {
        let start = Instant::now();
        let samples = table.try_sample(BATCH).unwrap();
        let spent = start.elapsed();
        assert_eq!(samples.len(), BATCH);
        spent
    });
    let update = median(|| {
        let updates: Vec<(u64, f64)> =
            (0..BATCH).map(|_| (keys[rng.random_range(0..keys.len())], rng.random())).collect();
        let start = Instant::now();
        table.mutate(&updates, &[]).unwrap();
        let spent = start.elapsed();
        commit(BATCH);
        spent
    });
    let name = format!("{sampler:?}, {remover:?}")
        .replace("priority_exponent: ", "")
        .replace("min_heap: ", "");
    println!(
        "{name:34} {insert_ns:>10} {evict_ns:>10} {:>13.1} {:>13.1} {per_item:>8}",
        sample.as_nanos() as f64 / 1e3,
        update.as_nanos() as f64 / 1e3,
    );
}

/// Makes items like those of a writer.
#[derive(Default)]
struct Source {
    steps: u64,
    episode_id: u64,
}

impl Source {
    fn next(&mut self, rng: &mut SmallRng) -> NewItem {
        if self.steps.is_multiple_of(200) {
            self.episode_id = rng.random();
        }
        self.steps += 1;
        let range = SequenceRange { episode_id: self.episode_id, ..SequenceRange::default() };
        let chunk = Chunk::from_slice(rng.random(), range, false, &[7; 60]);
        let mut builder = TrajectoryBuilder::new();
        for tensor in 0..3 {
            builder.slice(&chunk, tensor, 0, 1);
            builder.end_column(true);
        }
        let trajectory = builder.finish().unwrap();
        NewItem::new(rng.random(), "speed", rng.random::<f64>(), trajectory)
    }
}

fn median(mut round: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| round()).collect();
    times.sort();
    times[ROUNDS / 2]
}

/// Resident memory of the process on Linux; 0 elsewhere.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|text| text.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}
