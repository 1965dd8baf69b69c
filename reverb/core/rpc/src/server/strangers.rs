// SPDX-License-Identifier: Apache-2.0
//! Calls of those who have not shown who they are: few, and apart from all others.
//!
//! Only probes need them, which are done within milliseconds. If there are too many, the oldest
//! ends, so that those who hold theirs open keep nobody out.

use std::pin::Pin;
use std::sync::Arc;

use reverb_data::{Error, Result};

use super::by_age::{ByAge, Place};
use super::stream_limit::OpenStream;

/// Maximum number of calls of a server.
const MAX_CALLS: usize = 64;

/// Maximum number of calls of a connection.
const MAX_CALLS_PER_CONNECTION: usize = 16;

/// Bytes of a connection that they may send before somebody reads them. It is the least of HTTP/2.
pub(super) const WINDOW_BYTES: u32 = 65_535;

/// The largest frame where they may come. A frame is in memory before the window is looked at, and
/// its size cannot be changed when somebody is known. A larger message is copied once.
pub(super) const FRAME_BYTES: u32 = 256 << 10;

/// The open calls of strangers.
#[derive(Debug, Default)]
pub(super) struct Strangers(Arc<ByAge>);

/// Where an open call counts.
#[derive(Debug)]
pub(super) enum CallPlace {
    /// Among all others.
    Known {
        /// Counts it until it is dropped.
        _open: OpenStream,
    },
    /// Among those of strangers.
    Stranger(Place),
}

impl Strangers {
    /// The place of a call on a connection that has `others`. The oldest one ends if there are too
    /// many.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the connection has too many.
    pub(super) fn open(&self, others: usize) -> Result<CallPlace> {
        if others >= MAX_CALLS_PER_CONNECTION {
            return Err(Error::unavailable(format!(
                "This connection has {others} open calls and has not shown a token or a certificate \
                 that the server knows: {MAX_CALLS_PER_CONNECTION} is the limit until then."
            )));
        }
        let place = self.0.open();
        self.0.end_oldest(MAX_CALLS);
        Ok(CallPlace::Stranger(place))
    }
}

impl CallPlace {
    /// The result of a call.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it has to make room first.
    pub(super) async fn or_displaced<T>(
        &self,
        call: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        match self {
            Self::Known { .. } => call.await,
            Self::Stranger(place) => place.or_displaced(call).await.unwrap_or_else(|| {
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

    use reverb_data::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn the_oldest_call_ends_and_one_connection_has_few() {
        let strangers = Strangers::default();
        let error = strangers.open(MAX_CALLS_PER_CONNECTION).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let open: Vec<_> = (0..=MAX_CALLS).map(|_| strangers.open(0).unwrap()).collect();
        let never = || async { std::future::pending::<Result<()>>().await };
        let error = open[0].or_displaced(pin!(never())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().starts_with("The server has 64 newer calls"), "{error}");
        let now = open[1].or_displaced(pin!(async { Ok(1) })).await;
        assert_eq!(now.unwrap(), 1);
        drop(open);
        assert_eq!(strangers.0.len(), 0);
    }
}
