// SPDX-License-Identifier: Apache-2.0
//! Held chunks: chunks that insert streams keep for later items.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;
use reverb_base::Result;
use reverb_base::ranked::{Rank, Ranked};
use reverb_data::{Chunk, ServerAccount};
use tokio::sync::Notify;

/// Estimated size of a held chunk beside its payload: header, map entry, and unused capacity.
const CHUNK_OVERHEAD_BYTES: usize = 128;

/// Chunks that the writer of one stream may still refer to.
#[derive(Debug, Default)]
pub(crate) struct HeldChunks {
    by_key: HashMap<u64, Held>,
    bytes: usize,
    /// An empty map that keeps its capacity, for filtering the held chunks.
    spare: HashMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    chunk: Chunk,
    /// Cached size, so that the chunk itself is not read.
    bytes: usize,
}

impl HeldChunks {
    /// Holds the chunk that `make` returns, unless there is one with this key.
    pub(crate) fn hold(&mut self, key: u64, make: impl FnOnce() -> Chunk) {
        if let Entry::Vacant(entry) = self.by_key.entry(key) {
            let chunk = make();
            let bytes = chunk.payload_len() + CHUNK_OVERHEAD_BYTES;
            self.bytes += bytes;
            entry.insert(Held { chunk, bytes });
        }
    }

    /// Holds the chunk that `make` returns, instead of the one with this key if there is one.
    pub(crate) fn replace(&mut self, key: u64, make: impl FnOnce() -> Chunk) {
        if let Some(old) = self.by_key.remove(&key) {
            self.bytes -= old.bytes;
        }
        self.hold(key, make);
    }

    pub(crate) fn get(&self, key: u64) -> Option<&Chunk> {
        self.by_key.get(&key).map(|held| &held.chunk)
    }

    /// Releases all chunks except those with keys that `for_each` yields. Returns the number of
    /// held chunks, which is smaller than the number of keys if a key is unknown or repeated.
    ///
    /// # Errors
    ///
    /// Errors of `for_each`.
    pub(crate) fn keep(
        &mut self,
        for_each: impl FnOnce(&mut dyn FnMut(u64)) -> Result<()>,
    ) -> Result<usize> {
        self.bytes = 0;
        let done = for_each(&mut |key| {
            if let Some(held) = self.by_key.remove(&key) {
                self.bytes += held.bytes;
                self.spare.insert(key, held);
            }
        });
        self.by_key.clear();
        std::mem::swap(&mut self.by_key, &mut self.spare);
        done.map(|()| self.by_key.len())
    }

    /// Bytes of all held chunks.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Chunks that no item refers to.
    fn in_no_table(&self) -> impl Iterator<Item = &Chunk> {
        let chunks = self.by_key.values().map(|held| &held.chunk);
        chunks.filter(|chunk| ServerAccount::is_in_no_table(chunk))
    }

    fn bytes_in_no_table(&self) -> u64 {
        self.in_no_table().map(Chunk::bytes).sum()
    }
}

/// An open insert stream, as listed by the server.
pub(crate) struct HoldingStream {
    pub(crate) held: Ranked<HeldChunks>,
    pub(crate) peer: String,
    /// Bytes of incomplete and unread messages.
    partial_bytes: AtomicI64,
    /// True if it has carried more than rollouts and late columns.
    has_inserts: AtomicBool,
    is_ended: AtomicBool,
    ended: Notify,
}

impl fmt::Debug for HoldingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldingStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl HoldingStream {
    pub(crate) fn count_partial(&self, bytes: i64) {
        self.partial_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that the stream has carried an insert.
    pub(crate) fn note_inserts(&self) {
        self.has_inserts.store(true, Ordering::Relaxed);
    }

    /// True if the stream has carried an insert.
    pub(crate) fn has_inserts(&self) -> bool {
        self.has_inserts.load(Ordering::Relaxed)
    }

    /// True if a message waits to be read.
    pub(crate) fn has_partial(&self) -> bool {
        self.partial_bytes.load(Ordering::Relaxed) > 0
    }

    /// Bytes that would be freed by ending the stream.
    fn bytes(&self) -> u64 {
        let partial = self.partial_bytes.load(Ordering::Relaxed);
        self.held.lock().bytes_in_no_table() + u64::try_from(partial).unwrap_or(0)
    }

    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.ended.notify_one();
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// Waits until the server ends the stream, for a drain or for lack of memory.
    pub(crate) async fn ended(&self) {
        self.ended.notified().await;
    }
}

/// All open insert streams of a server.
#[derive(Debug, Default)]
pub(crate) struct HoldingStreams(Mutex<Vec<Arc<HoldingStream>>>);

impl HoldingStreams {
    pub(crate) fn open(&self, peer: &str) -> Arc<HoldingStream> {
        let stream = Arc::new(HoldingStream {
            held: Ranked::new(Rank::HeldChunks, HeldChunks::default()),
            peer: peer.to_owned(),
            partial_bytes: AtomicI64::new(0),
            has_inserts: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            ended: Notify::new(),
        });
        self.0.lock().push(Arc::clone(&stream));
        stream
    }

    /// Ends all streams.
    pub(crate) fn end_all(&self) {
        self.all().iter().for_each(|stream| stream.end());
    }

    pub(crate) fn close(&self, stream: &Arc<HoldingStream>) {
        self.0.lock().retain(|open| !Arc::ptr_eq(open, stream));
    }

    /// Calls `see` with all held chunks that are in no table.
    pub(crate) fn for_each_in_no_table(&self, mut see: impl FnMut(&Chunk)) {
        for stream in self.all() {
            stream.held.lock().in_no_table().for_each(&mut see);
        }
    }

    /// Streams, largest first, with the bytes that would be freed by ending them.
    pub(crate) fn by_bytes(&self) -> Vec<(Arc<HoldingStream>, u64)> {
        let with_bytes = |stream: Arc<HoldingStream>| {
            let bytes = stream.bytes();
            (stream, bytes)
        };
        let mut streams: Vec<_> = self.all().into_iter().map(with_bytes).collect();
        streams.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        streams
    }

    fn all(&self) -> Vec<Arc<HoldingStream>> {
        self.0.lock().clone()
    }
}
