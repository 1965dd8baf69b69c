// SPDX-License-Identifier: Apache-2.0
//! Descriptions of what a send queue waits for.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::SendQueue;

impl SendQueue {
    /// Text about what a flush is waiting for.
    pub(crate) fn describe_wait(&self) -> String {
        let tables = self.waiting_tables().join(", ");
        let state = self.state.lock();
        let Some(lost) = &state.lost else {
            if state.num_pending() == 0 {
                return "nothing any more: all items were confirmed just now".to_owned();
            }
            return format!(
                "{} items sent to {} but not confirmed and {} items not sent yet (tables: {tables})",
                state.num_sent(),
                state.peer(),
                state.queue.len(),
            );
        };
        format!(
            "{} items that are not confirmed (tables: {tables}), and for a connection to {}, which was lost {:.1} s \
             ago. The last attempt to connect failed: {}",
            state.num_pending(),
            state.address,
            lost.since.elapsed().as_secs_f64(),
            lost.error,
        )
    }

    /// The table of the oldest item that is not confirmed yet.
    pub(crate) fn oldest_table(&self) -> Option<Arc<str>> {
        self.state.lock().tables().next().cloned()
    }

    /// The tables of the items that are not confirmed yet.
    pub(crate) fn waiting_tables(&self) -> Vec<String> {
        let state = self.state.lock();
        let tables: BTreeSet<&Arc<str>> = state.tables().collect();
        tables.into_iter().map(ToString::to_string).collect()
    }
}
