// SPDX-License-Identifier: Apache-2.0
//! Diagnosis of a group's table: the gravest state of its shards, with numbers of the group.

use std::time::Duration;

use reverb_base::byte_size;
use reverb_base::diagnosis::{self as sentences, State};
use reverb_base::figures::{Bound, count};
use reverb_wire::convert::table_config::to_rate_limiter;
use reverb_wire::generated::reverb::{Diagnosis, MemoryStatus, SideStatus, TableStatus};

/// Time without a request after which a side counts as inactive.
const LONG: Duration = Duration::from_secs(10);

/// Name of the state of a group with a missing shard.
pub(super) const SHARD_DOWN: &str = "shard down";

/// A table at one shard.
pub(super) struct Part<'a> {
    pub(super) index: i32,
    pub(super) table: &'a TableStatus,
    /// Memory of the shard's server.
    pub(super) memory: MemoryStatus,
}

impl Part<'_> {
    /// The state; `None` if the server is of a release with other states.
    fn state(&self) -> Option<State> {
        State::named(&self.table.diagnosis.as_ref()?.state)
    }
}

/// The diagnosis of a table with these parts.
///
/// `sum` is the merged table of the group; `now_ns` is in nanoseconds since 1970.
pub(super) fn of_group(sum: &TableStatus, parts: &[Part<'_>], now_ns: i64) -> Diagnosis {
    let Some(worst) = parts.iter().filter_map(Part::state).max() else {
        return sum.diagnosis.clone().unwrap_or_default();
    };
    let concerned: Vec<&Part<'_>> =
        parts.iter().filter(|part| part.state() == Some(worst)).collect();
    let case = Case { sum, parts, concerned: &concerned, now_ns };
    let state = case.state(worst);
    let mut sentence = case.sentence(state);
    if concerned.len() < parts.len() && state > State::Flowing {
        sentence = format!("{} of {}: {sentence}", names(&concerned), parts.len());
    }
    Diagnosis { state: state.name().to_owned(), sentence }
}

/// A table of a group, and the parts that are in its gravest state.
struct Case<'a> {
    sum: &'a TableStatus,
    parts: &'a [Part<'a>],
    concerned: &'a [&'a Part<'a>],
    now_ns: i64,
}

impl Case<'_> {
    /// The state. A shard without inserts is starved; a group only if no shard has inserts.
    fn state(&self, worst: State) -> State {
        let inserts = self.side(true).last_ns;
        if worst != State::Starved || self.since(inserts).is_none_or(|ago| ago > LONG) {
            return worst;
        }
        if self.sum.num_items < self.limiter_min_size() { State::Filling } else { State::Ahead }
    }

    fn sentence(&self, state: State) -> String {
        match state {
            State::Idle => self.how_it_rests(),
            State::Flowing => self.how_it_flows(),
            State::Filling => self.how_it_fills(),
            State::Ahead => {
                let waits = self.how_samples_wait();
                format!("Learners wait for actors: {waits}. {}", self.of_first())
            }
            State::Behind => {
                let side = self.side(true);
                let queued = sentences::inserts_wait(side.waiting, oldest(&side));
                format!("Actors wait for learners: {queued}. {}", self.of_first())
            }
            State::Starved => {
                let side = self.side(false);
                let last = self.since(self.side(true).last_ns);
                let starving = sentences::starving(side.waiting, oldest(&side), last);
                format!("{starving}, at any shard. {}", self.of_first())
            }
            State::Full => self.why_full(),
            State::Paused => self.why_paused(),
            State::Stuck => format!("Neither can go on: {}. {}", self.numbers(), self.of_first()),
            State::Never => format!(
                "It can never continue: the shards need {} items together (min_size_to_sample), and \
                 their max_size is {}. {}",
                count(self.limiter_min_size()),
                count(self.sum.max_items),
                self.of_first()
            ),
            State::SlowReaders | State::Draining => self.of_first(),
        }
    }

    /// Sentence of the first shard in this state. Only shards know names and remedies.
    fn of_first(&self) -> String {
        let Some(first) = self.concerned.first() else { return String::new() };
        let sentence = first.table.diagnosis.as_ref().map_or("", |diagnosis| &diagnosis.sentence);
        format!("Shard {} says: {sentence}", first.index)
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
        sentences::resting(insert, sample)
    }

    fn how_it_flows(&self) -> String {
        let rates = self.sum.rates.map(|rates| (rates.inserts_per_s, rates.samples_per_s));
        sentences::flowing(rates)
    }

    fn how_it_fills(&self) -> String {
        let rate = self.sum.rates.map_or(0.0, |rates| rates.inserts_per_s);
        let otherwise = "each shard needs its part before it is sampled (min_size_to_sample)";
        sentences::filling(self.sum.num_items, self.limiter_min_size(), rate, otherwise)
    }

    fn how_samples_wait(&self) -> String {
        let side = self.side(false);
        sentences::samples_wait(side.waiting, oldest(&side))
    }

    /// Memory limits of the table and of the servers; the shard's sentence says which is reached.
    fn why_full(&self) -> String {
        let memory = self.parts.iter().map(|part| part.memory);
        let (total, limit) =
            memory.fold((0, 0), |sum, part| (sum.0 + part.total, sum.1 + part.limit));
        let limits = [
            ("all shards of the table", self.sum.bytes, self.sum.max_bytes),
            ("all servers", total, limit),
        ];
        let reached =
            limits.into_iter().filter(|(.., limit)| *limit > 0).map(|(who, used, limit)| {
                let [used, limit] =
                    [used, limit].map(|bytes| byte_size::describe(bytes.max(0) as u64));
                format!("{who} hold {used} of {limit} (max_bytes)")
            });
        let reached: Vec<_> = reached.collect();
        format!("Inserts wait for memory: {}. {}", reached.join(", "), self.of_first())
    }

    fn why_paused(&self) -> String {
        let inserting = self.side(true);
        let sampling = self.side(false);
        if inserting.paused.is_none() && sampling.paused.is_none() {
            return self.of_first();
        }
        let [inserts, samples] = [&inserting, &sampling]
            .map(|side| side.paused.as_ref().map(|by| (&*by.client, by.client.clone())));
        sentences::paused(inserts, samples, inserting.waiting, sampling.waiting)
    }

    fn limiter_min_size(&self) -> i64 {
        self.sum.limiter.as_ref().map_or(0, |limiter| limiter.min_size_to_sample)
    }

    fn side(&self, is_inserting: bool) -> SideStatus {
        let side = if is_inserting { &self.sum.inserting } else { &self.sum.sampling };
        side.clone().unwrap_or_default()
    }

    fn since(&self, at_ns: i64) -> Option<Duration> {
        sentences::since(at_ns, self.now_ns)
    }
}

fn oldest(side: &SideStatus) -> Duration {
    Duration::try_from_secs_f64(side.oldest_wait_s.unwrap_or(0.0)).unwrap_or_default()
}

/// "Shard 3", or "Shards 0, 1 and 3".
fn names(parts: &[&Part<'_>]) -> String {
    let indices: Vec<String> = parts.iter().map(|part| part.index.to_string()).collect();
    match indices.as_slice() {
        [only] => format!("Shard {only}"),
        [before @ .., last] => format!("Shards {} and {last}", before.join(", ")),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests;
