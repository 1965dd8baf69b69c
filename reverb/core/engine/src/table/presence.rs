// SPDX-License-Identifier: Apache-2.0
//! Whether the caller of a waiting request is still there.
//!
//! A server learns in two steps that a caller over the network has left. First something happens to
//! the stream, in the order in which the bytes of the connection arrive; later the task of the call
//! runs, and finds out what it was. An insert that the same client has sent after it left may run
//! in between. So a request gets no items between the two: they would be lost.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// What is known of a caller.
#[derive(Debug, Default)]
pub struct Presence {
    events: AtomicU64,
    /// Number of events of which it is known that the caller was there after them.
    explained: AtomicU64,
}

impl Presence {
    /// Notes that something has happened to the stream of the caller.
    pub fn note_event(&self) {
        self.events.fetch_add(1, SeqCst);
    }

    /// Number of events so far. To be read before one looks whether the caller is there.
    pub fn num_events(&self) -> u64 {
        self.events.load(SeqCst)
    }

    /// Says that the caller was there after so many events. Returns true if it was in doubt; then
    /// [`Table::serve_again`](crate::Table::serve_again) is to be called.
    pub fn explain(&self, num_events: u64) -> bool {
        self.explained.swap(num_events, SeqCst) != num_events
    }

    /// True unless something has happened that is not explained yet.
    pub(super) fn is_certain(&self) -> bool {
        self.events.load(SeqCst) == self.explained.load(SeqCst)
    }
}
