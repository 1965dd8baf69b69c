// SPDX-License-Identifier: Apache-2.0
//! Random operations on a table's state, compared with a simple model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use reverb_data::{
    Chunk, MAX_PRIORITY, MemoryConfig, NewItem, RateLimiterConfig, SampleOptions, SelectorConfig,
    SequenceRange, ServerAccount, TableChange, TableConfig, TrajectoryBuilder, is_max_priority,
};

use super::items::AllItems;
use super::state::{Batch, REMOVAL_BYTES, TableState};
use super::statistics::Removal;
use super::testing::{config, removers, selectors};
use crate::selector::NewWeights;

/// Number of chunks. Chunk `n` belongs to episode `n % NUM_EPISODES`. Items share chunks.
const NUM_CHUNKS: u64 = 12;
const NUM_EPISODES: u64 = 6;

#[derive(Debug, Clone)]
pub(super) enum Operation {
    Insert {
        key: u64,
        priority: f64,
        removal_priority: Option<f64>,
        chunks: Vec<u64>,
        times_sampled: i32,
        replaces: bool,
    },
    Sample(usize),
    Update(Vec<(u64, f64)>),
    Delete(u64),
    /// Removes an item as one whose payload is lost.
    Lose(u64),
    Reset,
    Configure(TableChange),
}

#[derive(Debug, Clone)]
struct ModelItem {
    key: u64,
    priority: f64,
    times_sampled: i32,
    chunks: Vec<u64>,
    /// Bytes of the item without its chunks.
    own_bytes: u64,
    /// Time of its last insert or update. Its position in the list is the order of insertion.
    touched: u64,
    /// Removal priority, and the time when it was set.
    removal: Option<(f64, u64)>,
    /// Last epoch in which the item was sampled.
    epoch: i64,
}

impl ModelItem {
    /// Bytes without the chunks, including the entry of a removal priority.
    fn all_own_bytes(&self) -> u64 {
        self.own_bytes + self.removal.map_or(0, |_| REMOVAL_BYTES)
    }
}

/// Model: items in order of insertion, and counters.
#[derive(Debug, Default)]
struct Model {
    items: Vec<ModelItem>,
    /// Largest priority since the table was empty.
    largest: f64,
    epoch: i64,
    touches: u64,
    inserts: i64,
    samples: i64,
    deletes: i64,
    deleted_episodes: i64,
    unique_samples: i64,
}

impl Model {
    fn can_sample(&self, limiter: &RateLimiterConfig) -> bool {
        let RateLimiterConfig { samples_per_insert, min_size_to_sample, min_diff, .. } = *limiter;
        self.items.len() as i64 >= min_size_to_sample
            && self.inserts as f64 * samples_per_insert - self.samples as f64 - 1.0 >= min_diff
    }

    fn can_insert(&self, limiter: &RateLimiterConfig) -> bool {
        let RateLimiterConfig { samples_per_insert, min_size_to_sample, max_diff, .. } = *limiter;
        (self.items.len() as i64) < min_size_to_sample
            || (self.inserts + 1) as f64 * samples_per_insert - self.samples as f64 <= max_diff
    }

    fn find(&mut self, key: u64) -> Option<&mut ModelItem> {
        self.items.iter_mut().find(|item| item.key == key)
    }

    fn episodes(&self) -> Vec<u64> {
        let mut episodes: Vec<u64> = self
            .items
            .iter()
            .flat_map(|item| item.chunks.iter().map(|chunk| chunk % NUM_EPISODES))
            .collect();
        episodes.sort_unstable();
        episodes.dedup();
        episodes
    }

    /// The kept items and one removed item.
    fn kept_and(&self, kept: &[u64], gone: u64) -> Self {
        let is_left = |item: &&ModelItem| kept.contains(&item.key) || item.key == gone;
        let items = self.items.iter().filter(is_left).cloned().collect();
        Self { items, ..Self::default() }
    }

    fn chunks(&self) -> BTreeSet<u64> {
        self.items.iter().flat_map(|item| item.chunks.iter().copied()).collect()
    }

    fn bytes(&self, chunks: &Chunks) -> u64 {
        let own: u64 = self.items.iter().map(ModelItem::all_own_bytes).sum();
        own + chunks.bytes(self.chunks())
    }

    fn update(&mut self, key: u64, priority: f64) {
        self.touches += 1;
        let touched = self.touches;
        if let Some(item) = self.find(key) {
            (item.priority, item.touched) = (priority, touched);
            self.largest = self.largest.max(priority);
        }
    }

    fn delete(&mut self, key: u64) {
        if let Some(at) = self.items.iter().position(|item| item.key == key) {
            let before = self.episodes().len();
            self.items.remove(at);
            self.deleted_episodes += (before - self.episodes().len()) as i64;
            self.deletes += 1;
        }
    }

    /// The model from the view of its remover.
    fn for_remover(&self) -> Self {
        let mut items = self.items.clone();
        for item in &mut items {
            // Selected items are removed, so epochs do not count.
            item.epoch = -1;
            (item.priority, item.touched) = item.removal.unwrap_or((item.priority, item.touched));
        }
        Self { items, ..Self::default() }
    }

    /// Priority of an item with `MAX_PRIORITY`.
    fn max_priority(&self, sampler: &SelectorConfig) -> f64 {
        if self.items.is_empty() {
            return 1.0;
        }
        match sampler.exponent() {
            None | Some(0.0) => self.largest,
            Some(_) => self.items.iter().map(|item| item.priority).fold(0.0, f64::max),
        }
    }

    /// Keys that the selector may choose, with their probabilities.
    fn choices(&self, selector: &SelectorConfig) -> Vec<(u64, f64)> {
        let certain = |item: Option<&ModelItem>| item.map(|item| (item.key, 1.0));
        let by_rank = |sign: f64| {
            certain(self.items.iter().min_by(|a, b| {
                let ranks = (sign * a.priority).partial_cmp(&(sign * b.priority)).unwrap();
                ranks.then(a.touched.cmp(&b.touched))
            }))
        };
        let alike = || self.items.iter().map(|item| (item.key, 1.0 / self.items.len() as f64));
        match *selector {
            SelectorConfig::Fifo => certain(self.items.first()).into_iter().collect(),
            SelectorConfig::Lifo => certain(self.items.last()).into_iter().collect(),
            SelectorConfig::Heap { min_heap: true } => by_rank(1.0).into_iter().collect(),
            SelectorConfig::Heap { min_heap: false } => by_rank(-1.0).into_iter().collect(),
            SelectorConfig::Uniform => alike().collect(),
            SelectorConfig::UniformOverSteps => {
                let steps = |item: &ModelItem| item.chunks.len() as f64;
                let total: f64 = self.items.iter().map(steps).sum();
                self.items.iter().map(|item| (item.key, steps(item) / total)).collect()
            }
            SelectorConfig::Shuffle { .. } => {
                let is_left = |key: u64| {
                    self.items.iter().any(|item| item.key == key && item.epoch < self.epoch)
                };
                let left: Vec<_> = alike().filter(|&(key, _)| is_left(key)).collect();
                if left.is_empty() { alike().collect() } else { left }
            }
            SelectorConfig::Recent { expected_age } => {
                let q = expected_age / (expected_age + 1.0);
                let weights = (0..self.items.len()).map(|age| q.powi(age as i32));
                let total: f64 = weights.clone().sum();
                let newest_first = self.items.iter().rev().map(|item| item.key);
                newest_first.zip(weights.map(|weight| weight / total)).collect()
            }
            SelectorConfig::Prioritized { priority_exponent, .. } => {
                let weigh = |item: &ModelItem| match item.priority {
                    0.0 => 0.0,
                    priority => priority.powf(priority_exponent),
                };
                let total: f64 = self.items.iter().map(weigh).sum();
                if total == 0.0 {
                    return alike().collect();
                }
                let weights = self.items.iter().map(|item| (item.key, weigh(item) / total));
                weights.filter(|&(_, probability)| probability > 0.0).collect()
            }
        }
    }
}

/// The chunks of all items of a test.
#[derive(Default)]
struct Chunks(BTreeMap<u64, Chunk>);

impl Chunks {
    fn get(&mut self, key: u64) -> &Chunk {
        self.0.entry(key).or_insert_with(|| {
            let episode_id = key % NUM_EPISODES;
            let range = SequenceRange { episode_id, ..SequenceRange::default() };
            Chunk::from_slice(key, range, false, &vec![0; 30 * (key as usize % 7)])
        })
    }

    /// Bytes of these chunks, each once.
    fn bytes(&self, keys: impl IntoIterator<Item = u64>) -> u64 {
        let keys: BTreeSet<u64> = keys.into_iter().collect();
        keys.iter().map(|key| self.0[key].bytes()).sum()
    }
}

fn new_item(
    key: u64,
    priority: f64,
    times_sampled: i32,
    keys: &[u64],
    chunks: &mut Chunks,
) -> NewItem {
    let mut builder = TrajectoryBuilder::new();
    for &key in keys {
        builder.slice(chunks.get(key), 0, 0, 1);
    }
    builder.end_column(false);
    let trajectory = builder.finish().unwrap();
    NewItem { times_sampled, ..NewItem::new(key, "t", priority, trajectory) }
}

/// A state and its model, with the same operations applied to both.
struct Pair {
    config: TableConfig,
    state: TableState,
    model: Model,
    /// Number of lost items, also before a reset.
    num_lost: u64,
    num_replaced: u64,
}

impl Pair {
    fn new(config: TableConfig) -> Self {
        let (state, model) = (TableState::new(&config), Model::default());
        Self { config, state, model, num_lost: 0, num_replaced: 0 }
    }

    fn apply(&mut self, operation: &Operation, chunks: &mut Chunks) {
        match operation {
            Operation::Insert {
                key,
                priority,
                removal_priority,
                chunks: keys,
                times_sampled,
                replaces,
            } => {
                let allowed = self.model.can_insert(&self.config.rate_limiter);
                assert_eq!(self.state.limiter().can_insert(1), allowed);
                if allowed {
                    let (removal_priority, replaces) = (*removal_priority, *replaces);
                    let item = new_item(*key, *priority, *times_sampled, keys, chunks);
                    let item = NewItem { removal_priority, replaces, ..item };
                    self.insert(item, keys, chunks);
                }
            }
            Operation::Sample(count) => self.sample(*count),
            Operation::Update(updates) => {
                self.state.update(updates, &mut Vec::new());
                for &(key, priority) in updates {
                    self.model.update(key, priority);
                }
            }
            Operation::Delete(key) => {
                self.state.delete(*key);
                self.model.delete(*key);
            }
            Operation::Lose(key) => {
                self.num_lost += u64::from(self.state.remove(*key, Removal::Lost));
                self.model.delete(*key);
            }
            Operation::Configure(change) => self.configure(change, chunks),
            Operation::Reset => {
                let contents = self.state.reset(&self.config).unwrap();
                self.state.statistics_mut().removed.merge(&contents.as_removed());
                self.model = Model::default();
            }
        }
        drop(self.state.take_garbage());
        self.compare(chunks);
    }

    fn insert(&mut self, item: NewItem, keys: &[u64], chunks: &Chunks) {
        let NewItem { key, mut priority, removal_priority, times_sampled, replaces, .. } = item;
        if is_max_priority(priority) {
            priority = self.model.max_priority(&self.config.sampler);
        }
        let own_bytes = self.state.item_bytes() + item.trajectory.bytes();
        self.state.insert(item, 7);
        while self.state.has_surplus() {
            self.state.evict_surplus();
        }
        let model = &mut self.model;
        let removal = removal_priority.map(|priority| (priority, model.touches + 1));
        let mut counts = true;
        if let Some(item) = model.find(key) {
            // The same first chunk shows that it has come before.
            if !replaces || item.chunks[0] == keys[0] {
                item.removal = removal.or(item.removal);
                return model.update(key, priority);
            }
            let RateLimiterConfig { samples_per_insert, .. } = self.config.rate_limiter;
            counts = self.config.max_times_sampled <= 0
                || f64::from(item.times_sampled) >= samples_per_insert;
            model.delete(key);
            self.num_replaced += 1;
        }
        if model.items.is_empty() {
            model.largest = f64::NEG_INFINITY;
        }
        model.largest = model.largest.max(priority);
        model.touches += 1;
        let (touched, keys) = (model.touches, keys.to_vec());
        model.items.push(ModelItem {
            key,
            priority,
            times_sampled,
            chunks: keys,
            own_bytes,
            touched,
            removal,
            epoch: -1,
        });
        if counts {
            model.inserts += 1;
        } else {
            model.deletes -= 1;
        }
        self.evict(chunks);
    }

    fn configure(&mut self, change: &TableChange, chunks: &Chunks) {
        let Ok(new) = change.apply(&self.config) else { return };
        let (old, model) = (&self.config.rate_limiter, &mut self.model);
        let limiter = &new.rate_limiter;
        let is_unbounded = old.min_diff == -f64::MAX && old.max_diff == f64::MAX;
        if old != limiter {
            // The cursor keeps its distance from the lower bound, and stays within new bounds.
            let mut cursor = model.inserts as f64 * old.samples_per_insert - model.samples as f64;
            if old.min_diff != -f64::MAX && limiter.min_diff != -f64::MAX {
                cursor += limiter.min_diff - old.min_diff;
            }
            if old.samples_per_insert != limiter.samples_per_insert || is_unbounded {
                cursor = cursor.max(limiter.min_diff).min(limiter.max_diff);
            }
            let samples = model.inserts as f64 * limiter.samples_per_insert - cursor;
            model.samples = samples.round().max(0.0) as i64;
        }
        if let SelectorConfig::Prioritized { priority_exponent, .. } = new.sampler {
            let mut weights = NewWeights::new(priority_exponent);
            for (handle, item) in self.state.items().all(AllItems::Test) {
                weights.set(handle, item.priority()).unwrap();
            }
            self.state.swap_weights(weights);
        }
        self.state.configure(&new);
        let mut locks = 1;
        let before = self.state.len();
        while !self.state.shrink(&new, 3) {
            locks += 1;
        }
        assert!(before - self.state.len() <= 3 * locks);
        self.config = new;
        self.evict(chunks);
        let RateLimiterConfig { samples_per_insert, min_diff, .. } = self.config.rate_limiter;
        let (limit, model) = (self.config.max_times_sampled, &mut self.model);
        if limit > 0 && min_diff != -f64::MAX {
            // The items limit the number of samples.
            let left: i32 =
                model.items.iter().map(|item| (limit - item.times_sampled).max(1)).sum();
            let highest = min_diff + f64::from(left);
            let allowed = model.inserts as f64 * samples_per_insert;
            if allowed - model.samples as f64 > highest {
                model.samples = (allowed - highest).round() as i64;
            }
        }
    }

    /// Evicts from the model what the state has evicted, and checks that it was necessary.
    fn evict(&mut self, chunks: &Chunks) {
        let model = &mut self.model;
        let max_bytes = self.config.memory.max_bytes.unwrap_or(u64::MAX);
        let is_over = |model: &Model| {
            model.items.len() as i64 > self.config.max_size || model.bytes(chunks) > max_bytes
        };
        let kept = self.state.keys();
        let is_gone = |key: u64| !kept.contains(&key);
        let victims = model.items.iter().filter(|item| is_gone(item.key)).count();
        // With one victim fewer, the table would have been too large, whichever was the last.
        let mut was_over = victims == 0;
        for _ in 0..victims {
            // The evicted item can be random, but it must be a possible choice.
            let choices = model.for_remover().choices(&self.config.remover);
            let victim = choices.iter().find_map(|&(key, _)| is_gone(key).then_some(key));
            let victim = victim.unwrap_or_else(|| panic!("{kept:?} remain of {choices:?}"));
            was_over |= is_over(&model.kept_and(&kept, victim));
            model.delete(victim);
        }
        assert!(was_over && !is_over(model), "{kept:?}");
    }

    fn sample(&mut self, count: usize) {
        let mut batch = Batch::new(count, SampleOptions::default());
        self.state.sample(&mut batch);
        let got = batch.len();
        for sampled in batch.into_answer().unwrap() {
            assert!(self.model.can_sample(&self.config.rate_limiter));
            let choices = self.model.choices(&self.config.sampler);
            let size = self.model.items.len() as i64;
            let (_, probability) = choices
                .into_iter()
                .find(|&(key, _)| key == sampled.key)
                .expect("one that can be chosen");
            let smallest = self.model.choices(&self.config.sampler);
            let smallest =
                smallest.iter().map(|&(_, priority)| priority).fold(f64::INFINITY, f64::min);
            let is_told = !matches!(self.config.sampler, SelectorConfig::Recent { .. });
            let smallest = if is_told { smallest } else { 0.0 };
            assert!((sampled.min_probability - smallest).abs() < 1e-9);
            if let SelectorConfig::Shuffle { .. } = self.config.sampler {
                if self.model.items.iter().all(|item| item.epoch >= self.model.epoch) {
                    self.model.epoch += 1;
                }
                assert_eq!(sampled.epoch, self.model.epoch);
            }
            let epoch = self.model.epoch;
            let item = self.model.find(sampled.key).unwrap();
            item.epoch = epoch;
            let is_first = item.times_sampled == 0;
            item.times_sampled += 1;
            assert!((sampled.probability - probability).abs() < 1e-9);
            assert_eq!(sampled.priority, item.priority);
            assert_eq!(sampled.times_sampled, item.times_sampled);
            assert_eq!(sampled.table_size, size);
            assert!(sampled.inserted_at_ns >= 7);
            let limit = self.config.max_times_sampled;
            let is_used_up = limit > 0 && item.times_sampled >= limit;
            self.model.unique_samples += i64::from(is_first);
            self.model.samples += 1;
            if is_used_up {
                self.model.delete(sampled.key);
            }
        }
        let is_stopped = !self.model.can_sample(&self.config.rate_limiter);
        assert!(got == count || is_stopped, "{got} of {count}, although more were allowed");
    }

    fn compare(&self, chunks: &Chunks) {
        let Self { state, model, .. } = self;
        let mut keys: Vec<u64> = model.items.iter().map(|item| item.key).collect();
        assert_eq!(state.keys_by_age(), keys);
        keys.sort_unstable();
        assert_eq!(state.keys(), keys);
        for item in &model.items {
            assert_eq!(state.peek(item.key), (item.priority, item.times_sampled));
        }
        assert_eq!(state.len(), model.items.len());
        assert_eq!(state.num_episodes(), model.episodes().len() as i64);
        assert_eq!(state.num_deleted_episodes(), model.deleted_episodes);
        assert_eq!(state.num_unique_samples(), model.unique_samples);
        let account = state.account();
        assert_eq!(account.bytes() - account.secondary_bytes(), model.bytes(chunks));
        assert_eq!(state.account().num_chunks(), model.chunks().len() as u64);
        let limiter = state.limiter();
        assert_eq!(
            (limiter.inserts(), limiter.samples(), limiter.deletes()),
            (model.inserts, model.samples, model.deletes)
        );
        // Statistics continue over resets. Inserted items are present or removed.
        let statistics = state.statistics();
        let left: u64 = Removal::ALL.map(|reason| statistics.removed.of(reason)).iter().sum();
        assert_eq!(statistics.inserts, left + model.items.len() as u64);
        assert_eq!(statistics.removed.of(Removal::Lost), self.num_lost);
        assert_eq!(statistics.removed.of(Removal::Replaced), self.num_replaced);
        assert_eq!(left, statistics.removed.unsampled() + statistics.removed.sampled().count());
    }
}

pub(super) fn limiters() -> impl Strategy<Value = RateLimiterConfig> {
    let limiter = |samples_per_insert, min_size_to_sample, min_diff, max_diff| RateLimiterConfig {
        samples_per_insert,
        min_size_to_sample,
        min_diff,
        max_diff,
    };
    prop_oneof![
        3 => (1i64..4).prop_map(move |size| limiter(1.0, size, -f64::MAX, f64::MAX)),
        1 => (1i64..9).prop_map(move |size| limiter(1.0, 1, 0.0, size as f64)),
        1 => (0.3f64..3.0, 1i64..4, 3.0f64..9.0).prop_map(move |(spi, size, buffer)| {
            limiter(spi, size, spi * size as f64 - buffer, spi * size as f64 + buffer)
        }),
    ]
}

fn priorities() -> impl Strategy<Value = f64> {
    prop_oneof![3 => (0u8..4).prop_map(f64::from), 1 => 0.0f64..100.0]
}

fn changes() -> impl Strategy<Value = TableChange> {
    (
        prop::option::of(0i64..12),
        prop::option::of(prop_oneof![Just(None), (1500u64..4000).prop_map(Some)]),
        prop::option::of(-1i32..4),
        prop::option::of(limiters()),
        prop::option::of(-1.0f64..2.0),
    )
        .prop_map(
            |(max_size, max_bytes, max_times_sampled, rate_limiter, priority_exponent)| {
                TableChange {
                    max_size,
                    max_bytes,
                    max_times_sampled,
                    rate_limiter,
                    priority_exponent,
                    ..TableChange::default()
                }
            },
        )
}

pub(super) fn operations() -> impl Strategy<Value = Operation> {
    let key = 0u64..30;
    let chunks = prop::collection::vec(0..NUM_CHUNKS, 1..4);
    let new_priority = prop_oneof![3 => priorities(), 1 => Just(MAX_PRIORITY)];
    let removal_priority = prop_oneof![3 => Just(None), 1 => priorities().prop_map(Some)];
    let item = (key.clone(), new_priority, removal_priority, chunks, 0i32..3, any::<bool>());
    let insert =
        item.prop_map(|(key, priority, removal_priority, chunks, times_sampled, replaces)| {
            Operation::Insert { key, priority, removal_priority, chunks, times_sampled, replaces }
        });
    prop_oneof![
        8 => insert,
        4 => prop_oneof![1usize..4, 30usize..90].prop_map(Operation::Sample),
        3 => prop::collection::vec((key.clone(), priorities()), 0..50).prop_map(Operation::Update),
        2 => key.clone().prop_map(Operation::Delete),
        1 => key.prop_map(Operation::Lose),
        1 => prop::sample::select(vec![Operation::Reset, Operation::Sample(1)]),
        1 => changes().prop_map(Operation::Configure),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_table_does_what_the_model_does(
        sampler in selectors(),
        remover in removers(),
        rate_limiter in limiters(),
        max_size in 1i64..12,
        max_times_sampled in -1i32..4,
        max_bytes in prop_oneof![2 => Just(None), 1 => (1500u64..4000).prop_map(Some)],
        seed in any::<u64>(),
        operations in prop::collection::vec(operations(), 1..120),
    ) {
        let mut pair = Pair::new(TableConfig { sampler, remover, max_times_sampled, rate_limiter, seed: Some(seed), memory: MemoryConfig { max_bytes, ..MemoryConfig::default() }, ..TableConfig::fifo("t", max_size) });
        let mut chunks = Chunks::default();
        for operation in &operations {
            pair.apply(operation, &mut chunks);
        }
    }

    /// Chunks that several tables share count once for the server, and in each table.
    #[test]
    fn the_accounts_of_two_tables_add_up(
        operations in prop::collection::vec((0usize..2, operations()), 1..120),
    ) {
        let server = ServerAccount::open();
        let mut chunks = Chunks::default();
        let mut pairs = [1, 2].map(|_| Pair::new(config(8)));
        for pair in &mut pairs {
            pair.state.account_mut().move_to(&server);
        }
        for (which, mut operation) in operations {
            // A model knows only the chunks of its own table.
            if let Operation::Configure(change) = &mut operation {
                change.max_bytes = None;
            }
            pairs[which].apply(&operation, &mut chunks);
            let mut items = 0;
            for pair in &mut pairs {
                pair.state.account_mut().book();
                items += pair.model.items.iter().map(ModelItem::all_own_bytes).sum::<u64>();
                items += pair.state.account().secondary_bytes();
            }
            let in_tables = pairs.iter().flat_map(|pair| pair.model.chunks());
            let total = server.total();
            prop_assert!(total >= items + chunks.bytes(in_tables));
            // All chunks are alive, so any chunk that was once in a table counts.
            prop_assert!(total <= items + chunks.bytes(chunks.0.keys().copied()));
        }
        let alive = chunks.bytes(chunks.0.keys().copied());
        drop(pairs);
        prop_assert!(server.total() <= alive);
        drop(chunks);
        prop_assert_eq!(server.total(), 0);
    }
}

fn prioritized(exponent: f64, priorities: &[f64], seed: u64) -> TableState {
    let mut state = TableState::new(&TableConfig {
        sampler: SelectorConfig::prioritized(exponent),
        seed: Some(seed),
        ..TableConfig::fifo("t", 100_000)
    });
    let mut chunks = Chunks::default();
    for (key, &priority) in priorities.iter().enumerate() {
        state.insert(new_item(key as u64, priority, 0, &[1], &mut chunks), 0);
    }
    state
}

fn sample_keys(state: &mut TableState, count: usize) -> Vec<u64> {
    let mut batch = Batch::new(count, SampleOptions::default());
    state.sample(&mut batch);
    batch.into_answer().unwrap().iter().map(|sampled| sampled.key).collect()
}

#[test]
fn prioritized_items_are_sampled_in_proportion() {
    const DRAWS: usize = 200_000;
    let priorities: Vec<f64> = (0..1000).map(|i| f64::from(i % 10)).collect();
    let weights: Vec<f64> =
        priorities.iter().map(|&p| if p == 0.0 { 0.0 } else { p.powf(0.8) }).collect();
    let total: f64 = weights.iter().sum();
    let mut state = prioritized(0.8, &priorities, 11);
    let mut seen = vec![0.0f64; priorities.len()];
    for _ in 0..DRAWS / 1000 {
        for key in sample_keys(&mut state, 1000) {
            seen[key as usize] += 1.0;
        }
    }
    let mut chi_square = 0.0;
    for (&count, &weight) in seen.iter().zip(&weights) {
        let expected = DRAWS as f64 * weight / total;
        if expected == 0.0 {
            assert_eq!(count, 0.0, "items of weight 0 are never sampled");
        } else {
            chi_square += (count - expected).powi(2) / expected;
        }
    }
    // 899 degrees of freedom: mean 899, standard deviation 42.
    assert!((700.0..1100.0).contains(&chi_square), "{chi_square}");
}

#[test]
fn a_seed_repeats_the_choices_however_they_are_asked_for() {
    let priorities: Vec<f64> = (0..500).map(f64::from).collect();
    let at_once = sample_keys(&mut prioritized(0.5, &priorities, 3), 100);
    let mut state = prioritized(0.5, &priorities, 3);
    let one_by_one: Vec<u64> = (0..100).flat_map(|_| sample_keys(&mut state, 1)).collect();
    assert_eq!(at_once, one_by_one);
    assert_ne!(at_once, sample_keys(&mut prioritized(0.5, &priorities, 4), 100));
}
