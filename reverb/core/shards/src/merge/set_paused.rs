// SPDX-License-Identifier: Apache-2.0
//! Pauses or resumes all shards. After a failure, changed shards get their old state back.

use std::sync::Arc;

use futures_util::future::join_all;
use reverb_base::Result;
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::{SetPausedRequest, SetPausedResponse};

use super::Merge;
use super::roll_call::{change_all, roll_call};
use crate::group::{Group, View};

impl Merge for SetPausedRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<SetPausedResponse> {
        let present = roll_call(view).await?;
        let results = change_all(&present, |_, not_after_ns| Self { not_after_ns, ..self.clone() });
        let results = results.await;
        let failed = results.iter().find_map(|result| result.as_ref().err().cloned());
        let Some(error) = failed else { return Ok(SetPausedResponse {}) };
        let undo = Self { paused: !self.paused, ..self };
        let done = view.members.iter().zip(&results).filter(|(_, result)| result.is_ok());
        let undone = join_all(done.map(|(member, _)| {
            let undo = undo.clone();
            async move { member.shard()?.call(undo).await }
        }))
        .await;
        Err(if undone.iter().all(Result::is_ok) {
            error.followed_by("The other shards are as they were.")
        } else {
            error.followed_by("Some other shards could not be set back.")
        })
    }
}
