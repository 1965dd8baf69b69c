// SPDX-License-Identifier: Apache-2.0
//! Counters of a server's port.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::status::{CODES, Code};

/// Limits by which a server refuses a peer: names of `Limits`, and the memory of the server.
pub const LIMITS: [&str; 7] = [
    "connections",
    "streams",
    "message_bytes",
    "call_bytes",
    "stream_bytes",
    "unread_timeout_s",
    "max_bytes",
];

/// Counters by method and code.
type Counts = Vec<[AtomicU64; CODES.len()]>;

/// Counters of a server's port. They only grow, except for the open connections.
#[derive(Debug)]
pub struct Traffic {
    connections: AtomicUsize,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Paths of the calls that are counted separately.
    methods: Vec<&'static str>,
    /// Ended calls, by method and code. The last method stands for all others.
    calls: Counts,
    /// Answered requests, in the same way.
    requests: Counts,
    refused: [AtomicU64; LIMITS.len()],
}

impl Traffic {
    /// Counters at zero; calls are counted by these paths.
    pub fn new(methods: Vec<&'static str>) -> Self {
        Self {
            connections: AtomicUsize::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            calls: (0..=methods.len()).map(|_| Default::default()).collect(),
            requests: (0..=methods.len()).map(|_| Default::default()).collect(),
            methods,
            refused: Default::default(),
        }
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Bytes that connections received, with everything that HTTP/2 adds.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that connections sent, with everything that HTTP/2 adds.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Number of ended calls, for each path and code that occurred. The path of an unknown call is
    /// empty.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, Code, u64)> {
        self.by_path(&self.calls)
    }

    /// Number of requests that were answered or have failed, for each path and code. A call without
    /// a stream is one request.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, Code, u64)> {
        self.by_path(&self.requests)
    }

    fn by_path<'a>(
        &'a self,
        counts: &'a Counts,
    ) -> impl Iterator<Item = (&'static str, Code, u64)> + 'a {
        let names = self.methods.iter().copied().chain([""]);
        names.zip(counts).flat_map(|(path, counts)| {
            let counts = CODES.into_iter().zip(counts);
            counts.map(move |(code, count)| (path, code, count.load(Ordering::Relaxed)))
        })
    }

    /// Number of refused peers or calls, for each of [`LIMITS`].
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        LIMITS.into_iter().zip(self.refused.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Counts a connection as open until the guard is dropped.
    pub(super) fn open(self: &Arc<Self>) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Counters of a call.
    pub(super) fn of_call(self: &Arc<Self>, path: &str) -> CallCounters {
        let known = self.methods.iter().position(|method| *method == path);
        CallCounters { traffic: Arc::clone(self), method: known.unwrap_or(self.methods.len()) }
    }

    /// Counts a refusal because of a limit; names outside [`LIMITS`] are ignored.
    pub(super) fn count_refusal(&self, limit: &str) {
        if let Some(at) = LIMITS.iter().position(|name| *name == limit) {
            self.refused[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Counters of a call.
#[derive(Debug)]
pub(super) struct CallCounters {
    traffic: Arc<Traffic>,
    /// Position of its method in the lists.
    method: usize,
}

impl CallCounters {
    /// Counts a call that was refused before it began, as a call and as a request, and the limit
    /// that it exceeded, if any.
    pub(super) fn count_refused(&self, code: Code, limit: Option<&str>) {
        self.count_end(code, limit);
        self.count_requests(code, 1);
    }

    /// Counts the end of the call, and the limit that ended it, if any.
    pub(super) fn count_end(&self, code: Code, limit: Option<&str>) {
        if let Some(limit) = limit {
            self.traffic.count_refusal(limit);
        }
        self.traffic.calls[self.method][code as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts requests of the call that were answered or have failed.
    pub(super) fn count_requests(&self, code: Code, count: usize) {
        let counter = &self.traffic.requests[self.method][code as usize];
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// A guard that counts a connection as open.
#[derive(Debug)]
pub(super) struct OpenConnection(Arc<Traffic>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_path_and_code() {
        let traffic = Arc::new(Traffic::new(vec!["/a", "/b"]));
        for (path, code) in [("/b", Code::Ok), ("/b", Code::Ok), ("/x", Code::Unimplemented)] {
            traffic.of_call(path).count_end(code, None);
        }
        traffic.of_call("/a").count_requests(Code::Ok, 3);
        traffic.of_call("/a").count_refused(Code::Unavailable, None);
        let counted: Vec<_> = traffic.calls().filter(|(_, _, count)| *count > 0).collect();
        let refused = ("/a", Code::Unavailable, 1);
        assert_eq!(counted, [refused, ("/b", Code::Ok, 2), ("", Code::Unimplemented, 1)]);
        let counted: Vec<_> = traffic.requests().filter(|(_, _, count)| *count > 0).collect();
        assert_eq!(counted, [("/a", Code::Ok, 3), refused]);
    }

    #[test]
    fn connections_are_counted_until_they_close() {
        let traffic = Arc::new(Traffic::new(Vec::new()));
        let first = traffic.open();
        let second = traffic.open();
        assert_eq!(traffic.connections(), 2);
        drop(first);
        assert_eq!(traffic.connections(), 1);
        drop(second);
        assert_eq!(traffic.connections(), 0);
    }
}
