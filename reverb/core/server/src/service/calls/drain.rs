// SPDX-License-Identifier: Apache-2.0
//! Ends all streams, and logs it.

use std::sync::Arc;
use std::time::Duration;

use reverb_base::{Error, Result};
use reverb_wire::generated::reverb::{DrainRequest, DrainResponse};

use super::{Answer, CallContext};
use crate::service::Service;

impl Answer for DrainRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<DrainResponse> {
        let seconds = self.timeout_s;
        let timeout = Duration::try_from_secs_f64(seconds);
        let timeout = match timeout {
            Ok(timeout) => timeout,
            Err(_) if seconds == f64::INFINITY => Duration::MAX,
            Err(_) => {
                return Err(Error::invalid_argument(format!(
                    "timeout_s must be a number of seconds of at least 0, got {seconds}."
                )));
            }
        };
        let client = &context.changed_by.client;
        tracing::info!(%client, "draining: no new streams, and those that are open end");
        let drained = service.drain(timeout, context.changed_by.clone(), false);
        // A caller of this process gets the number even if the server stops meanwhile.
        let open = if context.is_local { drained.await } else { service.stop.or(drained).await? };
        Ok(DrainResponse { open_streams: open as i64 })
    }
}
