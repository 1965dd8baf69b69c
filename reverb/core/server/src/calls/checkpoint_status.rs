// SPDX-License-Identifier: Apache-2.0
//! Reports the result of checkpoints.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{CheckpointStatusRequest, CheckpointStatusResponse};

use super::{Answer, Origin};
use crate::service::Service;
use crate::status::checkpoint_status;

impl Answer for CheckpointStatusRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        from: &Origin<'_>,
    ) -> Result<CheckpointStatusResponse> {
        Ok(checkpoint_status(service, from.caller))
    }
}
