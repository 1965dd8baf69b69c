// SPDX-License-Identifier: Apache-2.0
//! The status of a table's rollouts as a message.

use reverb_data::rollouts::RolloutsInfo;
use reverb_engine::{OldestLease, OldestOpen, RolloutEvents, RolloutsStatus as Status};
use reverb_wire::generated::reverb::{HeldItems, OpenItem, RolloutsStatus};

use super::number;
use super::table::histogram;

/// The engine counts twice the staleness.
const HALF_VERSION: f64 = 0.5;

/// The status of a table's rollouts.
pub(super) fn rollouts_status(status: &Status, events: &RolloutEvents) -> RolloutsStatus {
    let Status { info, max_backlog, open_held, oldest_open, oldest_lease, last_rollout, .. } =
        status;
    let RolloutsInfo { version, backlog, taken, open, settled, ready, ready_held, .. } = *info;
    RolloutsStatus {
        version,
        backlog: number(backlog),
        max_backlog: number(max_backlog.unwrap_or(0)),
        taken: number(taken),
        open: number(open),
        settled: number(settled),
        ready: number(ready),
        open_held: number(*open_held),
        settled_held: number(status.settled_held),
        ready_held: number(ready_held),
        waiting_open: status.waiting_open as i64,
        waiting_settled: status.waiting_settled as i64,
        num_rollouts: number(events.added),
        num_failed_rollouts: number(events.failed),
        num_again: number(events.again),
        num_lost_leases: number(events.lost),
        last_rollout_age_s: last_rollout.map(|ago| ago.as_secs_f64()),
        staleness: Some(histogram(&events.staleness, HALF_VERSION)),
        oldest_open: oldest_open.as_ref().map(open_item),
        oldest_lease: oldest_lease.as_ref().map(held_items),
    }
}

fn open_item(OldestOpen { name, age, num_final, num_rollouts, holder }: &OldestOpen) -> OpenItem {
    OpenItem {
        name: name.to_string(),
        age_s: age.as_secs_f64(),
        num_final: i64::from(*num_final),
        num_rollouts: i64::from(*num_rollouts),
        holder: holder.as_deref().unwrap_or_default().to_owned(),
    }
}

fn held_items(OldestLease { holder, num_items, age }: &OldestLease) -> HeldItems {
    HeldItems { holder: holder.to_string(), num_items: *num_items as i64, age_s: age.as_secs_f64() }
}
