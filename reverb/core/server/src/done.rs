// SPDX-License-Identifier: Apache-2.0
//! Whether a task has ended, for threads and for tasks.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// Maximum time that a thread waits for the end: for a port to close and its streams to end.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Whether a task has ended.
#[derive(Debug, Default)]
pub(crate) struct Done {
    threads: Mutex<bool>,
    changed: Condvar,
    tasks: watch::Sender<bool>,
}

impl Done {
    /// Blocks the thread until the task has ended, for 5 s at most.
    pub(crate) fn wait(&self) {
        let mut is_done = self.threads.lock();
        if !*is_done {
            self.changed.wait_for(&mut is_done, MAX_WAIT);
        }
    }

    /// Waits until the task has ended.
    pub(crate) async fn ended(&self) {
        // The sender lives as long as `self`.
        let _ = self.tasks.subscribe().wait_for(|&done| done).await;
    }
}

/// Reports the end, even if the task is dropped together with its runtime.
#[derive(Debug)]
pub(crate) struct DoneGuard(pub(crate) Arc<Done>);

impl Drop for DoneGuard {
    fn drop(&mut self) {
        *self.0.threads.lock() = true;
        self.0.changed.notify_all();
        self.0.tasks.send_replace(true);
    }
}
