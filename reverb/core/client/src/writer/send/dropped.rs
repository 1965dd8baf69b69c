// SPDX-License-Identifier: Apache-2.0
//! Items of a dropped writer, which are sent before the first item of the client's next writer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::send_queue::SendQueue;

/// Longest time that the first item of a writer waits for those of the previous one.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The writer that was dropped last.
#[derive(Debug, Default)]
pub(crate) struct LastDropped(Mutex<Weak<SendQueue>>);

impl LastDropped {
    /// Makes later writers wait for this one before their first item.
    pub(crate) fn set(&self, queue: &Arc<SendQueue>) {
        *self.0.lock() = Arc::downgrade(queue);
    }

    /// Waits until the writer's items are confirmed or abandoned, at most a second.
    pub(crate) async fn wait(&self) {
        let Some(queue) = self.0.lock().upgrade() else { return };
        // An error of the dropped writer is no error of the next one.
        let _ = tokio::time::timeout(MAX_WAIT, queue.wait_until_confirmed()).await;
    }
}
