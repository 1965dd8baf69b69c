// SPDX-License-Identifier: Apache-2.0
//! Saves of the tables.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{CheckpointStatusRequest, CheckpointStatusResponse};
use reverb_wire::generated::{CheckpointRequest, CheckpointResponse};

use super::{Answer, CallContext};
use crate::service::Service;
use crate::service::status::checkpoint_status;

/// Saves all tables. The save continues if the caller disconnects.
impl Answer for CheckpointRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        _: &CallContext<'_>,
    ) -> Result<CheckpointResponse> {
        Ok(CheckpointResponse { checkpoint_path: service.checkpoint().await? })
    }
}

/// Reports the result of checkpoints.
impl Answer for CheckpointStatusRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<CheckpointStatusResponse> {
        Ok(checkpoint_status(service, context.caller))
    }
}
