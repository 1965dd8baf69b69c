// SPDX-License-Identifier: Apache-2.0
//! Tables of the shards that answer, merged into those of one server.

use std::sync::Arc;

use futures_util::future::join_all;
use reverb_base::Result;
use reverb_wire::generated::{ServerInfoRequest, ServerInfoResponse, TableInfo, Uint128};
use reverb_wire::{Calls as _, Capabilities};

use super::Merge;
use super::roll_call::answer_of;
use crate::group::{Group, PATIENCE, View};
use crate::tables::together;
use crate::transport::of_shard;

impl Merge for ServerInfoRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<ServerInfoResponse> {
        let asked = view.members.iter().map(|member| async move {
            let info = async { member.shard()?.server_info().await };
            let info = answer_of(member, PATIENCE, info).await;
            match &info {
                Ok(_) => member.came_up(None),
                Err(error) if error.is_gone() => member.went_down(error),
                Err(_) => {}
            }
            info.map_err(|error| of_shard(error, &member.name()))
        });
        let mut id = (0, 0);
        let mut infos: Vec<Vec<TableInfo>> = Vec::new();
        let mut failure = None;
        let mut capabilities: Option<Capabilities> = None;
        for answer in join_all(asked).await {
            match answer {
                Ok(info) => {
                    id.0 ^= info.tables_state_id.0;
                    id.1 ^= info.tables_state_id.1;
                    infos.push(info.tables);
                    capabilities = Some(match capabilities {
                        None => info.capabilities,
                        Some(others) => info.capabilities.and(&others),
                    });
                }
                Err(error) if error.is_gone() => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        match failure {
            Some(error) if infos.is_empty() => Err(error),
            _ => Ok(ServerInfoResponse {
                tables_state_id: Some(Uint128 { high: id.0, low: id.1 }),
                table_info: together(&infos, view.given()),
                capabilities: capabilities.unwrap_or_default().into_names(),
            }),
        }
    }
}
