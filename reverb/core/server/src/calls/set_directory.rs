// SPDX-License-Identifier: Apache-2.0
//! Gives the server a new map of its group.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{SetDirectoryRequest, SetDirectoryResponse};

use super::{Answer, Origin};
use crate::service::Service;

impl Answer for SetDirectoryRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        from: &Origin<'_>,
    ) -> Result<SetDirectoryResponse> {
        service.set_directory(self, &from.changed_by).await?;
        Ok(SetDirectoryResponse {})
    }
}
