// SPDX-License-Identifier: Apache-2.0
//! What a table of a group does or waits for: the gravest state of its shards, in numbers of all.

use std::time::Duration;

use reverb_data::byte_size;
use reverb_data::figures::{Bound, count, number, plural, seconds};
use reverb_wire::convert::table_config::to_rate_limiter;
use reverb_wire::generated::reverb::{Diagnosis, MemoryStatus, SideStatus, TableStatus};

/// A side without a request for so long does not come any more.
const LONG: Duration = Duration::from_secs(10);

/// The name of the state of a group that misses a shard.
pub(super) const SHARD_DOWN: &str = "shard down";

/// The states of a table at one shard, those that need more attention later. A shard that nobody
/// asks says nothing of the others, so "idle" is the state of a group only if all are idle.
const STATES: [&str; 12] = [
    "idle",
    "flowing",
    "filling",
    "ahead",
    "behind",
    "slow readers",
    "full",
    "starved",
    "draining",
    "paused",
    "stuck",
    "never",
];

/// A table at one shard.
pub(super) struct Part<'a> {
    pub(super) index: i32,
    pub(super) table: &'a TableStatus,
    /// The memory of its server.
    pub(super) memory: MemoryStatus,
}

impl Part<'_> {
    fn state(&self) -> &str {
        self.table.diagnosis.as_ref().map_or("", |it| &it.state)
    }

    /// How much of its memory is used: of the table and of the server, from 0 to 1.
    fn used(&self) -> (f64, f64) {
        let share =
            |used: i64, limit: i64| if limit > 0 { used as f64 / limit as f64 } else { 0.0 };
        (share(self.table.bytes, self.table.max_bytes), share(self.memory.total, self.memory.limit))
    }
}

fn gravity(state: &str) -> usize {
    STATES.iter().position(|it| *it == state).unwrap_or(0)
}

/// The diagnosis of a table whose parts are these.
///
/// `sum` is the table of the group; `now_ns` is in nanoseconds since 1970.
pub(super) fn of_group(sum: &TableStatus, parts: &[Part<'_>], now_ns: i64) -> Diagnosis {
    let Some(worst) = parts.iter().map(Part::state).max_by_key(|it| gravity(it)) else {
        return Diagnosis::default();
    };
    let concerned: Vec<&Part<'_>> = parts.iter().filter(|it| it.state() == worst).collect();
    let case = Case { sum, parts, concerned: &concerned, now_ns };
    let state = case.state(worst);
    let mut sentence = case.sentence(state);
    if concerned.len() < parts.len() && state != "idle" && state != "flowing" {
        sentence = format!("{} of {}: {sentence}", names(&concerned), parts.len());
    }
    Diagnosis { state: state.to_owned(), sentence }
}

/// A table of a group, and the parts that are in its gravest state.
struct Case<'a> {
    sum: &'a TableStatus,
    parts: &'a [Part<'a>],
    concerned: &'a [&'a Part<'a>],
    now_ns: i64,
}

impl Case<'_> {
    /// A shard starves while nobody inserts there; the group does while nobody inserts anywhere.
    fn state<'b>(&self, worst: &'b str) -> &'b str {
        let inserts = self.side(true).last_ns;
        if worst != "starved" || self.since(inserts).is_none_or(|ago| ago > LONG) {
            return worst;
        }
        if self.sum.num_items < self.limiter_min_size() { "filling" } else { "ahead" }
    }

    fn sentence(&self, state: &str) -> String {
        match state {
            "idle" => self.how_it_rests(),
            "flowing" => self.how_it_flows(),
            "filling" => self.how_it_fills(),
            "ahead" => {
                let waits = self.how_samples_wait();
                format!("Learners wait for actors: {waits}. {}", self.of_first())
            }
            "behind" => self.why_behind(),
            "starved" => {
                let last = match self.since(self.side(true).last_ns) {
                    Some(ago) => format!("The last insert was {} ago", seconds(ago)),
                    None => "Nothing was ever inserted".to_owned(),
                };
                format!("{}. {last}, at any shard. {}", self.how_samples_wait(), self.of_first())
            }
            "full" => self.why_full(),
            "paused" => self.why_paused(),
            "stuck" => format!("Neither can go on: {}. {}", self.numbers(), self.of_first()),
            "never" => format!(
                "It will never hold the items that sampling needs (min_size_to_sample): the shards \
                 need {} together, and their max_size is {}. {}",
                count(self.limiter_min_size()),
                count(self.sum.max_items),
                self.of_first()
            ),
            _ => self.of_first(),
        }
    }

    /// What the first shard says that is in this state: names and remedies are those of shards.
    fn of_first(&self) -> String {
        let Some(first) = self.concerned.first() else { return String::new() };
        let told = first.table.diagnosis.as_ref().map_or("", |it| &it.sentence);
        format!("Shard {} says: {told}", first.index)
    }

    fn numbers(&self) -> String {
        let limiter = to_rate_limiter(&self.sum.limiter.unwrap_or_default());
        format!(
            "all shards together have {} items, where sampling needs {}, and the cursor {} between \
             min_diff {} and max_diff {}",
            count(self.sum.num_items),
            count(limiter.min_size_to_sample),
            self.sum.cursor,
            Bound(limiter.min_diff),
            Bound(limiter.max_diff)
        )
    }

    fn how_it_rests(&self) -> String {
        let last = |what: &str, side: &SideStatus| match self.since(side.last_ns) {
            Some(ago) => format!("the last {what} was {} ago", seconds(ago)),
            None => format!("no {what} yet"),
        };
        let (inserting, sampling) = (self.side(true), self.side(false));
        format!("Nobody asks: {}, {}.", last("insert", &inserting), last("sample", &sampling))
    }

    fn how_it_flows(&self) -> String {
        let Some(rates) = self.sum.rates else {
            return "Inserts and samples go through.".to_owned();
        };
        let (inserts, samples) = (rates.inserts_per_s, rates.samples_per_s);
        let ratio = if inserts > 0.0 && samples > 0.0 {
            format!("; {} samples an insert", number(samples / inserts))
        } else {
            String::new()
        };
        format!("{} inserts/s, {} samples/s{ratio}.", number(inserts), number(samples))
    }

    fn how_it_fills(&self) -> String {
        let (size, min_size) = (self.sum.num_items, self.limiter_min_size());
        let rate = self.sum.rates.map_or(0.0, |rates| rates.inserts_per_s);
        let when = if rate > 0.0 && size < min_size {
            let left = ((min_size - size) as f64 / rate).min(1e9);
            let left = seconds(Duration::from_secs_f64(left));
            format!("at {} inserts/s sampling starts in {left}", number(rate))
        } else {
            "each shard needs its part before it is sampled (min_size_to_sample)".to_owned()
        };
        format!("{} of {} items; {when}.", count(size), count(min_size))
    }

    fn how_samples_wait(&self) -> String {
        let side = self.side(false);
        format!(
            "{} waited {}",
            plural(side.waiting, "request for samples has", "requests for samples have"),
            seconds(oldest(&side))
        )
    }

    fn why_behind(&self) -> String {
        let side = self.side(true);
        format!(
            "Actors wait for learners: {} queued, for {}. {}",
            plural(side.waiting, "insert is", "inserts are"),
            seconds(oldest(&side)),
            self.of_first()
        )
    }

    fn why_full(&self) -> String {
        // The memory of a table or of a server: that of which less is left.
        let is_table = self.concerned.iter().any(|part| {
            let (table, server) = part.used();
            table > server
        });
        let memory = self.parts.iter().map(|it| it.memory);
        let (total, limit) = memory.fold((0, 0), |sum, it| (sum.0 + it.total, sum.1 + it.limit));
        let (who, used, limit) = if is_table {
            ("shards of the table", self.sum.bytes, self.sum.max_bytes)
        } else {
            ("servers", total, limit)
        };
        format!(
            "Inserts wait for memory: all {who} hold {} of {} (max_bytes). Items leave by sampling \
             (max_times_sampled), deletes or reset.",
            byte_size::describe(used.max(0) as u64),
            byte_size::describe(limit.max(0) as u64)
        )
    }

    fn why_paused(&self) -> String {
        let (inserting, sampling) = (self.side(true), self.side(false));
        let who = match (&inserting.paused, &sampling.paused) {
            (Some(by), None) => format!("Inserts are paused by {}", by.client),
            (None, Some(by)) => format!("Samples are paused by {}", by.client),
            (Some(by), Some(other)) if by.client != other.client => {
                format!("Inserts are paused by {}, and samples by {}", by.client, other.client)
            }
            (Some(by), _) => format!("Inserts and samples are paused by {}", by.client),
            (None, None) => return self.of_first(),
        };
        format!(
            "{who}; {} and {}. resume_table lets them go on.",
            plural(inserting.waiting, "insert waits", "inserts wait"),
            plural(sampling.waiting, "request for samples waits", "requests for samples wait")
        )
    }

    fn limiter_min_size(&self) -> i64 {
        self.sum.limiter.as_ref().map_or(0, |it| it.min_size_to_sample)
    }

    fn side(&self, is_inserting: bool) -> SideStatus {
        let side = if is_inserting { &self.sum.inserting } else { &self.sum.sampling };
        side.clone().unwrap_or_default()
    }

    /// The time since a moment in nanoseconds since 1970; `None` for 0, which means "never".
    fn since(&self, at_ns: i64) -> Option<Duration> {
        let ago = self.now_ns.saturating_sub(at_ns).max(0);
        (at_ns > 0).then(|| Duration::from_nanos(ago as u64))
    }
}

fn oldest(side: &SideStatus) -> Duration {
    Duration::try_from_secs_f64(side.oldest_wait_s.unwrap_or(0.0)).unwrap_or_default()
}

/// "Shard 3", or "Shards 0, 1 and 3".
fn names(parts: &[&Part<'_>]) -> String {
    let indices: Vec<String> = parts.iter().map(|it| it.index.to_string()).collect();
    match indices.as_slice() {
        [only] => format!("Shard {only}"),
        [before @ .., last] => format!("Shards {} and {last}", before.join(", ")),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests;
