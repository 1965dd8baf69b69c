// SPDX-License-Identifier: Apache-2.0
//! Saves all shards. The answer has their paths in their order, with a comma between two.

use std::sync::Arc;

use reverb_data::Result;
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
