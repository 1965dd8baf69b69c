// SPDX-License-Identifier: Apache-2.0
//! Calls that wait for a server: the log says so after 10 s and 60 s, then every 5 minutes, with
//! the reason that the server gives.
//!
//! One report for each table and side of a server, however many clients and calls of this process
//! wait. A side of a table has waited since one of its calls succeeded last, so a loop of calls
//! with short timeouts is one wait.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reverb_base::diagnosis::State;
use reverb_base::figures::plural;
use reverb_base::{Error, ErrorKind, PerProcess, Result};
use reverb_wire::Calls as _;
use reverb_wire::convert::table_config::to_rate_limiter;
use reverb_wire::generated::reverb::{TableStatus, WaitReasonRequest};

use crate::retry::short;
use crate::session::Session;

/// The second report comes after so many times the time of the first.
const SECOND_REPORT: u32 = 6;
/// A call that begins so soon after one that timed out continues its wait.
pub(crate) const GAP: Duration = Duration::from_secs(1);
/// Limit of the call that asks a server for the reason.
const REASON_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest pause between two looks at what waits.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// When waits are reported.
#[derive(Debug, Clone, Copy)]
pub struct ReportWaits {
    /// Time until the first report; `None`: never.
    pub after: Option<Duration>,
    /// Interval of the reports after the second.
    pub repeat: Duration,
}

/// Default time until the first report.
const FIRST_REPORT: Duration = Duration::from_secs(10);
/// Default interval of later reports.
const REPEAT: Duration = Duration::from_secs(300);
/// Seconds until the first report, or "never".
const VARIABLE: &str = "REVERB_REPORT_WAITS_S";

impl ReportWaits {
    /// The settings of a program that sets nothing.
    fn of_environment() -> Self {
        static SETTINGS: OnceLock<ReportWaits> = OnceLock::new();
        *SETTINGS.get_or_init(|| {
            let after = match std::env::var(VARIABLE).as_deref() {
                Err(_) | Ok("") => Some(FIRST_REPORT),
                Ok("never") => None,
                Ok(text) => {
                    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
                    let after = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                    if after.is_none() {
                        tracing::warn!(
                            "{VARIABLE} must be a number of seconds over 0, or never, got {text:?}. \
                             It counts as {}.",
                            FIRST_REPORT.as_secs()
                        );
                    }
                    Some(after.unwrap_or(FIRST_REPORT))
                }
            };
            Self { after, repeat: REPEAT }
        })
    }

    /// The interval before the next report of a side of which so many were made.
    fn interval(&self, num_reports: u32) -> Option<Duration> {
        let after = self.after?;
        Some(match num_reports {
            0 => after,
            1 => after.saturating_mul(SECOND_REPORT - 1).min(self.repeat),
            _ => self.repeat,
        })
    }
}

/// The waits of this process. A session gets them when it is made, so that a call need not ask
/// which process this is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits(Arc<Mutex<Registry>>);

static WAITS: PerProcess<Waits> = PerProcess::new();

impl Waits {
    pub(crate) fn of_this_process() -> Self {
        WAITS.get().clone()
    }
}

#[derive(Debug, Default)]
struct Registry {
    /// Few: those that something waits for now.
    sides: Vec<(Key, Side)>,
    /// The last time that the task looked, which ends when nothing waits.
    looked_at: Option<Instant>,
}

/// Sets when waits are reported, those that continue included.
pub fn report_waits(settings: ReportWaits) {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(NEVER);
    REPEAT_MS.store(milliseconds(settings.repeat), Ordering::Relaxed);
    AFTER_MS.store(settings.after.map_or(NEVER, milliseconds), Ordering::Relaxed);
}

/// Milliseconds until the first report; `NEVER`, or `UNSET`. No lock, because a forked child
/// inherits them.
static AFTER_MS: AtomicU64 = AtomicU64::new(UNSET);
static REPEAT_MS: AtomicU64 = AtomicU64::new(0);
const NEVER: u64 = u64::MAX;
const UNSET: u64 = u64::MAX - 1;

fn settings() -> ReportWaits {
    match AFTER_MS.load(Ordering::Relaxed) {
        UNSET => ReportWaits::of_environment(),
        after => ReportWaits {
            after: (after != NEVER).then(|| Duration::from_millis(after)),
            repeat: Duration::from_millis(REPEAT_MS.load(Ordering::Relaxed)),
        },
    }
}

/// An inserting or sampling side of a table, or an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Room for items in a table.
    Inserts(Arc<str>),
    /// Items of a table.
    Samples(Arc<str>),
    /// The answer to a call, by its name.
    Answer(&'static str),
}

impl WaitFor {
    fn table(&self) -> &str {
        match self {
            Self::Inserts(table) | Self::Samples(table) => table,
            Self::Answer(_) => "",
        }
    }
}

impl fmt::Display for WaitFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inserts(table) => write!(f, "inserts into table {table}"),
            Self::Samples(table) => write!(f, "samples of table {table}"),
            Self::Answer(call) => write!(f, "the answer to {call}"),
        }
    }
}

/// An address, and what is waited for there.
type Key = (Arc<str>, WaitFor);

/// A side of a table, or a call without one.
#[derive(Debug)]
struct Side {
    num_calls: usize,
    /// The last success, or the begin of the first call after it.
    since: Instant,
    /// The end of the last call, if it was no success.
    left_at: Option<Instant>,
    num_reports: u32,
    reported_at: Instant,
    session: Weak<Session>,
}

/// Makes a call that may wait for a server, and reports its wait if it takes long.
///
/// `what` is asked whenever the call is not ready: a flush waits for one table after another. The
/// call is pinned by the caller, because some are large to move.
pub(crate) async fn reported<T>(
    session: &Arc<Session>,
    what: impl Fn() -> WaitFor,
    mut call: Pin<&mut impl Future<Output = Result<T>>>,
) -> Result<T> {
    let mut waiting: Option<Waiting<'_>> = None;
    // Polled in one place: with two, the machine code of every call would be there twice.
    let result = poll_fn(|context| {
        let polled = call.as_mut().poll(context);
        if polled.is_pending() {
            let what = what();
            if waiting.as_ref().is_none_or(|waiting| waiting.key.1 != what) {
                // The table before has let something through, so its wait was no vain one.
                if let Some(waiting) = &mut waiting {
                    waiting.succeeded = true;
                }
                waiting = Some(Waiting::begin(session, what));
            }
        }
        polled
    })
    .await;
    if let Some(waiting) = &mut waiting {
        waiting.succeeded = result.is_ok();
    }
    result
}

/// A call that waits.
struct Waiting<'a> {
    waits: &'a Waits,
    key: Key,
    succeeded: bool,
}

impl<'a> Waiting<'a> {
    #[inline(never)]
    fn begin(session: &'a Arc<Session>, what: WaitFor) -> Self {
        let waits = session.waits();
        let key = (session.shared_address(), what);
        if waits.0.lock().begin(&key, session) {
            session.runtime().spawn(look(waits.clone()));
        }
        Self { waits, key, succeeded: false }
    }
}

impl Drop for Waiting<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        self.waits.0.lock().end(&self.key, self.succeeded);
    }
}

impl Registry {
    /// Counts a call. Returns true if the task that looks has to be started.
    fn begin(&mut self, key: &Key, session: &Arc<Session>) -> bool {
        let now = Instant::now();
        let known = self.sides.iter().position(|(known, _)| known == key);
        let at = known.unwrap_or_else(|| {
            self.sides.push((key.clone(), Side::new(now)));
            self.sides.len() - 1
        });
        let side = &mut self.sides[at].1;
        let continues = side.left_at.take().is_some_and(|at| now - at <= GAP);
        if side.num_calls == 0 && !continues {
            (side.since, side.num_reports) = (now, 0);
        }
        side.num_calls += 1;
        side.session = Arc::downgrade(session);
        let is_running = self.looked_at.is_some_and(|at| now - at <= 3 * MAX_PAUSE);
        self.looked_at = self.looked_at.filter(|_| is_running).or(Some(now));
        !is_running
    }

    /// Counts a call no longer.
    fn end(&mut self, key: &Key, succeeded: bool) {
        let Some((_, side)) = self.sides.iter_mut().find(|(known, _)| known == key) else {
            return;
        };
        side.num_calls = side.num_calls.saturating_sub(1);
        let now = Instant::now();
        if succeeded {
            (side.since, side.num_reports, side.left_at) = (now, 0, None);
        } else {
            side.left_at = Some(now);
        }
    }

    /// The reports that are due; `None` if nothing waits any more, which ends the task.
    fn look(&mut self, now: Instant) -> Option<Vec<Report>> {
        let is_gone =
            |side: &Side| side.num_calls == 0 && side.left_at.is_none_or(|at| now - at > GAP);
        self.sides.retain(|(_, side)| !is_gone(side));
        self.looked_at = (!self.sides.is_empty()).then_some(now);
        self.looked_at?;
        let settings = settings();
        let due = self.sides.iter_mut().filter_map(|(key, side)| side.report(key, settings, now));
        Some(due.collect())
    }
}

impl Side {
    fn new(now: Instant) -> Self {
        Self {
            num_calls: 0,
            since: now,
            left_at: None,
            num_reports: 0,
            reported_at: now,
            session: Weak::new(),
        }
    }

    /// A report if one is due, which counts as made then.
    fn report(&mut self, key: &Key, settings: ReportWaits, now: Instant) -> Option<Report> {
        let from = if self.num_reports == 0 { self.since } else { self.reported_at };
        let is_due = self.num_calls > 0 && now - from >= settings.interval(self.num_reports)?;
        let session = is_due.then(|| self.session.upgrade())??;
        self.num_reports += 1;
        self.reported_at = now;
        let (address, what) = key.clone();
        Some(Report { session, address, what, num_calls: self.num_calls, waited: now - self.since })
    }
}

/// The task that looks for long waits. It ends when nothing waits.
async fn look(waits: Waits) {
    loop {
        let pause = settings().after.map_or(MAX_PAUSE, |after| after / 4);
        tokio::time::sleep(pause.clamp(Duration::from_millis(10), MAX_PAUSE)).await;
        let Some(due) = waits.0.lock().look(Instant::now()) else { return };
        for report in due {
            // A server that does not answer does not hold up the reports of others.
            tokio::spawn(report.log());
        }
    }
}

/// A line of the log.
struct Report {
    session: Arc<Session>,
    address: Arc<str>,
    what: WaitFor,
    num_calls: usize,
    waited: Duration,
}

impl Report {
    async fn log(self) {
        let reason = tokio::time::timeout(REASON_TIMEOUT, self.reason()).await;
        let (reason, is_away) = reason.unwrap_or_else(|_| {
            ("The server does not answer other calls either.".to_owned(), false)
        });
        let Self { session, address, what, num_calls, waited } = &self;
        let calls = plural(*num_calls as i64, "call waits", "calls wait");
        let waited = waited.as_secs_f64().round();
        let table = Some(what.table()).filter(|table| !table.is_empty());
        if !is_away {
            tracing::warn!(
                table,
                "{calls} for {what} at {address}, for {waited} s by now. {reason}"
            );
            return;
        }
        // The wait goes on for `connect_timeout_s`. Its end is logged where it ends.
        if session.absence().begin_wait() {
            let address = short(address);
            let line = format!("{calls} for {what} at {address}, for {waited} s by now. {reason}");
            tracing::warn!(table, "{}", at_most(MAX_AWAY_CHARS, line));
        }
    }

    /// The reason that the server gives, or what can be said without it; and whether nobody answers
    /// at all.
    async fn reason(&self) -> (String, bool) {
        let table = self.what.table();
        let request = WaitReasonRequest { table: table.to_owned() };
        let asked = async { self.session.transport()?.call(request).await };
        match asked.await {
            Ok(answer) => (self.reason_of(answer.table.unwrap_or_default()), false),
            Err(error) if is_unreachable(&error) => {
                (format!("The server cannot be reached: {}", error.message()), true)
            }
            Err(_) if table.is_empty() && self.session.leads_to_group() => {
                ("A server of the group works on it, or is away; `reverb why` tells.".into(), false)
            }
            Err(_) if table.is_empty() => {
                ("The server works on it, and answers other calls.".into(), false)
            }
            Err(error) => (error.message().to_owned(), false),
        }
    }

    fn reason_of(&self, table: TableStatus) -> String {
        let diagnosis = table.diagnosis.unwrap_or_default();
        // Readers of a group ask no shard that has nothing.
        if matches!(self.what, WaitFor::Samples(_)) && diagnosis.state == State::Idle.name() {
            let items = plural(table.num_items, "item", "items");
            let missing = table.limiter.map_or(0.0, |limiter| {
                to_rate_limiter(&limiter).missing_inserts(table.num_items, table.cursor)
            });
            let needs = match missing as i64 {
                0 => String::new(),
                missing => {
                    format!(" sampling needs {},", plural(missing, "more insert", "more inserts"))
                }
            };
            return format!("The table has {items},{needs} and nobody inserts.");
        }
        diagnosis.sentence
    }
}

/// Longest line about a server that cannot be reached, in characters.
const MAX_AWAY_CHARS: usize = 200;

fn at_most(limit: usize, text: String) -> String {
    match text.char_indices().nth(limit) {
        Some(_) => text.chars().take(limit - 3).chain("...".chars()).collect(),
        None => text,
    }
}

fn is_unreachable(error: &Error) -> bool {
    error.is_transient() || error.kind() == ErrorKind::Unavailable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(after: u64, repeat: u64) -> Vec<u64> {
        let settings = ReportWaits {
            after: Some(Duration::from_secs(after)),
            repeat: Duration::from_secs(repeat),
        };
        let intervals = (0..4).map(|it| settings.interval(it).unwrap().as_secs());
        intervals
            .scan(0, |at, it| {
                *at += it;
                Some(*at)
            })
            .collect()
    }

    #[test]
    fn reports_become_rarer() {
        assert_eq!(seconds(10, 300), [10, 60, 360, 660]);
        assert_eq!(seconds(10, 20), [10, 30, 50, 70]);
        let never = ReportWaits { after: None, repeat: Duration::from_secs(300) };
        assert_eq!(never.interval(0), None);
    }
}
