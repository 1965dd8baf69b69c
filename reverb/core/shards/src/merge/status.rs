// SPDX-License-Identifier: Apache-2.0
//! Status of each shard, and the sum over those that answer; of one table, for why its calls wait.

use std::sync::Arc;

use futures_util::future::join_all;
use reverb_base::{Error, Result};
use reverb_wire::Calls as _;
use reverb_wire::calls::Call;
use reverb_wire::generated::reverb::{
    ShardStatus, StatusRequest, StatusResponse, WaitReasonRequest, WaitReasonResponse,
};

use super::Merge;
use super::roll_call::{ROLL_CALL, answer_of};
use crate::group::{Group, View};
use crate::member::{Member, State};
use crate::status;
use crate::transport::of_shard;

impl Merge for StatusRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<StatusResponse> {
        together(view, self, |status| status).await
    }
}

/// The table's part of the status.
impl Merge for WaitReasonRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<WaitReasonResponse> {
        let status_of = |answer: WaitReasonResponse| StatusResponse {
            tables: Vec::from_iter(answer.table),
            memory: answer.memory,
            now_ns: answer.now_ns,
            ..StatusResponse::default()
        };
        let group = together(view, self, status_of).await?;
        let table = group.tables.into_iter().next();
        Ok(WaitReasonResponse { table, memory: group.memory, now_ns: group.now_ns })
    }
}

/// Asks every shard, and sums the statuses of those that answer.
async fn together<C: Call + Clone>(
    view: &View,
    request: C,
    status_of: impl Fn(C::Answer) -> StatusResponse,
) -> Result<StatusResponse> {
    let request = &request;
    let asked = view.members.iter().map(|member| async move {
        let asked = async { member.shard()?.call(request.clone()).await };
        (member, answer_of(member, ROLL_CALL, asked).await)
    });
    let mut shards = Vec::new();
    let mut failure = None;
    for (member, answer) in join_all(asked).await {
        let (status, error) = match answer {
            Ok(answer) => {
                member.came_up(None);
                (Some(status_of(answer)), None)
            }
            Err(error) if error.is_gone() => {
                member.went_down(&error);
                (None, Some(error))
            }
            Err(error) => return Err(of_shard(error, &member.name())),
        };
        shards.push(row(member, status, error.as_ref()));
        failure = failure.or(error);
    }
    match failure {
        Some(error) if shards.iter().all(|shard| shard.status.is_none()) => Err(error),
        _ => Ok(status::together(shards)),
    }
}

fn row(member: &Member, status: Option<StatusResponse>, error: Option<&Error>) -> ShardStatus {
    let state = match (&status, member.is_draining, member.state()) {
        (None, ..) | (_, _, State::Down(_)) => "down",
        (_, true, _) => "draining",
        _ => "up",
    };
    ShardStatus {
        index: member.index,
        address: member.address.clone(),
        state: state.to_owned(),
        error: error.map_or_else(String::new, |error| error.message().to_owned()),
        status,
        is_coordinator: member.is_coordinator,
    }
}
