// SPDX-License-Identifier: Apache-2.0
//! Insert room: limits of queued inserts, and the wait of writers above them.

use std::time::Instant;

use reverb_data::TableConfig;

use super::{Shared, Table};

/// Maximum number of queued inserts before writers have to wait.
const MAX_QUEUED_INSERTS: i64 = 1000;

/// Limits of queued inserts, above which writers have to wait.
pub(super) struct InsertRoom {
    items: usize,
    bytes: u64,
    /// Bytes that the server allows each table.
    pub(super) server_bytes: u64,
}

impl InsertRoom {
    pub(super) fn new(config: &TableConfig, server_bytes: u64) -> Self {
        // A tenth of the table's limit.
        let share = config.memory.max_bytes.map_or(u64::MAX, |bytes| (bytes / 10).max(1));
        Self {
            items: (config.max_size / 10).clamp(1, MAX_QUEUED_INSERTS) as usize,
            bytes: server_bytes.min(share),
            server_bytes,
        }
    }
}

impl Shared {
    #[inline]
    pub(super) fn has_insert_room(&self, now: Instant) -> bool {
        let Self { queues, room, state, .. } = self;
        queues.queued_inserts() < room.items
            && queues.queued_bytes() < room.bytes
            && state.lag_above_limit(now).is_none()
    }
}

impl Table {
    /// Back-pressure: waits while too many inserts are queued, or changes are not on disk for too
    /// long, and the table is open.
    pub async fn wait_for_insert_room(&self) {
        loop {
            let notified = self.room.notified();
            let mut notified = std::pin::pin!(notified);
            // From here on no notification is missed, even before the first poll.
            notified.as_mut().enable();
            {
                let shared = self.shared.lock();
                if shared.closed || shared.has_insert_room(Instant::now()) {
                    return;
                }
            }
            notified.await;
        }
    }
}
