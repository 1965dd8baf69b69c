// SPDX-License-Identifier: Apache-2.0
//! What a table does or waits for, in a word and a sentence, with what would help.
//!
//! The table itself decides why its calls cannot go on ([`WaitReason`]). Here is added what only a
//! server knows: rates, streams, its own memory, a drain; and which of all that counts. The page and
//! the commands show what is said here.

use std::sync::Arc;
use std::time::Duration;

use reverb_data::byte_size;
use reverb_data::figures::{count, number, plural, seconds};
use reverb_engine::{Held, Limit, SetBy, TableStatus, WaitReason};

use crate::history::Rates;
use crate::streams::{Stream, WaitsFor};

/// A side without a request for so long does not come any more.
const LONG: Duration = Duration::from_secs(10);
/// A shorter wait is part of the normal course of things.
pub(crate) const NOTICEABLE: Duration = Duration::from_secs(1);
/// From this share of the last seconds on, a side waits more than it works.
const MOSTLY: f64 = 0.5;

/// What a table does or waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody has asked for anything lately.
    Idle,
    /// Inserts or samples go through.
    Flowing,
    /// Samples wait for the first items, and inserts come.
    Filling,
    /// Samples wait, and no inserts come.
    Starved,
    /// Samples wait for the ratio, and inserts come.
    Ahead,
    /// Inserts wait for the ratio.
    Behind,
    /// Inserts wait for memory.
    Full,
    /// Samples are ready, and their readers do not take them.
    SlowReaders,
    /// Both wait, and neither can go on.
    Stuck,
    /// It can never hold as many items as sampling needs.
    Never,
    /// Somebody lets a side wait.
    Paused,
    /// The server ends its streams before it stops.
    Draining,
}

impl State {
    /// Its name: `flowing`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Flowing => "flowing",
            Self::Filling => "filling",
            Self::Starved => "starved",
            Self::Ahead => "ahead",
            Self::Behind => "behind",
            Self::Full => "full",
            Self::SlowReaders => "slow readers",
            Self::Stuck => "stuck",
            Self::Never => "never",
            Self::Paused => "paused",
            Self::Draining => "draining",
        }
    }
}

/// What is known beside the table itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// What the table did in the last seconds, if that is known.
    pub(crate) rates: Option<Rates>,
    /// Nanoseconds since 1970.
    pub(crate) now_ns: i64,
    /// Number of open insert streams of the server.
    pub(crate) writers: usize,
    /// Number of open sample streams of the server.
    pub(crate) readers: usize,
    /// The readers of the table that do not take what is ready.
    pub(crate) slow_readers: Option<SlowReaders>,
    /// Bytes that the server holds and its limit, if inserts wait for that.
    pub(crate) full_server: Option<(u64, u64)>,
    /// Who drains the server, if anybody does.
    pub(crate) draining: Option<SetBy>,
}

/// The readers of a table that do not take what is ready for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlowReaders {
    count: usize,
    /// The one that has not read for the longest time.
    slowest: String,
    wait: Duration,
}

impl SlowReaders {
    /// Those among these streams; `None` if all readers of the table read.
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
    /// What the server knows.
    pub(crate) around: String,
    /// Why the table lets its callers wait, if that is not a part of the other sentences.
    pub(crate) reason: Option<String>,
}

impl Diagnosis {
    /// All sentences.
    pub(crate) fn sentence(&self) -> String {
        let both = [Some(&self.around), self.reason.as_ref()];
        let told: Vec<_> =
            both.into_iter().flatten().map(|it| &**it).filter(|it| !it.is_empty()).collect();
        told.join(" ")
    }
}

/// The diagnosis of a table.
pub(crate) fn diagnose(table: &TableStatus, around: &Surroundings) -> Diagnosis {
    let (state, around, reason) = Case::new(table, around).decide();
    Diagnosis { state, around, reason: reason.map(ToString::to_string) }
}

/// A table with what follows from it at once.
struct Case<'a> {
    table: &'a TableStatus,
    around: &'a Surroundings,
    /// Why the next insert cannot go on.
    inserts_wait_for: Option<&'a WaitReason>,
    /// Why the next sample cannot go on.
    samples_wait_for: Option<&'a WaitReason>,
    /// How long samples have waited, if they wait noticeably.
    sample_wait: Option<Duration>,
    /// How long inserts have waited, if they wait noticeably; 0 if that is not known.
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
            // A server without memory holds writers back before the table sees their items.
            .or_else(|| around.full_server.filter(|_| around.writers > 0).map(|_| Duration::ZERO)),
        }
    }

    /// The state, and the two parts of a [`Diagnosis`].
    fn decide(&self) -> (State, String, Option<&'a WaitReason>) {
        let (inserts, samples) = (self.inserts_wait_for, self.samples_wait_for);
        if let Some(by) = &self.around.draining {
            return (State::Draining, format!("The server ends its streams, for {by}."), None);
        }
        if let Some(why) = self.why_paused() {
            return (State::Paused, why, None);
        }
        if let Some(WaitReason::Never(_)) = samples {
            return (State::Never, String::new(), samples);
        }
        if let (None, Some(readers)) = (self.sample_wait, &self.around.slow_readers) {
            return (State::SlowReaders, readers.sentence(), None);
        }
        match (self.sample_wait, self.insert_wait) {
            (Some(_), Some(_)) => (State::Stuck, self.why_stuck(), None),
            (None, Some(_)) => match (self.why_server_is_full(), inserts) {
                (Some(why), _) => (State::Full, why, None),
                (None, Some(WaitReason::TableFull { .. })) => (State::Full, String::new(), inserts),
                _ => (State::Behind, self.how_far_behind(), inserts),
            },
            (Some(wait), None) => self.why_samples_wait(wait),
            // Nobody waits at this moment; what was most of the last seconds is what it does.
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

    /// Who lets a side wait, and how many requests wait for that.
    fn why_paused(&self) -> Option<String> {
        let info = &self.table.info;
        let (inserts, samples) = (info.waiting_inserts as i64, info.waiting_samples as i64);
        let what = match (self.table.inserting.paused(), self.table.sampling.paused()) {
            (None, None) => return None,
            (Some(by), None) => format!("Inserts are paused by {by}"),
            (None, Some(by)) => format!("Samples are paused by {by}"),
            (Some(by), Some(other)) if by.client == other.client => {
                format!("Inserts and samples are paused by {by}")
            }
            (Some(by), Some(other)) => {
                format!("Inserts are paused by {by}, and samples by {other}")
            }
        };
        let waits = format!(
            "{} and {}",
            plural(inserts, "insert waits", "inserts wait"),
            plural(samples, "request for samples waits", "requests for samples wait")
        );
        Some(format!("{what}; {waits}. resume_table lets them go on."))
    }

    /// Why the server has no memory for more items.
    fn why_server_is_full(&self) -> Option<String> {
        let (total, limit) = self.around.full_server?;
        Some(format!(
            "Inserts wait for memory: the server holds {} of {} (max_bytes). Items leave by sampling, \
             deletes or reset; give large tables when_full=\"remove\".",
            byte_size::describe(total),
            byte_size::describe(limit)
        ))
    }

    fn why_stuck(&self) -> String {
        let server = self.why_server_is_full();
        let full = self.inserts_wait_for.filter(|it| matches!(it, WaitReason::TableFull { .. }));
        if let Some(memory) = server.or_else(|| full.map(ToString::to_string)) {
            return format!("Neither can go on: samples wait for inserts. {memory}");
        }
        let cause = |reason: Option<&WaitReason>| reason.map_or(String::new(), WaitReason::cause);
        let (samples, inserts) = (cause(self.samples_wait_for), cause(self.inserts_wait_for));
        let help = match self.samples_wait_for {
            Some(WaitReason::Window(held)) => format!(
                "{} If the group has no coordinator any more, SetRateLimiter restores the bounds of \
                 the table.",
                held.describe_window()
            ),
            Some(WaitReason::Batch { .. }) => "Ask for smaller batches, or raise max_diff.".to_owned(),
            _ => "Let max_diff be larger than min_diff by samples_per_insert and 1 at least; deleting \
                  items lets inserts go on."
                .to_owned(),
        };
        format!("Neither can go on: {samples}, and {inserts}. {help}")
    }

    fn how_far_behind(&self) -> String {
        let wait = self.table.inserting.oldest_wait.unwrap_or_default();
        let waiting = self.table.info.waiting_inserts as i64;
        let now = if waiting > 0 {
            let inserts = plural(waiting, "insert is", "inserts are");
            format!("{inserts} queued, for {}", seconds(wait))
        } else {
            "no insert is queued at this moment".to_owned()
        };
        format!(
            "Actors wait for learners: {now}{}.{}",
            self.share_of_time(|rates| rates.insert_blocked),
            self.since_when_nobody_samples(wait)
        )
    }

    /// When the last sample was and how many could ask for one, if that was long ago.
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
        let waiting = plural(
            self.table.info.waiting_samples as i64,
            "request for samples has",
            "requests for samples have",
        );
        let last_insert = self.since(self.table.statistics.last_insert_ns);
        if last_insert.unwrap_or(wait) > LONG {
            let last = match last_insert {
                Some(ago) => format!("The last insert was {} ago", seconds(ago)),
                None => "Nothing was ever inserted".to_owned(),
            };
            let text = format!(
                "{waiting} waited {}. {last}; {} open.",
                seconds(wait),
                plural(self.around.writers as i64, "insert stream is", "insert streams are"),
            );
            return (State::Starved, text, self.samples_wait_for);
        }
        // A queue is empty again and again.
        let has_begun =
            self.since(self.table.statistics.last_sample_ns).is_some_and(|ago| ago <= LONG);
        if let Some(WaitReason::Limiter(held @ Held { limit: Limit::MinSize, .. })) =
            self.samples_wait_for
            && !has_begun
        {
            return (State::Filling, self.how_it_fills(held), None);
        }
        let now = if self.table.info.waiting_samples > 0 {
            format!("{waiting} waited {}", seconds(wait))
        } else {
            "no request waits at this moment".to_owned()
        };
        let share = self.share_of_time(|rates| rates.sample_blocked);
        let text = format!("Learners wait for actors: {now}{share}.");
        (State::Ahead, text, self.samples_wait_for)
    }

    fn how_it_fills(&self, held: &Held) -> String {
        let (size, min_size) = (held.size, held.limiter.min_size_to_sample);
        let rate = self.around.rates.map_or(0.0, |rates| rates.inserts);
        let when = if rate > 0.0 {
            let left = (min_size - size) as f64 / rate;
            let left = seconds(Duration::from_secs_f64(left.min(1e9)));
            format!("at {} inserts/s sampling starts in {left}", number(rate))
        } else {
            "then sampling starts (min_size_to_sample)".to_owned()
        };
        format!("{} of {} items; {when}.", count(size), count(min_size))
    }

    /// Whether most of the last seconds was a wait of one side, while items went through.
    fn is_mostly(&self, blocked: impl Fn(&Rates) -> f64) -> bool {
        self.is_moving() && self.around.rates.as_ref().is_some_and(|it| blocked(it) >= MOSTLY)
    }

    fn is_moving(&self) -> bool {
        let statistics = &self.table.statistics;
        [statistics.last_insert_ns, statistics.last_sample_ns]
            .iter()
            .any(|&last| self.since(last).is_some_and(|ago| ago <= LONG))
    }

    fn how_it_flows(&self) -> String {
        let Some(rates) = self.around.rates else {
            return "Inserts and samples go through.".to_owned();
        };
        let (inserts, samples) = (number(rates.inserts), number(rates.samples));
        let ratio = if rates.inserts > 0.0 && rates.samples > 0.0 {
            format!("; {} samples an insert", number(rates.samples / rates.inserts))
        } else {
            String::new()
        };
        format!("{inserts} inserts/s, {samples} samples/s{ratio}.")
    }

    fn how_it_rests(&self) -> String {
        let statistics = &self.table.statistics;
        let last = |what: &str, at: i64| match self.since(at) {
            Some(ago) => format!("the last {what} was {} ago", seconds(ago)),
            None => format!("no {what} yet"),
        };
        format!(
            "Nobody asks: {}, {}.",
            last("insert", statistics.last_insert_ns),
            last("sample", statistics.last_sample_ns)
        )
    }

    fn share_of_time(&self, share: impl Fn(&Rates) -> f64) -> String {
        self.around.rates.as_ref().map_or_else(String::new, |rates| {
            let (percent, time) = (share(rates) * 100.0, rates.seconds.round());
            format!("; {percent:.0} % of the last {time:.0} s was waiting")
        })
    }

    /// The time since a moment in nanoseconds since 1970; `None` for 0, which means "never".
    fn since(&self, at_ns: i64) -> Option<Duration> {
        // Clocks may be set back.
        let ago = self.around.now_ns.saturating_sub(at_ns).max(0);
        (at_ns > 0).then(|| Duration::from_nanos(ago as u64))
    }
}

#[cfg(test)]
mod tests;
