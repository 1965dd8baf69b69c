// SPDX-License-Identifier: Apache-2.0
//! Describes all tables, as far as the caller may see them.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::Capabilities;
use reverb_wire::convert::table_info::from_table_info;
use reverb_wire::generated::{ServerInfoRequest, ServerInfoResponse, Uint128};

use super::{Answer, Origin, table_bytes};
use crate::service::Service;

impl Answer for ServerInfoRequest {
    fn answer_bytes(&self, service: &Service) -> usize {
        table_bytes(service)
    }

    async fn answer(self, service: &Arc<Service>, from: &Origin<'_>) -> Result<ServerInfoResponse> {
        let (high, low) = service.tables.state_id();
        let tables = service.tables.all().iter();
        let seen = tables.filter(|table| from.caller.may_see(table.name()));
        Ok(ServerInfoResponse {
            tables_state_id: Some(Uint128 { high, low }),
            table_info: seen.map(|table| from_table_info(&table.info())).collect(),
            capabilities: Capabilities::of_this_release().into_names(),
        })
    }
}
