// SPDX-License-Identifier: Apache-2.0
//! Deletes items of a table, by their keys, by a condition, or by both.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::ItemCondition;
use reverb_wire::convert::item_condition::from_item_condition;
use reverb_wire::generated::reverb::{DeleteItemsRequest, DeleteItemsResponse};

use super::{Answer, Origin};
use crate::blocking::blocking;
use crate::service::Service;

/// Number of keys whose items are deleted at once, without another thread.
const FEW_KEYS: usize = 1024;

impl Answer for DeleteItemsRequest {
    async fn answer(self, service: &Arc<Service>, _: &Origin<'_>) -> Result<DeleteItemsResponse> {
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
