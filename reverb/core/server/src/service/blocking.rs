// SPDX-License-Identifier: Apache-2.0
//! Slow work of calls, done on separate threads.

use reverb_base::{Error, Result};
use tokio::sync::Semaphore;

/// Number of threads for such work. Each thread has memory of its own, so their number must not
/// grow with the number of calls; more would not be faster.
const MAX_THREADS: usize = 8;

/// Runs work on a blocking thread. Waits while all of these threads are busy.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    static THREADS: Semaphore = Semaphore::const_new(MAX_THREADS);
    let _thread = THREADS.acquire().await.expect("nobody closes the semaphore");
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::internal("The call could not be finished.")))
}
