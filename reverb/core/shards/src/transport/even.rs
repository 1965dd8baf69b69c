// SPDX-License-Identifier: Apache-2.0
//! `writers=even`: writers start at the emptiest shard. They leave a shard that is much fuller than
//! another, or equally full with more writers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use reverb_base::{Error, Result};
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::{DirectoryRequest, DirectoryResponse, WriterPlace};

use crate::address::Writers;
use crate::group::{Group, View, take};
use crate::member::Member;

/// Difference of fill levels above which a writer leaves for the emptiest shard.
const TOLERANCE: f64 = 0.05;
/// Time that a shard gets to report its fill level before the writer starts at another one.
const PATIENCE: Duration = Duration::from_millis(500);

/// The shard at which a writer of these tables starts or continues.
pub(super) async fn next(
    group: &Arc<Group>,
    view: &View,
    tables: &[String],
) -> Result<Option<Arc<Member>>> {
    if group.address.writers == Writers::Even && !tables.is_empty() && view.only().is_none() {
        group.fills(tables.iter().map(String::as_str));
        group.writes();
        if let Some(index) = emptiest(group, view, tables).await? {
            return Ok(view.member(index).cloned());
        }
    }
    Ok(group.writers(view, 1)?.pop())
}

/// Asks all shards for their fill levels, and then one shard for a choice among them, which spreads
/// writers that start at the same time. `None` if a shard does not report its fill level.
async fn emptiest(group: &Arc<Group>, view: &View, tables: &[String]) -> Result<Option<i32>> {
    let takers = group.takers(view)?;
    let asked = takers.into_iter().map(|member| async move {
        // The polled sizes of a server without that call are at most half a second old.
        if member.is_ours() {
            let request = group.directory_request();
            take(group, member, &ask(member, request).await?)?;
        }
        Ok::<_, Error>(member)
    });
    let answered: Vec<&Arc<Member>> = join_all(asked).await.into_iter().flatten().collect();
    let place = |member: &&Arc<Member>| {
        let share = member.share(tables.iter().map(String::as_str))?;
        let num_writers = member.reported_writers.load(Ordering::Relaxed);
        Some(WriterPlace { index: member.index, share, num_writers })
    };
    let Some(places) = answered.iter().map(place).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let least = places.iter().min_by(|a, b| a.share.total_cmp(&b.share)).map(|place| place.index);
    let Some(first) = answered.iter().find(|member| member.is_ours()) else { return Ok(least) };
    let request = DirectoryRequest { writer_places: places, ..group.directory_request() };
    let chosen = ask(first, request).await.ok().and_then(|answer| answer.writer_place);
    Ok(chosen.or(least))
}

async fn ask(member: &Member, request: DirectoryRequest) -> Result<DirectoryResponse> {
    match tokio::time::timeout(PATIENCE, member.shard()?.call(request)).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::unavailable("it did not report in time how full it is")),
    }
}

/// True if a writer of these tables should leave its shard, by the last reports. Never waits.
pub(super) fn has_better_shard(group: &Group, shard: i32, tables: &[Arc<str>]) -> bool {
    if group.address.writers != Writers::Even {
        return false;
    }
    let tables = || tables.iter().map(|table| &**table);
    group.fills(tables());
    let Some(view) = group.found() else { return false };
    let Some(own) = view.member(shard) else { return true };
    let Ok(takers) = group.takers(&view) else { return false };
    let load = |member: &Arc<Member>| Load {
        share: member.share(tables()),
        num_writers: member.reported_writers.load(Ordering::Relaxed),
    };
    let others = takers.into_iter().filter(|member| member.index != shard && !member.is_down());
    let others: Vec<Load> = others.map(load).collect();
    if own.is_draining {
        return !others.is_empty();
    }
    rand::random::<f64>() < leaves(load(own), &others)
}

/// Load of a shard, as last reported.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// Fill level, if known.
    share: Option<f64>,
    num_writers: i64,
}

/// Probability with which a writer leaves a shard with this load.
///
/// It always leaves a shard that is too full. If shards are equally full, only the surplus of
/// writers leaves: with a fixed choice, a shard that came back empty attracted all of them.
fn leaves(own: Load, others: &[Load]) -> f64 {
    let known = |load: &Load| Some((load.share?, load.num_writers));
    let Some((share, num_writers)) = known(&own) else { return 0.0 };
    let others: Vec<(f64, i64)> = others.iter().filter_map(known).collect();
    if others.iter().any(|(other, _)| share > other + TOLERANCE) {
        return 1.0;
    }
    let alike = others.iter().filter(|(other, _)| *other <= share + TOLERANCE);
    let alike: Vec<i64> = alike.map(|(_, writers)| *writers).collect();
    let least = alike.iter().copied().min().unwrap_or(num_writers);
    if num_writers <= least + 1 {
        return 0.0;
    }
    let all = num_writers + alike.iter().sum::<i64>();
    let part = all as f64 / (alike.len() + 1) as f64;
    1.0 - part / num_writers as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(share: f64, num_writers: i64) -> Load {
        Load { share: Some(share), num_writers }
    }

    /// Probability in thousandths.
    fn leaves(own: Load, others: &[Load]) -> i64 {
        (1000.0 * super::leaves(own, others)).round() as i64
    }

    #[test]
    fn a_writer_leaves_a_shard_that_is_much_fuller_than_the_emptiest() {
        let unknown = Load { share: None, num_writers: 0 };
        let others = [load(0.9, 1), load(0.30, 1), unknown];
        assert_eq!(leaves(load(0.36, 1), &others), 1000);
        assert_eq!(leaves(load(0.34, 1), &others), 0);
        assert_eq!(leaves(load(0.1, 1), &others), 0);
        assert_eq!(leaves(load(1.0, 1), &[unknown]), 0);
        assert_eq!(leaves(load(1.0, 1), &[]), 0);
        assert_eq!(leaves(unknown, &others), 0);
    }

    #[test]
    fn as_many_writers_leave_as_there_are_too_many() {
        let full = |writers: [i64; 3]| writers.map(|count| load(1.0, count));
        // 4 of 16 writers stay.
        assert_eq!(leaves(load(1.0, 16), &full([0, 0, 0])), 750);
        assert_eq!(leaves(load(1.0, 2), &full([2, 1, 0])), 375);
        assert_eq!(leaves(load(1.0, 2), &full([1, 1, 1])), 0);
        assert_eq!(leaves(load(1.0, 1), &full([16, 0, 0])), 0);
        // Writers do not leave for fuller shards.
        assert_eq!(leaves(load(0.2, 16), &full([0, 0, 0])), 0);
    }
}
