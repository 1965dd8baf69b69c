// SPDX-License-Identifier: Apache-2.0
//! What the server does: its tables, counters, and waits.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::Capabilities;
use reverb_wire::convert::table_info::from_table_info;
use reverb_wire::generated::reverb::{
    StatusRequest, StatusResponse, WaitReasonRequest, WaitReasonResponse,
};
use reverb_wire::generated::{ServerInfoRequest, ServerInfoResponse, Uint128};

use super::{Answer, CallContext, table_bytes};
use crate::service::{Service, status};

/// Estimated size of a stream in an answer.
const STREAM_BYTES: usize = 256;

/// Describes all tables, as far as the caller may see them.
impl Answer for ServerInfoRequest {
    fn answer_bytes(&self, service: &Service) -> usize {
        table_bytes(service)
    }

    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<ServerInfoResponse> {
        let (high, low) = service.tables.state_id();
        let tables = service.tables.all().iter();
        let seen = tables.filter(|table| context.caller.may_see(table.name()));
        Ok(ServerInfoResponse {
            tables_state_id: Some(Uint128 { high, low }),
            table_info: seen.map(|table| from_table_info(&table.info())).collect(),
            capabilities: Capabilities::of_this_release().into_names(),
        })
    }
}

/// Returns all counters of the server that the caller may see.
impl Answer for StatusRequest {
    fn answer_bytes(&self, service: &Service) -> usize {
        let streams = if self.with_streams { service.streams.num_open() } else { 0 };
        table_bytes(service) + streams * STREAM_BYTES
    }

    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<StatusResponse> {
        Ok(status::status(service, self, context.caller))
    }
}

/// Says why calls for a table wait, to callers with any right on it.
impl Answer for WaitReasonRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<WaitReasonResponse> {
        status::wait_reason(service, &self.table, context.caller)
    }
}
