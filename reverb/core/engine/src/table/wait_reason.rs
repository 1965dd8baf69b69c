// SPDX-License-Identifier: Apache-2.0
//! Wait reasons: why an insert or a sample is blocked.
//!
//! The only place that decides it, from a table alone and under its lock. Timeouts and the
//! diagnosis of a server show these reasons; a server adds facts that tables do not know.

use std::fmt;
use std::time::{Duration, Instant};

use reverb_base::diagnosis::journal_behind;
use reverb_base::figures::{Bound, count, plural};
use reverb_base::{Error, byte_size};
use reverb_data::RateLimiterConfig;

use super::operation::wall_clock_ns;
use super::rollouts::Takes;
use super::state::Batch;
use super::takes::TakeRequest;
use super::wait_queues::RequestId;
use super::{ChangedBy, Forecast, Shared};
use crate::rate_limiter::RateLimiter;

/// Reason why the next insert or sample of a table is blocked.
///
/// Displayed as sentences: the cause, unless the counters show it, and a remedy.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitReason {
    /// A client has paused this side of the table.
    Paused(ChangedBy),
    /// No insert or sample will ever unblock it. Sentences with the setting to change.
    Never(String),
    /// Changes are not on disk for so long that a crash would lose too much.
    Disk {
        /// Age of the oldest change that is not on disk.
        lag: Duration,
    },
    /// The next item has no room, and `when_full` is "wait".
    TableFull {
        /// Bytes of the table.
        bytes: u64,
        /// Their limit.
        max_bytes: u64,
    },
    /// The rate limiter blocks it.
    Limiter(Held),
    /// The window of this shard blocks it.
    Window(Held),
    /// The table does not allow all items of an all-or-nothing batch at once.
    Batch {
        /// Number of samples in the batch.
        wanted: usize,
        /// Number of samples allowed now. Equal to the batch if only removed items along the way
        /// would bring the table below its minimum size.
        allowed: usize,
    },
    /// No item has a window of the requested number of steps.
    NoWindow {
        /// A sentence with the longest item.
        why: String,
        /// Number of steps of an item that has such a window.
        steps: u32,
    },
    /// Items with rollouts are not far enough, or too many are there. A clause with the numbers.
    Rollouts(String),
    /// The call is allowed, but earlier requests are blocked.
    Queued {
        /// Number of earlier requests.
        before: usize,
        /// Reason of the first of them.
        first: Box<Self>,
    },
}

/// A call that the rate limiter does not allow now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// Limit that blocks the call.
    pub limit: Limit,
    /// Number of inserts that unblock a sample, or of samples that unblock an insert.
    pub missing: f64,
    /// Settings in force.
    pub limiter: RateLimiterConfig,
    /// Number of items in the table.
    pub size: i64,
    /// Inserts times `samples_per_insert` minus samples.
    pub cursor: f64,
}

/// A limit of a rate limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `min_size_to_sample`, which blocks samples.
    MinSize,
    /// `min_diff`, which blocks samples.
    MinDiff,
    /// `max_diff`, which blocks inserts.
    MaxDiff,
}

impl Held {
    /// Sentence about the window of a shard and its coordinator.
    pub fn describe_window(&self) -> String {
        format!(
            "The window of this shard has min_diff {} and max_diff {}, and the cursor is {}; the \
             group's coordinator moves it.",
            Bound(self.limiter.min_diff),
            Bound(self.limiter.max_diff),
            self.cursor
        )
    }

    /// Number of items that would unblock an insert by leaving, because inserts up to the minimum
    /// size are always allowed; `None` unless fewer than the missing samples. Not with a window.
    fn surplus(&self) -> Option<i64> {
        let surplus = self.size - self.limiter.min_size_to_sample + 1;
        let is_shorter = surplus >= 1 && (surplus as f64) < self.missing;
        (self.limit == Limit::MaxDiff && is_shorter).then_some(surplus)
    }

    /// True if a window allows no sample, whatever is inserted.
    fn is_closed(&self) -> bool {
        self.limit == Limit::MinSize && self.limiter.min_size_to_sample == i64::MAX
    }

    fn cause(&self) -> String {
        let RateLimiterConfig { samples_per_insert, min_size_to_sample, min_diff, max_diff } =
            self.limiter;
        let size = count(self.size);
        let cursor = self.cursor;
        match self.limit {
            Limit::MinSize if self.is_closed() => "the shard is closed for samples".to_owned(),
            Limit::MinSize => {
                let needed = count(min_size_to_sample);
                format!("samples need {needed} items (min_size_to_sample) and there are {size}")
            }
            Limit::MinDiff => {
                format!("a sample would bring the cursor {cursor} below min_diff {min_diff}")
            }
            Limit::MaxDiff => format!(
                "an insert would bring the cursor {cursor} above max_diff {max_diff} \
                 (samples_per_insert {samples_per_insert})"
            ),
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (other, next) = match self.limit {
            Limit::MaxDiff => ("sample", "insert"),
            Limit::MinSize | Limit::MinDiff => ("insert", "sample"),
        };
        match self.missing {
            _ if self.is_closed() => write!(f, "No {other} allows the next {next}."),
            1.0 => write!(f, "1 more {other} allows the next {next}."),
            missing => write!(f, "{missing} more {other}s allow the next {next}."),
        }
    }
}

impl WaitReason {
    fn held(limiter: &RateLimiter, limit: Limit, missing: f64) -> Self {
        let size = limiter.size();
        let cursor = limiter.cursor();
        // Rounding may give 0.
        let missing = missing.max(1.0);
        let held = Held { limit, missing, limiter: *limiter.bounds(), size, cursor };
        if limiter.window().is_some() { Self::Window(held) } else { Self::Limiter(held) }
    }

    /// The cause as a part of a sentence.
    pub fn cause(&self) -> String {
        match self {
            Self::Paused(by) => format!("paused by {by}"),
            Self::Never(_) | Self::NoWindow { .. } | Self::Queued { .. } => self.to_string(),
            Self::Disk { lag } => journal_behind(None, *lag, None),
            Self::Rollouts(why) => why.clone(),
            Self::TableFull { bytes, max_bytes } => format!(
                "the table holds {} of {} (max_bytes, when_full=\"wait\")",
                byte_size::describe(*bytes),
                byte_size::describe(*max_bytes)
            ),
            Self::Limiter(held) | Self::Window(held) => held.cause(),
            Self::Batch { wanted, allowed } if allowed < wanted => {
                format!("the table allows {allowed} of the {wanted} samples of the batch now")
            }
            Self::Batch { wanted, .. } => format!(
                "the items that leave before the last of the {wanted} samples of the batch would \
                 bring the table below min_size_to_sample"
            ),
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = || self.cause();
        match self {
            Self::Paused(_) => write!(f, "It is {}; resume_table resumes it.", cause()),
            Self::Never(why) => f.write_str(why),
            Self::NoWindow { why, steps } => {
                let steps = plural(i64::from(*steps), "step", "steps");
                write!(f, "{why} An item of at least {steps} allows the next sample.")
            }
            Self::Disk { .. } => write!(f, "An insert waits for the disk: {}.", cause()),
            Self::Rollouts(why) => {
                let (first, rest) = why.split_at(why.chars().next().map_or(0, char::len_utf8));
                write!(f, "{}{rest}.", first.to_uppercase())
            }
            Self::TableFull { .. } => write!(
                f,
                "Inserts wait for memory: {}. Items leave by sampling (max_times_sampled), deletes \
                 or reset.",
                cause()
            ),
            Self::Limiter(held) => {
                held.fmt(f)?;
                let Some(surplus) = held.surplus() else { return Ok(()) };
                write!(f, " Removing {} would also allow it.", plural(surplus, "item", "items"))
            }
            Self::Window(held) => write!(f, "{held} {}", held.describe_window()),
            Self::Batch { .. } => write!(f, "A batch of all samples or none waits: {}.", cause()),
            Self::Queued { before, first } => {
                let before = plural(*before as i64, "request is", "requests are");
                write!(f, "{before} before it, and the first one waits too: {first}")
            }
        }
    }
}

/// Error of a sample request or a take that times out while samples are paused.
pub(super) fn paused_samples(table: &str, by: &ChangedBy) -> Error {
    Error::rate_limiter_timeout(&format!(
        "Samples of table {table} are paused by {by}; resume_table resumes them."
    ))
}

impl Shared {
    /// Reason of the first insert in the queue, or of the next insert if there is none. Does not
    /// consider the size of the next item.
    pub(super) fn why_insert_waits(&self, now: Instant) -> Option<WaitReason> {
        let Self { config, state, queues, .. } = self;
        if let Some(by) = &queues.paused.inserts {
            return Some(WaitReason::Paused(by.clone()));
        }
        if let Some(changes) = state.changes()
            && let Some(lag) = changes.lag_above_limit(now)
        {
            return Some(WaitReason::Disk { lag });
        }
        let limiter = state.limiter();
        if !limiter.can_insert(1) {
            return Some(WaitReason::held(limiter, Limit::MaxDiff, limiter.missing_samples()));
        }
        if let Some(why) = state.why_no_place() {
            return Some(WaitReason::Rollouts(why));
        }
        let has_room = queues.next_insert().is_none_or(|item| state.has_room_for(item));
        (!has_room).then(|| WaitReason::TableFull {
            bytes: state.account().bytes(),
            max_bytes: config.memory.max_bytes.unwrap_or_default(),
        })
    }

    /// Reason of the first sample request in the queue; if it is empty, of a request for one
    /// sample.
    pub(super) fn why_sample_waits(&self) -> Option<WaitReason> {
        if let (0, Some(request)) =
            (self.queues.queued_samples(), self.queues.takes.oldest_request())
        {
            return Some(self.why_take_waits(request));
        }
        self.why_waits_at(0)
    }

    /// Reason of a take.
    pub(super) fn why_take_waits(&self, request: TakeRequest) -> WaitReason {
        let TakeRequest { takes, num, lease } = request;
        if let Some(by) = &self.queues.paused.samples {
            return WaitReason::Paused(by.clone());
        }
        let there = self.state.num_there(takes);
        let what = match takes {
            Takes::Ready => "ready",
            Takes::Open => "open and free",
            Takes::Lacking(_) => "settled, free and without the column",
        };
        let status = self.rollouts_status(Instant::now(), wall_clock_ns()).unwrap_or_default();
        let before = match self.queues.takes.first_before(takes, lease) {
            Some(first) => format!("an earlier request for {} goes first, ", first.num),
            None => String::new(),
        };
        let needed = self.state.limiter().bounds().min_size_to_sample;
        let needed = match takes {
            Takes::Ready if needed > 1 => format!(" beside {} others (min_size)", needed - 1),
            _ => String::new(),
        };
        let straggler = match (takes, self.state.rollouts()) {
            (Takes::Ready, Some(it))
                if (self.state.num_takable(takes) + 1..=there).contains(&num) =>
            {
                it.straggler(Instant::now())
            }
            _ => None,
        };
        let straggler = straggler.map_or(String::new(), |it| format!(", but {it}"));
        WaitReason::Rollouts(format!(
            "{before}{there} of {num} items are {what}{needed}{straggler}: {status}"
        ))
    }

    /// Error of a sample request that times out.
    pub(super) fn timeout(&self, id: RequestId) -> Error {
        let table = &self.config.name;
        let why = self.queues.position(id).and_then(|at| self.why_waits_at(at));
        if let Some(WaitReason::Paused(by)) = &why {
            return paused_samples(table, by);
        }
        let is_no_window = matches!(&why, Some(WaitReason::NoWindow { .. }));
        let why = why.map_or(
            "The table changed while the request timed out; try again.".to_owned(),
            |why| why.to_string(),
        );
        let inserts = self
            .why_insert_waits(Instant::now())
            .map_or(String::new(), |why| format!(" Inserts are blocked too: {}.", why.cause()));
        let error = Error::rate_limiter_timeout(&format!(
            "Table {table}: {why}{inserts} Its rate limiter: {}.",
            self.state.limiter()
        ));
        if is_no_window { error.without_window() } else { error }
    }

    /// True for an insert, and for a sample, that the rate limiter blocks. Called at every
    /// operation for the coordinator of windows, so no reason is made.
    pub(super) fn held_by_limiter(&self) -> (bool, bool) {
        let Self { state, queues, .. } = self;
        let paused = &queues.paused;
        let limiter = state.limiter();
        (
            queues.queued_inserts() > 0 && paused.inserts.is_none() && !limiter.can_insert(1),
            queues.queued_samples() > 0 && paused.samples.is_none() && !limiter.can_sample(1),
        )
    }

    fn why_waits_at(&self, at: usize) -> Option<WaitReason> {
        let Self { state, queues, .. } = self;
        if let Some(by) = &queues.paused.samples {
            return Some(WaitReason::Paused(by.clone()));
        }
        let limiter = state.limiter();
        let whole = queues.sample_request(at).and_then(Batch::whole);
        let never = self.why_too_small().or_else(|| self.why_batch_never(whole?));
        if let Some(why) = never {
            return Some(WaitReason::Never(why));
        }
        if !limiter.can_sample(1) {
            let is_small = limiter.size() < limiter.bounds().min_size_to_sample;
            let limit = if is_small { Limit::MinSize } else { Limit::MinDiff };
            return Some(WaitReason::held(limiter, limit, limiter.missing_inserts()));
        }
        let batch = whole.map(|wanted| {
            let allowed = limiter.samples_allowed(wanted).min(state.samples_left(state.len()));
            (wanted, allowed)
        });
        let window = queues.sample_request(at).and_then(Batch::window);
        match batch {
            Some((wanted, allowed)) if allowed < wanted => {
                Some(WaitReason::Batch { wanted, allowed })
            }
            // The first request was tried and is still blocked.
            _ if at == 0 && window.is_some_and(|window| !state.has_window(window)) => {
                let why = |window| WaitReason::NoWindow {
                    why: state.no_window(window),
                    steps: window.steps_of(1),
                };
                window.map(why)
            }
            Some((wanted, allowed)) if at == 0 => Some(WaitReason::Batch { wanted, allowed }),
            _ if at > 0 => {
                let first = Box::new(self.why_waits_at(0)?);
                Some(WaitReason::Queued { before: at, first })
            }
            _ => None,
        }
    }

    /// Sentence if the table can never hold as many items as sampling needs.
    fn why_too_small(&self) -> Option<String> {
        let Self { config, state, .. } = self;
        let size = state.len() as u64;
        let min_size = config.rate_limiter.min_size_to_sample as u64;
        if state.limiter().window().is_some() || size >= min_size {
            return None;
        }
        config.why_too_small().or_else(|| {
            let max_bytes = config.memory.max_bytes?;
            let bytes = state.account().bytes();
            let average = bytes.checked_div(size)?;
            let needed = average.saturating_mul(min_size);
            // The first items are no measure: later ones may share their chunks.
            let is_known = bytes.saturating_add(average) > max_bytes
                || Forecast::new(config.max_size, state.len(), bytes).is_some();
            (needed > max_bytes && is_known).then(|| {
                format!(
                    "It will never hold the {} items that sampling needs (min_size_to_sample): \
                     they would take {}, and max_bytes is {}. Raise max_bytes, or lower \
                     min_size_to_sample.",
                    count(min_size as i64),
                    byte_size::describe(needed),
                    byte_size::describe(max_bytes)
                )
            })
        })
    }

    /// Sentence if the table can never allow this many samples at once without deletes.
    fn why_batch_never(&self, wanted: usize) -> Option<String> {
        let Self { config, state, .. } = self;
        let size = config.max_size;
        let times = config.max_times_sampled;
        let never = |most: i64, why: &str| {
            format!(
                "It never allows {wanted} samples at once, but {most} at most: {why}. Ask for a \
                 smaller batch, or change the table."
            )
        };
        let limiter = state.limiter();
        // Items that leave before they use all of their samples make room for free inserts.
        let is_bounded = limiter.window().is_none()
            && (times <= 0 || f64::from(times) >= config.rate_limiter.samples_per_insert);
        let most = limiter.most_samples_at_once().filter(|_| is_bounded);
        if let Some(most) = most.filter(|&most| most < wanted as i64) {
            return Some(never(most, "inserts wait for samples before that"));
        }
        let most = state.samples_left(usize::try_from(size).unwrap_or(usize::MAX));
        (most < wanted).then(|| {
            let why = format!("its max_size is {size} and its max_times_sampled is {times}");
            never(most as i64, &why)
        })
    }
}
