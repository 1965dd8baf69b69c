// SPDX-License-Identifier: Apache-2.0

use reverb_data::{RateLimiterConfig, TableConfig};
use reverb_engine::Table;

use super::*;
use crate::observe::streams::{StreamKind, Streams};

const NOW_NS: i64 = 1_000_000_000_000;

fn limiter(spi: f64, min_size: i64, min_diff: f64, max_diff: f64) -> RateLimiterConfig {
    RateLimiterConfig { samples_per_insert: spi, min_size_to_sample: min_size, min_diff, max_diff }
}

/// A table with 100 items of 400 bytes, a recent insert and sample, and no blocked calls.
fn table(rate_limiter: RateLimiterConfig) -> TableStatus {
    let config = TableConfig { rate_limiter, ..TableConfig::fifo("t", 1000) };
    let mut status = Table::new(config).unwrap().status();
    status.info.current_size = 100;
    (status.inserting.reason, status.sampling.reason) = (None, None);
    status.statistics.last_insert_ns = NOW_NS - 1_000_000;
    status.statistics.last_sample_ns = NOW_NS - 2_000_000;
    status
}

fn free() -> RateLimiterConfig {
    limiter(1.0, 1, f64::MIN, f64::MAX)
}

fn ratio(min_diff: f64, max_diff: f64, cursor: f64) -> TableStatus {
    TableStatus { cursor, ..table(limiter(2.0, 10, min_diff, max_diff)) }
}

/// A call that the rate limiter blocks, as reported by the engine.
fn held(table: &TableStatus, limiter: RateLimiterConfig, is_insert: bool) -> Held {
    let (size, cursor) = (table.info.current_size, table.cursor);
    let (limit, missing) = if is_insert {
        (Limit::MaxDiff, limiter.missing_samples(i64::MAX, cursor))
    } else if size < limiter.min_size_to_sample {
        (Limit::MinSize, limiter.missing_inserts(size, cursor))
    } else {
        (Limit::MinDiff, limiter.missing_inserts(size, cursor))
    };
    assert!(missing > 0.0);
    Held { limit, missing, limiter, size, cursor }
}

fn samples_wait(mut table: TableStatus, requests: usize, seconds: f64) -> TableStatus {
    table.info.waiting_samples = requests;
    table.sampling.oldest_wait = Some(Duration::from_secs_f64(seconds));
    let held = held(&table, table.info.config.rate_limiter, false);
    table.sampling.reason = Some(WaitReason::Limiter(held));
    table
}

fn inserts_wait(mut table: TableStatus, items: usize, seconds: f64) -> TableStatus {
    table.info.waiting_inserts = items;
    table.inserting.oldest_wait = Some(Duration::from_secs_f64(seconds));
    let held = held(&table, table.info.config.rate_limiter, true);
    table.inserting.reason = Some(WaitReason::Limiter(held));
    table
}

/// Inserts and sample requests that have waited for 3 s.
fn waiting(mut table: TableStatus, inserts: usize, samples: usize) -> TableStatus {
    let wait = |count| (count > 0).then_some(Duration::from_secs(3));
    (table.info.waiting_inserts, table.info.waiting_samples) = (inserts, samples);
    (table.inserting.oldest_wait, table.sampling.oldest_wait) = (wait(inserts), wait(samples));
    table
}

fn around() -> Surroundings {
    let rates = Rates {
        seconds: 10.0,
        inserts: 31.0,
        samples: 248.0,
        insert_blocked: 0.25,
        sample_blocked: 0.92,
    };
    Surroundings {
        full_for_growing: None,
        rates: Some(rates),
        now_ns: NOW_NS,
        writers: 3,
        readers: 2,
        slow_readers: None,
        room: None,
        full_server: None,
        journal: JournalFacts::default(),
        draining: None,
    }
}

/// A server without blocked calls.
fn calm() -> Surroundings {
    let rates = Rates { sample_blocked: 0.3, ..around().rates.unwrap() };
    Surroundings { rates: Some(rates), ..around() }
}

fn check(table: &TableStatus, around: &Surroundings, state: State, sentence: &str) {
    let diagnosis = diagnose(table, around);
    assert_eq!((diagnosis.state, &diagnosis.sentence()[..]), (state, sentence));
}

#[test]
fn a_table_that_moves_flows() {
    let text = "31 inserts/s, 248 samples/s; 8 samples an insert.";
    check(&table(free()), &calm(), State::Flowing, text);
    let unknown = Surroundings { rates: None, ..around() };
    check(&table(free()), &unknown, State::Flowing, "Inserts and samples go through.");
    // A short wait is normal.
    let short = samples_wait(ratio(-5.0, 50.0, -4.5), 1, 0.2);
    assert_eq!(diagnose(&short, &calm()).state, State::Flowing);
}

#[test]
fn a_steady_queue_has_one_state() {
    // The learner is faster than the actors: the queue is often empty.
    let mut queue = table(limiter(1.0, 1, 0.0, 100.0));
    let mut states = Vec::new();
    for size in [0, 1] {
        queue.info.current_size = size;
        let held = held(&queue, queue.info.config.rate_limiter, false);
        queue.sampling.reason = Some(WaitReason::Limiter(held));
        for waiting in [None, Some(0.001), Some(0.3)] {
            let status = match waiting {
                None => queue.clone(),
                Some(seconds) => samples_wait(queue.clone(), 1, seconds),
            };
            states.push(diagnose(&status, &around()).state);
        }
    }
    assert_eq!(states, [State::Ahead; 6]);
    let text = "Learners wait for actors: no request waits at this moment; 92 % of the last 10 s \
                was waiting. 1 more insert allows the next sample.";
    check(&queue, &around(), State::Ahead, text);
    // Actors are faster.
    let rates = Rates { insert_blocked: 0.8, ..calm().rates.unwrap() };
    let full = Surroundings { rates: Some(rates), ..calm() };
    let text = "Actors wait for learners: no insert is queued at this moment; 80 % of the last 10 s \
                was waiting.";
    check(&queue, &full, State::Behind, text);
    queue.cursor = 100.0;
    assert_eq!(diagnose(&inserts_wait(queue, 3, 0.1), &full).state, State::Behind);
}

#[test]
fn a_queue_without_readers_says_so() {
    let mut queue = inserts_wait(ratio(0.0, 100.0, 100.0), 4, 30.0);
    queue.statistics.last_sample_ns = NOW_NS - 31_000_000_000;
    let alone = Surroundings { readers: 0, ..calm() };
    let text = "Actors wait for learners: 4 inserts are queued, for 30 s; 25 % of the last 10 s was \
                waiting. The last sample was 31 s ago; 0 sample streams are open. 2 more samples \
                allow the next insert.";
    check(&queue, &alone, State::Behind, text);
    queue.statistics.last_sample_ns = 0;
    let Diagnosis { around, reason, .. } = diagnose(&queue, &alone);
    assert!(around.ends_with("Nothing was ever sampled; 0 sample streams are open."), "{around}");
    assert_eq!(reason, "2 more samples allow the next insert.");
}

#[test]
fn a_table_that_waits_for_its_window_says_so() {
    let window = |mut table: TableStatus, min_size| {
        let of = limiter(2.0, min_size, -3.5, 7.5);
        let reason = |wait: Option<Duration>, is_insert| {
            wait.map(|_| WaitReason::Window(held(&table, of, is_insert)))
        };
        let inserts = reason(table.inserting.oldest_wait, true);
        let samples = reason(table.sampling.oldest_wait, false);
        (table.inserting.reason, table.sampling.reason) = (inserts, samples);
        table
    };
    let behind = window(waiting(ratio(-100.0, 100.0, 7.0), 4, 0), 1);
    let text = "Actors wait for learners: 4 inserts are queued, for 3.0 s; 25 % of the last 10 s was \
                waiting. 2 more samples allow the next insert. The window of this shard has min_diff \
                -3.5 and max_diff 7.5, and the cursor is 7; the group's coordinator moves it.";
    check(&behind, &around(), State::Behind, text);
    // A window may want more items than the table can hold: it is closed for samples.
    let ahead = window(waiting(ratio(-100.0, 100.0, 0.0), 0, 2), i64::MAX);
    let text = "Learners wait for actors: 2 requests for samples have waited 3.0 s; 92 % of the last \
                10 s was waiting. No insert allows the next sample. The window of this shard has \
                min_diff -3.5 and max_diff 7.5, and the cursor is 0; the group's coordinator moves \
                it.";
    check(&ahead, &around(), State::Ahead, text);
    let stuck = window(waiting(ratio(-100.0, 100.0, 7.0), 1, 1), 200);
    let text = "Neither can go on: samples need 200 items (min_size_to_sample) and there are 100, \
                and an insert would bring the cursor 7 above max_diff 7.5 (samples_per_insert 2). \
                The window of this shard has min_diff -3.5 and max_diff 7.5, and the cursor is 7; \
                the group's coordinator moves it. If the group has no coordinator any more, \
                SetRateLimiter restores the bounds of the table.";
    check(&stuck, &around(), State::Stuck, text);
}

#[test]
fn a_table_that_nobody_uses_is_idle() {
    let mut status = table(free());
    status.statistics.last_insert_ns = NOW_NS - 41_000_000_000;
    status.statistics.last_sample_ns = 0;
    let text = "No requests: the last insert was 41 s ago, no sample yet.";
    check(&status, &around(), State::Idle, text);
}

#[test]
fn samples_wait_for_the_first_items() {
    let mut status = samples_wait(table(limiter(1.0, 410, f64::MIN, f64::MAX)), 2, 3.0);
    status.statistics.last_sample_ns = 0;
    let text = "100 of 410 items; at 31 inserts/s sampling starts in 10 s.";
    check(&status, &around(), State::Filling, text);
    let unknown = Surroundings { rates: None, ..around() };
    let text = "100 of 410 items; then sampling starts (min_size_to_sample).";
    check(&status, &unknown, State::Filling, text);
    status.statistics.last_insert_ns = NOW_NS - 52_000_000_000;
    let text = "2 requests for samples have waited 3.0 s. The last insert was 52 s ago; 3 insert \
                streams are open. 310 more inserts allow the next sample.";
    check(&status, &around(), State::Starved, text);
}

#[test]
fn samples_wait_although_nothing_was_ever_inserted() {
    let mut status = table(free());
    status.info.current_size = 0;
    status.statistics.last_insert_ns = 0;
    status.statistics.last_sample_ns = 0;
    let alone = Surroundings { writers: 0, ..around() };
    let text = "1 request for samples has waited 41 s. Nothing was ever inserted; 0 insert streams \
                are open. 1 more insert allows the next sample.";
    check(&samples_wait(status.clone(), 1, 41.0), &alone, State::Starved, text);
    assert_eq!(diagnose(&samples_wait(status, 1, 5.0), &alone).state, State::Filling);
}

#[test]
fn one_side_is_ahead_of_the_other() {
    let ahead = samples_wait(ratio(-5.0, 50.0, -4.5), 2, 3.0);
    let text = "Learners wait for actors: 2 requests for samples have waited 3.0 s; 92 % of the \
                last 10 s was waiting. 1 more insert allows the next sample.";
    check(&ahead, &around(), State::Ahead, text);
    let behind = inserts_wait(ratio(-5.0, 50.0, 50.0), 4312, 125.0);
    let text = "Actors wait for learners: 4,312 inserts are queued, for 2 min; 25 % of the last 10 \
                s was waiting. 2 more samples allow the next insert.";
    check(&behind, &around(), State::Behind, text);
}

#[test]
fn both_wait_for_each_other() {
    // RateLimiter(2.0, 10, min_diff=5, max_diff=6) at a cursor of 5.
    let both = samples_wait(inserts_wait(ratio(5.0, 6.0, 5.0), 1, 2.0), 1, 2.0);
    let text = "Neither can go on: a sample would bring the cursor 5 below min_diff 5, and an \
                insert would bring the cursor 5 above max_diff 6 (samples_per_insert 2). Let \
                max_diff be larger than min_diff by samples_per_insert and 1 at least; deleting \
                items lets inserts go on.";
    check(&both, &around(), State::Stuck, text);
}

#[test]
fn inserts_wait_for_memory() {
    let mut status = table(free());
    status.info.waiting_inserts = 7;
    status.inserting.oldest_wait = Some(Duration::from_secs(2));
    status.inserting.reason = Some(WaitReason::TableFull { bytes: 40_000, max_bytes: 40_960 });
    let text = "Inserts wait for memory: the table holds 39.1 KiB of 40.0 KiB (max_bytes, \
                when_full=\"wait\"). Items leave by sampling (max_times_sampled), deletes or reset.";
    check(&status, &around(), State::Full, text);
    let items = FullServer::Items { total: 99 << 20, limit: 100 << 20 };
    let full = Surroundings { full_server: Some(items), ..around() };
    let text = "Inserts wait for memory: the server holds 99.0 MiB of 100.0 MiB (max_bytes). Items \
                leave by sampling, deletes or reset; give large tables when_full=\"remove\".";
    check(&status, &full, State::Full, text);
    check(&table(free()), &full, State::Full, text);
    let disk = FullServer::Disk {
        place: "/data/replay".to_owned(),
        unwritten_bytes: 812 << 20,
        bytes_per_second: 14.2e6,
    };
    let slow = Surroundings { full_server: Some(disk), ..around() };
    let text = "Inserts wait for the disk: 812.0 MiB of payloads are not written yet, and \
                /data/replay takes 14 MB/s.";
    check(&status, &slow, State::Full, text);
    check(&table(free()), &slow, State::Full, text);
    assert_eq!(slow.why_inserts_wait(&status).as_deref(), Some(text));
    let alone = Surroundings { writers: 0, ..calm() };
    assert_eq!(diagnose(&table(free()), &alone).state, State::Flowing);
    // If samples are blocked too, memory is the reason that neither can go on.
    status.info.config = table(limiter(1.0, 101, f64::MIN, f64::MAX)).info.config;
    let both = samples_wait(status, 1, 2.0);
    for (around, who) in [(full, "server"), (around(), "table")] {
        let text = format!(
            "Neither can go on: samples wait for inserts. Inserts wait for memory: the {who} holds "
        );
        let Diagnosis { state, around, reason } = diagnose(&both, &around);
        assert_eq!((state, &*reason), (State::Stuck, ""));
        assert!(around.starts_with(&text), "{around}");
    }
}

#[test]
fn inserts_wait_for_the_disk() {
    let mut status = table(limiter(1.0, 101, f64::MIN, f64::MAX));
    status.info.waiting_inserts = 7;
    status.inserting.oldest_wait = Some(Duration::from_secs(2));
    let lag = Duration::from_millis(3100);
    status.inserting.reason = Some(WaitReason::Disk { lag });
    let error = "cannot write /data/replay/log-0000000003.seg: No space left on device";
    for (place, error, text) in [
        (None, None, "the journal is 3.1 s behind."),
        (None, Some("writes fail"), "the journal is 3.1 s behind: writes fail."),
        (Some("/data/replay"), None, "the journal in /data/replay is 3.1 s behind."),
        (
            Some("/data/replay"),
            Some(error),
            &format!("the journal in /data/replay is 3.1 s behind: {error}."),
        ),
    ] {
        let [place, error] = [place, error].map(|it| it.map(str::to_owned));
        let around = Surroundings { journal: JournalFacts { place, error }, ..around() };
        let text = format!("An insert waits for the disk: {text}");
        check(&status, &around, State::Full, &text);
        assert_eq!(around.why_inserts_wait(&status).as_deref(), Some(&*text));
        let text = format!("Neither can go on: samples wait for inserts. {text}");
        check(&samples_wait(status.clone(), 1, 2.0), &around, State::Stuck, &text);
    }
}

#[test]
fn inserts_wait_for_room_in_the_files() {
    let place = "/data/replay".to_owned();
    let files = FullServer::Files { place, bytes: 98 << 30, max_bytes: 100 << 30 };
    let full = Surroundings { full_server: Some(files), ..around() };
    let text = "Inserts wait for the disk: the files in /data/replay have 98.0 GiB of 100.0 GiB \
                (max_bytes of the store). Items leave by sampling, deletes or reset; give large \
                tables when_full=\"remove\".";
    check(&table(free()), &full, State::Full, text);
}

#[tokio::test]
async fn readers_do_not_take_what_is_ready() {
    let streams = Arc::new(Streams::default());
    let slow = streams.open(StreamKind::Sample, "client 10.0.0.7:1234", "learner-3", None);
    slow.use_table(&Arc::from("t"));
    slow.set_wait(Some(WaitsFor::Peer));
    assert_eq!(SlowReaders::of(&streams.all(), "t"), None, "not for long yet");
    let slow_readers = Some(SlowReaders {
        count: 2,
        slowest: "client 10.0.0.7:1234, learner-3".to_owned(),
        wait: Duration::from_secs(8),
    });
    let around = Surroundings { slow_readers, ..around() };
    let text = "2 readers do not take what is ready: client 10.0.0.7:1234, learner-3 has read \
                nothing for 8.0 s.";
    check(&table(free()), &around, State::SlowReaders, text);
    let behind = inserts_wait(ratio(f64::MIN, 0.0, 0.0), 1, 5.0);
    assert_eq!(diagnose(&behind, &around).state, State::SlowReaders, "this is why");
}

#[test]
fn what_can_never_be_is_told_before_anybody_waits() {
    let mut small = table(free());
    small.sampling.reason = Some(WaitReason::Never("It is too small.".to_owned()));
    check(&small, &around(), State::Never, "It is too small.");
}

#[test]
fn a_batch_that_waits_is_no_wait_for_one_insert() {
    let mut batch = samples_wait(ratio(0.0, 50.0, 0.0), 2, 3.0);
    batch.sampling.reason = Some(WaitReason::Batch { wanted: 64, allowed: 49 });
    let text = "Learners wait for actors: 2 requests for samples have waited 3.0 s; 92 % of the last \
                10 s was waiting. A batch of all samples or none waits: the table allows 49 of \
                the 64 samples of the batch now.";
    check(&batch, &around(), State::Ahead, text);
    batch.cursor = 49.0;
    let batch = TableStatus { sampling: batch.sampling.clone(), ..inserts_wait(batch, 1, 2.0) };
    let text = "Neither can go on: the table allows 49 of the 64 samples of the batch now, \
                and an insert would bring the cursor 49 above max_diff 50 (samples_per_insert 2). \
                Ask for smaller batches, or raise max_diff.";
    check(&batch, &around(), State::Stuck, text);
}

#[test]
fn who_pauses_or_drains_is_named_first() {
    let by = |client: &str| {
        let at = std::time::UNIX_EPOCH + Duration::from_secs(50_407);
        Some(ChangedBy { client: client.into(), at })
    };
    let mut paused = inserts_wait(samples_wait(ratio(5.0, 4.0, 4.5), 1, 30.0), 3, 30.0);
    assert_eq!(diagnose(&paused, &around()).state, State::Stuck);
    let samples = paused.sampling.reason.clone();
    paused.inserting.reason = by("learner-0").map(WaitReason::Paused);
    let text = "Inserts are paused by learner-0 since 14:00:07 UTC; 3 inserts wait and 1 request \
                for samples waits. resume_table resumes them.";
    check(&paused, &around(), State::Paused, text);
    paused.sampling.reason = by("learner-0").map(WaitReason::Paused);
    let sentence = |paused: &TableStatus| diagnose(paused, &around()).sentence();
    assert!(sentence(&paused).starts_with("Inserts and samples are paused by"));
    paused.inserting.reason = by("me").map(WaitReason::Paused);
    let text = sentence(&paused);
    assert!(text.contains("by me since 14:00:07 UTC, and samples by learner-0 since"), "{text}");
    paused.inserting.reason = samples;
    let text = sentence(&paused);
    assert!(text.starts_with("Samples are paused by learner-0"), "{text}");
    let draining = Surroundings { draining: by("admin"), ..around() };
    let text = "The server ends its streams, for admin since 14:00:07 UTC.";
    check(&paused, &draining, State::Draining, text);
}
