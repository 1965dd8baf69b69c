// SPDX-License-Identifier: Apache-2.0
//! Changes settings at all shards or at none: after a failure, the old settings are restored.

use std::sync::Arc;

use futures_util::future::try_join_all;
use reverb_base::{Error, ErrorKind, Result};
use reverb_wire::convert::table_info::to_settings;
use reverb_wire::generated::deepmind::reverb::key_distribution_options::{
    Distribution, Prioritized,
};
use reverb_wire::generated::reverb::{
    ChangedSetting, ConfigureTablesRequest, ConfigureTablesResponse, DirectoryRequest,
    SetDirectoryRequest, ShardMap, TableChange,
};
use reverb_wire::generated::{RolloutSettings, ServerInfoRequest, ServerInfoResponse, TableInfo};

use super::roll_call::{Present, change_all, roll_call};
use super::{Merge, ask_all};
use crate::group::{Group, View};
use crate::member::Member;
use crate::status;
use crate::table_part::part;
use crate::tables::together;

/// Largest number of attempts to install a map while other clients change it too.
const MAX_ATTEMPTS: u32 = 10;

impl Merge for ConfigureTablesRequest {
    async fn merge(self, group: &Arc<Group>, view: &View) -> Result<ConfigureTablesResponse> {
        let present = roll_call(view).await?;
        let before = ServerInfoRequest {}.merge(group, view).await?.table_info;
        let of_each = ask_all(view, ServerInfoRequest {}).await?;
        let num_shards = view.members.len();
        let after = given_after(&before, &self.changes);
        let full: Vec<_> = self.changes.iter().map(|change| complete(change, &after)).collect();
        let parts: Vec<Self> = (0..num_shards)
            .map(|index| part_of(&full, &after, index, num_shards))
            .collect::<Result<_>>()?;
        // Invalid changes are refused before any shard is changed.
        let tried = change_parts(&present, &parts, true).await;
        let mut answers = tried.into_iter().collect::<Result<Vec<_>>>()?;
        if !self.dry_run {
            let results = change_parts(&present, &parts, false).await;
            if let Some(error) = failure(&results) {
                let undone = undo(view, &results, &of_each, &full).await;
                return Err(match undone {
                    Ok(()) => error.followed_by("The other shards have their old settings again."),
                    Err(again) => error.followed_by(&format!(
                        "The old settings could not be given back to all others: {again}"
                    )),
                });
            }
            answers = results.into_iter().collect::<Result<_>>()?;
            send_tables(group, view, &self.changes, &present, &parts).await?;
        }
        let changed = describe(&before, &after);
        let parts: Vec<Vec<TableInfo>> = answers.into_iter().map(|answer| answer.tables).collect();
        let mut tables = together(&parts, &given_after(view.given(), &self.changes));
        if self.dry_run {
            tables = together(&parts, view.given());
        }
        Ok(ConfigureTablesResponse { changed, tables })
    }
}

/// Changes the part of each shard, or only checks whether it would change.
async fn change_parts(
    present: &[Present<'_>],
    parts: &[ConfigureTablesRequest],
    dry_run: bool,
) -> Vec<Result<ConfigureTablesResponse>> {
    let part = |position: usize, not_after_ns| ConfigureTablesRequest {
        dry_run,
        not_after_ns,
        ..parts[position].clone()
    };
    change_all(present, part).await
}

/// The error of the first shard that was not changed.
fn failure(results: &[Result<ConfigureTablesResponse>]) -> Option<Error> {
    let error = results.iter().find_map(|result| result.as_ref().err())?;
    Some(error.clone().context("One shard was not changed"))
}

/// Installs a new map with the new settings of the tables. If another client has changed the map
/// meanwhile, it may have changed the parts as well, after this one: changes them again, and starts
/// over from the new map.
async fn send_tables(
    group: &Arc<Group>,
    view: &View,
    changes: &[TableChange],
    present: &[Present<'_>],
    parts: &[ConfigureTablesRequest],
) -> Result<()> {
    let Some(mut map) = view.map.clone() else { return Ok(()) };
    for attempt in 1.. {
        map.tables = given_after(&map.tables, changes);
        map.epoch += 1;
        // A shard that was started again has another id.
        for shard in map.shards.iter_mut().filter(|shard| shard.server_id != 0) {
            let known = view.member(shard.index).and_then(|member| member.server_id());
            shard.server_id = known.unwrap_or(shard.server_id);
        }
        let Err(error) = send_map(view, &map).await else { break };
        if error.kind() != ErrorKind::FailedPrecondition || attempt == MAX_ATTEMPTS {
            return Err(error.followed_by(
                "All shards have the new settings, and the group's map has the old ones.",
            ));
        }
        map = newest_map(view).await?.unwrap_or(map);
        if let Some(error) = failure(&change_parts(present, parts, false).await) {
            return Err(error.followed_by(
                "Another client has changed the group at the same time, and shards may have the settings of either. \
                 Change the tables again.",
            ));
        }
    }
    group.adopt(&map)
}

/// Sends a map to the first shard before the others: of several clients with a map of the same
/// epoch, it refuses all but one, and the others have sent nothing else.
async fn send_map<'a>(view: &'a View, map: &ShardMap) -> Result<()> {
    let send = |member: &'a Arc<Member>| {
        member.call(SetDirectoryRequest { map: Some(map.clone()), index: member.index })
    };
    let Some((first, others)) = view.members.split_first() else { return Ok(()) };
    send(first).await?;
    try_join_all(others.iter().map(send)).await.map(drop)
}

async fn newest_map(view: &View) -> Result<Option<ShardMap>> {
    let answers = ask_all(view, DirectoryRequest::default()).await?;
    Ok(answers.into_iter().filter_map(|answer| answer.map).max_by_key(|map| map.epoch))
}

/// The change with all settings of its table, so that a shard that differs gets them too. Not with
/// the rate limiter, whose windows the coordinator moves.
fn complete(change: &TableChange, after: &[TableInfo]) -> TableChange {
    let Some(table) = after.iter().find(|table| table.name == change.table) else {
        return change.clone();
    };
    let exponent = to_settings(table).sampler.exponent().filter(|_| change.sampler.is_none());
    TableChange {
        max_size: Some(table.max_size),
        max_bytes: change.max_bytes.or(Some(table.max_bytes).filter(|&bytes| bytes != 0)),
        max_times_sampled: Some(table.max_times_sampled),
        priority_exponent: change.priority_exponent.or(exponent),
        ..change.clone()
    }
}

/// One shard's part of the changes. Bounds are divided; the coordinator moves them later.
fn part_of(
    changes: &[TableChange],
    after: &[TableInfo],
    index: usize,
    num_shards: usize,
) -> Result<ConfigureTablesRequest> {
    let parts = changes.iter().map(|change| {
        // The shards decide if the table exists.
        let Some(table) = after.iter().find(|table| table.name == change.table) else {
            return Ok(change.clone());
        };
        let part = part(&to_settings(table), index, num_shards)?;
        Ok(TableChange {
            priority_exponent: change.priority_exponent,
            sampler: change.sampler,
            // A group of one server has such tables, and that server says if it has.
            rollouts: change.rollouts.clone(),
            ..status::settings_in(change, &part)
        })
    });
    let changes = parts.collect::<Result<_>>()?;
    Ok(ConfigureTablesRequest { changes, ..ConfigureTablesRequest::default() })
}

/// Restores the old settings of the shards that were changed.
async fn undo(
    view: &View,
    results: &[Result<ConfigureTablesResponse>],
    before: &[ServerInfoResponse],
    changes: &[TableChange],
) -> Result<()> {
    let undone =
        view.members.iter().zip(results).zip(before).map(|((member, result), info)| async move {
            if result.is_err() {
                return Ok(());
            }
            let old = changes.iter().filter_map(|change| {
                let table = info.table_info.iter().find(|table| table.name == change.table)?;
                Some(status::settings_in(change, &to_settings(table)))
            });
            let request = ConfigureTablesRequest {
                changes: old.collect(),
                ..ConfigureTablesRequest::default()
            };
            member.call(request).await.map(drop)
        });
    try_join_all(undone).await.map(drop)
}

/// The changed settings, in numbers of the whole group.
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
fn given_after(given: &[TableInfo], changes: &[TableChange]) -> Vec<TableInfo> {
    let mut given = given.to_vec();
    for change in changes {
        // The pattern is exhaustive, so that the compiler points here when a setting is added.
        let TableChange {
            table: name,
            max_size,
            max_bytes,
            max_times_sampled,
            rate_limiter,
            priority_exponent,
            sampler,
            rollouts,
        } = change;
        let Some(table) = given.iter_mut().find(|table| table.name == *name) else {
            continue;
        };
        table.max_size = max_size.unwrap_or(table.max_size);
        table.max_bytes = max_bytes.unwrap_or(table.max_bytes);
        table.max_times_sampled = max_times_sampled.unwrap_or(table.max_times_sampled);
        if sampler.is_some() {
            table.sampler_options = *sampler;
        }
        if let (&Some(priority_exponent), Some(sampler)) =
            (priority_exponent, &mut table.sampler_options)
        {
            sampler.distribution =
                Some(Distribution::Prioritized(Prioritized { priority_exponent }));
        }
        if let (Some(change), Some(info)) =
            (rollouts.as_ref().and_then(|it| it.settings.as_ref()), &mut table.rollouts)
        {
            let before = info.settings.take().unwrap_or_default();
            info.settings = Some(RolloutSettings {
                num_columns: before.num_columns,
                item_columns: before.item_columns,
                ..change.clone()
            });
        }
        if let (Some(limiter), Some(info)) = (rate_limiter, &mut table.rate_limiter_info) {
            info.samples_per_insert = limiter.samples_per_insert;
            info.min_diff = limiter.min_diff;
            info.max_diff = limiter.max_diff;
            info.min_size_to_sample = limiter.min_size_to_sample;
        }
    }
    given
}
