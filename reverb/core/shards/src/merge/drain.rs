// SPDX-License-Identifier: Apache-2.0
//! Drains all shards, even if some fail. The answer is the total number of open streams.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reverb_base::Result;
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::{DrainRequest, DrainResponse};

use super::Merge;
use super::roll_call::answer_of;
use crate::group::{Group, PATIENCE, View};
use crate::transport::of_shard;

impl Merge for DrainRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<DrainResponse> {
        let limit = Duration::try_from_secs_f64(self.timeout_s).unwrap_or(Duration::MAX);
        let limit = limit.saturating_add(PATIENCE);
        let drained = view.members.iter().map(|member| async move {
            let asked = async { member.shard()?.call(self).await };
            let answer = answer_of(member, limit, asked).await;
            answer.map_err(|error| of_shard(error, &member.name()))
        });
        let answers = join_all(drained).await;
        let num_shards = view.members.len();
        let num_failed = answers.iter().filter(|answer| answer.is_err()).count();
        let mut open_streams = 0;
        for answer in answers {
            let answer = answer.map_err(|error| {
                let num_drained = num_shards - num_failed;
                error.followed_by(&format!("{num_drained} of {num_shards} shards drain."))
            });
            open_streams += answer?.open_streams;
        }
        Ok(DrainResponse { open_streams })
    }
}
