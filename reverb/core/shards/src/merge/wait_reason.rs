// SPDX-License-Identifier: Apache-2.0
//! Why calls for a table of a group wait: the table's part of the status of the shards.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{StatusResponse, WaitReasonRequest, WaitReasonResponse};

use super::Merge;
use super::status::together;
use crate::group::{Group, View};

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
