// SPDX-License-Identifier: Apache-2.0
//! Returns all counters of the server that the caller may see.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{StatusRequest, StatusResponse};

use super::{Answer, Origin, table_bytes};
use crate::service::Service;

/// Estimated size of a stream in an answer.
const STREAM_BYTES: usize = 256;

impl Answer for StatusRequest {
    fn answer_bytes(&self, service: &Service) -> usize {
        let streams = if self.with_streams { service.streams.num_open() } else { 0 };
        table_bytes(service) + streams * STREAM_BYTES
    }

    async fn answer(self, service: &Arc<Service>, from: &Origin<'_>) -> Result<StatusResponse> {
        Ok(service.status(self, from.caller))
    }
}
