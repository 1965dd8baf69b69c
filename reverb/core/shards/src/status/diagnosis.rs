// SPDX-License-Identifier: Apache-2.0
//! What a table of a group does or waits for: the gravest state of its shards, in numbers of all.

use std::time::Duration;

use reverb_data::figures::{Bound, count};
use reverb_data::{byte_size, table_sentences};
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
            "behind" => {
                let side = self.side(true);
                let queued = table_sentences::inserts_wait(side.waiting, oldest(&side));
                format!("Actors wait for learners: {queued}. {}", self.of_first())
            }
            "starved" => {
                let (side, last) = (self.side(false), self.since(self.side(true).last_ns));
                let told = table_sentences::starving(side.waiting, oldest(&side), last);
                format!("{told}, at any shard. {}", self.of_first())
            }
            "full" => self.why_full(),
            "paused" => self.why_paused(),
            "stuck" => format!("Neither can go on: {}. {}", self.numbers(), self.of_first()),
            "never" => format!(
                "It can never go on: the shards need {} items together (min_size_to_sample), and \
                 their max_size is {}. {}",
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
        let [insert, sample] = [true, false].map(|side| self.since(self.side(side).last_ns));
        table_sentences::resting(insert, sample)
    }

    fn how_it_flows(&self) -> String {
        let rates = self.sum.rates.map(|rates| (rates.inserts_per_s, rates.samples_per_s));
        table_sentences::flowing(rates)
    }

    fn how_it_fills(&self) -> String {
        let rate = self.sum.rates.map_or(0.0, |rates| rates.inserts_per_s);
        let otherwise = "each shard needs its part before it is sampled (min_size_to_sample)";
        table_sentences::filling(self.sum.num_items, self.limiter_min_size(), rate, otherwise)
    }

    fn how_samples_wait(&self) -> String {
        let side = self.side(false);
        table_sentences::samples_wait(side.waiting, oldest(&side))
    }

    /// The memory that has a limit, of the table and of the servers; the shard says which is full.
    fn why_full(&self) -> String {
        let memory = self.parts.iter().map(|it| it.memory);
        let (total, limit) = memory.fold((0, 0), |sum, it| (sum.0 + it.total, sum.1 + it.limit));
        let limits = [
            ("all shards of the table", self.sum.bytes, self.sum.max_bytes),
            ("all servers", total, limit),
        ];
        let told = limits.into_iter().filter(|(.., limit)| *limit > 0).map(|(who, used, limit)| {
            let [used, limit] = [used, limit].map(|bytes| byte_size::describe(bytes.max(0) as u64));
            format!("{who} hold {used} of {limit} (max_bytes)")
        });
        let told: Vec<_> = told.collect();
        format!("Inserts wait for memory: {}. {}", told.join(", "), self.of_first())
    }

    fn why_paused(&self) -> String {
        let (inserting, sampling) = (self.side(true), self.side(false));
        if inserting.paused.is_none() && sampling.paused.is_none() {
            return self.of_first();
        }
        let [inserts, samples] = [&inserting, &sampling]
            .map(|side| side.paused.as_ref().map(|by| (&*by.client, by.client.clone())));
        table_sentences::paused(inserts, samples, (inserting.waiting, sampling.waiting))
    }

    fn limiter_min_size(&self) -> i64 {
        self.sum.limiter.as_ref().map_or(0, |it| it.min_size_to_sample)
    }

    fn side(&self, is_inserting: bool) -> SideStatus {
        let side = if is_inserting { &self.sum.inserting } else { &self.sum.sampling };
        side.clone().unwrap_or_default()
    }

    fn since(&self, at_ns: i64) -> Option<Duration> {
        table_sentences::since(at_ns, self.now_ns)
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
