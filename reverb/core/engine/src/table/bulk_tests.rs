// SPDX-License-Identifier: Apache-2.0
//! Inserts of many items: the table is the one that inserts of single items make.

use std::sync::Arc;

use proptest::prelude::*;
use reverb_data::{NewItem, RateLimiterConfig, SelectorConfig, TableConfig};

use super::Table;
use super::testing::{IgnoreConfirm, config, item, item_of_length, removers, selectors};
use crate::table::Confirm;

/// Everything that inserts change, in a form to compare. Times are left out.
fn contents(table: &Table) -> impl PartialEq + std::fmt::Debug + use<> {
    let info = table.info();
    let shared = table.shared.lock();
    let state = &shared.state;
    let items: Vec<(u64, (f64, i32))> =
        state.keys_by_age().into_iter().map(|key| (key, state.peek(key))).collect();
    let mut statistics = *state.statistics();
    statistics.last_insert_ns = 0;
    (
        items,
        (info.num_episodes, info.num_deleted_episodes, info.num_inserts, info.num_deletes),
        (info.bytes, info.num_chunks),
        (statistics.inserts, statistics.priority_updates, statistics.removed),
        statistics.insert_waits.sum(),
    )
}

proptest! {
    #[test]
    fn many_at_once_are_as_one_by_one(
        sampler in selectors(),
        remover in removers().prop_filter("its order is random", |config| {
            !matches!(config, SelectorConfig::Shuffle { .. })
        }),
        max_size in 1i64..90,
        calls in prop::collection::vec(
            prop::collection::vec((0u64..200, 0.1f64..9.0), 1..100),
            1..5,
        ),
    ) {
        let config = TableConfig { sampler, remover, ..config(max_size) };
        let make = || Table::new(config.clone()).unwrap();
        let (at_once, given, one_by_one) = (make(), make(), make());
        let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
        for call in calls {
            let items = || -> Vec<NewItem> {
                call.iter().map(|&(key, priority)| item_of_length(key, 2, priority)).collect()
            };
            at_once.insert(items(), &confirm).unwrap();
            let mut list = items();
            given.insert_from(&mut list, &confirm).unwrap();
            prop_assert!(list.is_empty());
            for item in items() {
                one_by_one.insert(vec![item], &confirm).unwrap();
            }
            let expected = contents(&one_by_one);
            prop_assert_eq!(&contents(&at_once), &expected);
            prop_assert_eq!(&contents(&given), &expected);
        }
    }
}

#[test]
fn items_that_wait_or_are_refused_stay_with_the_caller() {
    let rate_limiter = RateLimiterConfig {
        samples_per_insert: 1.0,
        min_size_to_sample: 1,
        min_diff: -f64::MAX,
        max_diff: 5.0,
    };
    let table = Table::new(TableConfig { rate_limiter, ..config(100) }).unwrap();
    let confirm: Arc<dyn Confirm> = Arc::new(IgnoreConfirm);
    let keys = |items: &[NewItem]| items.iter().map(|item| item.key).collect::<Vec<_>>();
    let mut items: Vec<NewItem> = (0..8).map(item).collect();
    table.insert_from(&mut items, &confirm).unwrap();
    assert_eq!((keys(&items), table.len(), table.queued_inserts()), (vec![5, 6, 7], 5, 3));
    // The next call waits behind them, as a whole.
    let mut items: Vec<NewItem> = (8..10).map(item).collect();
    table.insert_from(&mut items, &confirm).unwrap();
    assert_eq!((keys(&items), table.queued_inserts()), (vec![8, 9], 5));
    let mut items: Vec<NewItem> = (10..12).map(item).collect();
    items[1].priority = f64::NAN;
    table.insert_from(&mut items, &confirm).unwrap_err();
    assert_eq!((keys(&items), table.queued_inserts()), (vec![10, 11], 5));
    table.cancel_inserts(&confirm);
    table.close();
    table.insert_from(&mut items, &confirm).unwrap_err();
    assert_eq!(keys(&items), [10, 11]);
}
