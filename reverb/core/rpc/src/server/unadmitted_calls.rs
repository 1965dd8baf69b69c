// SPDX-License-Identifier: Apache-2.0
//! Calls without an admission: a small number, counted apart from all others.
//!
//! Only probes need them, and those take milliseconds. If there are too many, the oldest ends, so
//! that callers who keep theirs open block nobody.

use std::pin::Pin;
use std::sync::Arc;

use reverb_base::{Error, Result};

use super::by_age::{ByAge, Entry};
use super::stream_limit::OpenStream;

/// Maximum number of calls of a server.
const MAX_CALLS: usize = 64;

/// Maximum number of calls of a connection.
const MAX_CALLS_PER_CONNECTION: usize = 16;

/// Bytes that such a connection may send before they are read. HTTP/2 allows no smaller limit.
pub(super) const WINDOW_BYTES: u32 = 65_535;

/// Largest HTTP/2 frame on a connection that begins without an admission. A frame is read into
/// memory before the flow-control window is checked, so this bounds that memory. It cannot change
/// when a call is admitted: a larger message comes in several frames, which one copy joins.
pub(super) const FRAME_BYTES: u32 = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct UnadmittedCalls(Arc<ByAge>);

/// Guard that counts an open call.
#[derive(Debug)]
pub(super) enum CountedCall {
    /// Counted among all calls.
    Admitted { _open: OpenStream },
    /// Counted among the calls without an admission.
    Unadmitted(Entry),
}

impl UnadmittedCalls {
    /// Counts a call on a connection that has `others`. If there are too many, the oldest one ends.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the connection has too many.
    pub(super) fn open(&self, others: usize) -> Result<CountedCall> {
        if others >= MAX_CALLS_PER_CONNECTION {
            return Err(Error::unavailable(format!(
                "This connection has {others} open calls and has not shown a token or a certificate \
                 that the server knows: {MAX_CALLS_PER_CONNECTION} is the limit until then."
            )));
        }
        let entry = self.0.open();
        self.0.end_oldest(MAX_CALLS);
        Ok(CountedCall::Unadmitted(entry))
    }
}

impl CountedCall {
    /// Result of a call.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the call is displaced first.
    pub(super) async fn or_displaced<T>(
        &self,
        call: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        match self {
            Self::Admitted { .. } => call.await,
            Self::Unadmitted(entry) => entry.or_displaced(call).await.unwrap_or_else(|| {
                Err(Error::unavailable(format!(
                    "The server has {MAX_CALLS} newer calls of callers that have not shown a token \
                     or a certificate that it knows, which is the limit. Try again, or show one."
                )))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use reverb_base::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn the_oldest_call_ends_and_one_connection_has_few() {
        let unadmitted = UnadmittedCalls::default();
        let error = unadmitted.open(MAX_CALLS_PER_CONNECTION).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let open: Vec<_> = (0..=MAX_CALLS).map(|_| unadmitted.open(0).unwrap()).collect();
        let never = || async { std::future::pending::<Result<()>>().await };
        let error = open[0].or_displaced(pin!(never())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().starts_with("The server has 64 newer calls"), "{error}");
        let now = open[1].or_displaced(pin!(async { Ok(1) })).await;
        assert_eq!(now.unwrap(), 1);
        drop(open);
        assert_eq!(unadmitted.0.len(), 0);
    }
}
