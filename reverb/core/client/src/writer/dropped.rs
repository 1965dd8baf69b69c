// SPDX-License-Identifier: Apache-2.0
//! Items of a writer that was dropped: another one of the same client sends its first item after
//! them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::send_queue::SendQueue;

/// Maximum time that the first item of a writer waits for those of the one before.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The writer that was dropped last.
#[derive(Debug, Default)]
pub(crate) struct LastDropped(Mutex<Weak<SendQueue>>);

impl LastDropped {
    /// Writers that send their first item from now on wait for this one.
    pub(crate) fn set(&self, queue: &Arc<SendQueue>) {
        *self.0.lock() = Arc::downgrade(queue);
    }

    /// Waits until its items are confirmed or abandoned, for a second at most.
    pub(crate) async fn wait(&self) {
        let Some(queue) = self.0.lock().upgrade() else { return };
        // Its failure is no failure of the next writer.
        let _ = tokio::time::timeout(MAX_WAIT, queue.wait_until_pending(0)).await;
    }
}
