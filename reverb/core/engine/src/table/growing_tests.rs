// SPDX-License-Identifier: Apache-2.0
//! Tables whose items have rollouts, against a model that is written from the rules of
//! `docs/design/rollouts.md` and keeps plain lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use reverb_data::column_names::ColumnPath;
use reverb_data::rollouts::{
    ItemChange, Late, LeaseId, OnStale, Opening, Outcome, Part, Piece, Refusal, Rollout,
    RolloutSettings, SequenceOf, Stage, Versions,
};
use reverb_data::{
    DType, MemoryConfig, NewItem, RateLimiterConfig, RolloutsChange, SelectorConfig, Signature,
    StoredItem, TableChange, TableConfig, TableSignature, TensorSpec, Trajectory,
    TrajectoryBuilder, WhenFull,
};

use super::items::{AllItems, Item};
use super::rollouts::Takes;
use super::state::{Batch, TableState};
use super::statistics::Removal;
use super::testing::{config, item_of_length};

pub(super) const ROLLOUTS: u32 = 3;
/// Columns: a prompt of the item; tokens and a score of each sequence.
const PROMPT: u32 = 0;
const TOKENS: u32 = 1;
const SCORE: u32 = 2;

pub(super) fn settings() -> RolloutSettings {
    RolloutSettings {
        num_columns: 3,
        item_columns: [PROMPT].into(),
        num_rollouts: ROLLOUTS,
        min_rollouts: 2,
        ahead: Some(1),
        items_per_version: Some(4),
        max_staleness: Some(1),
        on_stale: OnStale::Again,
        open_timeout: None,
        max_attempts: 2,
    }
}

pub(super) fn table_config(rollouts: RolloutSettings, times: i32) -> TableConfig {
    let spec = |name: &str| {
        TensorSpec::new(ColumnPath::from_label(name), "", DType::Int64, Some(vec![None]))
    };
    let flat = Signature(["prompt", "tokens", "score"].map(spec).to_vec());
    TableConfig {
        sampler: SelectorConfig::Fifo,
        max_times_sampled: times,
        rate_limiter: RateLimiterConfig { min_size_to_sample: 1, ..config(1).rate_limiter },
        signature: Some(TableSignature { flat, encoded: Bytes::new() }),
        rollouts: Some(Arc::new(rollouts)),
        ..config(100)
    }
}

/// Columns with one chunk each; keys of the chunks say what they are.
fn columns(keys: &[u64]) -> Trajectory {
    let mut builder = TrajectoryBuilder::new();
    for &key in keys {
        let item = item_of_length(key, 2, 1.0);
        builder.slice(&item.trajectory.chunks()[0], 0, 0, 2);
        builder.end_column(false);
    }
    builder.finish().unwrap()
}

fn chunk_keys(trajectory: &Trajectory) -> Vec<Vec<u64>> {
    let of = |slice: reverb_data::trajectory::Slice| trajectory.chunks()[slice.chunk].key();
    trajectory.columns().map(|column| column.slices().map(of).collect()).collect()
}

fn part(rollout: u32, column: u32) -> Part {
    Part { sequence: Some(SequenceOf { rollout, number: 0 }), column }
}

fn prompt(item: u64) -> u64 {
    item * 1000
}

/// Key of the chunk of a column of a rollout: each try has another one.
fn value(item: u64, attempt: u64, rollout: u32, column: u32) -> u64 {
    item * 1000 + 100 * (attempt % 9) + 10 * u64::from(rollout) + u64::from(column) + 1
}

pub(super) fn lease(holder: u64, number: u64) -> LeaseId {
    LeaseId { holder, number }
}

pub(super) fn new_item(key: u64, name: u64, after: Option<&str>) -> NewItem {
    let mut item = NewItem::new(key, "t", 1.0, columns(&[prompt(key)]));
    item.change = Some(Box::new(ItemChange::Opens(Opening {
        name: format!("{name}").into(),
        after: after.map(Into::into),
        parts: Arc::new([Part { sequence: None, column: PROMPT }]),
        rollouts: Vec::new(),
    })));
    item
}

pub(super) fn rollout(number: u32, outcome: Outcome, version: i64) -> Rollout {
    Rollout { number, outcome, versions: Versions { oldest: version, newest: version } }
}

pub(super) fn made(item: u64, tag: u64, number: u32, with_score: bool) -> Piece {
    let mut parts = vec![part(number, TOKENS)];
    let mut keys = vec![value(item, tag, number, TOKENS)];
    if with_score {
        parts.push(part(number, SCORE));
        keys.push(value(item, tag, number, SCORE));
    }
    Piece::new(columns(&keys), parts.into(), &settings()).unwrap()
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Insert {
        name: u64,
        after: Option<bool>,
    },
    /// The same insert once more.
    Again,
    Grow {
        at: usize,
        holder: u64,
        number: u32,
        how: u8,
        with_score: bool,
        lag: i64,
    },
    /// All rollouts that an item lacks, by the client that holds it.
    Finish {
        at: usize,
        with_score: [bool; ROLLOUTS as usize],
        lag: i64,
    },
    Score {
        at: usize,
        holder: u64,
        overwrites: bool,
        attempts: Option<u32>,
    },
    Take {
        takes: u8,
        num: usize,
        holder: u64,
        number: u64,
    },
    Settle {
        holder: u64,
        number: u64,
        part: Option<usize>,
        ack: bool,
    },
    /// A lease that is in force ends.
    SettleHeld {
        which: usize,
        part: Option<usize>,
        ack: bool,
    },
    End {
        holder: u64,
        is_lost: bool,
    },
    SetVersion {
        by: i64,
        rewind: bool,
    },
    Delete {
        at: usize,
    },
    Sample,
    Update {
        at: usize,
        priority: f64,
    },
    Reset,
    /// A checkpoint, and a start with it.
    Restart,
    Configure {
        backlog: Option<(u32, u32)>,
        slack: Option<u32>,
        on_stale: OnStale,
        min_rollouts: u32,
        max_attempts: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let holder = 1..4u64;
    let sender = 0..4u64;
    let number = 0..6u64;
    let at = 0..12usize;
    prop_oneof![
        6 => (0..14u64, prop::option::weighted(0.3, any::<bool>()))
            .prop_map(|(name, after)| Step::Insert { name, after }),
        1 => Just(Step::Again),
        14 => (at.clone(), sender.clone(), 0..ROLLOUTS, 0..8u8, any::<bool>(), 0..3i64).prop_map(
            |(at, holder, number, how, with_score, lag)| {
                Step::Grow { at, holder, number, how, with_score, lag }
            }
        ),
        // With all scores, an item is ready at once.
        4 => (at.clone(), prop::array::uniform(prop::bool::weighted(0.8)), 0..3i64)
            .prop_map(|(at, with_score, lag)| Step::Finish { at, with_score, lag }),
        4 => (at.clone(), sender, any::<bool>(), prop::option::weighted(0.5, 0..2u32))
            .prop_map(|(at, holder, overwrites, attempts)| {
                Step::Score { at, holder, overwrites, attempts }
            }),
        7 => (0..3u8, 1..4usize, holder.clone(), number.clone())
            .prop_map(|(takes, num, holder, number)| Step::Take { takes, num, holder, number }),
        5 => (holder.clone(), number, prop::option::of(0..3usize), any::<bool>())
            .prop_map(|(holder, number, part, ack)| Step::Settle { holder, number, part, ack }),
        4 => (0..8usize, prop::option::of(0..3usize), any::<bool>())
            .prop_map(|(which, part, ack)| Step::SettleHeld { which, part, ack }),
        2 => (holder, any::<bool>()).prop_map(|(holder, is_lost)| Step::End { holder, is_lost }),
        2 => (-2..3i64, prop::bool::weighted(0.2))
            .prop_map(|(by, rewind)| Step::SetVersion { by, rewind }),
        1 => at.clone().prop_map(|at| Step::Delete { at }),
        1 => Just(Step::Sample),
        1 => (at, 0.0..9.0).prop_map(|(at, priority)| Step::Update { at, priority }),
        1 => (
            prop::option::weighted(0.8, (0..3u32, 1..6u32)),
            prop::option::weighted(0.8, 0..2u32),
            prop::sample::select(vec![OnStale::Again, OnStale::Keep, OnStale::Wait, OnStale::Wait]),
            1..=ROLLOUTS,
            1..4u32,
        )
            .prop_map(|(backlog, slack, on_stale, min_rollouts, max_attempts)| {
                Step::Configure { backlog, slack, on_stale, min_rollouts, max_attempts }
            }),
        1 => prop::bool::weighted(0.2).prop_map(|is_reset| {
            if is_reset { Step::Reset } else { Step::Restart }
        }),
    ]
}

#[derive(Debug, Clone)]
struct ModelRollout {
    outcome: Outcome,
    oldest: i64,
    tokens: u64,
    score: Option<u64>,
}

#[derive(Debug, Clone)]
struct ModelItem {
    name: u64,
    key: u64,
    attempts: u32,
    opened_at: Option<i64>,
    rollouts: BTreeMap<u32, ModelRollout>,
    stage: Stage,
    held: Option<LeaseId>,
    /// Taken since the version was set.
    counts: bool,
    times: i32,
    priority: f64,
}

impl ModelItem {
    fn count(&self, is_it: impl Fn(&Outcome) -> bool) -> usize {
        self.rollouts.values().filter(|it| is_it(&it.outcome)).count()
    }

    fn num_final(&self) -> usize {
        self.count(|it| *it == Outcome::Final)
    }

    fn oldest(&self) -> Option<i64> {
        let made = self.rollouts.values().filter(|it| !matches!(it.outcome, Outcome::Failed(_)));
        made.map(|it| it.oldest).min().or(self.opened_at)
    }

    fn is_free(&self) -> bool {
        self.held.is_none()
    }

    /// Chunks of a ready item.
    fn chunks(&self) -> Vec<Vec<u64>> {
        let finals = self.rollouts.values().filter(|it| it.outcome == Outcome::Final);
        vec![
            vec![prompt(self.key)],
            finals.clone().map(|it| it.tokens).collect(),
            finals.filter_map(|it| it.score).collect(),
        ]
    }
}

#[derive(Debug)]
struct Model {
    settings: RolloutSettings,
    /// In the order of their inserts.
    items: Vec<ModelItem>,
    times: i32,
    version: i64,
    taken: u64,
    newest: String,
    inserts: u64,
    left: BTreeMap<&'static str, u64>,
    leases: BTreeMap<(u64, u64), Vec<u64>>,
    ended: BTreeSet<(u64, u64)>,
    known: BTreeSet<u64>,
}

impl Model {
    fn new(times: i32) -> Self {
        Self {
            settings: settings(),
            items: Vec::new(),
            times,
            version: 0,
            taken: 0,
            newest: String::new(),
            inserts: 0,
            left: BTreeMap::new(),
            leases: BTreeMap::new(),
            ended: BTreeSet::new(),
            known: BTreeSet::new(),
        }
    }

    fn at(&mut self, key: u64) -> Option<&mut ModelItem> {
        self.items.iter_mut().find(|it| it.key == key)
    }

    fn free_hold(&mut self, key: u64) {
        if let Some(item) = self.at(key) {
            item.held = None;
            item.counts = false;
        }
        self.leases.values_mut().for_each(|keys| keys.retain(|&it| it != key));
        self.leases.retain(|_, keys| !keys.is_empty());
    }

    fn leave(&mut self, key: u64, reason: Removal) {
        let Some(item) = self.at(key).cloned() else { return };
        self.free_hold(key);
        if item.counts && reason != Removal::SampledOut {
            self.taken -= 1;
        }
        self.items.retain(|it| it.key != key);
        *self.left.entry(reason.name()).or_default() += 1;
    }

    fn backlog(&self) -> u64 {
        let held = self.items.iter().filter(|it| it.stage == Stage::Ready && !it.is_free()).count();
        (self.items.len() - held) as u64 + self.taken
    }

    fn is_stale(&self, item: &ModelItem) -> bool {
        item.oldest().is_some_and(|oldest| self.is_too_old(oldest))
    }

    fn is_too_old(&self, oldest: i64) -> bool {
        let RolloutSettings { max_staleness, on_stale, .. } = self.settings;
        on_stale != OnStale::Keep
            && max_staleness.is_some_and(|most| self.version - oldest > i64::from(most))
    }

    /// Ready items that nobody holds, in the order in which they are taken.
    fn ready(&self) -> Vec<&ModelItem> {
        let is_there = |it: &&ModelItem| it.stage == Stage::Ready && it.is_free();
        let mut ready: Vec<&ModelItem> = self.items.iter().filter(is_there).collect();
        if self.settings.on_stale == OnStale::Wait {
            ready.sort_by_key(|it| it.oldest());
        }
        ready
    }

    /// Number of ready items that can be taken: the largest one without a version of which more
    /// unfinished items are left than the learner takes in time.
    fn num_takable(&self) -> usize {
        let ready = self.ready();
        let RolloutSettings { max_staleness, items_per_version, on_stale, .. } = self.settings;
        let (OnStale::Wait, Some(most), Some(batch)) = (on_stale, max_staleness, items_per_version)
        else {
            return ready.len();
        };
        let (most, batch) = (i64::from(most), i64::from(batch));
        let unready = self.items.iter().filter(|it| it.stage != Stage::Ready);
        let unready: Vec<i64> = unready.filter_map(ModelItem::oldest).collect();
        let is_good = |&num: &usize| {
            let Some(last) = num.checked_sub(1) else { return true };
            let left = batch - self.taken as i64 - num as i64;
            let younger = unready.iter().filter(|it| **it < ready[last].oldest().unwrap());
            younger.clone().all(|version| {
                let num_left = younger.clone().filter(|it| *it <= version).count() as i64;
                num_left <= left + (version + most - self.version) * batch
            })
        };
        (0..=ready.len()).rev().find(is_good).unwrap()
    }

    /// Makes bare prompts of all that is too stale, and that no learner has.
    fn check_staleness(&mut self) {
        let keys: Vec<u64> = self.items.iter().map(|it| it.key).collect();
        for key in keys {
            let item = self.at(key).unwrap().clone();
            let is_taken = item.stage == Stage::Ready && item.held.is_some();
            if !is_taken && self.is_stale(&item) {
                self.become_stale(key);
            }
        }
    }

    fn become_stale(&mut self, key: u64) {
        self.free_hold(key);
        let max_attempts = self.settings.max_attempts;
        let item = self.at(key).unwrap();
        if item.attempts + 1 > max_attempts {
            return self.leave(key, Removal::Stale);
        }
        item.attempts += 1;
        item.stage = Stage::Open;
        item.rollouts.clear();
        item.opened_at = None;
    }

    fn advance(&mut self, key: u64) {
        let min_rollouts = self.settings.min_rollouts as usize;
        let Some(item) = self.at(key) else { return };
        if item.stage == Stage::Open {
            let num_failed = item.count(|it| matches!(it, Outcome::Failed(_)));
            if item.num_final() + num_failed < ROLLOUTS as usize {
                return;
            }
            if item.num_final() < min_rollouts {
                return self.leave(key, Removal::Failed);
            }
            self.settle(key);
        }
        self.complete(key);
    }

    fn settle(&mut self, key: u64) {
        self.free_hold(key);
        let item = self.at(key).unwrap();
        item.stage = Stage::Settled;
        item.rollouts.retain(|_, it| it.outcome != Outcome::Partial);
    }

    fn complete(&mut self, key: u64) {
        let Some(item) = self.at(key) else { return };
        if item.stage != Stage::Settled {
            return;
        }
        let finals = item.rollouts.values().filter(|it| it.outcome == Outcome::Final);
        if finals.clone().any(|it| it.score.is_none()) {
            return;
        }
        if let Some(item) = self.at(key).cloned().filter(|item| self.is_stale(item)) {
            return self.become_stale(item.key);
        }
        self.free_hold(key);
        self.at(key).unwrap().stage = Stage::Ready;
    }

    fn release(&mut self, key: u64, is_lost: bool) {
        self.taken -= u64::from(self.at(key).is_some_and(|it| it.counts));
        self.free_hold(key);
        let RolloutSettings { max_attempts, min_rollouts, .. } = self.settings;
        let Some(item) = self.at(key) else { return };
        item.attempts += u32::from(is_lost);
        match item.stage {
            Stage::Ready => {
                if let Some(item) = self.at(key).cloned().filter(|item| self.is_stale(item)) {
                    self.become_stale(item.key);
                }
            }
            Stage::Settled => {}
            Stage::Open => {
                if item.rollouts.is_empty() {
                    item.opened_at = None;
                }
                if item.attempts <= max_attempts {
                    return;
                }
                if item.num_final() >= min_rollouts as usize {
                    self.settle(key);
                    self.complete(key);
                } else {
                    self.leave(key, Removal::Failed);
                }
            }
        }
    }

    fn lacks_score(item: &ModelItem) -> bool {
        let finals = item.rollouts.values().filter(|it| it.outcome == Outcome::Final);
        item.stage == Stage::Settled && finals.clone().any(|it| it.score.is_none())
    }
}

struct Both {
    state: TableState,
    model: Model,
    config: TableConfig,
    next_key: u64,
    last: Option<(u64, u64)>,
    tag: u64,
    now: Instant,
}

impl Both {
    fn new(times: i32) -> Self {
        let config = table_config(settings(), times);
        config.validate().unwrap();
        let model = Model::new(times);
        let state = TableState::new(&config);
        Self { state, model, config, next_key: 0, last: None, tag: 0, now: Instant::now() }
    }

    fn key_at(&self, at: usize) -> Option<u64> {
        let items = &self.model.items;
        items.get(at % items.len().max(1)).map(|it| it.key)
    }

    /// The lease with which a client sends a change. Client 0 is the one that holds the item.
    fn by(&mut self, key: u64, holder: u64) -> LeaseId {
        let held = self.model.at(key).and_then(|item| item.held).filter(|_| holder == 0);
        held.unwrap_or(lease(holder.max(1), 100))
    }

    fn insert(&mut self, key: u64, name: u64, after: Option<&str>) {
        let item = new_item(key, name, after);
        let is_known = self.model.known.contains(&key) || self.model.at(key).is_some();
        let is_present = self.model.items.iter().any(|it| it.name == name);
        let RolloutSettings { ahead, max_staleness, items_per_version, .. } = self.model.settings;
        let most = ahead.or(max_staleness).zip(items_per_version);
        let has_place = most.is_none_or(|(ahead, batch)| {
            self.model.backlog() < u64::from(ahead + 1) * u64::from(batch)
        });
        assert_eq!(self.state.has_place_for(&item), is_known || is_present || has_place);
        if !self.state.has_place_for(&item) {
            return;
        }
        let refusal = self.state.insert(item, 5);
        if is_known {
            assert_eq!(refusal, None);
        } else if is_present {
            assert_eq!(refusal, Some(Refusal::Present));
        } else if let Some(after) = after.filter(|after| **after != self.model.newest) {
            let newest = self.model.newest.as_str();
            assert_eq!(refusal, Some(Refusal::Newest(newest.into())), "after {after}");
        } else {
            assert_eq!(refusal, None);
            self.model.known.insert(key);
            self.model.newest = name.to_string();
            self.model.inserts += 1;
            self.model.items.push(ModelItem {
                name,
                key,
                attempts: 0,
                opened_at: None,
                rollouts: BTreeMap::new(),
                stage: Stage::Open,
                held: None,
                counts: false,
                times: 0,
                priority: 1.0,
            });
            self.last = Some((key, name));
        }
    }

    fn grow(&mut self, key: u64, by: LeaseId, number: u32, how: u8, with_score: bool, lag: i64) {
        self.tag += 1;
        let tag = self.tag;
        let oldest = self.model.version - lag;
        let outcome = match how {
            0..=4 => Outcome::Final,
            5 | 6 => Outcome::Partial,
            _ => Outcome::Failed("it failed".into()),
        };
        let has_columns = !matches!(outcome, Outcome::Failed(_));
        let piece = has_columns.then(|| made(key, tag, number, with_score));
        let made = rollout(number, outcome.clone(), oldest);
        let got =
            self.state.grow(key, Some(by), vec![made], (piece, Late::default()), self.now).unwrap();
        let is_old = self.model.is_too_old(oldest);
        let Some(item) = self.model.at(key) else { return assert!(!got) };
        let is_final = |it: &ModelRollout| it.outcome == Outcome::Final;
        let is_there = item.rollouts.get(&number).is_some_and(is_final);
        let is_others = item.held.is_some_and(|it| it.holder != by.holder);
        let fits = item.stage == Stage::Open || is_there;
        assert_eq!(got, !is_others && !is_old && fits);
        if !got {
            return;
        }
        if item.stage == Stage::Open && item.held.is_none() {
            item.held = Some(by);
            self.model.leases.entry((by.holder, by.number)).or_default().push(key);
        }
        let item = self.model.at(key).unwrap();
        if !is_there {
            let tokens = value(key, tag, number, TOKENS);
            let score = with_score.then(|| value(key, tag, number, SCORE));
            let made = ModelRollout { outcome, oldest, tokens, score };
            item.rollouts.insert(number, made);
        }
        self.model.advance(key);
    }

    /// All rollouts that an item lacks, from the client that holds it.
    fn finish(&mut self, key: u64, with_score: [bool; ROLLOUTS as usize], lag: i64) {
        let by = self.by(key, 0);
        for (number, with_score) in (0..).zip(with_score) {
            self.grow(key, by, number, 0, with_score, lag);
        }
    }

    fn score(&mut self, key: u64, by: LeaseId, overwrites: bool, attempts: Option<u32>) {
        self.tag += 1;
        let Some(item) = self.model.at(key).cloned() else { return };
        let finals: Vec<u32> = item
            .rollouts
            .iter()
            .filter(|(_, it)| it.outcome == Outcome::Final)
            .map(|(&number, _)| number)
            .collect();
        if finals.is_empty() {
            return;
        }
        let parts: Arc<[Part]> = finals.iter().map(|&number| part(number, SCORE)).collect();
        let of = |number: &u32| value(key, self.tag, *number, SCORE);
        let keys: Vec<u64> = finals.iter().map(of).collect();
        let piece = Piece::new(columns(&keys), parts, &settings()).unwrap();
        let late = Late { overwrites, attempts };
        let got =
            self.state.grow(key, Some(by), Vec::new(), (Some(piece), late), self.now).unwrap();
        let is_others = item.held.is_some_and(|it| it.holder != by.holder);
        let is_of_then = attempts.is_none_or(|it| it == item.attempts);
        assert_eq!(got, item.stage == Stage::Settled && !is_others && is_of_then);
        if got {
            let item = self.model.at(key).unwrap();
            for (number, key) in finals.into_iter().zip(keys) {
                let score = &mut item.rollouts.get_mut(&number).unwrap().score;
                if overwrites || score.is_none() {
                    *score = Some(key);
                }
            }
            self.model.complete(key);
        }
    }

    fn take(&mut self, takes: Takes, num: usize, by: LeaseId) {
        let id = (by.holder, by.number);
        if takes == Takes::Ready {
            assert_eq!(self.state.num_takable(takes), self.model.num_takable());
        }
        let num = num.min(self.state.num_takable(takes));
        let taken = self.state.take_growing(takes, num, by, self.now);
        if self.model.ended.contains(&id) {
            assert!(taken.is_err());
            return;
        }
        let taken: Vec<u64> = taken.unwrap().iter().map(|it| it.key).collect();
        if let Some(held) = self.model.leases.get(&id) {
            assert_eq!(&taken, held);
            return;
        }
        let can_be = |it: &&ModelItem| {
            it.is_free()
                && match takes {
                    Takes::Open => it.stage == Stage::Open,
                    Takes::Lacking(_) => Model::lacks_score(it),
                    Takes::Ready => false,
                }
        };
        let there: Vec<&ModelItem> = match takes {
            Takes::Ready => self.model.ready(),
            _ => self.model.items.iter().filter(can_be).collect(),
        };
        let expected: Vec<u64> = there.into_iter().take(num).map(|it| it.key).collect();
        assert_eq!(taken, expected);
        let version = self.model.version;
        for &key in &taken {
            let item = self.model.at(key).unwrap();
            item.held = Some(by);
            if takes == Takes::Open {
                item.opened_at.get_or_insert(version);
            }
            if takes == Takes::Ready {
                item.counts = true;
                self.model.taken += 1;
            }
        }
        if !taken.is_empty() {
            self.model.leases.insert(id, taken);
        }
    }

    fn settle(&mut self, by: LeaseId, part: Option<usize>, ack: bool) {
        let id = (by.holder, by.number);
        let held = self.model.leases.get(&id).cloned().unwrap_or_default();
        let any: Vec<u64> = self.model.items.iter().map(|it| it.key).collect();
        let keys = part.map(|part| any.iter().copied().skip(part).step_by(2).collect::<Vec<_>>());
        let others = self.state.settle_lease(by, keys.as_deref(), ack, 7);
        let mut expected = Vec::new();
        for key in keys.clone().unwrap_or(held) {
            let times = self.model.times;
            let Some(item) = self.model.at(key) else { continue };
            match item.held {
                Some(it) if it != by => expected.push(key),
                held if ack && (held.is_none() || item.stage == Stage::Ready) => {
                    item.times += 1;
                    let is_over = times > 0 && item.times >= times;
                    self.model.free_hold(key);
                    if is_over {
                        self.model.leave(key, Removal::SampledOut);
                    }
                }
                Some(_) => self.model.release(key, false),
                None => {}
            }
        }
        assert_eq!(others, expected);
        if keys.is_none() || !self.model.leases.contains_key(&id) {
            self.model.ended.insert(id);
        }
    }

    fn set_version(&mut self, version: i64, rewind: bool) {
        let now = self.model.version;
        let is_set = version > now || (rewind && version < now);
        let got = self.state.set_version(version, rewind);
        while self.state.has_unchecked() {
            self.state.check_staleness();
        }
        assert_eq!(got, if is_set { version } else { now });
        if !is_set {
            return;
        }
        self.model.version = version;
        self.model.taken = 0;
        self.model.items.iter_mut().for_each(|it| it.counts = false);
        self.model.check_staleness();
    }

    fn configure(&mut self, new: RolloutSettings) {
        let change = RolloutsChange { settings: new.clone(), item: vec!["prompt".into()] };
        let change = TableChange { rollouts: Some(Box::new(change)), ..TableChange::default() };
        let after = change.apply(&self.config).unwrap();
        assert_eq!(after.rollouts.as_deref(), Some(&new));
        self.state.configure(&after);
        while self.state.has_unchecked() {
            self.state.check_staleness();
        }
        self.config = after;
        let staleness = |it: &RolloutSettings| (it.max_staleness, it.on_stale);
        let is_other = staleness(&new) != staleness(&self.model.settings);
        self.model.settings = new;
        if is_other {
            self.model.check_staleness();
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Insert { name, after } => {
                let after =
                    after.map(
                        |is_right| {
                            if is_right { self.model.newest.clone() } else { "odd".to_owned() }
                        },
                    );
                self.next_key += 1;
                self.insert(self.next_key, name, after.as_deref());
            }
            Step::Again => {
                if let Some((key, name)) = self.last {
                    self.insert(key, name, None);
                }
            }
            Step::Grow { at, holder, number, how, with_score, lag } => {
                if let Some(key) = self.key_at(at) {
                    let by = self.by(key, holder);
                    self.grow(key, by, number, how, with_score, lag);
                }
            }
            Step::Finish { at, with_score, lag } => {
                if let Some(key) = self.key_at(at) {
                    self.finish(key, with_score, lag);
                }
            }
            Step::Score { at, holder, overwrites, attempts } => {
                if let Some(key) = self.key_at(at) {
                    let by = self.by(key, holder);
                    self.score(key, by, overwrites, attempts);
                }
            }
            Step::Take { takes, num, holder, number } => {
                let takes = [Takes::Open, Takes::Lacking(SCORE), Takes::Ready][takes as usize];
                self.take(takes, num, lease(holder, number));
            }
            Step::Settle { holder, number, part, ack } => {
                self.settle(lease(holder, number), part, ack);
            }
            Step::SettleHeld { which, part, ack } => {
                let leases = &self.model.leases;
                if let Some(&(holder, number)) = leases.keys().nth(which % leases.len().max(1)) {
                    self.settle(lease(holder, number), part, ack);
                }
            }
            Step::End { holder, is_lost } => self.end(holder, is_lost),
            Step::SetVersion { by, rewind } => self.set_version(self.model.version + by, rewind),
            Step::Delete { at } => {
                if let Some(key) = self.key_at(at) {
                    assert!(self.state.delete(key));
                    self.model.leave(key, Removal::Deleted);
                }
            }
            Step::Restart => self.restart(),
            Step::Configure { backlog, slack, on_stale, min_rollouts, max_attempts } => {
                let can_wait = backlog.is_some() && self.model.times == 1;
                let is_possible = on_stale != OnStale::Wait || can_wait;
                let max_staleness = slack.map(|slack| backlog.map_or(0, |it| it.0) + slack);
                self.configure(RolloutSettings {
                    min_rollouts,
                    ahead: backlog.map(|it| it.0),
                    items_per_version: backlog.map(|it| it.1),
                    max_staleness,
                    on_stale: if is_possible { on_stale } else { OnStale::Keep },
                    open_timeout: Some(Duration::from_secs(1)),
                    max_attempts,
                    ..settings()
                });
            }
            Step::Sample => self.sample(),
            Step::Update { at, priority } => {
                if let Some(key) = self.key_at(at) {
                    self.state.update(&[(key, priority)], &mut Vec::new());
                    self.model.at(key).unwrap().priority = priority;
                }
            }
            Step::Reset => {
                let contents = self.state.reset(&self.config).unwrap();
                self.state.statistics_mut().removed.merge(&contents.as_removed());
                let count = self.model.items.len() as u64;
                *self.model.left.entry("reset").or_default() += count;
                self.model.items.clear();
                self.model.leases.clear();
                self.model.ended.clear();
                self.model.known.clear();
                self.model.taken = 0;
                self.model.newest.clear();
            }
        }
        self.check();
    }

    fn end(&mut self, holder: u64, is_lost: bool) {
        self.state.end_holder(holder, is_lost);
        let is_its = |it: &&ModelItem| it.held.is_some_and(|lease| lease.holder == holder);
        let keys: Vec<u64> = self.model.items.iter().filter(is_its).map(|it| it.key).collect();
        for key in keys {
            self.model.release(key, is_lost);
        }
        self.model.ended.retain(|(it, _)| *it != holder);
    }

    /// The same table from what a checkpoint has.
    fn restart(&mut self) {
        let rollouts = self.state.rollouts().unwrap();
        let (kept, mut info) = (Arc::clone(rollouts.kept()), rollouts.info());
        info.taken = info.taken.saturating_sub(info.taken_held);
        let items = self.state.items().all(AllItems::Test);
        let of = |(handle, item): (u32, &Item)| item.to_stored(self.state.removal_priority(handle));
        let mut whole: Vec<StoredItem> = items.map(of).chain(kept.ready_held()).collect();
        whole.sort_by_key(|item| item.inserted_at_ns);
        let mut state = TableState::new(&self.config);
        state.restore_rollouts(&info);
        for item in kept.to_stored() {
            state.restore_growing(item);
        }
        for item in whole {
            state.restore_ready(item);
        }
        state.forget_incomplete();
        state.repair_counters(&self.config);
        *state.statistics_mut() = *self.state.statistics();
        while state.has_unchecked() {
            state.check_staleness();
        }
        self.state = state;
        self.model.taken -= self.model.items.iter().filter(|it| it.counts).count() as u64;
        self.model.leases.clear();
        self.model.ended.clear();
        self.model.known.clear();
        for item in &mut self.model.items {
            item.held = None;
            item.counts = false;
            if item.rollouts.is_empty() {
                item.opened_at = None;
            }
        }
        self.model.check_staleness();
    }

    /// A learner that knows of no rollouts.
    fn sample(&mut self) {
        let mut batch = Batch::new(1, reverb_data::SampleOptions::default());
        self.state.sample(&mut batch);
        let sampled = batch.into_answer().unwrap();
        let times = self.model.times;
        let first = self.model.items.iter().find(|it| it.stage == Stage::Ready && it.is_free());
        let first = first.map(|it| it.key);
        assert_eq!(sampled.first().map(|it| it.key), first);
        let Some(key) = first else { return };
        let item = self.model.at(key).unwrap();
        assert_eq!(chunk_keys(&sampled[0].trajectory), item.chunks());
        item.times += 1;
        if times > 0 && item.times >= times {
            self.model.leave(key, Removal::SampledOut);
            self.model.taken += 1;
        }
    }

    fn check(&mut self) {
        let Self { state, model, .. } = self;
        let rollouts = state.rollouts().unwrap();
        rollouts.check();
        let kept = rollouts.kept();
        assert_eq!((kept.version, kept.taken), (model.version, model.taken));
        assert_eq!(*kept.newest, *model.newest);
        assert_eq!(rollouts.backlog(), model.backlog());
        assert_eq!(kept.items.len(), model.items.len());
        for item in &model.items {
            let growing = &kept.items[&item.key];
            assert_eq!(*growing.name, *item.name.to_string());
            assert_eq!(growing.stage, item.stage, "{item:?}");
            assert_eq!(growing.holder(), item.held.map(|it| it.holder));
            assert_eq!(growing.attempts, item.attempts);
            assert_eq!(growing.oldest(), item.oldest());
            let handle = state.items().find(item.key);
            assert_eq!(handle.is_some(), item.stage == Stage::Ready && item.is_free());
            if let Some(handle) = handle {
                let found = state.items().get(handle);
                assert_eq!(chunk_keys(&found.trajectory()), item.chunks());
                assert_eq!(found.times_sampled(), item.times);
                assert_eq!(found.priority().to_bits(), item.priority.to_bits());
            } else {
                assert_eq!(growing.values.times_sampled, item.times);
            }
        }
        let size = state.items().len() as i64;
        assert_eq!(state.limiter().size(), size);
        let left: u64 = model.left.values().sum();
        let removed = &state.statistics().removed;
        for reason in Removal::ALL {
            let expected = model.left.get(reason.name()).copied().unwrap_or(0);
            assert_eq!(removed.of(reason), expected, "{reason:?}");
        }
        assert_eq!(state.statistics().inserts, model.inserts);
        assert_eq!(model.inserts, model.items.len() as u64 + left);
    }
}

#[test]
fn another_time_for_open_items_counts_from_its_change() {
    let mut both = Both::new(1);
    let (began, second) = (both.now, Duration::from_secs(1));
    both.insert(1, 1, None);
    both.take(Takes::Open, 1, lease(1, 1));
    let rollouts = both.state.rollouts_mut().unwrap();
    assert_eq!(rollouts.open_since(began), [1]);
    let new = RolloutSettings { open_timeout: Some(second), ..settings() };
    rollouts.configure(Arc::new(new.clone()), began + 50 * second);
    assert_eq!(rollouts.open_since(began + 49 * second), [0; 0]);
    assert_eq!(rollouts.open_since(began + 50 * second), [1]);
    // Another setting leaves the time as it is.
    rollouts.configure(Arc::new(RolloutSettings { max_attempts: 9, ..new }), began + 90 * second);
    assert_eq!(rollouts.open_since(began + 50 * second), [1]);
}

#[test]
fn only_open_items_are_held_for_too_long() {
    let mut both = Both::new(1);
    let (began, second) = (both.now, Duration::from_secs(1));
    both.insert(1, 1, None);
    both.finish(1, [true; 3], 0);
    both.take(Takes::Ready, 1, lease(1, 1));
    both.insert(2, 2, None);
    both.take(Takes::Open, 1, lease(1, 2));
    both.insert(3, 3, None);
    both.now += second;
    both.take(Takes::Open, 1, lease(1, 3));
    let rollouts = both.state.rollouts().unwrap();
    assert_eq!(rollouts.open_since(began), [2]);
    assert_eq!(BTreeSet::from_iter(rollouts.open_since(began + second)), BTreeSet::from([2, 3]));
}

#[test]
fn a_ready_item_that_was_lost_often_comes_again() {
    let mut both = Both::new(1);
    both.insert(1, 1, None);
    both.finish(1, [true; 3], 0);
    for number in 0..5 {
        both.take(Takes::Ready, 1, lease(1, number));
        both.run(Step::End { holder: 1, is_lost: true });
    }
    let item = both.model.at(1).unwrap();
    assert_eq!((item.attempts, item.stage), (5, Stage::Ready));
}

#[test]
fn an_item_that_is_trained_again_may_be_stale() {
    let mut both = Both::new(0);
    both.insert(1, 1, None);
    both.finish(1, [true; 3], 0);
    both.take(Takes::Ready, 1, lease(1, 1));
    both.set_version(9, false);
    both.settle(lease(1, 1), None, true);
    both.take(Takes::Ready, 1, lease(1, 2));
    assert_eq!(both.model.at(1).unwrap().held, Some(lease(1, 2)));
}

#[test]
fn an_item_that_was_lost_too_often_has_its_final_rollouts() {
    let mut both = Both::new(1);
    both.insert(1, 1, None);
    for number in 0..3 {
        both.take(Takes::Open, 1, lease(1, number));
        both.grow(1, lease(1, number), 0, 5, true, 1);
        both.grow(1, lease(1, number), 1, 0, true, 0);
        both.grow(1, lease(1, number), 2, 0, true, 0);
        both.run(Step::End { holder: 1, is_lost: true });
    }
    // The partial rollout is gone, and with it its age.
    let item = both.state.rollouts().unwrap().get(1).unwrap();
    let numbers: Vec<u32> = item.sequences.iter().map(|sequence| sequence.rollout).collect();
    assert_eq!((item.stage, numbers, item.oldest()), (Stage::Ready, vec![1, 2], Some(0)));
}

#[test]
fn the_first_opening_of_an_item_counts() {
    let mut both = Both::new(1);
    both.insert(1, 1, None);
    both.take(Takes::Open, 1, lease(1, 1));
    both.grow(1, lease(1, 1), 0, 7, false, 0);
    both.settle(lease(1, 1), None, false);
    both.set_version(1, false);
    both.take(Takes::Open, 1, lease(1, 2));
    assert_eq!(both.state.rollouts().unwrap().get(1).unwrap().oldest(), Some(0));
}

#[test]
fn a_repeated_insert_is_known_after_its_item_has_left() {
    let mut both = Both::new(1);
    for key in [1, 2, 3] {
        both.insert(key, key, None);
        both.run(Step::Delete { at: 0 });
    }
    both.insert(1, 1, None);
    both.check();
    assert_eq!(both.state.statistics().inserts, 3);
}

#[test]
fn a_full_memory_gives_the_newest_free_item_up_first() {
    let mut both = Both::new(1);
    for key in [1, 2, 3, 4] {
        both.insert(key, key, None);
    }
    let by = [lease(1, 1), lease(2, 1)];
    both.grow(1, by[0], 0, 0, true, 0);
    both.run(Step::End { holder: 1, is_lost: false });
    // A settled one, which lacks its scores.
    for number in 0..ROLLOUTS {
        both.grow(2, by[0], number, 0, false, 0);
    }
    both.grow(3, by[1], 0, 0, true, 0);
    let with_rollouts = |both: &Both| -> Vec<u64> {
        let has =
            |key: &u64| !both.state.rollouts().unwrap().get(*key).unwrap().rollouts.is_empty();
        [1, 2, 3, 4].into_iter().filter(has).collect()
    };
    for left in [vec![1, 3], vec![3], vec![]] {
        assert!(both.state.give_up_unfinished(false));
        assert_eq!(with_rollouts(&both), left);
    }
    assert!(!both.state.give_up_unfinished(false));
}

#[test]
fn a_full_memory_waits_for_learners_of_ready_items() {
    let mut both = Both::new(1);
    both.insert(1, 1, None);
    both.finish(1, [true; 3], 0);
    both.insert(2, 2, None);
    both.grow(2, lease(1, 1), 0, 0, true, 0);
    assert!(!both.state.give_up_unfinished(false));
    both.take(Takes::Ready, 1, lease(2, 1));
    assert!(!both.state.give_up_unfinished(false));
    both.settle(lease(2, 1), None, true);
    assert!(both.state.give_up_unfinished(false));
}

#[test]
fn an_item_is_given_up_as_often_as_the_memory_is_full() {
    let mut both = Both::new(1);
    both.insert(1, 1, None);
    for attempts in 1..=9 {
        both.grow(1, lease(1, 1), 0, 0, true, 0);
        assert!(both.state.give_up_unfinished(false));
        let item = both.state.rollouts().unwrap().get(1).unwrap();
        assert_eq!((item.attempts, item.lost_attempts()), (attempts, 0));
        both.model.free_hold(1);
        both.model.at(1).unwrap().rollouts.clear();
    }
    assert_eq!(both.state.statistics().removed.of(Removal::Bytes), 0);
}

#[test]
fn a_new_item_waits_at_three_quarters_of_the_bytes() {
    let mut both = Both::new(1);
    (1..=7).for_each(|key| both.insert(key, key, None));
    both.state.account_mut().book();
    let bytes = both.state.account().bytes();
    let mut has_room = |max_bytes| {
        let memory = MemoryConfig { max_bytes: Some(max_bytes), when_full: WhenFull::Wait };
        both.state.configure(&TableConfig { memory, ..both.config.clone() });
        both.state.has_room_for(&new_item(8, 8, None))
    };
    assert!(!has_room(bytes / 7 * 8));
    assert!(has_room(2 * bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_table_with_rollouts_is_like_its_model(
        times in 0..3i32,
        waits in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut both = Both::new(if waits { 1 } else { times });
        if waits {
            both.configure(RolloutSettings {
                on_stale: OnStale::Wait,
                open_timeout: Some(Duration::from_secs(1)),
                ..settings()
            });
        }
        for step in steps {
            both.run(step);
        }
        // When all has left, nothing is counted any more.
        let keys: Vec<u64> = both.model.items.iter().map(|it| it.key).collect();
        for key in keys {
            both.state.delete(key);
        }
        both.state.account_mut().book();
        drop(both.state.take_garbage());
        prop_assert_eq!(both.state.account().bytes(), 0);
        prop_assert_eq!(both.state.account().num_chunks(), 0);
    }
}
