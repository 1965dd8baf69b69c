// SPDX-License-Identifier: Apache-2.0
//! Changes of one table: its items, its pauses, and the window of its rate limiter.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::ItemCondition;
use reverb_wire::convert::item_condition::from_item_condition;
use reverb_wire::generated::reverb::{
    DeleteItemsRequest, DeleteItemsResponse, SetPausedRequest, SetPausedResponse,
    SetRateLimiterRequest, SetRateLimiterResponse,
};
use reverb_wire::generated::{ResetRequest, ResetResponse};

use super::{Answer, CallContext};
use crate::service::Service;
use crate::service::blocking::blocking;
use crate::service::watch_stream::to_message;

/// Number of keys whose items are deleted at once, without another thread.
const FEW_KEYS: usize = 1024;

/// Empties a table.
impl Answer for ResetRequest {
    async fn answer(self, service: &Arc<Service>, _: &CallContext<'_>) -> Result<ResetResponse> {
        service.tables.get(&self.table)?.1.reset();
        Ok(ResetResponse {})
    }
}

/// Deletes items of a table, by their keys, by a condition, or by both.
impl Answer for DeleteItemsRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        _: &CallContext<'_>,
    ) -> Result<DeleteItemsResponse> {
        let table = Arc::clone(service.tables.get(&self.table)?.1);
        let condition = from_item_condition(self.condition.as_ref());
        let deleted = match self.keys.map(|keys| keys.keys) {
            None if condition == ItemCondition::ALL => {
                return Err(Error::invalid_argument(
                    "A call of delete_items needs keys, or a condition with a bound; reset removes \
                     all items of a table.",
                ));
            }
            None => blocking(move || table.delete_where(&condition)).await,
            Some(keys) if keys.len() <= FEW_KEYS => table.delete_keys(&keys, &condition),
            Some(keys) => blocking(move || table.delete_keys(&keys, &condition)).await,
        };
        let num_deleted = deleted.map_err(|error| service.stop.explain(error))? as i64;
        Ok(DeleteItemsResponse { num_deleted })
    }
}

/// Pauses inserts or samples of a table, or resumes them.
impl Answer for SetPausedRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<SetPausedResponse> {
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
            table.pause(inserts, samples, &context.changed_by)
        } else {
            table.resume(inserts, samples)
        };
        done.map_err(|error| service.stop.explain(error))?;
        let what = if paused { "wait" } else { "continue" };
        let client = &context.changed_by.client;
        tracing::info!(table = table.name(), %client, "{sides} {what} from now on");
        Ok(SetPausedResponse {})
    }
}

/// Moves the bounds of the limiter of a table.
impl Answer for SetRateLimiterRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        _: &CallContext<'_>,
    ) -> Result<SetRateLimiterResponse> {
        let Self { table, min_diff, max_diff, min_size_to_sample, restore, term } = self;
        let (name, table) = service.tables.get(&table)?;
        let moved = if restore {
            table.clear_window().map(|now| (now, now))
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
