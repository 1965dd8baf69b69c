// SPDX-License-Identifier: Apache-2.0
//! Limit on the open streams of all connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reverb_base::error::grouped;
use reverb_base::{Error, Result};

/// One in this many streams is reserved for connections with few streams, so that a few connections
/// with very many do not shut out all others.
const RESERVED_PART: usize = 8;

/// Number of streams that counts as few. A client keeps up to nine idle streams for later calls.
const FEW_STREAMS: usize = 16;

/// Counts the open streams of a server.
#[derive(Debug)]
pub(super) struct StreamLimit {
    limit: usize,
    open: AtomicUsize,
}

/// A guard that counts a stream as open.
#[derive(Debug)]
pub(super) struct OpenStream(Arc<StreamLimit>);

impl StreamLimit {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, open: AtomicUsize::new(0) }
    }

    /// Counts a stream of a connection that has `others`, until the guard is dropped.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there are too many. Clients of this package and of dm-reverb try again
    /// after it, whereas `ResourceExhausted` would end a writer for good. A stream that is reset
    /// with `REFUSED_STREAM` is `UNAVAILABLE` for them too, but such a frame has no room for the
    /// reason, and gRPC's own library repeats the call at once.
    pub(super) fn open(self: &Arc<Self>, others: usize, peer: &str) -> Result<OpenStream> {
        let is_one_of_few = others < FEW_STREAMS;
        let limit =
            if is_one_of_few { self.limit } else { self.limit - self.limit / RESERVED_PART };
        let open = self.open.fetch_add(1, Ordering::Relaxed);
        let stream = OpenStream(Arc::clone(self));
        if open < limit {
            return Ok(stream);
        }
        tracing::warn!(
            peer = peer.trim_start_matches("client "),
            open_calls = others,
            "refused a call: the limit of open calls is {} (Limits.streams)",
            grouped(self.limit)
        );
        let why = if is_one_of_few {
            "which is its limit (Limits.streams)".to_owned()
        } else {
            format!(
                "and its limit is {} (Limits.streams). The rest is kept for connections with fewer \
                 than {FEW_STREAMS}; this one has {}",
                grouped(self.limit),
                grouped(others)
            )
        };
        Err(Error::unavailable(format!(
            "The server has {} open calls, {why}. Try again later, or raise the limit.",
            grouped(open)
        ))
        .over_limit("streams"))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use reverb_base::ErrorKind;

    use super::*;

    #[test]
    fn the_limit_holds_for_all_and_ends_with_the_streams() {
        let limit = Arc::new(StreamLimit::new(20));
        let mut open: Vec<_> = (0..20).map(|_| limit.open(0, "client a").unwrap()).collect();
        let error = limit.open(0, "client b").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(
            error.message(),
            "The server has 20 open calls, which is its limit (Limits.streams). Try again later, or \
             raise the limit."
        );
        open.pop();
        open.push(limit.open(0, "client b").unwrap());
        assert!(limit.open(0, "client b").is_err());
        drop(open);
        assert_eq!(limit.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn connections_with_many_streams_leave_some_to_the_others() {
        let limit = Arc::new(StreamLimit::new(8000));
        let _open: Vec<_> = (0..7000).map(|it| limit.open(it, "client a").unwrap()).collect();
        assert_eq!(
            limit.open(7000, "client a").unwrap_err().message(),
            "The server has 7,000 open calls, and its limit is 8,000 (Limits.streams). The rest is \
             kept for connections with fewer than 16; this one has 7,000. Try again later, or raise \
             the limit."
        );
        let _few: Vec<_> = (0..16).map(|it| limit.open(it, "client b").unwrap()).collect();
        assert!(limit.open(16, "client b").is_err());
    }
}
