// SPDX-License-Identifier: Apache-2.0
//! Checkpoint status of all shards, merged into that of one server.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{CheckpointStatusRequest, CheckpointStatusResponse};

use super::{Merge, ask_all};
use crate::group::{Group, View};
use crate::status::checkpoints_together;

impl Merge for CheckpointStatusRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<CheckpointStatusResponse> {
        Ok(checkpoints_together(&ask_all(view, self).await?))
    }
}
