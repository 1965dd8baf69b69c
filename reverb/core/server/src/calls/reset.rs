// SPDX-License-Identifier: Apache-2.0
//! Empties a table.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::{ResetRequest, ResetResponse};

use super::{Answer, Origin};
use crate::service::Service;

impl Answer for ResetRequest {
    async fn answer(self, service: &Arc<Service>, _: &Origin<'_>) -> Result<ResetResponse> {
        service.tables.get(&self.table)?.1.reset();
        Ok(ResetResponse {})
    }
}
