// SPDX-License-Identifier: Apache-2.0
//! Windows: one rate limiter divided over several shards.
//!
//! The limiter of a table keeps its *cursor*, inserts times `samples_per_insert` minus samples,
//! between two bounds. Each shard keeps its own cursor within a *window*. The lower ends of all
//! windows add up to at least the lower bound, the upper ends to at most the upper one. So the sum
//! of the cursors always stays within the bounds.
//!
//! A coordinator moves room to shards that need it: first it shrinks windows, then it hands out the
//! room that was returned. A coordinator that dies in between loses room until the next round, and
//! never creates any. An order without an answer counts as carried out if it grows a window, and as
//! lost if it shrinks one.

use std::collections::BTreeMap;

use reverb_data::RateLimiterConfig;

/// Tolerance for rounding in a sum of cursors.
const EPSILON: f64 = 1e-9;

/// Range of a shard's cursor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Smallest cursor.
    pub low: f64,
    /// Largest cursor.
    pub high: f64,
    /// Smallest number of items at which the shard can be sampled; `i64::MAX`: never.
    pub min_size: i64,
}

impl Window {
    /// Order that closes a window around the shard's cursor.
    pub const CLOSED: Self = Self { low: f64::MAX, high: -f64::MAX, min_size: i64::MAX };

    /// True if the shard can be sampled.
    fn is_open(&self) -> bool {
        self.min_size < i64::MAX
    }
}

/// Report of a shard about its table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Inserts times `samples_per_insert` minus samples.
    pub cursor: f64,
    /// Number of items.
    pub size: i64,
    /// True if inserts are blocked.
    pub insert_waits: bool,
    /// True if sample requests are blocked.
    pub sample_waits: bool,
}

#[derive(Debug, Clone)]
struct Shard {
    report: Report,
    /// Widest window that may be in force; `None` before the first order of this coordinator.
    window: Option<Window>,
    /// Window at the start of the accounting: when this coordinator met the shard, or when a shard
    /// was last replaced, added or removed.
    first: Window,
    is_reached: bool,
}

/// Order that sets the window of a shard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Order {
    /// Index of the shard.
    pub shard: i32,
    /// Requested window.
    pub window: Window,
}

/// State of a coordinator. Decides, and never waits.
#[derive(Debug, Clone)]
pub struct Windows {
    /// Rate limiter of the table of the whole group: `min_diff` and `max_diff` bound the sum of all
    /// cursors.
    bounds: RateLimiterConfig,
    shards: BTreeMap<i32, Shard>,
    is_open: bool,
    is_frozen: bool,
}

impl Windows {
    /// State of a coordinator that knows only the indices of these shards.
    pub fn new(bounds: RateLimiterConfig, shards: impl IntoIterator<Item = i32>) -> Self {
        let mut windows =
            Self { bounds, shards: BTreeMap::new(), is_open: false, is_frozen: false };
        shards.into_iter().for_each(|shard| windows.add(shard));
        windows
    }

    /// Adds a shard.
    pub fn add(&mut self, shard: i32) {
        let report = Report { cursor: 0.0, size: 0, insert_waits: false, sample_waits: false };
        let first = Window { low: 0.0, high: 0.0, min_size: i64::MAX };
        if !self.shards.contains_key(&shard) {
            self.begin_again();
            self.shards.insert(shard, Shard { report, window: None, first, is_reached: false });
        }
    }

    /// Removes a shard that has left the group.
    pub fn remove(&mut self, shard: i32) {
        self.begin_again();
        self.shards.remove(&shard);
    }

    /// Indices of the shards.
    pub fn indices(&self) -> impl Iterator<Item = i32> {
        self.shards.keys().copied()
    }

    /// True if callers are blocked that a moved window could help, or if a window is unknown.
    pub fn is_asked(&self) -> bool {
        self.shards.values().any(|state| {
            state.is_reached
                && (state.window.is_none()
                    || state.report.insert_waits
                    || state.report.sample_waits)
        })
    }

    /// Stops or allows the growth of windows.
    pub fn freeze(&mut self, is_frozen: bool) {
        self.is_frozen = is_frozen;
    }

    /// Stores a shard's report, except its window: the report may be older than the last order.
    pub fn report(&mut self, shard: i32, report: Report) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.report = report;
            state.is_reached = true;
        }
    }

    /// Marks a shard as unreachable. Its window counts until it is back or removed.
    pub fn lose(&mut self, shard: i32) {
        if let Some(state) = self.shards.get_mut(&shard) {
            state.is_reached = false;
        }
    }

    /// Handles a new server in place of a shard: its window is unknown until it answers an order.
    pub fn replace(&mut self, shard: i32) {
        self.begin_again();
        if let Some(state) = self.shards.get_mut(&shard) {
            state.window = None;
        }
    }

    /// Restarts the accounting: room returned so far is not handed out until all windows are known,
    /// because a shard that leaves may still use it, or it never existed.
    fn begin_again(&mut self) {
        for state in self.shards.values_mut() {
            state.first = state.window.unwrap_or(state.first);
        }
    }

    /// Records an order that is being sent. A window that grows may be in force from now on.
    pub fn sent(&mut self, order: &Order) {
        let Some(shard) = self.shards.get_mut(&order.shard) else { return };
        if let Some(window) = &mut shard.window {
            window.low = window.low.min(order.window.low);
            window.high = window.high.max(order.window.high);
        }
    }

    /// Records an answer: the window in force, and the one before the order.
    pub fn answered(&mut self, shard: i32, window: Window, before: Window, report: Report) {
        if let Some(state) = self.shards.get_mut(&shard) {
            if state.window.is_none() {
                state.first = before;
            }
            state.window = Some(window);
            state.report = report;
            state.is_reached = true;
        }
    }

    /// Orders that only shrink windows, to free room.
    pub fn shrinks(&mut self) -> Vec<Order> {
        let size: i64 = self.shards.values().map(|state| state.report.size).sum();
        self.is_open |= size >= self.bounds.min_size_to_sample;
        self.is_open &= size > 0 || self.bounds.min_size_to_sample <= 1;
        let targets = self.targets();
        let needs_room = self.is_asked() || self.is_uneven(&targets);
        let mut orders = Vec::new();
        for (&shard, state) in &self.shards {
            if !state.is_reached {
                continue;
            }
            let Some(window) = state.window else {
                orders.push(Order { shard, window: Window::CLOSED });
                continue;
            };
            if !needs_room {
                continue;
            }
            let Some(target) = targets.get(&shard) else { continue };
            let shrunk = Window {
                low: window.low.max(target.low),
                high: window.high.min(target.high),
                min_size: target.min_size.max(window.min_size),
            };
            // Resend the window to shards with blocked callers: new settings may have closed state.
            let asks = state.report.insert_waits || state.report.sample_waits;
            if shrunk != window || asks {
                orders.push(Order { shard, window: shrunk });
            }
        }
        orders
    }

    /// Orders that only grow windows, within the free room.
    pub fn grows(&self) -> Vec<Order> {
        if self.is_frozen {
            return Vec::new();
        }
        let targets = self.targets();
        let known: Vec<(i32, Window, Window)> = self
            .shards
            .iter()
            .filter(|(_, state)| state.is_reached)
            .filter_map(|(&shard, state)| Some((shard, state.window?, *targets.get(&shard)?)))
            .collect();
        let lower = |(_, window, target): &(i32, Window, Window)| {
            if self.bounds.has_min() { (window.low - target.low).max(0.0) } else { 0.0 }
        };
        let higher = |(_, window, target): &(i32, Window, Window)| {
            if self.bounds.has_max() { (target.high - window.high).max(0.0) } else { 0.0 }
        };
        let wanted_low = known.iter().map(lower).collect();
        let wanted_high = known.iter().map(higher).collect();
        let lows = grants(wanted_low, self.slack_low(), 1.0);
        let highs = grants(wanted_high, self.slack_high(), self.bounds.samples_per_insert);
        let may_open = self.may_open();
        let mut orders = Vec::new();
        for (i, (shard, window, target)) in known.iter().enumerate() {
            let grown = Window {
                low: if self.bounds.has_min() { window.low - lows[i] } else { target.low },
                high: if self.bounds.has_max() { window.high + highs[i] } else { target.high },
                min_size: if may_open { target.min_size } else { window.min_size },
            };
            if grown != *window {
                orders.push(Order { shard: *shard, window: grown });
            }
        }
        orders
    }

    /// True if closed shards may be opened. Cursors of new shards are 0, and the lower bound may be
    /// above 0: the first shard opens when the lower ends add up to the bound, and they stay there
    /// from then on.
    fn may_open(&self) -> bool {
        let was_open =
            || self.shards.values().any(|state| state.window.is_some() && state.first.is_open());
        let is_known = || self.shards.values().all(|state| state.window.is_some());
        !self.bounds.has_min() || was_open() || (is_known() && self.slack_low() >= -EPSILON)
    }

    /// Room by which the lower ends may sink in total.
    fn slack_low(&self) -> f64 {
        if !self.bounds.has_min() {
            return f64::INFINITY;
        }
        self.slack(self.bounds.min_diff, |window| window.low)
    }

    /// Room by which the upper ends may rise in total.
    fn slack_high(&self) -> f64 {
        if !self.bounds.has_max() {
            return f64::INFINITY;
        }
        // Negated, the upper ends are lower ones.
        self.slack(-self.bounds.max_diff, |window| -window.high)
    }

    /// Room of the ends above a bound of their sum.
    fn slack(&self, bound: f64, end: fn(&Window) -> f64) -> f64 {
        let windows = || self.shards.values().map(|state| Some((state.window?, state.first)));
        match windows().map(|known| Some(end(&known?.0))).sum::<Option<f64>>() {
            Some(now) => now - bound,
            // The window of a shard is unknown: only returned room may be handed out.
            None => windows().flatten().map(|(now, first)| end(&now) - end(&first)).sum(),
        }
    }

    /// Best windows now, for the shards that can be reached.
    fn targets(&self) -> BTreeMap<i32, Window> {
        let bounds = &self.bounds;
        let reached: Vec<(i32, &Shard)> = self
            .shards
            .iter()
            .filter(|(_, state)| state.is_reached)
            .map(|(&i, state)| (i, state))
            .collect();
        let mut cursors = 0.0;
        let mut below = 0.0;
        let mut above = 0.0;
        for state in self.shards.values() {
            if state.is_reached {
                cursors += state.report.cursor;
            } else {
                let window = state.window.unwrap_or(state.first);
                below += window.low;
                above += window.high;
            }
        }
        let spi = bounds.samples_per_insert;
        let samples = rooms(cursors + below - bounds.min_diff, 1.0, bounds.has_min());
        let inserts = rooms(bounds.max_diff - cursors - above, spi, bounds.has_max());
        let samplers: Vec<bool> =
            reached.iter().map(|(_, state)| state.report.sample_waits).collect();
        let inserters: Vec<bool> =
            reached.iter().map(|(_, state)| state.report.insert_waits).collect();
        let samples = samples.map(|count| parts(count, &samplers));
        let inserts = inserts.map(|count| parts(count, &inserters));
        let min_size = if self.is_open { 1 } else { i64::MAX };
        let mut targets = BTreeMap::new();
        for (i, (shard, state)) in reached.iter().enumerate() {
            let cursor = state.report.cursor;
            let low = samples.as_ref().map_or(-f64::MAX, |parts| cursor - parts[i] as f64);
            let high = inserts.as_ref().map_or(f64::MAX, |parts| cursor + parts[i] as f64 * spi);
            targets.insert(*shard, Window { low, high, min_size });
        }
        targets
    }

    /// True if a shard has less than half of its share of the room, or has to open or close.
    fn is_uneven(&self, targets: &BTreeMap<i32, Window>) -> bool {
        targets.iter().any(|(shard, target)| {
            let state = &self.shards[shard];
            let Some(window) = state.window else { return true };
            let cursor = state.report.cursor;
            let is_short = |has: f64, part: f64| part.is_finite() && has < part / 2.0;
            is_short(cursor - window.low, cursor - target.low)
                || is_short(window.high - cursor, target.high - cursor)
                || window.min_size != target.min_size
        })
    }
}

/// Number of steps of `quantum` that fit into `room`; `None` if unbounded.
fn rooms(room: f64, quantum: f64, is_bounded: bool) -> Option<u64> {
    is_bounded.then(|| if quantum > 0.0 { ((room + EPSILON) / quantum).max(0.0) as u64 } else { 0 })
}

/// Divides `count` steps equally. Shards with blocked callers get the remainder, one step each, and
/// get everything if there are too few steps for all.
fn parts(count: u64, asks: &[bool]) -> Vec<u64> {
    let num_asking = asks.iter().filter(|&&asks| asks).count() as u64;
    let is_scarce = num_asking > 0 && count < 4 * asks.len() as u64;
    let takes = |asks: bool| asks || !is_scarce;
    let num_taking = asks.iter().filter(|&&asks| takes(asks)).count() as u64;
    let each = count.checked_div(num_taking).unwrap_or(0);
    let mut rest = count - each * num_taking;
    let mut parts: Vec<u64> = asks.iter().map(|&asks| if takes(asks) { each } else { 0 }).collect();
    for asking_first in [true, false] {
        for (part, &asks) in parts.iter_mut().zip(asks) {
            if rest > 0 && takes(asks) && asks == asking_first {
                *part += 1;
                rest -= 1;
            }
        }
    }
    parts
}

/// Divides `slack` among the wanted amounts, in whole quanta if there is too little.
fn grants(wanted: Vec<f64>, slack: f64, quantum: f64) -> Vec<f64> {
    let total: f64 = wanted.iter().sum();
    if total <= slack.max(0.0) + EPSILON {
        return wanted;
    }
    let mut left = slack.max(0.0);
    let share = left / total;
    let whole = |amount: f64| {
        if quantum > 0.0 { ((amount + EPSILON) / quantum).floor() * quantum } else { 0.0 }
    };
    let mut granted: Vec<f64> = wanted.iter().map(|amount| whole(amount * share)).collect();
    left -= granted.iter().sum::<f64>();
    for (granted, wanted) in granted.iter_mut().zip(&wanted) {
        let more = whole((wanted - *granted).min(left).max(0.0));
        *granted += more;
        left -= more;
    }
    granted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Table of a shard, modelled after the engine's.
    #[derive(Debug, Clone)]
    struct Table {
        inserts: u64,
        samples: u64,
        window: Window,
        spi: f64,
        insert_waits: bool,
        sample_waits: bool,
    }

    impl Table {
        fn cursor(&self) -> f64 {
            self.inserts as f64 * self.spi - self.samples as f64
        }

        fn insert(&mut self) -> bool {
            self.insert_waits = self.cursor() + self.spi > self.window.high + EPSILON;
            self.inserts += u64::from(!self.insert_waits);
            !self.insert_waits
        }

        fn sample(&mut self) -> bool {
            let is_small = (self.inserts as i64) < self.window.min_size;
            self.sample_waits = is_small || self.cursor() - 1.0 < self.window.low - EPSILON;
            self.samples += u64::from(!self.sample_waits);
            !self.sample_waits
        }

        fn set(&mut self, asked: Window) -> (Window, Window) {
            let before = self.window;
            self.window = Window {
                low: asked.low.min(self.cursor()),
                high: asked.high.max(self.cursor()),
                min_size: asked.min_size,
            };
            (self.window, before)
        }

        fn report(&self) -> Report {
            Report {
                cursor: self.cursor(),
                size: self.inserts as i64,
                insert_waits: self.insert_waits,
                sample_waits: self.sample_waits,
            }
        }
    }

    fn tables(bounds: &RateLimiterConfig, n: usize) -> Vec<Table> {
        let window = Window { low: 0.0, high: 0.0, min_size: i64::MAX };
        let window = Window {
            low: if bounds.has_min() { window.low } else { -f64::MAX },
            high: if bounds.has_max() { window.high } else { f64::MAX },
            ..window
        };
        let table = Table {
            inserts: 0,
            samples: 0,
            window,
            spi: bounds.samples_per_insert,
            insert_waits: false,
            sample_waits: false,
        };
        vec![table; n]
    }

    fn carry_out(windows: &mut Windows, tables: &mut [Table], orders: &[Order]) {
        for order in orders {
            windows.sent(order);
            let table = &mut tables[order.shard as usize];
            let (now, before) = table.set(order.window);
            windows.answered(order.shard, now, before, table.report());
        }
    }

    fn round(windows: &mut Windows, tables: &mut [Table]) {
        for (i, table) in tables.iter().enumerate() {
            windows.report(i as i32, table.report());
        }
        let orders = windows.shrinks();
        carry_out(windows, tables, &orders);
        let orders = windows.grows();
        carry_out(windows, tables, &orders);
    }

    fn sum(tables: &[Table]) -> f64 {
        tables.iter().map(Table::cursor).sum()
    }

    fn bounds(min_diff: f64, max_diff: f64, spi: f64, min_size: i64) -> RateLimiterConfig {
        RateLimiterConfig {
            min_diff,
            max_diff,
            samples_per_insert: spi,
            min_size_to_sample: min_size,
        }
    }

    fn some_bounds() -> impl Strategy<Value = RateLimiterConfig> {
        prop_oneof![
            (1.0..9.0_f64, 0..50_i64, 0.0..400.0_f64).prop_map(|(spi, size, error)| {
                let middle = size as f64 * spi;
                let error = error.max(spi.max(1.0) * 2.0);
                bounds(middle - error, middle + error, spi, size)
            }),
            (1..50_i64).prop_map(|capacity| bounds(0.0, capacity as f64, 1.0, 1)),
            (1..50_i64).prop_map(|size| bounds(-f64::MAX, f64::MAX, 1.0, size)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Orders are lost before or after they are carried out, or come late; coordinators die.
        #[test]
        fn the_sum_of_cursors_never_leaves_the_bounds(
            bounds in some_bounds(), n in 1..12_usize, seed in any::<u64>(),
        ) {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut tables = tables(&bounds, n);
            let mut members = rng.random_range(1..=n as i32);
            let mut windows = Windows::new(bounds, 0..members);
            for _ in 0..600 {
                match rng.random_range(0..20) {
                    0 if rng.random_bool(0.3) => {
                        windows.add(members.min(n as i32 - 1));
                        members = (members + 1).min(n as i32);
                    }
                    0 => {
                        // Orders of the old coordinator are refused from now on.
                        windows = Windows::new(bounds, 0..members);
                    }
                    1 => windows.lose(rng.random_range(0..n) as i32),
                    2 => {
                        // A server returns from its checkpoint; the coordinator is told later.
                        let i = rng.random_range(0..n);
                        tables[i].set(Window::CLOSED);
                        windows.replace(i as i32);
                    }
                    3 => {
                        // An old report arrives late.
                        let i = rng.random_range(0..n);
                        let report = tables[i].report();
                        tables[i].sample();
                        windows.report(i as i32, report);
                    }
                    4..10 => {
                        for (i, table) in tables.iter().enumerate() {
                            if rng.random_bool(0.9) {
                                windows.report(i as i32, table.report());
                            }
                        }
                        for phase in 0..2 {
                            let orders =
                                if phase == 0 { windows.shrinks() } else { windows.grows() };
                            for order in orders {
                                windows.sent(&order);
                                let table = &mut tables[order.shard as usize];
                                let fate = rng.random_range(0..10);
                                if fate == 0 {
                                    windows.lose(order.shard);
                                    continue;
                                }
                                let (now, before) = table.set(order.window);
                                let report = table.report();
                                if rng.random_bool(0.3) {
                                    table.insert();
                                    table.sample();
                                }
                                if fate == 1 {
                                    windows.lose(order.shard);
                                } else {
                                    windows.answered(order.shard, now, before, report);
                                }
                            }
                        }
                    }
                    _ => {
                        let table = &mut tables[rng.random_range(0..n)];
                        for _ in 0..rng.random_range(0..20) {
                            if rng.random_bool(0.5) { table.insert() } else { table.sample() };
                        }
                    }
                }
                let sum = sum(&tables);
                let low = tables.iter().map(|table| table.window.low).sum::<f64>();
                let high = tables.iter().map(|table| table.window.high).sum::<f64>();
                prop_assert!(sum <= bounds.max_diff + 1e-6, "{sum} in {bounds:?}");
                let is_fresh = tables.iter().all(|table| table.samples == 0);
                prop_assert!(is_fresh || sum >= bounds.min_diff - 1e-6, "{sum} in {bounds:?}");
                prop_assert!(is_fresh || !bounds.has_min() || low >= bounds.min_diff - 1e-6, "{low} {bounds:?}");
                prop_assert!(!bounds.has_max() || high <= bounds.max_diff + 1e-6, "{high} {bounds:?}");
            }
        }

        /// Callers that one table would let continue do continue after a few rounds.
        #[test]
        fn nobody_waits_for_what_the_group_allows(
            bounds in some_bounds(), n in 1..12_usize, seed in any::<u64>(),
        ) {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut tables = tables(&bounds, n);
            let mut windows = Windows::new(bounds, 0..n as i32);
            for _ in 0..300 {
                let i = rng.random_range(0..n);
                let total: i64 = tables.iter().map(|table| table.inserts as i64).sum();
                let sum = sum(&tables);
                if sum + bounds.samples_per_insert <= bounds.max_diff + 1e-12 {
                    let mut tries = 0;
                    while !tables[i].insert() {
                        tries += 1;
                        prop_assert!(tries < 5, "insert at {sum} in {bounds:?}: {windows:?}");
                        round(&mut windows, &mut tables);
                    }
                } else if total >= bounds.min_size_to_sample && tables[i].inserts > 0 {
                    let mut tries = 0;
                    while !tables[i].sample() {
                        tries += 1;
                        prop_assert!(tries < 5, "sample at {sum} in {bounds:?}: {windows:?}");
                        round(&mut windows, &mut tables);
                    }
                }
                for table in &mut tables {
                    (table.insert_waits, table.sample_waits) = (false, false);
                }
            }
        }
    }

    #[test]
    fn a_queue_holds_exactly_its_capacity_in_all_shards() {
        let bounds = bounds(0.0, 5.0, 1.0, 1);
        let mut tables = tables(&bounds, 4);
        let mut windows = Windows::new(bounds, 0..4);
        let mut inserted = 0;
        for turn in 0..60 {
            inserted += usize::from(tables[turn % 4].insert());
            round(&mut windows, &mut tables);
        }
        assert_eq!(inserted, 5);
    }

    #[test]
    fn what_is_left_over_goes_to_shards_that_ask() {
        assert_eq!(parts(13, &[false, true, false]), [4, 5, 4]);
        assert_eq!(parts(14, &[false, false, true]), [5, 4, 5]);
        assert_eq!(parts(5, &[false, true, true]), [0, 3, 2], "a scarce room is for them alone");
    }

    #[test]
    fn a_shard_that_is_gone_keeps_its_room_and_the_others_go_on() {
        let bounds = bounds(-100.0, 100.0, 1.0, 1);
        let mut tables = tables(&bounds, 4);
        let mut windows = Windows::new(bounds, 0..4);
        (0..3).for_each(|_| round(&mut windows, &mut tables));
        windows.lose(3);
        let mut inserted = 0;
        for _ in 0..200 {
            inserted += usize::from(tables[0].insert());
            for (i, table) in tables.iter().enumerate().take(3) {
                windows.report(i as i32, table.report());
            }
            let orders = windows.shrinks();
            carry_out(&mut windows, &mut tables, &orders);
            let orders = windows.grows();
            carry_out(&mut windows, &mut tables, &orders);
        }
        assert_eq!(inserted, 75);
    }

    #[test]
    fn a_frozen_group_gives_nothing_out() {
        let bounds = bounds(-10.0, 10.0, 1.0, 1);
        let mut tables = tables(&bounds, 2);
        let mut windows = Windows::new(bounds, 0..2);
        windows.freeze(true);
        (0..5).for_each(|_| round(&mut windows, &mut tables));
        assert!(!tables[0].insert() && !tables[1].insert());
        windows.freeze(false);
        round(&mut windows, &mut tables);
        assert!(tables[0].insert() && tables[1].insert());
    }
}
