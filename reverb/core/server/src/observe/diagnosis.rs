// SPDX-License-Identifier: Apache-2.0
//! Diagnosis of a table: one state and sentence about its progress, with a remedy.
//!
//! The table itself decides why its calls are blocked ([`WaitReason`]). This file adds facts about
//! the server (rates, streams, its memory, a drain) and chooses the state. Timeout errors, log
//! lines, the page and the commands all show this diagnosis.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reverb_base::byte_size;
use reverb_base::diagnosis as sentences;
pub(crate) use reverb_base::diagnosis::State;
use reverb_base::figures::{number, plural, seconds};
use reverb_engine::{ChangedBy, Held, Limit, Side, TableStatus, WaitReason};

use crate::observe::streams::{Stream, WaitsFor};
use crate::observe::timeline::Rates;

/// Time without a request after which a side counts as inactive.
const LONG: Duration = Duration::from_secs(10);
/// Shortest wait that counts; shorter ones are normal.
pub(crate) const NOTICEABLE: Duration = Duration::from_secs(1);
/// Blocked share of the last seconds from which on a side counts as blocked.
const MOSTLY: f64 = 0.5;

/// Facts about the server around a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// Rates of the last seconds, if known.
    pub(crate) rates: Option<Rates>,
    /// Nanoseconds since 1970.
    pub(crate) now_ns: i64,
    /// Number of open insert streams of the server.
    pub(crate) writers: usize,
    /// Number of open sample streams of the server.
    pub(crate) readers: usize,
    /// Readers of the table that leave sent data unread.
    pub(crate) slow_readers: Option<SlowReaders>,
    /// Bytes that the limit of the server leaves to the table.
    pub(crate) room: Option<u64>,
    /// What blocks the inserts of all tables, if the server has no memory left.
    pub(crate) full_server: Option<FullServer>,
    /// What blocks new items of tables with rollouts, if these have their part of the memory.
    pub(crate) full_for_growing: Option<FullServer>,
    /// What is told of a journal that is behind.
    pub(crate) journal: JournalFacts,
    /// Author of the server's drain, if it drains.
    pub(crate) draining: Option<ChangedBy>,
}

/// The journal of a server, as the reader of a diagnosis may know it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JournalFacts {
    /// Its directory, for readers who may know it.
    pub(crate) place: Option<String>,
    /// Why writes fail, while they do.
    pub(crate) error: Option<String>,
}

/// What gives a server without memory room again.
#[derive(Debug, Clone)]
pub(crate) enum FullServer {
    /// Items have to leave.
    Items { total: u64, limit: u64 },
    /// Items with rollouts have to be trained.
    Growing { total: u64, limit: u64 },
    /// Payloads have to be written to this place, which takes so many bytes a second.
    Disk { place: String, unwritten_bytes: u64, bytes_per_second: f64 },
    /// The files of a journal in this place have nearly as many bytes as they may.
    Files { place: String, bytes: u64, max_bytes: u64 },
}

impl fmt::Display for FullServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Items { total, limit } => write!(
                f,
                "Inserts wait for memory: the server holds {} of {} (max_bytes). Items leave by \
                 sampling, deletes or reset; give large tables when_full=\"remove\".",
                byte_size::describe(*total),
                byte_size::describe(*limit)
            ),
            Self::Growing { total, limit } => write!(
                f,
                "Inserts wait for memory: tables with rollouts hold {}, and the server has {} \
                 (max_bytes), of which a quarter is for the rollouts of items that are there. Items \
                 leave by acks, deletes or reset.",
                byte_size::describe(*total),
                byte_size::describe(*limit)
            ),
            Self::Disk { place, unwritten_bytes, bytes_per_second } => write!(
                f,
                "Inserts wait for the disk: {} of payloads are not written yet, and {place} takes \
                 {} MB/s.",
                byte_size::describe(*unwritten_bytes),
                number(bytes_per_second / 1e6)
            ),
            Self::Files { place, bytes, max_bytes } => write!(
                f,
                "Inserts wait for the disk: the files in {place} have {} of {} (max_bytes of the \
                 store). Items leave by sampling, deletes or reset; give large tables \
                 when_full=\"remove\".",
                byte_size::describe(*bytes),
                byte_size::describe(*max_bytes)
            ),
        }
    }
}

impl Surroundings {
    /// Sentence about the memory of the server, if it blocks inserts.
    fn why_full(&self, table: &TableStatus) -> Option<String> {
        let growing = || self.full_for_growing.as_ref().filter(|_| table.rollouts.is_some());
        self.full_server.as_ref().or_else(growing).map(ToString::to_string)
    }

    /// Reason why inserts are blocked, by the server or by the table.
    pub(crate) fn why_inserts_wait(&self, table: &TableStatus) -> Option<String> {
        let Side { reason, oldest_wait, .. } = &table.inserting;
        let reason = reason.as_ref().filter(|_| oldest_wait.is_some());
        let of_table = || reason.map(|reason| self.explain(reason));
        self.why_full(table).filter(|_| self.writers > 0).or_else(of_table)
    }

    /// The sentences of a wait reason, with what only the server knows.
    fn explain(&self, reason: &WaitReason) -> String {
        let WaitReason::Disk { lag } = reason else { return reason.to_string() };
        let JournalFacts { place, error } = &self.journal;
        let cause = sentences::journal_behind(place.as_deref(), *lag, error.as_deref());
        format!("An insert waits for the disk: {cause}.")
    }
}

/// Readers of a table that leave sent data unread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlowReaders {
    count: usize,
    /// Peer that has not read for the longest time.
    slowest: String,
    wait: Duration,
}

impl SlowReaders {
    /// Slow readers of the table among these streams; `None` if there are none.
    pub(crate) fn of(streams: &[Arc<Stream>], table: &str) -> Option<Self> {
        let waits = streams.iter().filter_map(|stream| match stream.wait()? {
            (WaitsFor::Peer, wait) if wait >= NOTICEABLE && stream.is_of(table) => {
                Some((wait, stream))
            }
            _ => None,
        });
        let waits: Vec<_> = waits.collect();
        let (wait, stream) = waits.iter().max_by_key(|(wait, _)| *wait)?;
        let name = if stream.client.is_empty() { "" } else { ", " };
        let slowest = format!("{}{name}{}", stream.peer, stream.client);
        Some(Self { count: waits.len(), slowest, wait: *wait })
    }

    fn sentence(&self) -> String {
        let Self { count, slowest, wait } = self;
        format!(
            "{} not take what is ready: {slowest} has read nothing for {}.",
            plural(*count as i64, "reader does", "readers do"),
            seconds(*wait)
        )
    }
}

/// The diagnosis of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    pub(crate) state: State,
    /// Sentences about the server and the last seconds.
    pub(crate) around: String,
    /// Sentence about the table's wait reason, unless `around` says the same.
    pub(crate) reason: String,
}

impl Diagnosis {
    /// All sentences.
    pub(crate) fn sentence(&self) -> String {
        format!("{} {}", self.around, self.reason).trim().to_owned()
    }
}

/// The diagnosis of a table.
pub(crate) fn diagnose(table: &TableStatus, around: &Surroundings) -> Diagnosis {
    let (state, around, reason) = Case::new(table, around).decide();
    Diagnosis { state, around, reason: reason.map_or(String::new(), ToString::to_string) }
}

/// A table, with values derived from it.
struct Case<'a> {
    table: &'a TableStatus,
    around: &'a Surroundings,
    /// Reason why the next insert is blocked.
    inserts_wait_for: Option<&'a WaitReason>,
    /// Reason why the next sample is blocked.
    samples_wait_for: Option<&'a WaitReason>,
    /// Age of the oldest blocked sample request, if it is noticeable.
    sample_wait: Option<Duration>,
    /// Age of the oldest blocked insert, if it is noticeable; 0 if unknown.
    insert_wait: Option<Duration>,
}

impl<'a> Case<'a> {
    fn new(table: &'a TableStatus, around: &'a Surroundings) -> Self {
        let rates = around.rates;
        let noticeable = |wait: Option<Duration>, blocked: Option<f64>| {
            wait.filter(|wait| {
                *wait >= NOTICEABLE || blocked.is_some_and(|blocked| blocked >= MOSTLY)
            })
        };
        Self {
            table,
            around,
            inserts_wait_for: table.inserting.reason.as_ref(),
            samples_wait_for: table.sampling.reason.as_ref(),
            sample_wait: noticeable(
                table.sampling.oldest_wait,
                rates.map(|rates| rates.sample_blocked),
            ),
            insert_wait: noticeable(
                table.inserting.oldest_wait,
                rates.map(|rates| rates.insert_blocked),
            )
            // A server without memory stops writers before the table gets their items.
            .or_else(|| {
                let is_full = around.why_full(table).is_some() && around.writers > 0;
                is_full.then_some(Duration::ZERO)
            }),
        }
    }

    /// The state, the sentences about the server, and the wait reason.
    fn decide(&self) -> (State, String, Option<&'a WaitReason>) {
        let inserts = self.inserts_wait_for;
        let samples = self.samples_wait_for;
        if let Some(by) = &self.around.draining {
            return (State::Draining, format!("The server ends its streams, for {by}."), None);
        }
        if let Some(why) = self.why_paused() {
            return (State::Paused, why, None);
        }
        if let Some(decided) = self.decide_rollouts() {
            return decided;
        }
        if let Some(WaitReason::Never(_)) = samples {
            return (State::Never, String::new(), samples);
        }
        if let (None, Some(readers)) = (self.sample_wait, &self.around.slow_readers) {
            return (State::SlowReaders, readers.sentence(), None);
        }
        match (self.sample_wait, self.insert_wait) {
            (Some(_), Some(_)) => (State::Stuck, self.why_stuck(), None),
            (None, Some(_)) => match (self.around.why_full(self.table), inserts) {
                (Some(why), _) => (State::Full, why, None),
                (None, Some(why @ (WaitReason::TableFull { .. } | WaitReason::Disk { .. }))) => {
                    (State::Full, self.around.explain(why), None)
                }
                _ => (State::Behind, self.how_far_behind(), inserts),
            },
            (Some(wait), None) => self.why_samples_wait(wait),
            // No call is blocked at this moment, so the last seconds decide.
            (None, None) if self.is_mostly(|rates| rates.sample_blocked) => {
                self.why_samples_wait(Duration::ZERO)
            }
            (None, None) if self.is_mostly(|rates| rates.insert_blocked) => {
                (State::Behind, self.how_far_behind(), inserts)
            }
            (None, None) if self.is_moving() => (State::Flowing, self.how_it_flows(), None),
            (None, None) => (State::Idle, self.how_it_rests(), None),
        }
    }

    /// Author of the pause, and the number of blocked requests.
    fn why_paused(&self) -> Option<String> {
        let TableStatus { info, inserting, sampling, .. } = self.table;
        inserting.paused().or(sampling.paused())?;
        let author = |by: &'a ChangedBy| (&*by.client, by.to_string());
        let inserts = inserting.paused().map(author);
        let samples = sampling.paused().map(author);
        let items = info.waiting_inserts as i64;
        let requests = info.waiting_samples as i64;
        Some(sentences::paused(inserts, samples, items, requests))
    }

    fn why_stuck(&self) -> String {
        let server = self.around.why_full(self.table);
        let full = self
            .inserts_wait_for
            .filter(|why| matches!(why, WaitReason::TableFull { .. } | WaitReason::Disk { .. }));
        if let Some(memory) = server.or_else(|| full.map(|why| self.around.explain(why))) {
            return format!("Neither can go on: samples wait for inserts. {memory}");
        }
        let cause = |reason: Option<&WaitReason>| reason.map_or(String::new(), WaitReason::cause);
        let samples = cause(self.samples_wait_for);
        let inserts = cause(self.inserts_wait_for);
        let (window, help) = match self.samples_wait_for {
            Some(WaitReason::Window(held)) => (
                format!(" {}", held.describe_window()),
                "If the group has no coordinator any more, SetRateLimiter restores the bounds of \
                 the table.",
            ),
            Some(WaitReason::Batch { .. }) => {
                (String::new(), "Ask for smaller batches, or raise max_diff.")
            }
            _ => (
                String::new(),
                "Let max_diff be larger than min_diff by samples_per_insert and 1 at least; \
                 deleting items lets inserts go on.",
            ),
        };
        format!("Neither can go on: {samples}, and {inserts}.{window} {help}")
    }

    fn how_far_behind(&self) -> String {
        let wait = self.table.inserting.oldest_wait.unwrap_or_default();
        let now = match self.table.info.waiting_inserts {
            0 => "no insert is queued at this moment".to_owned(),
            items => sentences::inserts_wait(items as i64, wait),
        };
        format!(
            "Actors wait for learners: {now}{}.{}",
            self.share_of_time(|rates| rates.insert_blocked),
            self.since_when_nobody_samples(wait)
        )
    }

    /// Time of the last sample and number of readers, if the last sample was long ago.
    fn since_when_nobody_samples(&self, wait: Duration) -> String {
        let last_sample = self.since(self.table.statistics.last_sample_ns);
        if last_sample.unwrap_or(wait) <= LONG {
            return String::new();
        }
        let last = match last_sample {
            Some(ago) => format!("The last sample was {} ago", seconds(ago)),
            None => "Nothing was ever sampled".to_owned(),
        };
        let readers = plural(self.around.readers as i64, "sample stream is", "sample streams are");
        format!(" {last}; {readers} open.")
    }

    fn why_samples_wait(&self, wait: Duration) -> (State, String, Option<&'a WaitReason>) {
        let waiting = self.table.info.waiting_samples as i64;
        let last_insert = self.since(self.table.statistics.last_insert_ns);
        if last_insert.unwrap_or(wait) > LONG {
            let streams =
                plural(self.around.writers as i64, "insert stream is", "insert streams are");
            let starving = sentences::starving(waiting, wait, last_insert);
            return (State::Starved, format!("{starving}; {streams} open."), self.samples_wait_for);
        }
        // Queues are often empty, so an empty queue counts as started after its first item.
        let has_begun =
            self.since(self.table.statistics.last_sample_ns).is_some_and(|ago| ago <= LONG);
        if let Some(WaitReason::Limiter(Held { limit: Limit::MinSize, size, limiter, .. })) =
            self.samples_wait_for
            && !has_begun
        {
            let rate = self.around.rates.map(|rates| rates.inserts);
            let min_size = limiter.min_size_to_sample;
            let otherwise = "then sampling starts (min_size_to_sample)";
            let filling = sentences::filling(*size, min_size, rate.unwrap_or(0.0), otherwise);
            return (State::Filling, filling, None);
        }
        let now = match waiting {
            0 => "no request waits at this moment".to_owned(),
            _ => sentences::samples_wait(waiting, wait),
        };
        let share = self.share_of_time(|rates| rates.sample_blocked);
        (State::Ahead, format!("Learners wait for actors: {now}{share}."), self.samples_wait_for)
    }

    /// True if a side was blocked most of the last seconds, while some items passed.
    fn is_mostly(&self, blocked: impl Fn(&Rates) -> f64) -> bool {
        self.is_moving() && self.around.rates.as_ref().is_some_and(|rates| blocked(rates) >= MOSTLY)
    }

    fn is_moving(&self) -> bool {
        let TableStatus { statistics, rollouts, .. } = self.table;
        let last_rollout = rollouts.as_ref().and_then(|rollouts| rollouts.last_rollout);
        if last_rollout.is_some_and(|ago| ago <= LONG) {
            return true;
        }
        [statistics.last_insert_ns, statistics.last_sample_ns]
            .iter()
            .any(|&last| self.since(last).is_some_and(|ago| ago <= LONG))
    }

    fn how_it_flows(&self) -> String {
        sentences::flowing(self.around.rates.map(|rates| (rates.inserts, rates.samples)))
    }

    fn how_it_rests(&self) -> String {
        let statistics = &self.table.statistics;
        let [insert, sample] = [statistics.last_insert_ns, statistics.last_sample_ns];
        sentences::resting(self.since(insert), self.since(sample))
    }

    fn share_of_time(&self, share: impl Fn(&Rates) -> f64) -> String {
        self.around.rates.as_ref().map_or_else(String::new, |rates| {
            let percent = share(rates) * 100.0;
            let time = rates.seconds.round();
            format!("; {percent:.0} % of the last {time:.0} s was waiting")
        })
    }

    fn since(&self, at_ns: i64) -> Option<Duration> {
        sentences::since(at_ns, self.around.now_ns)
    }
}

mod rollouts;
#[cfg(test)]
mod tests;
