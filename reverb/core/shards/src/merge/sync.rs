// SPDX-License-Identifier: Apache-2.0
//! Waits until all shards have on disk what was confirmed. The earliest moment is the answer's.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{SyncRequest, SyncResponse};

use super::{Merge, ask_all};
use crate::group::{Group, View};

impl Merge for SyncRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<SyncResponse> {
        let shards = ask_all(view, self).await?;
        let at_ns = shards.iter().map(|shard| shard.at_ns).min().unwrap_or_default();
        Ok(SyncResponse { commit: 0, at_ns, shards })
    }
}
