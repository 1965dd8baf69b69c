// SPDX-License-Identifier: Apache-2.0
//! Conditions of items as messages.

use reverb_data::ItemCondition;

use crate::generated::reverb::ItemCondition as Proto;

/// Message of a condition; `None` if all items fulfil it.
pub fn to_item_condition(condition: &ItemCondition) -> Option<Proto> {
    let all = ItemCondition::ALL;
    if *condition == all {
        return None;
    }
    let ItemCondition { priority, times_sampled, inserted_at_s } = *condition;
    Some(Proto {
        min_priority: bound(priority.0, all.priority.0),
        max_priority: bound(priority.1, all.priority.1),
        min_times_sampled: (times_sampled.0 != i32::MIN).then_some(times_sampled.0),
        max_times_sampled: (times_sampled.1 != i32::MAX).then_some(times_sampled.1),
        inserted_from_s: bound(inserted_at_s.0, all.inserted_at_s.0),
        inserted_before_s: bound(inserted_at_s.1, all.inserted_at_s.1),
    })
}

/// A bound; `None` for the value that means no bound.
fn bound(value: f64, none: f64) -> Option<f64> {
    value.total_cmp(&none).is_ne().then_some(value)
}

/// The condition of a message; all items fulfil an absent one.
pub fn from_item_condition(condition: Option<&Proto>) -> ItemCondition {
    let all = ItemCondition::ALL;
    let Some(condition) = condition else { return all };
    ItemCondition {
        priority: (
            condition.min_priority.unwrap_or(all.priority.0),
            condition.max_priority.unwrap_or(all.priority.1),
        ),
        times_sampled: (
            condition.min_times_sampled.unwrap_or(i32::MIN),
            condition.max_times_sampled.unwrap_or(i32::MAX),
        ),
        inserted_at_s: (
            condition.inserted_from_s.unwrap_or(all.inserted_at_s.0),
            condition.inserted_before_s.unwrap_or(all.inserted_at_s.1),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_survives_a_round_trip() {
        let conditions = [
            ItemCondition::ALL,
            ItemCondition { priority: (-1.5, f64::INFINITY), ..ItemCondition::ALL },
            ItemCondition { times_sampled: (0, 3), ..ItemCondition::ALL },
            ItemCondition { inserted_at_s: (f64::NEG_INFINITY, 7.25), ..ItemCondition::ALL },
            ItemCondition {
                priority: (0.0, 1.0),
                times_sampled: (1, 1),
                inserted_at_s: (2.0, 3.0),
            },
        ];
        for condition in conditions {
            assert_eq!(from_item_condition(to_item_condition(&condition).as_ref()), condition);
        }
        assert_eq!(to_item_condition(&ItemCondition::ALL), None);
    }
}
