// SPDX-License-Identifier: Apache-2.0
//! Calls that go to all shards.

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use reverb_data::{Error, Result};
use reverb_wire::Capabilities;
use reverb_wire::generated::deepmind::reverb::TableInfo;
use reverb_wire::generated::reverb::{
    ChangedSetting, CheckpointStatusResponse, ConfigureTablesRequest, ConfigureTablesResponse,
    DrainRequest, DrainResponse, HoldRateLimiterRequest, SetDirectoryRequest, SetPausedRequest,
    ShardStatus, StatusRequest, StatusResponse, TableChange,
};
use reverb_wire::shard::Shard;
use reverb_wire::transport::{BoxFuture, RateLimiterHold, ServerInfo};

use super::of_shard;
use crate::group::{Group, View};
use crate::member::{Member, State};
use crate::status;
use crate::tables::together;

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

pub(super) async fn reset(view: &View, table: &str) -> Result<()> {
    every(view, |shard| async move { shard.reset(table).await }).await.map(drop)
}

/// The sum of the shards that answer.
pub(super) async fn server_info(view: &View) -> Result<ServerInfo> {
    let asked = view.members.iter().map(|member| async move {
        let info = async { member.shard()?.server_info().await }.await;
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
        let answer = async { member.shard()?.status(request).await }.await;
        (member, answer)
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
    }
}

/// Changes all shards, or none: what was changed before a failure gets its old settings again.
pub(super) async fn configure_tables(
    group: &Arc<Group>,
    view: &View,
    request: ConfigureTablesRequest,
) -> Result<ConfigureTablesResponse> {
    let num_shards = view.members.len();
    let parts: Vec<TableChange> =
        request.changes.iter().map(|change| split(change, num_shards)).collect();
    let before = server_info(view).await?.tables;
    let of_each = every(view, |shard| async move { shard.server_info().await }).await?;
    // What cannot be is refused before anything is changed.
    let try_first = ConfigureTablesRequest { changes: parts.clone(), dry_run: true };
    let tried = every(view, |shard| {
        let request = try_first.clone();
        async move { shard.configure_tables(request).await }
    });
    let mut answers = tried.await?;
    if !request.dry_run {
        let change = ConfigureTablesRequest { changes: parts, dry_run: false };
        let changed = view.members.iter().map(|member| {
            let request = change.clone();
            async move { member.shard()?.configure_tables(request).await }
        });
        let results = join_all(changed).await;
        let failed = results.iter().zip(&view.members).find_map(|(result, member)| {
            let error = result.as_ref().err()?;
            Some(error.clone().context(&format!("{} was not changed", member.name())))
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
    let changed = describe(&answers, &before, &request.changes);
    let parts: Vec<Vec<TableInfo>> = answers.into_iter().map(|answer| answer.tables).collect();
    let mut tables = together(&parts, &given_after(view.given(), &request.changes));
    if request.dry_run {
        tables = together(&parts, view.given());
    }
    Ok(ConfigureTablesResponse { changed, tables })
}

/// Tells all shards what the tables of the group are now, in a new map.
async fn tell_tables(group: &Arc<Group>, view: &View, changes: &[TableChange]) -> Result<()> {
    let Some(mut map) = view.map.clone() else { return Ok(()) };
    map.tables = given_after(&map.tables, changes);
    map.epoch += 1;
    let told = view.members.iter().map(|member| {
        let request = SetDirectoryRequest { map: Some(map.clone()), index: member.index };
        async move {
            let told = async { member.shard()?.set_directory(request).await };
            told.await.map_err(|error| {
                of_shard(error, &member.name()).followed_by(
                    "Its table has the new settings, and the group's map the old ones.",
                )
            })
        }
    });
    try_join_all(told).await?;
    group.adopt(&map)
}

/// The part of each of `n` shards of a change. Windows move what a limiter allows to where it is
/// needed.
fn split(change: &TableChange, n: usize) -> TableChange {
    let shards = n as i64;
    let part = |number: i64| if number <= 0 { number } else { (number - 1) / shards + 1 };
    let mut change = change.clone();
    change.max_size = change.max_size.map(part);
    change.max_bytes = change.max_bytes.map(part);
    if let Some(limiter) = &mut change.rate_limiter {
        let of = |bound: f64| if bound.abs() >= f64::MAX { bound } else { bound / n as f64 };
        limiter.min_diff = of(limiter.min_diff);
        limiter.max_diff = of(limiter.max_diff);
        limiter.min_size_to_sample = part(limiter.min_size_to_sample).max(1);
    }
    change
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
            let request = ConfigureTablesRequest { changes: old.collect(), dry_run: false };
            let answer = async { member.shard()?.configure_tables(request).await }.await;
            answer.map(drop).map_err(|error| of_shard(error, &member.name()))
        });
    try_join_all(undone).await.map(drop)
}

/// What changed, in the numbers of the group.
fn describe(
    answers: &[ConfigureTablesResponse],
    before: &[TableInfo],
    changes: &[TableChange],
) -> Vec<ChangedSetting> {
    let Some(first) = answers.first() else { return Vec::new() };
    let mut changed = first.changed.clone();
    for setting in &mut changed {
        let change = changes.iter().find(|change| change.table == setting.table);
        let table = before.iter().find(|table| table.name == setting.table);
        if let (Some(change), Some(table), "max_size") = (change, table, setting.setting.as_str()) {
            setting.before = table.max_size.to_string();
            setting.after = change.max_size.unwrap_or(table.max_size).to_string();
        }
    }
    changed
}

/// The tables of the group after a change.
pub(super) fn given_after(given: &[TableInfo], changes: &[TableChange]) -> Vec<TableInfo> {
    let mut given = given.to_vec();
    for change in changes {
        let Some(table) = given.iter_mut().find(|table| table.name == change.table) else {
            continue;
        };
        if let Some(max_size) = change.max_size {
            table.max_size = max_size;
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
    let results = join_all(view.members.iter().map(|member| {
        let request = request.clone();
        async move { member.shard()?.set_paused(request).await }
    }))
    .await;
    let failed = results.iter().zip(&view.members).find_map(|(result, member)| {
        Some(of_shard(result.as_ref().err()?.clone(), &member.name()))
    });
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

/// The sum of the streams that are still open.
pub(super) async fn drain(view: &View, request: DrainRequest) -> Result<DrainResponse> {
    let answers = every(view, |shard| async move { shard.drain(request).await }).await?;
    Ok(DrainResponse { open_streams: answers.iter().map(|answer| answer.open_streams).sum() })
}
