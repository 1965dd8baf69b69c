// SPDX-License-Identifier: Apache-2.0
//! Windows: the parts of the bounds of a group that its shards keep.
use std::sync::Arc;
use std::time::Duration;

use crate::common::{UNLIMITED, config, insert, item, limiter, min_size};
use proptest::prelude::*;
use reverb_data::{RateLimiterConfig, TableChange, TableConfig};
use reverb_engine::{ChangedBy, LimiterHold, SnapshotCut, Table, Watched, configure};

fn table(rate_limiter: RateLimiterConfig) -> Arc<Table> {
    Table::new(TableConfig { rate_limiter, ..config(50) }).unwrap()
}

fn bounds(watched: &Watched) -> (f64, f64, i64) {
    (watched.min_diff, watched.max_diff, watched.min_size_to_sample)
}

#[test]
fn a_bound_never_passes_the_cursor() {
    let table = table(limiter(2.0, 1, 0.0, 100.0));
    insert(&table, (0..10).map(|key| item(key, 1.0)).collect());
    let set = |min_diff, max_diff| bounds(&table.set_window(min_diff, max_diff, 3, 0).unwrap().0);
    assert_eq!(set(5.0, 30.0), (5.0, 30.0, 3));
    assert_eq!(set(25.0, 30.0), (20.0, 30.0, 3));
    assert_eq!(set(5.0, 15.0), (5.0, 20.0, 3));
    assert_eq!(set(UNLIMITED, -UNLIMITED), (20.0, 20.0, 3));
    assert!(!table.can_sample(1).unwrap() && !table.can_insert(1).unwrap(), "it is closed");
    assert_eq!(set(-UNLIMITED, UNLIMITED), (-UNLIMITED, UNLIMITED, 3));
    assert_eq!(bounds(&table.clear_window().unwrap()), (0.0, 100.0, 1));
}

#[test]
fn settings_and_checkpoints_keep_the_numbers_of_the_user() {
    let table = table(limiter(2.0, 7, 0.0, 100.0));
    table.set_window(3.0, 4.0, 1, 0).unwrap();
    let users = limiter(2.0, 7, 0.0, 100.0);
    assert_eq!(table.config().rate_limiter, users);
    assert_eq!(table.info().config.rate_limiter, users);
    let snapshot = SnapshotCut::begin(&[Arc::clone(&table)]).unwrap().copy();
    assert_eq!(snapshot[0].info.config.rate_limiter, users);
    assert_eq!(bounds(&table.watched()), (0.0, 4.0, 1));
}

#[test]
fn an_earlier_coordinator_is_refused() {
    let table = table(limiter(1.0, 1, 0.0, 10.0));
    let (_, before) = table.set_window(0.0, 4.0, 1, 5).unwrap();
    assert_eq!((before.min_diff, before.max_diff), (0.0, 10.0));
    let error = table.set_window(0.0, 9.0, 1, 4).unwrap_err();
    assert_eq!(error.kind(), reverb_base::ErrorKind::FailedPrecondition);
    assert!(error.message().contains("a later coordinator (term 5) than this one (term 4)"));
    assert_eq!(table.watched().max_diff, 4.0);
    let (now, before) = table.set_window(0.0, 9.0, 1, 5).unwrap();
    assert_eq!((now.max_diff, before.max_diff), (9.0, 4.0));
}

#[test]
fn requests_that_wait_go_on_when_the_window_moves() {
    let table = table(limiter(1.0, 1, 0.0, 2.0));
    let log = insert(&table, (0..10).map(|key| item(key, 1.0)).collect());
    assert_eq!(log.keys().len(), 2);
    let now = table.set_window(0.0, 6.0, 1, 0).unwrap().0;
    assert_eq!((log.keys().len(), now.cursor, now.insert_waits), (6, 6.0, true));
    let now = table.set_window(0.0, 60.0, 1, 0).unwrap().0;
    assert_eq!((log.keys().len(), now.cursor, now.insert_waits), (10, 10.0, false));
}

#[test]
fn with_a_window_no_insert_is_free() {
    let table = table(limiter(4.0, 10, 0.0, 100.0));
    // Closed for samples, as a coordinator keeps it until the group has enough items.
    table.set_window(-UNLIMITED, 8.0, i64::MAX, 0).unwrap();
    let log = insert(&table, (0..10).map(|key| item(key, 1.0)).collect());
    assert_eq!(log.keys(), [0, 1]);
    assert!(!table.can_sample(1).unwrap());
    assert_eq!(table.watched().cursor, 8.0);
}

#[test]
fn a_reset_leaves_the_window_and_other_numbers_close_it() {
    let table = table(limiter(1.0, 1, -10.0, 10.0));
    insert(&table, (0..5).map(|key| item(key, 1.0)).collect());
    table.set_window(3.0, 7.0, 1, 0).unwrap();
    table.reset();
    let now = table.watched();
    assert_eq!((now.cursor, bounds(&now)), (0.0, (3.0, 7.0, 1)));
    // The used part of the window is free again, and no more.
    let log = insert(&table, (0..9).map(|key| item(key, 1.0)).collect());
    assert_eq!((log.keys().len(), table.watched().cursor), (7, 7.0));
    let change = |rate_limiter| {
        let change = TableChange { rate_limiter: Some(rate_limiter), ..TableChange::default() };
        configure(&[(Arc::clone(&table), change)], false).unwrap();
        table.watched()
    };
    let now = change(limiter(1.0, 1, -15.0, 20.0));
    // The cursor has moved with min_diff.
    assert_eq!((now.cursor, bounds(&now)), (2.0, (2.0, 2.0, 1)));
    assert!(now.insert_waits);
    let now = change(min_size(2));
    assert_eq!(bounds(&now), (-UNLIMITED, UNLIMITED, 2), "without bounds there is no window");
    assert!(!now.insert_waits);
}

#[test]
fn other_settings_leave_the_window() {
    let table = table(limiter(1.0, 1, -10.0, 10.0));
    table.set_window(-1.0, 1.0, 1, 0).unwrap();
    let change = TableChange { max_size: Some(7), ..TableChange::default() };
    configure(&[(Arc::clone(&table), change)], false).unwrap();
    assert_eq!(bounds(&table.watched()), (-1.0, 1.0, 1));
}

#[tokio::test]
async fn waits_for_a_window_say_so() {
    let table = table(limiter(1.0, 1, -10.0, 10.0));
    table.set_window(0.0, 1.0, 1, 0).unwrap();
    insert(&table, vec![item(0, 1.0), item(1, 1.0)]);
    assert_eq!(
        table.status().inserting.reason.unwrap().to_string(),
        "1 more sample allows the next insert. The window of this shard has min_diff 0 and max_diff \
         1, and the cursor is 1; the group's coordinator moves it."
    );
    table.try_sample(1).unwrap();
    table.try_sample(1).unwrap();
    table.set_window(0.0, 0.0, 100, 0).unwrap();
    let error = table.sample(1, Some(Duration::ZERO)).await.unwrap_err();
    let expected = "The sample timed out. Table t: 98 more inserts allow the next sample. The \
                    window of this shard has min_diff 0 and max_diff 0, and the cursor is 0; the \
                    group's coordinator moves it. Inserts are blocked too: an insert would \
                    bring the cursor 0 above max_diff 0 (samples_per_insert 1). Its rate limiter: 2 \
                    item(s), min_size_to_sample 100,";
    assert!(error.message().starts_with(expected), "{error}");
    table.set_window(0.0, 0.0, i64::MAX, 0).unwrap();
    let text = table.status().sampling.reason.unwrap().to_string();
    assert!(text.starts_with("No insert allows the next sample. The window"), "{text}");
}

#[test]
fn bad_numbers_are_named() {
    let table = table(min_size(1));
    let text = |min_diff, max_diff, min_size| {
        table.set_window(min_diff, max_diff, min_size, 0).unwrap_err().message().to_owned()
    };
    assert_eq!(text(f64::NAN, 0.0, 1), "min_diff must be a number, got NaN.");
    assert_eq!(text(0.0, f64::NAN, 1), "max_diff must be a number, got NaN.");
    assert_eq!(text(0.0, 1.0, 0), "min_size_to_sample must be at least 1, got 0.");
    let now = table.watched();
    assert_eq!((now.min_diff, now.max_diff), (-UNLIMITED, UNLIMITED));
}

#[derive(Debug, Clone)]
enum Step {
    SetWindow(f64, f64, i64),
    Insert(usize),
    Sample(usize),
    Delete(u64),
    Reset,
    Configure(f64, f64),
    Hold(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let bound = || {
        prop_oneof![
            6 => (-40..40i32).prop_map(|halves| f64::from(halves) / 2.0),
            1 => Just(UNLIMITED),
            1 => Just(-UNLIMITED),
        ]
    };
    prop_oneof![
        4 => (bound(), bound(), 1..5i64).prop_map(|(low, high, min)| Step::SetWindow(low, high, min)),
        6 => (1..8usize).prop_map(Step::Insert),
        6 => (1..8usize).prop_map(Step::Sample),
        2 => (0..60u64).prop_map(Step::Delete),
        1 => Just(Step::Reset),
        1 => (-20..0i32, 0..20i32)
            .prop_map(|(low, high)| Step::Configure(f64::from(low), f64::from(high))),
        1 => (1..4usize).prop_map(Step::Hold),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    /// A table with a window does not let its cursor leave it. Only changes without permission move
    /// the cursor out; from there it returns or stays.
    #[test]
    fn the_cursor_does_not_leave_its_window(
        spi in prop_oneof![Just(1.0), Just(2.5), Just(0.3)],
        min_size in 1..6i64,
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let table = table(limiter(spi, min_size, -20.0, 20.0));
        let mut key = 0;
        table.set_window(-20.0, 20.0, 1, 0).unwrap();
        for step in steps {
            let before = table.watched();
            // Cursor before the first request of the step is served.
            let mut from = before.cursor;
            match step {
                Step::SetWindow(low, high, min) => {
                    table.set_window(low, high, min, 0).unwrap();
                }
                Step::Insert(count) => {
                    let items = (0..count).map(|_| { key += 1; item(key, 1.0) }).collect();
                    insert(&table, items);
                }
                Step::Sample(count) => drop(table.try_sample(count)),
                Step::Delete(key) => drop(table.mutate(&[], &[key]).unwrap()),
                Step::Reset => {
                    table.reset();
                    from = 0.0;
                }
                Step::Configure(low, high) => {
                    let rate_limiter = Some(limiter(spi, min_size, low, high));
                    let change = TableChange { rate_limiter, ..TableChange::default() };
                    configure(&[(Arc::clone(&table), change)], false).unwrap();
                    let now = table.watched();
                    let is_same = (now.min_diff, now.max_diff) == (before.min_diff, before.max_diff);
                    let is_closed = now.min_diff == now.cursor && now.max_diff == now.cursor;
                    prop_assert!(is_same || is_closed);
                    from = now.cursor;
                }
                Step::Hold(count) => {
                    // A user has turned the limiter off.
                    let hold = LimiterHold::begin(&table, true, &ChangedBy::now("test")).unwrap();
                    let items = (0..count).map(|_| { key += 1; item(key, 1.0) }).collect();
                    insert(&table, items);
                    from = table.watched().cursor;
                    drop(hold);
                }
            }
            let after = table.watched();
            prop_assert!(after.cursor <= after.max_diff.max(from), "{from} {after:?}");
            prop_assert!(after.cursor >= after.min_diff.min(from), "{from} {after:?}");
            prop_assert_eq!(after.num_inserts - after.num_deletes, after.size);
        }
    }

    /// Room moves from one shard to another: the sum of the cursors is always within the bounds of
    /// the group, although the cursors are not read before.
    #[test]
    fn the_sum_of_the_cursors_stays_within_the_bounds_of_the_group(
        steps in proptest::collection::vec((0..3usize, 0..3usize, 0..4u8, 0..30i32), 1..120),
    ) {
        let (low, high, count) = (-30.0, 60.0, 3.0);
        let tables: Vec<_> = (0..3).map(|_| table(limiter(2.0, 1, low, high))).collect();
        for table in &tables {
            table.set_window(low / count, high / count, 1, 0).unwrap();
        }
        let mut free = (0.0, 0.0);
        let mut key = 0;
        for (at, other, what, amount) in steps {
            let amount = f64::from(amount);
            let (table, before) = (&tables[at], tables[at].watched());
            match what {
                0 => drop(insert(table, (0..5).map(|_| { key += 1; item(key, 1.0) }).collect())),
                1 => drop(table.try_sample(5)),
                // Shrink, and keep what was given back.
                2 => {
                    let asked = (before.min_diff + amount, before.max_diff - amount);
                    let now = table.set_window(asked.0, asked.1, 1, 0).unwrap().0;
                    free.0 += now.min_diff - before.min_diff;
                    free.1 += before.max_diff - now.max_diff;
                }
                // Then grow another one by it; or crash, and give it nothing.
                _ => {
                    let now = tables[other].watched();
                    let (min_diff, max_diff) = (now.min_diff - free.0, now.max_diff + free.1);
                    let now = tables[other].set_window(min_diff, max_diff, 1, 0).unwrap().0;
                    prop_assert_eq!((now.min_diff, now.max_diff), (min_diff, max_diff));
                    free = (0.0, 0.0);
                }
            }
            let sum: f64 = tables.iter().map(|table| table.watched().cursor).sum();
            prop_assert!((low..=high).contains(&sum), "{sum}");
        }
    }
}
