// SPDX-License-Identifier: Apache-2.0
//! Changes at all shards, after a roll call: reset, pause and delete.

use std::sync::Arc;

use futures_util::future::join_all;
use reverb_base::Result;
use reverb_wire::generated::reverb::{
    DeleteItemsRequest, DeleteItemsResponse, ItemKeys, SetPausedRequest, SetPausedResponse,
};
use reverb_wire::generated::{ResetRequest, ResetResponse};

use super::Merge;
use super::roll_call::{change_all, roll_call, who_did};
use crate::group::{Group, View};
use crate::transport::updates::{first_shard, other_shards};

/// Refused unless all shards answer.
impl Merge for ResetRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<ResetResponse> {
        let present = roll_call(view).await?;
        let results = change_all(&present, |_, not_after_ns| Self { not_after_ns, ..self.clone() });
        let results = results.await;
        match results.iter().find_map(|result| result.as_ref().err().cloned()) {
            None => Ok(ResetResponse {}),
            Some(error) => {
                Err(who_did(error, "reset the table", view.members.iter().zip(&results)))
            }
        }
    }
}

/// After a failure, changed shards get their old state back.
impl Merge for SetPausedRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<SetPausedResponse> {
        let present = roll_call(view).await?;
        let results = change_all(&present, |_, not_after_ns| Self { not_after_ns, ..self.clone() });
        let results = results.await;
        let failed = results.iter().find_map(|result| result.as_ref().err().cloned());
        let Some(error) = failed else { return Ok(SetPausedResponse {}) };
        let undo = Self { paused: !self.paused, ..self };
        let done = view.members.iter().zip(&results).filter(|(_, result)| result.is_ok());
        let undone = join_all(done.clone().map(|(member, _)| member.call(undo.clone()))).await;
        let unfinished = done.zip(&undone).filter(|(_, result)| result.is_err());
        let changed: Vec<_> = unfinished.map(|((member, _), _)| member.name()).collect();
        if changed.is_empty() {
            return Err(error.followed_by("No shard was changed, or it was set back."));
        }
        let changed = format!("Changed, and not set back: {}.", changed.join(", "));
        Err(error.followed_by(&changed).partial())
    }
}

/// Deletes items at all shards that may have them. Refused unless all shards answer.
impl Merge for DeleteItemsRequest {
    async fn merge(self, group: &Arc<Group>, view: &View) -> Result<DeleteItemsResponse> {
        let present = roll_call(view).await?;
        let Self { table, keys, condition, .. } = self;
        let mut parts: Vec<Option<ItemKeys>> = vec![None; present.len()];
        if let Some(ItemKeys { keys }) = keys {
            parts.fill_with(|| Some(ItemKeys::default()));
            for key in keys {
                let first = first_shard(group, view, key);
                let shards = other_shards(view, &table, key, first).chain([first]);
                for index in shards {
                    let position = present.iter().position(|shard| shard.member.index == index);
                    if let Some(Some(part)) = position.map(|position| &mut parts[position]) {
                        part.keys.push(key);
                    }
                }
            }
        }
        let results = change_all(&present, |position, not_after_ns| Self {
            table: table.clone(),
            keys: parts[position].clone(),
            condition,
            not_after_ns,
        });
        let results = results.await;
        let num_deleted = results.iter().flatten().map(|answer| answer.num_deleted).sum();
        match results.iter().find_map(|result| result.as_ref().err().cloned()) {
            None => Ok(DeleteItemsResponse { num_deleted }),
            Some(error) => {
                let did = format!("deleted items ({num_deleted} in all)");
                Err(who_did(error, &did, view.members.iter().zip(&results)))
            }
        }
    }
}
