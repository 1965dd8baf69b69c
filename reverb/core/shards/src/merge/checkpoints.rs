// SPDX-License-Identifier: Apache-2.0
//! Checkpoints of all shards, and their status.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{CheckpointStatusRequest, CheckpointStatusResponse};
use reverb_wire::generated::{CheckpointRequest, CheckpointResponse};

use super::{Merge, ask_all};
use crate::group::{Group, View};
use crate::status::checkpoints_together;

/// The answer joins the paths with commas, in order of the shards.
impl Merge for CheckpointRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<CheckpointResponse> {
        let saved = ask_all(view, self).await?;
        let paths: Vec<String> = saved.into_iter().map(|answer| answer.checkpoint_path).collect();
        Ok(CheckpointResponse { checkpoint_path: paths.join(",") })
    }
}

impl Merge for CheckpointStatusRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<CheckpointStatusResponse> {
        Ok(checkpoints_together(&ask_all(view, self).await?))
    }
}
