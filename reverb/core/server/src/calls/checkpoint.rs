// SPDX-License-Identifier: Apache-2.0
//! Saves all tables. The save continues if the caller disconnects.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::{CheckpointRequest, CheckpointResponse};

use super::{Answer, Origin};
use crate::service::Service;

impl Answer for CheckpointRequest {
    async fn answer(self, service: &Arc<Service>, _: &Origin<'_>) -> Result<CheckpointResponse> {
        Ok(CheckpointResponse { checkpoint_path: service.checkpoint().await? })
    }
}
