// SPDX-License-Identifier: Apache-2.0
//! Pauses inserts or samples of a table, or resumes them.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_wire::generated::reverb::{SetPausedRequest, SetPausedResponse};

use super::{Answer, Origin};
use crate::service::Service;

impl Answer for SetPausedRequest {
    async fn answer(self, service: &Arc<Service>, from: &Origin<'_>) -> Result<SetPausedResponse> {
        let Self { table, inserts, samples, paused, .. } = self;
        let (_, table) = service.tables.get(&table)?;
        let sides = match (inserts, samples) {
            (true, true) => "inserts and samples",
            (true, false) => "inserts",
            (false, true) => "samples",
            (false, false) => {
                return Err(Error::invalid_argument(
                    "inserts and samples must not both be False: one of them is meant.",
                ));
            }
        };
        let done = if paused {
            table.pause(inserts, samples, &from.changed_by)
        } else {
            table.resume(inserts, samples)
        };
        done.map_err(|error| service.stop.explain(error))?;
        let what = if paused { "wait" } else { "go on" };
        let (table, client) = (table.name(), &from.changed_by.client);
        tracing::info!(%table, %client, "{sides} {what} from now on");
        Ok(SetPausedResponse {})
    }
}
