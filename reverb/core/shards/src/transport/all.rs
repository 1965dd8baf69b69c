// SPDX-License-Identifier: Apache-2.0
//! Calls that go to all shards.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use reverb_data::{Error, ErrorKind, Result, TableConfig};
use reverb_wire::Capabilities;
use reverb_wire::convert::table_config::from_max_bytes;
use reverb_wire::convert::table_info::to_settings;
use reverb_wire::generated::deepmind::reverb::TableInfo;
use reverb_wire::generated::deepmind::reverb::key_distribution_options::{
    Distribution, Prioritized,
};
use reverb_wire::generated::reverb::{
    ChangedSetting, CheckpointStatusResponse, ConfigureTablesRequest, ConfigureTablesResponse,
    DirectoryRequest, DrainRequest, DrainResponse, HoldRateLimiterRequest, SetDirectoryRequest,
    SetPausedRequest, ShardMap, ShardStatus, StatusRequest, StatusResponse, TableChange,
};
use reverb_wire::shard::Shard;
use reverb_wire::transport::{BoxFuture, RateLimiterHold, ServerInfo};

use super::of_shard;
use super::roll_call::{ROLL_CALL, answer_of, change_all, roll_call};
use crate::group::{Group, PATIENCE, View};
use crate::member::{Member, State};
use crate::status;
use crate::table_part::TableNumbers;
use crate::tables::together;

/// How often a map is told if others change it at the same time.
const MAX_ATTEMPTS: u32 = 5;

/// Calls all shards at the same time. Every one must answer.
async fn every<T, F>(view: &View, call: impl Fn(Arc<dyn Shard>) -> F) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>>,
{
    let called = view.members.iter().map(|member| {
        let shard = member.shard().map(&call);
        async move {
            let answer = match shard {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            answer.map_err(|error| of_shard(error, &member.name()))
        }
    });
    try_join_all(called).await
}

/// Empties a table at all shards, if all are there.
pub(super) async fn reset(view: &View, table: &str) -> Result<()> {
    let present = roll_call(view).await?;
    let results = change_all(&present, |_, shard, not_after_ns| async move {
        shard.reset_before(table, not_after_ns).await
    });
    let failed = results.await.into_iter().filter_map(Result::err).collect::<Vec<_>>();
    match failed.into_iter().next() {
        None => Ok(()),
        Some(error) if error.kind() == ErrorKind::TableNotFound => Err(error),
        Some(error) => Err(error.followed_by("The other shards were reset.")),
    }
}

/// The sum of the shards that answer.
pub(super) async fn server_info(view: &View) -> Result<ServerInfo> {
    let asked = view.members.iter().map(|member| async move {
        let info = async { member.shard()?.server_info().await };
        let info = answer_of(member, PATIENCE, info).await;
        match &info {
            Ok(_) => member.came_up(None),
            Err(error) if error.is_transient() => member.went_down(error),
            Err(_) => {}
        }
        info.map_err(|error| of_shard(error, &member.name()))
    });
    let mut id = (0, 0);
    let mut infos: Vec<Vec<TableInfo>> = Vec::new();
    let mut failure = None;
    let mut capabilities: Option<Capabilities> = None;
    for answer in join_all(asked).await {
        match answer {
            Ok(info) => {
                id.0 ^= info.tables_state_id.0;
                id.1 ^= info.tables_state_id.1;
                infos.push(info.tables);
                capabilities = Some(match capabilities {
                    None => info.capabilities,
                    Some(others) => info.capabilities.and(&others),
                });
            }
            Err(error) if error.is_transient() => failure = Some(error),
            Err(error) => return Err(error),
        }
    }
    match failure {
        Some(error) if infos.is_empty() => Err(error),
        _ => Ok(ServerInfo {
            tables_state_id: id,
            tables: together(&infos, view.given()),
            capabilities: capabilities.unwrap_or_default(),
        }),
    }
}

/// Returns the paths of all shards, in their order, with a comma between two.
pub(super) async fn checkpoint(view: &View) -> Result<String> {
    let paths = every(view, |shard| async move { shard.checkpoint().await }).await?;
    Ok(paths.join(","))
}

pub(super) async fn checkpoint_status(view: &View) -> Result<CheckpointStatusResponse> {
    let all = every(view, |shard| async move { shard.checkpoint_status().await }).await?;
    Ok(status::checkpoints_together(&all))
}

/// The sum of the shards that answer, and each of them.
pub(super) async fn status(view: &View, request: StatusRequest) -> Result<StatusResponse> {
    let asked = view.members.iter().map(|member| async move {
        let asked = async { member.shard()?.status(request).await };
        (member, answer_of(member, ROLL_CALL, asked).await)
    });
    let mut shards = Vec::new();
    let mut failure = None;
    for (member, answer) in join_all(asked).await {
        let (status, error) = match answer {
            Ok(status) => {
                member.came_up(None);
                (Some(status), None)
            }
            Err(error) if error.is_transient() => {
                member.went_down(&error);
                (None, Some(error))
            }
            Err(error) => return Err(of_shard(error, &member.name())),
        };
        shards.push(row(member, status, error.as_ref()));
        failure = failure.or(error);
    }
    match failure {
        Some(error) if shards.iter().all(|shard| shard.status.is_none()) => Err(error),
        _ => Ok(status::together(shards)),
    }
}

fn row(member: &Member, status: Option<StatusResponse>, error: Option<&Error>) -> ShardStatus {
    let state = match (&status, member.is_draining, member.state()) {
        (None, ..) | (_, _, State::Down(_)) => "down",
        (_, true, _) => "draining",
        _ => "up",
    };
    ShardStatus {
        index: member.index,
        address: member.address.clone(),
        state: state.to_owned(),
        error: error.map_or_else(String::new, |error| error.message().to_owned()),
        status,
        is_coordinator: member.is_coordinator,
    }
}

/// Changes all shards, or none: what was changed before a failure gets its old settings again.
pub(super) async fn configure_tables(
    group: &Arc<Group>,
    view: &View,
    request: ConfigureTablesRequest,
) -> Result<ConfigureTablesResponse> {
    let present = roll_call(view).await?;
    let before = server_info(view).await?.tables;
    let of_each = every(view, |shard| async move { shard.server_info().await }).await?;
    let num_shards = view.members.len();
    let after = given_after(&before, &request.changes);
    let parts: Vec<ConfigureTablesRequest> = (0..num_shards)
        .map(|index| part_of(&request.changes, &after, index, num_shards))
        .collect::<Result<_>>()?;
    // What cannot be is refused before anything is changed.
    let tried = change_all(&present, |position, shard, not_after_ns| {
        let part =
            ConfigureTablesRequest { dry_run: true, not_after_ns, ..parts[position].clone() };
        async move { shard.configure_tables(part).await }
    });
    let mut answers = tried.await.into_iter().collect::<Result<Vec<_>>>()?;
    if !request.dry_run {
        let changed = change_all(&present, |position, shard, not_after_ns| {
            let part = ConfigureTablesRequest { not_after_ns, ..parts[position].clone() };
            async move { shard.configure_tables(part).await }
        });
        let results = changed.await;
        let failed = results.iter().find_map(|result| {
            let error = result.as_ref().err()?;
            Some(error.clone().context("One shard was not changed"))
        });
        if let Some(error) = failed {
            let undone = undo(view, &results, &of_each, &request.changes).await;
            return Err(match undone {
                Ok(()) => error.followed_by("The other shards have their old settings again."),
                Err(again) => error.followed_by(&format!(
                    "The old settings could not be given back to all others: {again}"
                )),
            });
        }
        answers = results.into_iter().collect::<Result<_>>()?;
        tell_tables(group, view, &request.changes).await?;
    }
    let changed = describe(&before, &after);
    let parts: Vec<Vec<TableInfo>> = answers.into_iter().map(|answer| answer.tables).collect();
    let mut tables = together(&parts, &given_after(view.given(), &request.changes));
    if request.dry_run {
        tables = together(&parts, view.given());
    }
    Ok(ConfigureTablesResponse { changed, tables })
}

/// Tells all shards what the tables of the group are now, in a new map. If somebody else has
/// changed the map meanwhile, goes on from that one.
async fn tell_tables(group: &Arc<Group>, view: &View, changes: &[TableChange]) -> Result<()> {
    let Some(mut map) = view.map.clone() else { return Ok(()) };
    for attempt in 1.. {
        map.tables = given_after(&map.tables, changes);
        map.epoch += 1;
        let Err(error) = tell_map(view, &map).await else { break };
        if error.kind() != ErrorKind::FailedPrecondition || attempt == MAX_ATTEMPTS {
            return Err(error.followed_by(
                "All shards have the new settings, and the group's map has the old ones.",
            ));
        }
        map = newest_map(view).await?.unwrap_or(map);
    }
    group.adopt(&map)
}

async fn tell_map(view: &View, map: &ShardMap) -> Result<()> {
    let told = view.members.iter().map(|member| async move {
        let request = SetDirectoryRequest { map: Some(map.clone()), index: member.index };
        let told = async { member.shard()?.set_directory(request).await };
        told.await.map_err(|error| of_shard(error, &member.name()))
    });
    try_join_all(told).await.map(drop)
}

async fn newest_map(view: &View) -> Result<Option<ShardMap>> {
    let answers =
        every(view, |shard| async move { shard.directory(DirectoryRequest::default()).await })
            .await?;
    Ok(answers.into_iter().filter_map(|answer| answer.map).max_by_key(|map| map.epoch))
}

/// The part of one shard of changes. Windows move what a limiter allows to where it is needed.
fn part_of(
    changes: &[TableChange],
    after: &[TableInfo],
    index: usize,
    num_shards: usize,
) -> Result<ConfigureTablesRequest> {
    let parts = changes.iter().map(|change| {
        let mut change = change.clone();
        // Which tables there are, the shards say.
        let Some(table) = after.iter().find(|table| table.name == change.table) else {
            return Ok(change);
        };
        let part = numbers_of(table).part(index, num_shards)?;
        change.max_size = change.max_size.and(Some(part.max_size));
        change.max_bytes = change.max_bytes.and(Some(from_max_bytes(part.max_bytes)));
        if let Some(limiter) = &mut change.rate_limiter {
            limiter.min_diff = part.min_diff;
            limiter.max_diff = part.max_diff;
            limiter.min_size_to_sample = part.min_size_to_sample;
        }
        Ok(change)
    });
    let changes = parts.collect::<Result<_>>()?;
    Ok(ConfigureTablesRequest { changes, ..ConfigureTablesRequest::default() })
}

fn numbers_of(table: &TableInfo) -> TableNumbers {
    let TableConfig { name, max_size, max_times_sampled, rate_limiter, memory, .. } =
        to_settings(table);
    TableNumbers {
        name,
        max_size,
        max_bytes: memory.max_bytes,
        max_times_sampled: i64::from(max_times_sampled),
        samples_per_insert: rate_limiter.samples_per_insert,
        min_size_to_sample: rate_limiter.min_size_to_sample,
        min_diff: rate_limiter.min_diff,
        max_diff: rate_limiter.max_diff,
    }
}

/// Gives the shards that were changed what they had.
async fn undo(
    view: &View,
    results: &[Result<ConfigureTablesResponse>],
    before: &[ServerInfo],
    changes: &[TableChange],
) -> Result<()> {
    let undone =
        view.members.iter().zip(results).zip(before).map(|((member, result), info)| async move {
            if result.is_err() {
                return Ok(());
            }
            let old = changes.iter().filter_map(|change| {
                let table = info.tables.iter().find(|table| table.name == change.table)?;
                Some(status::old_settings(change, table))
            });
            let request = ConfigureTablesRequest {
                changes: old.collect(),
                ..ConfigureTablesRequest::default()
            };
            let answer = async { member.shard()?.configure_tables(request).await }.await;
            answer.map(drop).map_err(|error| of_shard(error, &member.name()))
        });
    try_join_all(undone).await.map(drop)
}

/// What changes, in the numbers of the group.
fn describe(before: &[TableInfo], after: &[TableInfo]) -> Vec<ChangedSetting> {
    let tables = before.iter().zip(after);
    let changed = tables.flat_map(|(before, after)| {
        let all = to_settings(before).changes_to(&to_settings(after)).into_iter();
        all.map(|(setting, before, after_it)| ChangedSetting {
            table: after.name.clone(),
            setting: setting.to_owned(),
            before,
            after: after_it,
        })
    });
    changed.collect()
}

/// The tables of the group after a change.
pub(super) fn given_after(given: &[TableInfo], changes: &[TableChange]) -> Vec<TableInfo> {
    let mut given = given.to_vec();
    for change in changes {
        let Some(table) = given.iter_mut().find(|table| table.name == change.table) else {
            continue;
        };
        table.max_size = change.max_size.unwrap_or(table.max_size);
        table.max_bytes = change.max_bytes.unwrap_or(table.max_bytes);
        table.max_times_sampled = change.max_times_sampled.unwrap_or(table.max_times_sampled);
        if change.sampler.is_some() {
            table.sampler_options = change.sampler;
        }
        if let (Some(priority_exponent), Some(sampler)) =
            (change.priority_exponent, &mut table.sampler_options)
        {
            sampler.distribution =
                Some(Distribution::Prioritized(Prioritized { priority_exponent }));
        }
        if let (Some(limiter), Some(info)) = (change.rate_limiter, &mut table.rate_limiter_info) {
            info.samples_per_insert = limiter.samples_per_insert;
            info.min_diff = limiter.min_diff;
            info.max_diff = limiter.max_diff;
            info.min_size_to_sample = limiter.min_size_to_sample;
        }
    }
    given
}

/// Pauses all shards, or lets all go on. After a failure, those that were paused go on.
pub(super) async fn set_paused(view: &View, request: SetPausedRequest) -> Result<()> {
    let present = roll_call(view).await?;
    let results = change_all(&present, |_, shard, not_after_ns| {
        let request = SetPausedRequest { not_after_ns, ..request.clone() };
        async move { shard.set_paused(request).await }
    })
    .await;
    let failed = results.iter().find_map(|result| result.as_ref().err().cloned());
    let Some(error) = failed else { return Ok(()) };
    let undo = SetPausedRequest { paused: !request.paused, ..request };
    let done = view.members.iter().zip(&results).filter(|(_, result)| result.is_ok());
    let undone = join_all(done.map(|(member, _)| {
        let undo = undo.clone();
        async move { member.shard()?.set_paused(undo).await }
    }))
    .await;
    Err(if undone.iter().all(Result::is_ok) {
        error.followed_by("The other shards are as they were.")
    } else {
        error.followed_by("Some other shards could not be set back.")
    })
}

/// Turns the limiters of all shards off. If one cannot, the others are turned on again.
pub(super) async fn hold_rate_limiter(
    view: &View,
    request: HoldRateLimiterRequest,
) -> Result<Box<dyn RateLimiterHold>> {
    let holds = every(view, |shard| {
        let request = request.clone();
        async move { shard.hold_rate_limiter(request).await }
    });
    Ok(Box::new(Holds(holds.await?)))
}

struct Holds(Vec<Box<dyn RateLimiterHold>>);

impl RateLimiterHold for Holds {
    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let released = join_all(self.0.iter_mut().map(|hold| hold.release())).await;
            released.into_iter().collect()
        })
    }
}

/// The sum of the streams that are still open. Each shard drains, whatever becomes of the others.
pub(super) async fn drain(view: &View, request: DrainRequest) -> Result<DrainResponse> {
    let limit = Duration::try_from_secs_f64(request.timeout_s).unwrap_or(Duration::MAX);
    let limit = limit.saturating_add(PATIENCE);
    let drained = view.members.iter().map(|member| async move {
        let asked = async { member.shard()?.drain(request).await };
        let answer = answer_of(member, limit, asked).await;
        answer.map_err(|error| of_shard(error, &member.name()))
    });
    let answers = join_all(drained).await;
    let num_failed = answers.iter().filter(|it| it.is_err()).count();
    let mut open_streams = 0;
    for answer in answers {
        open_streams += answer
            .map_err(|error| {
                error.followed_by(&format!(
                    "{} of {} shards drain.",
                    view.members.len() - num_failed,
                    view.members.len()
                ))
            })?
            .open_streams;
    }
    Ok(DrainResponse { open_streams })
}
