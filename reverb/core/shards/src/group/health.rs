// SPDX-License-Identifier: Apache-2.0
//! Health of a member: polls whether it answers, its map, and changes of its tables.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use reverb_base::{Error, ErrorKind, Result};
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::DirectoryResponse;

use tokio::time::{Instant, MissedTickBehavior};

use super::discovery::within;
use super::{Group, PATIENCE};
use crate::member::Member;

/// Polling interval for the map of a member that is not sampled.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// Polling interval for fill levels while this client writes.
const FILL_INTERVAL: Duration = Duration::from_secs(1);
/// Polling interval for the table sizes of a server without watches.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause between attempts to reach a member that is down.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Polls the member until the group or the member is gone.
pub(super) async fn watch(group: Weak<Group>, member: Weak<Member>) {
    loop {
        let Some((strong_group, strong)) = group.upgrade().zip(member.upgrade()) else { return };
        let result = look(&strong_group, &strong).await;
        strong.is_watched.store(false, Ordering::Relaxed);
        let pause = match result {
            Ok(pause) => pause,
            Err(error) => {
                strong.went_down(&error);
                strong_group.notify();
                Some(RETRY_INTERVAL)
            }
        };
        drop(strong_group);
        if let Some(pause) = pause {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = strong.look.notified(), if !strong.is_down() => {}
            }
        }
    }
}

/// Polls once, or follows a watch until it ends. Returns the time until the next poll.
async fn look(group: &Arc<Group>, member: &Arc<Member>) -> Result<Option<Duration>> {
    let shard = member.shard()?;
    let writes = group.is_writing();
    match within(shard.call(group.directory_request())).await {
        Ok(answer) => {
            let id = answer.server_id;
            take(group, member, &answer)?;
            member.prove_socket(id).await;
        }
        Err(error) if error.kind() == ErrorKind::Unimplemented => {
            member.set_ours(false);
            let info = within(shard.server_info()).await?;
            member.came_up(Some(info.tables_state_id.0 ^ info.tables_state_id.1));
            for table in &info.tables {
                member.stats(&table.name).polled(table.current_size, table.max_size);
            }
            group.notify();
            let is_needed = !group.needed_tables().is_empty();
            return Ok(Some(match (is_needed, writes) {
                (true, _) => POLL_INTERVAL,
                (false, true) => FILL_INTERVAL,
                (false, false) => IDLE_INTERVAL,
            }));
        }
        Err(error) => return Err(error),
    }
    let tables = group.needed_tables();
    if tables.is_empty() {
        group.notify();
        return Ok(Some(if writes { FILL_INTERVAL } else { IDLE_INTERVAL }));
    }
    let mut watch = within(shard.watch(&tables)).await?;
    // A timeout is an error only before the first report: later, silence may mean "no change".
    let mut has_heard = false;
    let patience_ends = Instant::now() + PATIENCE;
    let mut fills = tokio::time::interval_at(Instant::now() + FILL_INTERVAL, FILL_INTERVAL);
    fills.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let news = tokio::select! {
            news = watch.receive() => news?,
            _ = fills.tick() => {
                if group.is_writing() {
                    let answer = within(shard.call(group.directory_request())).await?;
                    take(group, member, &answer)?;
                }
                continue;
            }
            () = member.look.notified() => {
                if group.needed_tables() == tables && !member.is_down() {
                    continue;
                }
                return Ok(None);
            }
            () = tokio::time::sleep_until(patience_ends), if !has_heard => {
                return Err(Error::unavailable("it did not report its tables in time"));
            }
        };
        let Some(news) = news else { return Err(Error::unavailable("it ended the watch")) };
        for table in &news.tables {
            member.stats(&table.name).watched(table);
        }
        has_heard = true;
        member.came_up(None);
        member.is_watched.store(true, Ordering::Relaxed);
        group.notify();
        let is_old = group.found().is_some_and(|view| view.epoch() < news.epoch);
        if is_old {
            let answer = within(shard.call(group.directory_request())).await?;
            take(group, member, &answer)?;
        }
    }
}

/// Stores the answer of a member about itself and its group.
pub(crate) fn take(
    group: &Arc<Group>,
    member: &Arc<Member>,
    answer: &DirectoryResponse,
) -> Result<()> {
    member.set_ours(true);
    // The answer has no map if this client already has the newest one.
    let has_map = answer.map.is_some() || group.found().is_some_and(|view| view.map.is_some());
    if has_map && answer.index.is_some_and(|index| index != member.index) {
        return Err(Error::failed_precondition(format!(
            "the server at {} is shard {} now",
            member.address,
            answer.index.unwrap_or_default()
        )));
    }
    member.came_up(Some(answer.server_id));
    member.reported_writers.store(answer.num_writers, Ordering::Relaxed);
    for fill in &answer.fills {
        member.stats(&fill.name).filled(fill.share);
    }
    if let Some(map) = &answer.map
        && let Err(error) = group.adopt(map)
    {
        tracing::warn!(peer = member.address, %error, "the map of the group cannot be used");
    }
    Ok(())
}
