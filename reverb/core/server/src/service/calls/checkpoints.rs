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
        let saved = service.checkpoint().await;
        // The caller gets the error, but the operator would not see it.
        let saved = saved.inspect_err(|error| {
            if !service.stop.is_stopped() {
                tracing::error!("{error}");
            }
        });
        Ok(CheckpointResponse { checkpoint_path: saved? })
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
