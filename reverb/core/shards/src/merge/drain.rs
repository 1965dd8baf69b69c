// SPDX-License-Identifier: Apache-2.0
//! Drains all shards, even if some fail. The answer is the total number of open streams.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reverb_base::Result;
use reverb_wire::Calls as _;
use reverb_wire::generated::reverb::{DrainRequest, DrainResponse};

use super::Merge;
use super::roll_call::{absence, answer_of, ask, who_did};
use crate::group::{Group, PATIENCE, View};
use crate::transport::of_shard;

impl Merge for DrainRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<DrainResponse> {
        let limit = Duration::try_from_secs_f64(self.timeout_s).unwrap_or(Duration::MAX);
        let limit = limit.saturating_add(PATIENCE);
        let drained = view.members.iter().map(|member| async move {
            ask(member).await.map_err(|error| absence(member, &error, ""))?;
            let asked = async { member.shard()?.call(self).await };
            let answer = answer_of(member, limit, asked).await;
            answer.map_err(|error| of_shard(error, &member.name()))
        });
        let answers = join_all(drained).await;
        if let Some(error) = answers.iter().find_map(|answer| answer.as_ref().err().cloned()) {
            return Err(who_did(error, "drain", view.members.iter().zip(&answers)));
        }
        let open_streams = answers.into_iter().flatten().map(|it| it.open_streams).sum();
        Ok(DrainResponse { open_streams })
    }
}
