// SPDX-License-Identifier: Apache-2.0
//! The server's group of shards.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{
    DirectoryRequest, DirectoryResponse, SetDirectoryRequest, SetDirectoryResponse,
};

use super::{Answer, CallContext, table_bytes};
use crate::service::Service;

/// Returns the map of the group, with the tables that the caller may see.
impl Answer for DirectoryRequest {
    fn answer_bytes(&self, service: &Service) -> usize {
        table_bytes(service)
    }

    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<DirectoryResponse> {
        Ok(service.directory(&self, context.caller))
    }
}

/// Gives the server a new map of its group.
impl Answer for SetDirectoryRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<SetDirectoryResponse> {
        service.set_directory(self, &context.changed_by).await?;
        Ok(SetDirectoryResponse {})
    }
}
