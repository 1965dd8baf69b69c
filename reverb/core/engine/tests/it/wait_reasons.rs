// SPDX-License-Identifier: Apache-2.0
//! Wait reasons: a request is served exactly when there is none, and each one is true.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{
    UNLIMITED, WHOLE, chunk, config, insert, is_waiting, item, item_of, limiter, min_size, queue,
};
use proptest::prelude::*;
use reverb_base::Result;
use reverb_data::{
    MemoryConfig, RateLimiterConfig, SampleOptions, Sampled, SelectorConfig, StepWindow,
    TableChange, TableConfig, WhenFull,
};
use reverb_engine::{
    ChangedBy, Commit, Held, Limit, LimiterHold, Table, TableStatus, WaitReason, configure,
};

fn options(is_whole: bool) -> SampleOptions {
    if is_whole { WHOLE } else { SampleOptions::default() }
}

type Request = Pin<Box<dyn Future<Output = Result<Vec<Sampled>>>>>;

/// A request for samples that was polled once, unless it is over then.
fn request(table: &Arc<Table>, num: usize, options: SampleOptions) -> Option<Request> {
    let table = Arc::clone(table);
    let mut request: Request = Box::pin(async move { table.sample_with(num, None, options).await });
    is_waiting(request.as_mut()).then_some(request)
}

/// Text of a request that may not wait; `None` if it was answered.
fn refusal(table: &Table, num: usize, options: SampleOptions) -> Option<String> {
    let mut request = Box::pin(table.sample_with(num, Some(Duration::ZERO), options));
    match request.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.err().map(|error| error.message().to_owned()),
        Poll::Pending => panic!("it may not wait"),
    }
}

fn by() -> ChangedBy {
    ChangedBy::now("learner-0")
}

#[test]
fn a_batch_says_how_much_of_it_is_allowed() {
    let table = Table::new(queue(5)).unwrap();
    insert(&table, vec![item(0, 1.0), item(1, 1.0)]);
    let waiting = request(&table, 4, WHOLE);
    let reason = table.status().sampling.reason.unwrap();
    assert_eq!(reason, WaitReason::Batch { wanted: 4, allowed: 2 });
    let text = "A batch of all samples or none waits: the table allows 2 of the 4 samples of the \
                batch now.";
    assert_eq!(reason.to_string(), text);
    // One that is behind it in the queue could go on.
    let text = refusal(&table, 1, SampleOptions::default()).unwrap();
    let expected = "The sample timed out. Table t: 1 request is before it, and the first one waits \
                    too: A batch of all samples or none waits: the table allows 2 of the 4";
    assert!(text.starts_with(expected), "{text}");
    drop(waiting);
    assert_eq!(table.status().sampling.reason, None);
    assert_eq!(refusal(&table, 1, SampleOptions::default()), None);
}

#[test]
fn a_batch_whose_items_leave_too_early_says_so() {
    let config = TableConfig { max_times_sampled: 1, rate_limiter: min_size(3), ..config(10) };
    let table = Table::new(config).unwrap();
    insert(&table, (0..4).map(|key| item(key, 1.0)).collect());
    let text = refusal(&table, 4, WHOLE).unwrap();
    let expected = "the items that leave before the last of the 4 samples of the batch would bring \
                    the table below min_size_to_sample";
    assert!(text.contains(expected), "{text}");
    assert_eq!(refusal(&table, 2, WHOLE), None);
}

#[test]
fn a_timeout_tells_what_holds_inserts_as_well() {
    let table =
        Table::new(TableConfig { rate_limiter: limiter(1.0, 1, 5.0, 2.0), ..config(10) }).unwrap();
    insert(&table, vec![item(0, 1.0), item(1, 1.0), item(2, 1.0)]);
    let text = refusal(&table, 1, SampleOptions::default()).unwrap();
    let expected = "The sample timed out. Table t: 4 more inserts allow the next sample. Inserts \
                    are blocked too: an insert would bring the cursor 2 above max_diff 2 \
                    (samples_per_insert 1). Its rate limiter: 2 item(s),";
    assert!(text.starts_with(expected), "{text}");
    table.pause(true, false, &by()).unwrap();
    let text = refusal(&table, 1, SampleOptions::default()).unwrap();
    assert!(text.contains("Inserts are blocked too: paused by learner-0 since "), "{text}");
}

#[test]
fn bytes_that_items_share_are_no_reason_for_never() {
    let memory = MemoryConfig { max_bytes: Some(9000), when_full: WhenFull::Wait };
    let table =
        || Table::new(TableConfig { rate_limiter: min_size(10), memory, ..config(100) }).unwrap();
    let shared = chunk(0, 0, 2000);
    let never =
        |table: &Table| matches!(table.status().sampling.reason, Some(WaitReason::Never(_)));
    let sharing = table();
    for key in 0..10 {
        insert(&sharing, vec![item_of(key, 1.0, std::slice::from_ref(&shared))]);
        assert!(!never(&sharing), "{key}");
    }
    assert!(sharing.try_sample(1).is_some());
    let alone = table();
    for key in 0..4 {
        assert!(key == 3 || !never(&alone));
        insert(&alone, vec![item_of(key, 1.0, &[chunk(key, key, 2000)])]);
    }
    let status = alone.status();
    assert!(matches!(status.inserting.reason, Some(WaitReason::TableFull { .. })));
    let text = "It will never hold the 10 items that sampling needs (min_size_to_sample): they \
                would take 2";
    assert!(status.sampling.reason.unwrap().to_string().starts_with(text));
}

#[test]
fn a_batch_that_can_never_be_is_why_its_queue_stands_still() {
    let table = Table::new(queue(5)).unwrap();
    let waiting = request(&table, 6, WHOLE);
    assert!(waiting.is_some());
    let text = "It never allows 6 samples at once, but 5 at most: inserts wait for samples before \
                that. Ask for a smaller batch, or change the table.";
    assert_eq!(table.status().sampling.reason, Some(WaitReason::Never(text.to_owned())));
}

/// Each item allows four samples and leaves after two, so the next insert is free.
#[test]
fn items_that_leave_early_allow_larger_batches_than_the_bounds() {
    let is_sampled = |seed| {
        let table = Table::new(TableConfig {
            sampler: SelectorConfig::Uniform,
            max_times_sampled: 2,
            rate_limiter: limiter(4.0, 3, 10.0, 12.0),
            seed: Some(seed),
            ..config(10)
        });
        let table = table.unwrap();
        insert(&table, (0..3).map(|key| item(key, 1.0)).collect());
        let waiting = request(&table, 3, WHOLE);
        assert_eq!(
            table.status().sampling.reason,
            Some(WaitReason::Batch { wanted: 3, allowed: 2 })
        );
        drop(waiting);
        assert_eq!(table.try_sample(2).unwrap().len(), 2);
        insert(&table, vec![item(3, 1.0)]);
        table.try_sample_with(3, WHOLE).is_some()
    };
    assert!((0..50).any(is_sampled));
}

/// Items of this file have one step.
#[test]
fn a_request_says_that_no_item_has_its_window() {
    let sampler = SelectorConfig::Uniform;
    let table = Table::new(TableConfig { sampler, ..config(10) }).unwrap();
    insert(&table, vec![item(0, 1.0)]);
    let window = StepWindow { length: 4, before: 0, pads_left: false, pads_right: false };
    let options = SampleOptions { window: Some(window), ..SampleOptions::default() };
    let mut waiting = request(&table, 1, options).unwrap();
    let text = "No item of table t has a window of 4 steps; the longest has 1.";
    let reason = table.status().sampling.reason.unwrap();
    assert_eq!(reason, WaitReason::NoWindow { why: text.to_owned(), steps: 4 });
    let remedy = "An item of at least 4 steps allows the next sample.";
    assert_eq!(reason.to_string(), format!("{text} {remedy}"));
    // Others wait behind it.
    let behind = request(&table, 1, SampleOptions::default());
    assert!(behind.is_some());
    let refused = refusal(&table, 1, options).unwrap();
    assert!(refused.contains("2 requests are before it, and the first one waits too: No item"));
    insert(&table, vec![item(1, 1.0)]);
    assert!(is_waiting(waiting.as_mut()));
    drop((waiting, behind));
    let padded = StepWindow { pads_right: true, ..window };
    let options = SampleOptions { window: Some(padded), ..SampleOptions::default() };
    assert!(request(&table, 1, options).is_none());
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Insert(usize),
    Sample,
    Wait(usize, bool),
    Leave(usize),
    TimeOut(usize, bool),
    Delete(u64),
    Reset,
    Pause(bool, bool),
    Resume(bool, bool),
    SetWindow(f64, f64, i64),
    ClearWindow,
    Hold,
    Release,
    Configure(i64, i64, f64),
    /// All changes are on disk.
    Commit,
}

fn step() -> impl Strategy<Value = Step> {
    let bound = || (-20..20i32).prop_map(|halves| f64::from(halves) / 2.0);
    prop_oneof![
        8 => (1..4usize).prop_map(Step::Insert),
        8 => Just(Step::Sample),
        4 => (1..7usize, any::<bool>()).prop_map(|(num, is_whole)| Step::Wait(num, is_whole)),
        4 => (0..4usize).prop_map(Step::Leave),
        4 => (1..7usize, any::<bool>()).prop_map(|(num, is_whole)| Step::TimeOut(num, is_whole)),
        3 => (0..60u64).prop_map(Step::Delete),
        1 => Just(Step::Reset),
        1 => any::<(bool, bool)>().prop_map(|(inserts, samples)| Step::Pause(inserts, samples)),
        2 => any::<(bool, bool)>().prop_map(|(inserts, samples)| Step::Resume(inserts, samples)),
        1 => (bound(), bound(), 1..5i64)
            .prop_map(|(low, high, min_size)| Step::SetWindow(low, high, min_size)),
        1 => Just(Step::ClearWindow),
        1 => Just(Step::Hold),
        1 => Just(Step::Release),
        1 => (1..7i64, 1..5i64, 0..20i32).prop_map(|(max_size, min_size, max_diff)| {
            Step::Configure(max_size, min_size, f64::from(max_diff))
        }),
        4 => Just(Step::Commit),
    ]
}

fn table_config() -> impl Strategy<Value = TableConfig> {
    let limits = (
        prop_oneof![Just(1.0), Just(2.5), Just(0.5)],
        1..5i64,
        prop_oneof![(-10..6i32).prop_map(f64::from), Just(-UNLIMITED)],
        prop_oneof![(0..14i32).prop_map(f64::from), Just(UNLIMITED)],
    );
    let max_bytes = prop_oneof![2 => Just(None), 1 => (600..3000u64).prop_map(Some)];
    (limits, 1..9i64, 0..4i32, max_bytes, any::<(bool, bool)>()).prop_map(
        |((spi, min_size, low, high), max_size, max_times_sampled, max_bytes, (is_fifo, waits))| {
            let when_full = if waits { WhenFull::Wait } else { WhenFull::Remove };
            TableConfig {
                sampler: if is_fifo { SelectorConfig::Fifo } else { SelectorConfig::Uniform },
                max_times_sampled,
                rate_limiter: limiter(spi, min_size, low, high),
                memory: MemoryConfig { max_bytes, when_full },
                ..config(max_size)
            }
        },
    )
}

/// A table, and the operations on it.
struct Case {
    table: Arc<Table>,
    paused: (bool, bool),
    has_window: bool,
    hold: Option<LimiterHold>,
    waiting: Vec<Request>,
    next_key: u64,
    /// Bytes of an item. All are alike.
    item_bytes: u64,
}

impl Case {
    fn new(config: TableConfig) -> Self {
        let alone = Table::new(TableConfig { memory: MemoryConfig::default(), ..config.clone() });
        let alone = alone.unwrap();
        insert(&alone, vec![item(0, 1.0)]);
        Self {
            item_bytes: alone.bytes(),
            table: Table::new(config).unwrap(),
            paused: (false, false),
            has_window: false,
            hold: None,
            waiting: Vec::new(),
            next_key: 0,
        }
    }

    fn items(&mut self, count: usize) -> Vec<reverb_data::NewItem> {
        self.next_key += count as u64;
        (self.next_key - count as u64..self.next_key).map(|key| item(key, 1.0)).collect()
    }

    fn apply(&mut self, step: Step) {
        let before = self.table.status();
        let table = Arc::clone(&self.table);
        // Chance decides at each attempt which items leave before the end of the first batch.
        let is_chance = matches!(
            before.sampling.reason,
            Some(WaitReason::Batch { wanted, allowed }) if allowed == wanted
        );
        match step {
            Step::Insert(count) => {
                let items = self.items(count);
                let goes_on = before.inserting.reason.is_none();
                let is_done = !insert(&table, items).keys().is_empty();
                let is_full =
                    matches!(table.status().inserting.reason, Some(WaitReason::TableFull { .. }));
                assert!(is_done == goes_on || (goes_on && is_full) || is_chance, "{before:?}");
            }
            Step::Sample => {
                let goes_on = before.sampling.reason.is_none();
                let is_sampled = table.try_sample(1).is_some();
                assert!(is_sampled == goes_on || is_chance, "{before:?}");
            }
            Step::Wait(num, is_whole) => {
                self.waiting.extend(request(&table, num, options(is_whole)));
            }
            Step::Leave(at) if at < self.waiting.len() => drop(self.waiting.remove(at)),
            Step::TimeOut(num, is_whole) => {
                let text = refusal(&table, num, options(is_whole)).unwrap_or_default();
                assert!(!text.contains("try again"), "{text}");
                let is_first = before.info.waiting_samples == 0;
                let goes_on = is_first && before.sampling.reason.is_none();
                assert!(!goes_on || is_whole || text.is_empty(), "{text}");
            }
            Step::Delete(key) => drop(table.mutate(&[], &[key]).unwrap()),
            Step::Reset => table.reset(),
            Step::Pause(inserts, samples) => {
                table.pause(inserts, samples, &by()).unwrap();
                self.paused = (self.paused.0 || inserts, self.paused.1 || samples);
            }
            Step::Resume(inserts, samples) => {
                table.resume(inserts, samples).unwrap();
                self.paused = (self.paused.0 && !inserts, self.paused.1 && !samples);
            }
            Step::SetWindow(low, high, min_size) => {
                table.set_window(low, high, min_size, 0).unwrap();
                self.has_window = true;
            }
            Step::ClearWindow => {
                table.clear_window().unwrap();
                self.has_window = false;
            }
            Step::Hold if self.hold.is_none() => {
                self.hold = Some(LimiterHold::begin(&table, true, &by()).unwrap());
            }
            Step::Leave(_) | Step::Hold => {}
            Step::Release => self.hold = None,
            Step::Commit => {
                drop(Commit::take(std::slice::from_ref(&table)));
                table.set_synced();
            }
            Step::Configure(max_size, min_size, max_diff) => {
                let rate_limiter = RateLimiterConfig {
                    min_size_to_sample: min_size,
                    max_diff,
                    ..table.config().rate_limiter
                };
                let change = TableChange {
                    max_size: Some(max_size),
                    rate_limiter: Some(rate_limiter),
                    ..TableChange::default()
                };
                if configure(&[(Arc::clone(&table), change)], false).is_ok() {
                    // New numbers may close a window, or end it.
                    table.clear_window().unwrap();
                    self.has_window = false;
                }
            }
        }
        self.waiting.retain_mut(|request| is_waiting(request.as_mut()));
        self.check(&table.status());
    }

    fn check(&self, status: &TableStatus) {
        let (inserting, sampling) = (&status.inserting.reason, &status.sampling.reason);
        assert_eq!(self.waiting.len(), status.info.waiting_samples);
        assert!(inserting.is_some() || status.info.waiting_inserts == 0, "{status:?}");
        assert!(sampling.is_some() || self.waiting.is_empty(), "{status:?}");
        let is_paused = |reason: &Option<_>| matches!(reason, Some(WaitReason::Paused(_)));
        assert_eq!((is_paused(inserting), is_paused(sampling)), self.paused, "{status:?}");
        for (reason, is_insert) in [(inserting, true), (sampling, false)] {
            let Some(reason) = reason else { continue };
            assert!(self.is_true(reason, status, is_insert), "{reason:?} {status:?}");
        }
    }

    /// True if the counters agree with a reason.
    fn is_true(&self, reason: &WaitReason, status: &TableStatus, is_insert: bool) -> bool {
        let Self { table, .. } = self;
        let config = table.config();
        let can_sample = |count: usize| table.can_sample(count as i64).unwrap();
        match reason {
            WaitReason::Paused(by) => &*by.client == "learner-0",
            WaitReason::Disk { .. } => is_insert && table.unsynced().since.is_some(),
            WaitReason::Never(_) => {
                let is_small = status.info.current_size < config.rate_limiter.min_size_to_sample;
                !is_insert && (is_small || !self.waiting.is_empty())
            }
            WaitReason::TableFull { bytes, max_bytes } => {
                is_insert
                    && table.can_insert(1).unwrap()
                    && config.memory
                        == MemoryConfig { max_bytes: Some(*max_bytes), when_full: WhenFull::Wait }
                    && *bytes == table.bytes()
                    && bytes + self.item_bytes > *max_bytes
            }
            WaitReason::Limiter(held) => !self.has_window && self.is_held(held, status, is_insert),
            WaitReason::Window(held) => self.has_window && self.is_held(held, status, is_insert),
            WaitReason::Batch { wanted, allowed } if allowed == wanted => {
                !is_insert && config.max_times_sampled > 0 && can_sample(*wanted)
            }
            WaitReason::Batch { wanted, allowed } => {
                let items = usize::try_from(status.info.current_size).unwrap();
                let times = usize::try_from(config.max_times_sampled).unwrap();
                let is_used_up = times > 0 && *allowed == items * times;
                !is_insert
                    && (1..*wanted).contains(allowed)
                    && can_sample(*allowed)
                    && (is_used_up || !can_sample(allowed + 1))
            }
            WaitReason::NoWindow { .. } | WaitReason::Queued { .. } | WaitReason::Rollouts(_) => {
                false
            }
        }
    }

    fn is_held(&self, held: &Held, status: &TableStatus, is_insert: bool) -> bool {
        let watched = self.table.watched();
        let RateLimiterConfig { samples_per_insert, min_size_to_sample, min_diff, max_diff } =
            held.limiter;
        let in_force = (watched.min_diff, watched.max_diff, watched.min_size_to_sample);
        if (held.size, held.cursor) != (status.info.current_size, status.cursor)
            || (min_diff, max_diff, min_size_to_sample) != in_force
        {
            return false;
        }
        let (size, cursor) = (held.size, held.cursor);
        let ends_after = |calls: f64| match held.limit {
            Limit::MaxDiff => cursor - calls + samples_per_insert <= max_diff,
            Limit::MinSize | Limit::MinDiff => {
                (size as f64 + calls) >= min_size_to_sample as f64
                    && cursor + calls * samples_per_insert - 1.0 >= min_diff
            }
        };
        let is_limit = match held.limit {
            Limit::MaxDiff => is_insert && !self.table.can_insert(1).unwrap(),
            Limit::MinSize => !is_insert && size < min_size_to_sample,
            Limit::MinDiff => !is_insert && size >= min_size_to_sample,
        };
        is_limit && !ends_after(0.0) && ends_after(held.missing) && !ends_after(held.missing - 1.0)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_reason_stands_exactly_where_nothing_goes_on(
        config in table_config(),
        has_journal in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut case = Case::new(config);
        if has_journal {
            // Inserts wait for each change to be on disk.
            case.table.record_changes(Duration::ZERO);
        }
        for step in steps {
            case.apply(step);
        }
    }

    /// Requests that were reported as impossible are never served without deletes.
    #[test]
    fn never_is_never(
        config in table_config(),
        wanted in 1..12usize,
        steps in proptest::collection::vec(0..4u8, 1..80),
    ) {
        let mut case = Case::new(config);
        let mut told: Option<String> = None;
        for step in steps {
            match step {
                0 | 1 => {
                    let items = case.items(1);
                    insert(&case.table, items);
                }
                2 => drop(case.table.try_sample(1)),
                _ => {
                    let samples = case.table.try_sample_with(wanted, WHOLE);
                    prop_assert!(samples.is_none() || told.is_none(), "{told:?}");
                }
            }
            let waiting = request(&case.table, wanted, WHOLE);
            prop_assert!(waiting.is_some() || told.is_none(), "{told:?}");
            if let Some(WaitReason::Never(why)) = case.table.status().sampling.reason {
                told = Some(why);
            }
        }
    }
}
