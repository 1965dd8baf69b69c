// SPDX-License-Identifier: Apache-2.0
//! Returns the map of the group, with the tables that the caller may see.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{DirectoryRequest, DirectoryResponse};

use super::{Answer, Origin, table_bytes};
use crate::service::Service;

impl Answer for DirectoryRequest {
    fn answer_bytes(&self, service: &Service) -> usize {
        table_bytes(service)
    }

    async fn answer(self, service: &Arc<Service>, from: &Origin<'_>) -> Result<DirectoryResponse> {
        Ok(service.directory(&self, from.caller))
    }
}
