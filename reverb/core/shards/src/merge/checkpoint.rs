// SPDX-License-Identifier: Apache-2.0
//! Checkpoints of all shards. The answer joins their paths with commas, in order of the shards.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::{CheckpointRequest, CheckpointResponse};

use super::{Merge, ask_all};
use crate::group::{Group, View};

impl Merge for CheckpointRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<CheckpointResponse> {
        let saved = ask_all(view, self).await?;
        let paths: Vec<String> = saved.into_iter().map(|it| it.checkpoint_path).collect();
        Ok(CheckpointResponse { checkpoint_path: paths.join(",") })
    }
}
