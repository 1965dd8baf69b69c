// SPDX-License-Identifier: Apache-2.0
//! States of a table for people, and the sentences that a server and a group share.

use std::time::Duration;

use crate::figures::{count, number, plural, seconds};

/// State of a table for people; the gravest comes last.
///
/// A shard without requests says nothing about the others, so a group is idle only if all shards
/// are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// No requests lately.
    Idle,
    /// Inserts or samples are served.
    Flowing,
    /// Samples wait for the first items, and inserts arrive.
    Filling,
    /// Samples wait for the ratio, and inserts arrive.
    Ahead,
    /// Inserts wait for the ratio.
    Behind,
    /// Samples are ready, and their readers do not take them.
    SlowReaders,
    /// Inserts wait for memory.
    Full,
    /// Samples wait, and no inserts arrive.
    Starved,
    /// The server ends its streams before it stops.
    Draining,
    /// A client paused inserts or samples.
    Paused,
    /// Inserts and samples wait, and neither can continue.
    Stuck,
    /// Samples can never begin, or never as many at once as are requested.
    Never,
}

impl State {
    /// All states in order, with their names.
    pub const ALL: [(Self, &str); Self::Never as usize + 1] = [
        (Self::Idle, "idle"),
        (Self::Flowing, "flowing"),
        (Self::Filling, "filling"),
        (Self::Ahead, "ahead"),
        (Self::Behind, "behind"),
        (Self::SlowReaders, "slow readers"),
        (Self::Full, "full"),
        (Self::Starved, "starved"),
        (Self::Draining, "draining"),
        (Self::Paused, "paused"),
        (Self::Stuck, "stuck"),
        (Self::Never, "never"),
    ];

    /// Name of the state: `flowing`.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// State of this name; `None` for one of another release.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(state, _)| state)
    }
}

/// Time since a moment in nanoseconds since 1970; `None` for 0, which means "never".
pub fn since(at_ns: i64, now_ns: i64) -> Option<Duration> {
    // Clocks may be set back.
    let ago = now_ns.saturating_sub(at_ns).max(0);
    (at_ns > 0).then(|| Duration::from_nanos(ago as u64))
}

/// Sentence for a table without requests, with the times since its last insert and sample.
pub fn resting(last_insert: Option<Duration>, last_sample: Option<Duration>) -> String {
    let last = |what: &str, ago: Option<Duration>| match ago {
        Some(ago) => format!("the last {what} was {} ago", seconds(ago)),
        None => format!("no {what} yet"),
    };
    format!("No requests: {}, {}.", last("insert", last_insert), last("sample", last_sample))
}

/// Sentence with inserts and samples per second, if they are known.
pub fn flowing(rates: Option<(f64, f64)>) -> String {
    let Some((inserts, samples)) = rates else {
        return "Inserts and samples go through.".to_owned();
    };
    let ratio = if inserts > 0.0 && samples > 0.0 {
        format!("; {} samples an insert", number(samples / inserts))
    } else {
        String::new()
    };
    format!("{} inserts/s, {} samples/s{ratio}.", number(inserts), number(samples))
}

/// Sentence for a table with too few items to sample, with the time until it has enough; ends in
/// `otherwise` if that time is not known.
pub fn filling(size: i64, min_size: i64, inserts_per_s: f64, otherwise: &str) -> String {
    let when = if inserts_per_s > 0.0 && size < min_size {
        let left = ((min_size - size) as f64 / inserts_per_s).min(1e9);
        let left = seconds(Duration::from_secs_f64(left));
        format!("at {} inserts/s sampling starts in {left}", number(inserts_per_s))
    } else {
        otherwise.to_owned()
    };
    format!("{} of {} items; {when}.", count(size), count(min_size))
}

/// Sentence with the number of waiting sample requests, and the age of the oldest.
pub fn samples_wait(requests: i64, oldest: Duration) -> String {
    let requests = plural(requests, "request for samples has", "requests for samples have");
    format!("{requests} waited {}", seconds(oldest))
}

/// Sentence for sample requests that wait while no inserts arrive.
pub fn starving(requests: i64, oldest: Duration, last_insert: Option<Duration>) -> String {
    let last = match last_insert {
        Some(ago) => format!("The last insert was {} ago", seconds(ago)),
        None => "Nothing was ever inserted".to_owned(),
    };
    format!("{}. {last}", samples_wait(requests, oldest))
}

/// Sentence with the number of items waiting to be inserted, and the age of the oldest.
pub fn inserts_wait(items: i64, oldest: Duration) -> String {
    format!("{} queued, for {}", plural(items, "insert is", "inserts are"), seconds(oldest))
}

/// Part of a sentence about a journal: its directory and why writes fail, where that may be told.
pub fn journal_behind(place: Option<&str>, lag: Duration, error: Option<&str>) -> String {
    let place = place.map_or(String::new(), |place| format!(" in {place}"));
    let error = error.map_or(String::new(), |error| format!(": {error}"));
    format!("the journal{place} is {} behind{error}", seconds(lag))
}

/// Client that paused inserts or samples of a table, and the sentence about it.
pub type Pause<'a> = (&'a str, String);

/// Sentence for a paused table, with the numbers of waiting inserts and requests.
pub fn paused(
    inserts: Option<Pause<'_>>,
    samples: Option<Pause<'_>>,
    items: i64,
    requests: i64,
) -> String {
    let what = match (inserts, samples) {
        (Some((client, by)), Some((other, _))) if client == other => {
            format!("Inserts and samples are paused by {by}")
        }
        (Some((_, by)), Some((_, other))) => {
            format!("Inserts are paused by {by}, and samples by {other}")
        }
        (Some((_, by)), None) => format!("Inserts are paused by {by}"),
        (None, by) => format!("Samples are paused by {}", by.map_or(String::new(), |(_, by)| by)),
    };
    format!(
        "{what}; {} and {}. resume_table resumes them.",
        plural(items, "insert waits", "inserts wait"),
        plural(requests, "request for samples waits", "requests for samples wait")
    )
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn every_state_has_its_name() {
        for (at, (state, name)) in State::ALL.into_iter().enumerate() {
            assert_eq!((state as usize, state.name()), (at, name));
            assert_eq!(State::named(name), Some(state));
        }
        assert_eq!(State::named("shard down"), None);
    }
}
