// SPDX-License-Identifier: Apache-2.0
//! Deletes items at all shards that may have them. Refused unless all shards answer.

use std::sync::Arc;

use reverb_base::{ErrorKind, Result};
use reverb_wire::generated::reverb::{DeleteItemsRequest, DeleteItemsResponse, ItemKeys};

use super::Merge;
use super::roll_call::{change_all, roll_call};
use crate::group::{Group, View};
use crate::transport::updates::{first_place, other_places};

impl Merge for DeleteItemsRequest {
    async fn merge(self, group: &Arc<Group>, view: &View) -> Result<DeleteItemsResponse> {
        let present = roll_call(view).await?;
        let Self { table, keys, condition, .. } = self;
        let mut parts: Vec<Option<ItemKeys>> = vec![None; present.len()];
        if let Some(ItemKeys { keys }) = keys {
            parts.fill_with(|| Some(ItemKeys::default()));
            for key in keys {
                let first = first_place(group, view, key);
                let places = other_places(view, &table, key, first).chain([first]);
                for index in places {
                    let position = present.iter().position(|it| it.member.index == index);
                    if let Some(Some(part)) = position.map(|position| &mut parts[position]) {
                        part.keys.push(key);
                    }
                }
            }
        }
        let results = change_all(&present, |position, not_after_ns| Self {
            table: table.clone(),
            keys: parts[position].clone(),
            condition,
            not_after_ns,
        });
        let (mut num_deleted, mut failure) = (0, None);
        for result in results.await {
            match result {
                Ok(answer) => num_deleted += answer.num_deleted,
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            None => Ok(DeleteItemsResponse { num_deleted }),
            Some(error) if error.kind() == ErrorKind::TableNotFound => Err(error),
            Some(error) => {
                Err(error
                    .followed_by(&format!("The other shards have deleted {num_deleted} items.")))
            }
        }
    }
}
