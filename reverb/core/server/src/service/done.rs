// SPDX-License-Identifier: Apache-2.0
//! End of a task: a flag that both threads and tasks can wait for.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// Longest wait of a thread for a port to close and its streams to end.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Flag that is set when a task has ended.
#[derive(Debug, Default)]
pub(crate) struct Done {
    threads: Mutex<bool>,
    changed: Condvar,
    tasks: watch::Sender<bool>,
}

impl Done {
    /// Blocks the thread until the task has ended, at most 5 s.
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

/// Sets the flag when dropped, even if the runtime drops the task.
#[derive(Debug)]
pub(crate) struct DoneGuard(pub(crate) Arc<Done>);

impl Drop for DoneGuard {
    fn drop(&mut self) {
        *self.0.threads.lock() = true;
        self.0.changed.notify_all();
        self.0.tasks.send_replace(true);
    }
}
