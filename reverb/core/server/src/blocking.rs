// SPDX-License-Identifier: Apache-2.0
//! Work of calls that takes long, on threads for it.

use reverb_data::{Error, Result};
use tokio::sync::Semaphore;

/// How many threads do such work. Each has memory of its own, so that a thousand calls at once must
/// not have one each; and more would not be faster.
const MAX_THREADS: usize = 8;

/// Does work on a thread for it, so that other calls go on. Waits while many others do.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    static THREADS: Semaphore = Semaphore::const_new(MAX_THREADS);
    let _thread = THREADS.acquire().await.expect("nobody closes the semaphore");
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::internal("The call could not be finished.")))
}
