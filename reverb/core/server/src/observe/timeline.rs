// SPDX-License-Identifier: Apache-2.0
//! Statistics of the last minutes, one point per second, recorded while they are being watched.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_engine::{Table, TableStatus};
use reverb_rpc::server::Stop;
use tokio::runtime::Handle;

use crate::observe::streams::Streams;

/// Time between two points.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of points that are kept: ten minutes.
const MAX_POINTS: usize = 600;
/// Time after the last request at which recording stops.
const INTEREST: Duration = Duration::from_secs(600);
/// Time span of the rates, or less if there are fewer points.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Shortest time span for rates.
const MIN_WINDOW: Duration = Duration::from_millis(500);

/// Counters of a server in the last minutes.
///
/// A task records the points. It ends minutes after the last request, so a server that is not
/// watched does no work.
#[derive(Debug)]
pub(crate) struct Timeline {
    tables: Vec<Arc<Table>>,
    streams: Arc<Streams>,
    stop: Stop,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    points: VecDeque<Point>,
    asked_at: Option<Instant>,
    is_running: bool,
}

/// Counters of all tables at one moment.
#[derive(Debug)]
struct Point {
    at: Instant,
    tables: Vec<TablePoint>,
}

/// Counters of a table at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TablePoint {
    pub(crate) inserts: u64,
    pub(crate) samples: u64,
    pub(crate) insert_blocked: Duration,
    pub(crate) sample_blocked: Duration,
}

impl TablePoint {
    pub(crate) fn new(status: &TableStatus) -> Self {
        Self {
            inserts: status.statistics.inserts,
            samples: status.statistics.sample_ages.count(),
            insert_blocked: status.inserting.blocked,
            sample_blocked: status.sampling.blocked,
        }
    }
}

/// Rates of a table in the last seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rates {
    /// Time span of the rates, in seconds.
    pub(crate) seconds: f64,
    /// Inserted items per second.
    pub(crate) inserts: f64,
    /// Sampled items per second.
    pub(crate) samples: f64,
    /// Share of the time with blocked inserts, from 0 to 1.
    pub(crate) insert_blocked: f64,
    /// Share of the time with blocked sample requests, from 0 to 1.
    pub(crate) sample_blocked: f64,
}

impl Rates {
    fn between(then: &TablePoint, now: &TablePoint, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        let share = |then: Duration, now: Duration| {
            (now.saturating_sub(then).as_secs_f64() / seconds).clamp(0.0, 1.0)
        };
        Self {
            seconds,
            inserts: now.inserts.saturating_sub(then.inserts) as f64 / seconds,
            samples: now.samples.saturating_sub(then.samples) as f64 / seconds,
            insert_blocked: share(then.insert_blocked, now.insert_blocked),
            sample_blocked: share(then.sample_blocked, now.sample_blocked),
        }
    }
}

impl Timeline {
    /// Will record these tables on `runtime`, until the stop of their server.
    pub(crate) fn new(
        tables: &[Arc<Table>],
        streams: &Arc<Streams>,
        stop: &Stop,
        runtime: &Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            tables: tables.to_vec(),
            streams: Arc::clone(streams),
            stop: stop.clone(),
            runtime: runtime.clone(),
            state: Mutex::default(),
        })
    }

    /// Starts or prolongs the recording. Returns the rates of each table, or `None` before there
    /// are enough points. `tables` are the current counters, in the order of the server.
    pub(crate) fn look(self: &Arc<Self>, tables: &[TablePoint]) -> Vec<Option<Rates>> {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.asked_at = Some(now);
        if !state.is_running {
            state.is_running = true;
            state.points.clear();
            state.points.push_back(Point { at: now, tables: tables.to_vec() });
            self.runtime.spawn(keep(Arc::downgrade(self)));
        }
        // Oldest point of the time span.
        let then = state.points.iter().find(|point| now - point.at <= RATE_WINDOW);
        let rates = |(at, table): (usize, &TablePoint)| {
            let point = then.filter(|point| now - point.at >= MIN_WINDOW)?;
            Some(Rates::between(point.tables.get(at)?, table, now - point.at))
        };
        tables.iter().enumerate().map(rates).collect()
    }

    /// Points of the tables at these positions in the server. The last point is the current one.
    pub(crate) fn points(&self, tables: &[usize]) -> (Vec<Duration>, Vec<Vec<TablePoint>>) {
        let now = Instant::now();
        let state = self.state.lock();
        let ago = state.points.iter().map(|point| now - point.at).collect();
        let of_table = |&at: &usize| {
            state.points.iter().filter_map(|point| point.tables.get(at).copied()).collect()
        };
        (ago, tables.iter().map(of_table).collect())
    }

    /// Adds a point; `false` if recording should stop.
    fn add(&self, tables: Vec<TablePoint>) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        let is_wanted = state.asked_at.is_some_and(|asked| now - asked <= INTEREST);
        state.is_running = is_wanted;
        if is_wanted {
            if state.points.len() == MAX_POINTS {
                state.points.pop_front();
            }
            state.points.push_back(Point { at: now, tables });
        } else {
            state.points = VecDeque::new();
        }
        is_wanted
    }
}

/// Records points until nobody watches or the server is gone.
async fn keep(timeline: Weak<Timeline>) {
    let mut clock = tokio::time::interval(INTERVAL);
    clock.tick().await;
    loop {
        clock.tick().await;
        let running = timeline.upgrade().filter(|timeline| !timeline.stop.is_stopped());
        let Some(timeline) = running else { return };
        let status = |table: &Arc<Table>| timeline.streams.with_held(table.status());
        let points = timeline.tables.iter().map(|table| TablePoint::new(&status(table)));
        if !timeline.add(points.collect()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use reverb_rpc::server::stop_signal;

    use super::*;

    fn point(inserts: u64, blocked_ms: u64) -> TablePoint {
        TablePoint {
            inserts,
            samples: 2 * inserts,
            insert_blocked: Duration::ZERO,
            sample_blocked: Duration::from_millis(blocked_ms),
        }
    }

    #[test]
    fn rates_are_those_between_two_points() {
        let rates = Rates::between(&point(10, 100), &point(50, 1100), Duration::from_secs(2));
        assert_eq!(rates.inserts.to_bits(), 20f64.to_bits());
        assert_eq!(rates.samples.to_bits(), 40f64.to_bits());
        assert_eq!((rates.insert_blocked, rates.sample_blocked), (0.0, 0.5));
    }

    #[tokio::test]
    async fn there_are_points_only_while_somebody_looks() {
        let (_, stop) = stop_signal();
        let timeline = Timeline::new(&[], &Arc::default(), &stop, &Handle::current());
        assert!(!timeline.add(vec![point(1, 0)]), "nobody has asked");
        let first = timeline.look(&[point(1, 0)]);
        assert_eq!(first, [None], "one point gives no rate");
        assert!(timeline.add(vec![point(2, 0)]));
        assert_eq!(timeline.state.lock().points.len(), 2);
        for _ in 0..2 * MAX_POINTS {
            timeline.add(vec![point(2, 0)]);
        }
        assert_eq!(timeline.state.lock().points.len(), MAX_POINTS);
    }
}
