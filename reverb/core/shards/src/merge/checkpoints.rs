// SPDX-License-Identifier: Apache-2.0
//! Checkpoints of all shards, and their status.

use std::sync::Arc;

use futures_util::future::join_all;
use reverb_base::Result;
use reverb_wire::generated::reverb::{CheckpointStatusRequest, CheckpointStatusResponse};
use reverb_wire::generated::{CheckpointRequest, CheckpointResponse};

use super::roll_call::{absence, ask, who_did};
use super::{Merge, ask_all};
use crate::group::{Group, View};
use crate::status::checkpoints_together;

/// Shards that answer save even if others do not. The answer joins the paths with commas, in order
/// of the shards.
impl Merge for CheckpointRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<CheckpointResponse> {
        let saved = join_all(view.members.iter().map(|member| async move {
            ask(member).await.map_err(|error| absence(member, &error, ""))?;
            member.call(self).await
        }))
        .await;
        if let Some(error) = saved.iter().find_map(|answer| answer.as_ref().err().cloned()) {
            return Err(who_did(error, "saved", view.members.iter().zip(&saved)));
        }
        let paths: Vec<_> = saved.into_iter().flatten().map(|it| it.checkpoint_path).collect();
        Ok(CheckpointResponse { checkpoint_path: paths.join(",") })
    }
}

impl Merge for CheckpointStatusRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<CheckpointStatusResponse> {
        Ok(checkpoints_together(&ask_all(view, self).await?))
    }
}
