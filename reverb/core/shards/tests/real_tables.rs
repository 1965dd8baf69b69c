// SPDX-License-Identifier: Apache-2.0
//! Decisions of a group over a thousand real tables in one process, without a network. There is
//! only one thread, so all tables are read at the same moment.
#![allow(clippy::unwrap_used, reason = "tests may")]

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use reverb_base::Error;
use reverb_data::{
    Chunk, GroupSampling, NewItem, RateLimiterConfig, Sampled, SelectorConfig, SequenceRange,
    TableConfig, TrajectoryBuilder,
};
use reverb_engine::{Confirm, Table};
use reverb_shards::shares::Shares;
use reverb_shards::table_stats::TableStats;
use reverb_shards::windows::{Order, Report, Window, Windows};

const EXPONENT: f64 = 0.6;

struct Ignored;

impl Confirm for Ignored {
    fn confirmed(&self, _: &[u64]) {}

    fn failed(&self, error: Error) {
        panic!("{error}");
    }
}

fn table(max_size: i64, rate_limiter: RateLimiterConfig) -> Arc<Table> {
    Table::new(TableConfig {
        sampler: SelectorConfig::prioritized(EXPONENT),
        rate_limiter,
        seed: Some(7),
        ..TableConfig::fifo("t", max_size)
    })
    .unwrap()
}

fn free() -> RateLimiterConfig {
    RateLimiterConfig {
        samples_per_insert: 1.0,
        min_size_to_sample: 1,
        min_diff: -f64::MAX,
        max_diff: f64::MAX,
    }
}

/// An item over a chunk that all items share.
fn item(chunk: &Chunk, key: u64, priority: f64) -> NewItem {
    let mut builder = TrajectoryBuilder::new();
    builder.slice(chunk, 0, 0, 1);
    builder.end_column(false);
    let trajectory = builder.finish().unwrap();
    NewItem::new(key, "t", priority, trajectory)
}

fn chunk() -> Chunk {
    Chunk::new(1, SequenceRange::default(), false, vec![0; 8].into())
}

fn insert(table: &Table, items: Vec<NewItem>) {
    let confirm: Arc<dyn Confirm> = Arc::new(Ignored);
    table.insert(items, &confirm).unwrap();
}

/// Distance between counts and their expectations, in standard deviations.
fn z_of(counts: &[u64], expected: &[f64]) -> f64 {
    let (mut chi, mut cells, mut rest, mut rest_expected) = (0.0, 0.0, 0.0, 0.0);
    for (&count, &expected) in counts.iter().zip(expected) {
        if expected < 5.0 {
            rest += count as f64;
            rest_expected += expected;
            continue;
        }
        chi += (count as f64 - expected).powi(2) / expected;
        cells += 1.0;
    }
    if rest_expected > 0.0 {
        chi += (rest - rest_expected).powi(2) / rest_expected;
        cells += 1.0;
    }
    let degrees: f64 = cells - 1.0;
    // Wilson and Hilferty: the cube root of chi2 / n is nearly normal.
    let mean = 1.0 - 2.0 / (9.0 * degrees);
    ((chi / degrees).cbrt() - mean) / (2.0 / (9.0 * degrees)).sqrt()
}

/// Draws batches from all shards like a client. Returns the counts of the four classes of
/// priorities in each shard, and the largest relative error of a reported probability.
fn draw(
    tables: &[Arc<Table>],
    total: f64,
    batches: usize,
    batch: usize,
    is_equal: bool,
    max_shards: usize,
) -> (Vec<u64>, f64) {
    let sampling = GroupSampling::Prioritized { exponent: EXPONENT };
    let stats: Vec<TableStats> = tables.iter().map(|_| TableStats::default()).collect();
    let mut masses: Vec<f64> = tables.iter().map(|table| table.watched().mass).collect();
    if is_equal {
        masses
            .iter_mut()
            .zip(tables)
            .for_each(|(mass, table)| *mass = table.watched().size.min(1) as f64);
    }
    let mut shares = Shares::new(0.123);
    let mut counts = vec![0_u64; tables.len() * 4];
    let mut error: f64 = 0.0;
    for _ in 0..batches {
        let sum: f64 = masses.iter().sum();
        let wanted = shares.split(&masses, batch, max_shards);
        for (shard, &count) in wanted.iter().enumerate() {
            if count == 0 {
                continue;
            }
            let samples: Vec<Sampled> = tables[shard].try_sample(count).unwrap();
            assert_eq!(samples.len(), count);
            stats[shard].sampled(&samples, sampling);
            for sampled in &samples {
                let class = (sampled.key % 4) as usize;
                counts[shard * 4 + class] += 1;
                let reported = masses[shard] / sum * sampled.probability;
                let exact = sampling.weight(sampled.priority) / total;
                if !is_equal {
                    error = error.max((reported / exact - 1.0).abs());
                }
            }
            if !is_equal {
                masses[shard] = stats[shard].now().mass.unwrap();
            }
        }
    }
    (counts, error)
}

#[test]
fn a_thousand_tables_are_sampled_as_one() {
    let chunk = chunk();
    let mut rng = SmallRng::seed_from_u64(3);
    let mut weights = Vec::new();
    let tables: Vec<Arc<Table>> = (0..1_000)
        .map(|shard| {
            let table = table(10_000, free());
            // Shards of different sizes and priorities; some have no mass, one has no items.
            let size: u64 = if shard == 17 { 0 } else { rng.random_range(200..1_800) };
            let scale: f64 = rng.random_range(0.1..3.0);
            let mut sums = [0.0; 4];
            let items = (0..size).map(|key| {
                let class = (key % 4) as usize;
                let priority = if shard == 3 { 0.0 } else { scale * [0.0, 0.3, 1.0, 4.0][class] };
                if priority > 0.0 {
                    sums[class] += priority.powf(EXPONENT);
                }
                item(&chunk, key, priority)
            });
            insert(&table, items.collect());
            weights.extend(sums);
            table
        })
        .collect();
    let total: f64 = weights.iter().sum();
    let masses: f64 = tables.iter().map(|table| table.watched().mass).sum();
    assert!((masses / total - 1.0).abs() < 1e-12, "{masses} {total}");
    for max_shards in [1_000, 32] {
        let (batches, batch) = (4_000, 256);
        let (counts, error) = draw(&tables, total, batches, batch, false, max_shards);
        let draws = (batches * batch) as f64;
        let expected: Vec<f64> = weights.iter().map(|weight| weight / total * draws).collect();
        assert!(counts.iter().zip(&expected).all(|(&count, &share)| count == 0 || share > 0.0));
        let z = z_of(&counts, &expected);
        // Systematic draws vary less than independent ones. Draws of 32 shards come in clusters.
        let limit = if max_shards == 32 { 1e9 } else { 4.0 };
        assert!(z < limit, "{max_shards} shards: z = {z}");
        if max_shards == 32 {
            // Therefore the sums of shards are compared, each with its own spread.
            let per_shard = |draws: &[f64]| {
                draws.chunks(4).map(|shard| shard.iter().sum()).collect::<Vec<f64>>()
            };
            let counts: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
            for (count, exact) in per_shard(&counts).iter().zip(per_shard(&expected)) {
                assert!((count - exact).abs() <= 30.0 + 0.1 * exact, "{count} of {exact}");
            }
        }
        assert!(error < 1e-12, "{error}");
    }
    // The same test detects equal shares.
    let (counts, _) = draw(&tables, total, 400, 1_000, true, 1_000);
    let expected: Vec<f64> = weights.iter().map(|weight| weight / total * 400_000.0).collect();
    let z = z_of(&counts, &expected);
    assert!(z > 100.0, "z = {z}");
}

/// Real tables with windows, and the coordinator's state.
struct Limited {
    tables: Vec<Arc<Table>>,
    windows: Windows,
    bounds: RateLimiterConfig,
    term: i64,
    orders: u64,
}

impl Limited {
    fn report(&mut self, shard: usize) {
        let now = self.tables[shard].watched();
        let report = Report {
            cursor: now.cursor,
            size: now.size,
            insert_waits: now.insert_waits,
            sample_waits: now.sample_waits,
        };
        self.windows.report(shard as i32, report);
    }

    /// Carries out orders, and loses some.
    fn carry_out(&mut self, orders: &[Order], rng: &mut SmallRng) {
        for order in orders {
            self.windows.sent(order);
            if rng.random_bool(0.01) {
                self.windows.lose(order.shard);
                continue;
            }
            self.orders += 1;
            let Window { low, high, min_size } = order.window;
            let table = &self.tables[order.shard as usize];
            let (now, before) = table.set_window(low, high, min_size, self.term).unwrap();
            if rng.random_bool(0.01) {
                self.windows.lose(order.shard);
                continue;
            }
            let window =
                Window { low: now.min_diff, high: now.max_diff, min_size: now.min_size_to_sample };
            let before = Window {
                low: before.min_diff,
                high: before.max_diff,
                min_size: before.min_size_to_sample,
            };
            let report = Report {
                cursor: now.cursor,
                size: now.size,
                insert_waits: now.insert_waits,
                sample_waits: now.sample_waits,
            };
            self.windows.answered(order.shard, window, before, report);
        }
    }

    fn round(&mut self, rng: &mut SmallRng) {
        for shard in 0..self.tables.len() {
            self.report(shard);
        }
        let orders = self.windows.shrinks();
        self.carry_out(&orders, rng);
        let orders = self.windows.grows();
        self.carry_out(&orders, rng);
    }

    /// Checks the sum of all cursors. No other thread changes them.
    fn check(&self) {
        let sum: f64 = self.tables.iter().map(|table| table.watched().cursor).sum();
        let RateLimiterConfig { min_diff, max_diff, .. } = self.bounds;
        assert!(sum <= max_diff + 1e-6, "{sum} of {:?}", self.bounds);
        // The cursor starts at 0, and nothing is sampled before it reaches the lower bound.
        let samples: i64 = self.tables.iter().map(|table| table.watched().num_samples).sum();
        assert!(sum >= min_diff - 1e-6 || samples == 0, "{sum} of {:?}", self.bounds);
    }
}

/// A million events at real limiters: the sum of cursors stays within the bounds, whatever the
/// coordinator does, whichever orders are lost, and however often it dies.
#[test]
fn a_million_events_keep_the_global_ratio() {
    let chunk = chunk();
    let bounds = RateLimiterConfig {
        min_diff: 8_000.0 - 1_000.0,
        max_diff: 8_000.0 + 1_000.0,
        samples_per_insert: 8.0,
        min_size_to_sample: 1_000,
    };
    let num_shards = 16;
    let closed = RateLimiterConfig {
        samples_per_insert: 8.0,
        min_size_to_sample: 1_000,
        min_diff: 7_000.0,
        max_diff: 9_000.0,
    };
    let tables: Vec<Arc<Table>> = (0..num_shards).map(|_| table(1_000, closed)).collect();
    // Shards start closed.
    for table in &tables {
        table.set_window(f64::MAX, -f64::MAX, i64::MAX, 0).unwrap();
    }
    let windows = Windows::new(bounds, 0..num_shards);
    let mut group = Limited { tables, windows, bounds, term: 1, orders: 0 };
    let mut rng = SmallRng::seed_from_u64(11);
    let mut shares = Shares::new(0.5);
    let (mut inserts, mut samples, mut key, mut events) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut rounds_in_vain = 0;
    while inserts + samples < 1_000_000 {
        events += 1;
        if events % 5_000 == 0 {
            // The coordinator dies; the next one starts without knowledge.
            group.term += 1;
            group.windows = Windows::new(bounds, 0..num_shards);
        }
        let before = inserts + samples;
        for _ in 0..8 {
            key += 1;
            let shard = key % num_shards as u64;
            let table = &group.tables[shard as usize];
            if table.can_insert(1).unwrap() {
                // Shards have different items, so the learner draws from them unequally.
                let priority = rng.random_range(0.1..2.0) * (1.0 + (shard % 5) as f64);
                insert(table, vec![item(&chunk, key, priority)]);
                inserts += 1;
            }
        }
        let masses: Vec<f64> = group.tables.iter().map(|table| table.watched().mass).collect();
        if masses.iter().any(|&mass| mass > 0.0) {
            for (shard, count) in shares.split(&masses, 64, 32).into_iter().enumerate() {
                for _ in 0..count {
                    let one = group.tables[shard].try_sample(1);
                    samples += one.map_or(0, |one| one.len() as u64);
                }
            }
        }
        group.check();
        if inserts + samples < before + 72 {
            group.round(&mut rng);
            group.check();
            rounds_in_vain += 1;
            assert!(rounds_in_vain < 200, "nothing goes on: {:?}", group.windows);
        } else {
            rounds_in_vain = 0;
        }
    }
    let ratio = samples as f64 / inserts as f64;
    assert!((ratio - 8.0).abs() < 0.2, "{samples} samples of {inserts} inserts");
    assert!(group.orders > 1_000, "{}", group.orders);
}
