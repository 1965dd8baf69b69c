// SPDX-License-Identifier: Apache-2.0
#![allow(clippy::unwrap_used, reason = "tests may")]

use reverb_wire::generated::deepmind::reverb::RateLimiterCheckpoint;
use reverb_wire::generated::reverb::{
    Diagnosis, MemoryStatus, RatesStatus, SetBy, ShardStatus, SideStatus, StatusResponse,
    TableStatus,
};

use super::{SHARD_DOWN, State};
use crate::status::together;

const NOW_NS: i64 = 1_000_000_000_000;
/// Numbers of items of four unequal shards.
const ITEMS: [i64; 4] = [1, 20, 300, 4000];

fn shard(index: usize, state: &str) -> ShardStatus {
    let waits = SideStatus {
        waiting: index as i64 + 1,
        oldest_wait_s: Some(index as f64 * 2.0),
        last_ns: NOW_NS - 1_000_000_000 * (index as i64 + 20),
        ..SideStatus::default()
    };
    let table = TableStatus {
        name: "t".into(),
        num_items: ITEMS[index],
        max_items: 10_000,
        bytes: ITEMS[index] * 1024,
        max_bytes: 8 << 20,
        limiter: Some(RateLimiterCheckpoint {
            samples_per_insert: 1.0,
            min_size_to_sample: 2000,
            min_diff: 0.0,
            max_diff: 10.0,
            ..RateLimiterCheckpoint::default()
        }),
        cursor: index as f64,
        inserting: Some(waits.clone()),
        sampling: Some(waits),
        rates: Some(RatesStatus {
            seconds: 10.0,
            inserts_per_s: 10.0 * ITEMS[index] as f64,
            samples_per_s: 5.0 * ITEMS[index] as f64,
            ..RatesStatus::default()
        }),
        diagnosis: Some(Diagnosis { state: state.into(), sentence: "As it said.".into() }),
        ..TableStatus::default()
    };
    ShardStatus {
        index: index as i32,
        address: format!("host-{index}:8000"),
        state: "up".into(),
        status: Some(StatusResponse {
            now_ns: NOW_NS,
            tables: vec![table],
            memory: Some(MemoryStatus { total: 1 << 30, limit: 4 << 30, ..Default::default() }),
            ..StatusResponse::default()
        }),
        ..ShardStatus::default()
    }
}

fn diagnosis(shards: Vec<ShardStatus>) -> Diagnosis {
    together(shards).tables.remove(0).diagnosis.unwrap()
}

/// Diagnosis of a group with one shard in `state` and all others in another state.
fn of_one(state: &str, at: usize, others: &str) -> Diagnosis {
    diagnosis((0..4).map(|index| shard(index, if index == at { state } else { others })).collect())
}

fn side(shard: &mut ShardStatus) -> &mut SideStatus {
    shard.status.as_mut().unwrap().tables[0].inserting.as_mut().unwrap()
}

#[test]
fn a_shard_that_nobody_asks_hides_no_other() {
    for state in State::ALL.map(|(_, name)| name) {
        for at in 0..4 {
            let told = of_one(state, at, "idle");
            assert_eq!(told.state, state);
            let told = of_one("idle", at, state);
            assert_eq!(told.state, state);
        }
    }
    assert_eq!(
        of_one("flowing", 2, "idle").sentence,
        "43,210 inserts/s, 21,605 samples/s; 0.5 \
         samples an insert."
    );
}

#[test]
fn the_gravest_state_counts_in_numbers_of_all() {
    for (state, words) in [
        ("flowing", "43,210 inserts/s"),
        ("idle", "the last insert was 20 s ago"),
        ("filling", "4,321 of 8,000 items; at 43,210 inserts/s sampling starts in"),
        ("ahead", "10 requests for samples have waited 6.0 s"),
        ("behind", "10 inserts are queued, for 6.0 s"),
        ("starved", "10 requests for samples have waited 6.0 s. The last insert was 20 s ago"),
        (
            "full",
            "4.2 MiB of 32.0 MiB (max_bytes), all servers hold 4.0 GiB of 16.0 GiB (max_bytes). Shard 0 says: As it said.",
        ),
        (
            "never",
            "need 8,000 items together (min_size_to_sample), and their max_size is 40,000. Shard 0 says: As it said.",
        ),
        ("stuck", "4,321 items, where sampling needs 8,000, and the cursor 6 between min_diff 0"),
        ("slow readers", "Shard 0 says: As it said."),
        ("draining", "Shard 0 says: As it said."),
    ] {
        let told = diagnosis((0..4).map(|index| shard(index, state)).collect());
        assert_eq!(told.state, state);
        assert!(told.sentence.contains(words), "{state}: {}", told.sentence);
        if state != "idle" {
            let told = of_one(state, 3, "idle");
            let is_named = told.sentence.starts_with("Shard 3 of 4: ");
            assert_eq!(is_named, state != "flowing", "{}", told.sentence);
        }
    }
}

#[test]
fn only_memory_that_has_a_limit_is_told() {
    let mut shards: Vec<ShardStatus> = (0..4).map(|index| shard(index, "full")).collect();
    for shard in &mut shards {
        shard.status.as_mut().unwrap().tables[0].max_bytes = 0;
    }
    let told = diagnosis(shards).sentence;
    let text =
        "Inserts wait for memory: all servers hold 4.0 GiB of 16.0 GiB (max_bytes). Shard 0 says";
    assert!(told.starts_with(text), "{told}");
}

#[test]
fn several_shards_in_a_state_are_named() {
    let told = diagnosis(
        ["behind", "flowing", "behind", "behind"]
            .iter()
            .enumerate()
            .map(|(index, state)| shard(index, state))
            .collect(),
    );
    assert!(told.sentence.starts_with("Shards 0, 2 and 3 of 4: Actors wait"), "{}", told.sentence);
}

#[test]
fn a_group_starves_while_nobody_inserts_anywhere() {
    let mut shards: Vec<ShardStatus> = (0..4).map(|index| shard(index, "idle")).collect();
    shards[1] = shard(1, "starved");
    side(&mut shards[3]).last_ns = NOW_NS - 1_000_000_000;
    assert_eq!(diagnosis(shards.clone()).state, "filling");
    let tables = shards.iter_mut().map(|shard| &mut shard.status.as_mut().unwrap().tables[0]);
    tables.for_each(|table| table.num_items = 2000);
    assert_eq!(diagnosis(shards).state, "ahead");
}

#[test]
fn a_pause_is_told_with_all_who_wait() {
    let mut shards: Vec<ShardStatus> = (0..4).map(|index| shard(index, "paused")).collect();
    for shard in &mut shards {
        side(shard).paused = Some(SetBy { client: "ann".into(), ..SetBy::default() });
    }
    let told = diagnosis(shards);
    assert_eq!(
        told.sentence,
        "Inserts are paused by ann; 10 inserts wait and 10 requests for samples wait. resume_table \
         resumes them."
    );
}

#[test]
fn a_shard_that_is_down_is_a_state() {
    let mut shards: Vec<ShardStatus> = (0..4).map(|index| shard(index, "never")).collect();
    shards[0].status = None;
    shards[0].is_coordinator = true;
    let told = diagnosis(shards.clone());
    assert_eq!(told.state, SHARD_DOWN);
    assert!(
        told.sentence.starts_with(
            "Shard 0 (host-0:8000, the coordinator) does not answer, so its items are missing; 3 of \
             4 shards continue. Without it: never, It can never continue"
        ),
        "{}",
        told.sentence
    );
    shards[2].status = None;
    let told = diagnosis(shards);
    let words = "Shards 0 (host-0:8000, the coordinator), 2 (host-2:8000) do not answer";
    assert!(told.sentence.starts_with(words), "{}", told.sentence);
}
