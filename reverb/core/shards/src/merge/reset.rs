// SPDX-License-Identifier: Apache-2.0
//! Empties a table at all shards. Refused unless all shards answer.

use std::sync::Arc;

use reverb_base::{ErrorKind, Result};
use reverb_wire::generated::{ResetRequest, ResetResponse};

use super::Merge;
use super::roll_call::{change_all, roll_call};
use crate::group::{Group, View};

impl Merge for ResetRequest {
    async fn merge(self, _: &Arc<Group>, view: &View) -> Result<ResetResponse> {
        let present = roll_call(view).await?;
        let results = change_all(&present, |_, not_after_ns| Self { not_after_ns, ..self.clone() });
        match results.await.into_iter().find_map(Result::err) {
            None => Ok(ResetResponse {}),
            Some(error) if error.kind() == ErrorKind::TableNotFound => Err(error),
            Some(error) => Err(error.followed_by("The other shards were reset.")),
        }
    }
}
