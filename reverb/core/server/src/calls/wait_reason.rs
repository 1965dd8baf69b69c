// SPDX-License-Identifier: Apache-2.0
//! Tells why calls for a table wait, to callers with any right on it.

use std::sync::Arc;

use reverb_base::Result;
use reverb_wire::generated::reverb::{WaitReasonRequest, WaitReasonResponse};

use super::{Answer, Origin};
use crate::service::Service;
use crate::status;

impl Answer for WaitReasonRequest {
    async fn answer(self, service: &Arc<Service>, from: &Origin<'_>) -> Result<WaitReasonResponse> {
        status::wait_reason(service, &self.table, from.caller)
    }
}
