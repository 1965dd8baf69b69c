// SPDX-License-Identifier: Apache-2.0
//! Waits until all that was confirmed is on disk.

use std::sync::Arc;
use std::time::Duration;

use reverb_base::error::grouped;
use reverb_base::figures::seconds;
use reverb_base::{Error, ErrorKind, Result};
use reverb_data::Right;
use reverb_wire::generated::reverb::{SyncRequest, SyncResponse};

use super::{Answer, CallContext};
use crate::observe::status::{nanoseconds, number};
use crate::service::Service;
use crate::service::store::no_journal;

/// Largest note.
const MAX_NOTE_BYTES: usize = 64 << 10;

impl Answer for SyncRequest {
    async fn answer(
        self,
        service: &Arc<Service>,
        context: &CallContext<'_>,
    ) -> Result<SyncResponse> {
        let Self { note, timeout_ms } = self;
        if note.len() > MAX_NOTE_BYTES {
            return Err(Error::invalid_argument(format!(
                "note must have at most {} bytes, got {}",
                grouped(MAX_NOTE_BYTES),
                grouped(note.len())
            )));
        }
        let tier = service.memory.tier.as_ref().ok_or_else(no_journal)?;
        let synced = tier.sync(&context.changed_by.client, note);
        let committed = match u64::try_from(timeout_ms).ok().filter(|&timeout| timeout > 0) {
            None => synced.await,
            Some(timeout) => {
                let ended = tokio::time::timeout(Duration::from_millis(timeout), synced).await;
                ended.unwrap_or_else(|_| {
                    let shows_path = context.caller.may_everywhere(Right::Sample);
                    let path = tier.path().display();
                    let place = if shows_path { format!(" in {path}") } else { String::new() };
                    Err(Error::new(
                        ErrorKind::DeadlineExceeded,
                        format!(
                            "The journal{place} is {} behind, and did not reach the disk within \
                             timeout_ms={timeout}.",
                            seconds(service.memory.lag())
                        ),
                    ))
                })
            }
        }?;
        Ok(SyncResponse {
            commit: number(committed.commit),
            at_ns: nanoseconds(committed.at),
            shards: Vec::new(),
        })
    }
}
