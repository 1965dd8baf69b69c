// SPDX-License-Identifier: Apache-2.0
//! Moves the bounds of the limiter of a table.

use std::sync::Arc;

use reverb_base::Result;
use reverb_engine::{Watched, WindowBefore};
use reverb_wire::generated::reverb::{SetRateLimiterRequest, SetRateLimiterResponse};

use super::{Answer, Origin};
use crate::service::Service;
use crate::watch_stream::to_message;

impl Answer for SetRateLimiterRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        _: &Origin<'_>,
    ) -> Result<SetRateLimiterResponse> {
        let Self { table, min_diff, max_diff, min_size_to_sample, restore, term } = self;
        let (name, table) = service.tables.get(&table)?;
        let moved = if restore {
            table.clear_window().map(|now| {
                let Watched { min_diff, max_diff, min_size_to_sample, .. } = now;
                (now, WindowBefore { min_diff, max_diff, min_size_to_sample })
            })
        } else {
            table.set_window(min_diff, max_diff, min_size_to_sample, term)
        };
        let (now, before) = moved.map_err(|error| service.stop.explain(error))?;
        Ok(SetRateLimiterResponse {
            table: Some(to_message(name, now)),
            previous_min_diff: before.min_diff,
            previous_max_diff: before.max_diff,
            previous_min_size_to_sample: before.min_size_to_sample,
        })
    }
}
