// SPDX-License-Identifier: Apache-2.0
//! A run of generators and a learner in simulated time, with `OnStale::Wait`: nothing that is taken
//! is too stale, nothing is made twice, and it always goes on.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use reverb_data::rollouts::{Late, OnStale, Outcome, RolloutSettings};

use super::growing_tests::{ROLLOUTS, lease, made, new_item, rollout, settings, table_config};
use super::rollouts::Takes;
use super::state::TableState;
use super::statistics::Removal;

/// Versions that a run publishes.
const VERSIONS: i64 = 30;
/// Ticks after which a run does not go on any more.
const PATIENCE: u64 = 2_000;
const SLOW: u64 = 40;
const LEARNER: u64 = 1_000;

#[derive(Debug, Clone, Copy)]
struct Plan {
    items_per_version: u32,
    ahead: u32,
    slack: u32,
    num_generators: u64,
    on_stale: OnStale,
    /// Share of generators that die with an item, after a rollout or none.
    deaths: f64,
    seed: u64,
}

fn plan(on_stale: OnStale) -> impl Strategy<Value = Plan> {
    (1..6u32, 0..3u32, 0..3u32, 1..12u64, prop::sample::select(vec![0.0, 0.2]), any::<u64>())
        .prop_map(move |(items_per_version, ahead, slack, num_generators, deaths, seed)| Plan {
            items_per_version,
            ahead,
            slack,
            num_generators,
            on_stale,
            deaths,
            seed,
        })
}

fn plan_of_keep() -> Plan {
    Plan {
        items_per_version: 4,
        ahead: 1,
        slack: 1,
        num_generators: 8,
        on_stale: OnStale::Keep,
        deaths: 0.0,
        seed: 1,
    }
}

/// What a generator works on: an item, the version of its tokens, and the tick at which it ends.
type Work = Option<(u64, i64, u64)>;

struct Simulation {
    plan: Plan,
    rng: SmallRng,
    state: TableState,
    work: Vec<Work>,
    tick: u64,
    num_inserts: u64,
    num_leases: u64,
    num_taken: u32,
    version: i64,
    largest: i64,
}

impl Simulation {
    fn new(plan: Plan) -> Self {
        let settings = RolloutSettings {
            items_per_version: Some(plan.items_per_version),
            ahead: Some(plan.ahead),
            max_staleness: Some(plan.ahead + plan.slack),
            on_stale: plan.on_stale,
            open_timeout: Some(Duration::from_secs(1)),
            max_attempts: 1_000,
            ..settings()
        };
        let config = table_config(settings, 1);
        config.validate().unwrap();
        Self {
            plan,
            rng: SmallRng::seed_from_u64(plan.seed),
            state: TableState::new(&config),
            work: vec![None; plan.num_generators as usize],
            tick: 0,
            num_inserts: 0,
            num_leases: 0,
            num_taken: 0,
            version: 0,
            largest: 0,
        }
    }

    fn new_lease(&mut self, holder: u64) -> reverb_data::rollouts::LeaseId {
        self.num_leases += 1;
        lease(holder, self.num_leases)
    }

    fn feed(&mut self) {
        loop {
            let number = self.num_inserts + 1;
            let item = new_item(number, number, None);
            if !self.state.has_place_for(&item) {
                return;
            }
            assert_eq!(self.state.insert(item, 5), None);
            self.num_inserts = number;
        }
    }

    fn generate(&mut self, now: Instant) {
        for at in 0..self.work.len() {
            let holder = at as u64;
            match self.work[at] {
                None if self.state.num_takable(Takes::Open) > 0 => {
                    let by = self.new_lease(holder);
                    let taken = self.state.take_growing(Takes::Open, 1, by, now).unwrap();
                    let is_slow = self.rng.random_bool(0.3);
                    let ticks = if is_slow { SLOW } else { self.rng.random_range(1..4) };
                    self.work[at] = Some((taken[0].key, self.version, self.tick + ticks));
                }
                Some((key, version, end)) if end <= self.tick => {
                    let dies = self.rng.random_bool(self.plan.deaths);
                    let last = if dies { self.rng.random_range(0..2) } else { ROLLOUTS };
                    for number in 0..last {
                        let piece = Some(made(key, 0, number, true));
                        let rollouts = vec![rollout(number, Outcome::Final, version)];
                        let by = Some(lease(holder, self.num_leases));
                        let change = (piece, Late::default());
                        self.state.grow(key, by, rollouts, change, now).unwrap();
                    }
                    self.state.end_holder(holder, dies);
                    self.work[at] = None;
                }
                _ => {}
            }
        }
    }

    /// Takes a part of a batch, and publishes a version after a whole one.
    fn learn(&mut self, now: Instant) {
        let batch = self.plan.items_per_version;
        let num = self.rng.random_range(1..=batch - self.num_taken) as usize;
        if self.state.num_takable(Takes::Ready) < num {
            return;
        }
        let by = self.new_lease(LEARNER);
        let taken = self.state.take_growing(Takes::Ready, num, by, now).unwrap();
        assert_eq!(taken.len(), num);
        for item in &taken {
            self.largest = self.largest.max(self.version - item.item.oldest().unwrap());
        }
        self.state.settle_lease(by, None, true, 7);
        self.num_taken += num as u32;
        if self.num_taken == batch {
            (self.num_taken, self.version) = (0, self.version + 1);
            self.state.set_version(self.version, false);
            while self.state.has_unchecked() {
                self.state.check_staleness();
            }
        }
    }

    /// Runs until the learner has published all versions.
    fn run(&mut self) {
        let now = Instant::now();
        let mut last = (0, 0);
        while self.version < VERSIONS {
            self.feed();
            self.generate(now);
            let before = (self.version, self.num_taken);
            self.learn(now);
            if before != (self.version, self.num_taken) {
                last = (self.tick, self.num_taken);
            }
            assert!(self.tick - last.0 < PATIENCE, "nothing goes on: {:?}", self.plan);
            self.tick += 1;
        }
        self.state.rollouts().unwrap().check();
    }

    fn most(&self) -> i64 {
        i64::from(self.plan.ahead + self.plan.slack)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_gets_too_stale_and_it_always_goes_on(plan in plan(OnStale::Wait)) {
        let mut simulation = Simulation::new(plan);
        simulation.run();
        prop_assert!(simulation.largest <= simulation.most(), "{}", simulation.largest);
        let statistics = simulation.state.statistics();
        prop_assert_eq!(statistics.rollouts.again, 0);
        let removed = &statistics.removed;
        prop_assert_eq!(removed.of(Removal::Stale) + removed.of(Removal::Failed), 0);
    }
}

#[test]
fn what_is_still_to_be_made_again_is_not_taken() {
    for on_stale in [OnStale::Wait, OnStale::Again] {
        let plan = Plan { ahead: 2, slack: 0, items_per_version: 4, on_stale, ..plan_of_keep() };
        let mut simulation = Simulation::new(plan);
        simulation.feed();
        let state = &mut simulation.state;
        for key in 1..=12 {
            let rollouts = (0..ROLLOUTS).map(|it| rollout(it, Outcome::Final, 0));
            for made_now in rollouts {
                let piece = Some(made(key, 0, made_now.number, true));
                let change = (piece, Late::default());
                state.grow(key, None, vec![made_now], change, Instant::now()).unwrap();
            }
        }
        assert_eq!(state.num_takable(Takes::Ready), 12);
        state.set_version(9, false);
        // Items are checked a few at a time, and others are served in between.
        assert!(state.has_unchecked() && state.num_there(Takes::Ready) > 0);
        assert_eq!(state.num_takable(Takes::Ready), 0);
    }
}

#[test]
fn the_same_run_without_waiting_is_too_stale() {
    let mut simulation = Simulation::new(plan_of_keep());
    simulation.run();
    assert!(simulation.largest > simulation.most(), "{}", simulation.largest);
}
