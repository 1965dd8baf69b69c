// SPDX-License-Identifier: Apache-2.0
//! Open streams of a server, over the network and in its process, and the reasons of their waits.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use hashbrown::HashMap;
use parking_lot::Mutex;
use reverb_engine::{TableStatus, WaitTimes};

/// Peer of a stream that is not over the network.
pub(crate) const THIS_PROCESS: &str = "this process";

/// Purpose of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Insert,
    Sample,
    Scan,
}

impl StreamKind {
    /// Name in the status, such as `insert`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Sample => "sample",
            Self::Scan => "scan",
        }
    }
}

/// Reason why a stream waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// A table's rate limiter or pause.
    Table,
    /// Memory of the server.
    Memory,
    /// A peer that leaves sent data unread.
    Peer,
}

impl WaitsFor {
    /// Name in the status, such as `table`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Memory => "memory",
            Self::Peer => "peer",
        }
    }
}

/// All open streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: Mutex<HashMap<u64, Arc<Stream>>>,
    next_number: AtomicU64,
    counts: [AtomicUsize; 3],
    held: Arc<HeldInserts>,
}

/// Insert streams that wait for memory, by the table of their last item, if it is known.
#[derive(Debug, Default)]
struct HeldInserts(Mutex<HashMap<Option<Arc<str>>, Held>>);

#[derive(Debug, Default)]
struct Held {
    /// Begin of each wait that goes on.
    waits: Vec<Instant>,
    /// Since when at least one goes on.
    since: Option<Instant>,
    /// Earlier times in which at least one went on.
    blocked: Duration,
    /// Lengths of those that have ended, in microseconds.
    ended: WaitTimes,
}

impl Held {
    /// Begin of the longest wait.
    fn oldest(&self) -> Option<Instant> {
        self.waits.iter().min().copied()
    }
}

/// True if a stream with this table may have items of `table`.
fn may_be(name: Option<&str>, table: &str) -> bool {
    name.is_none_or(|name| name == table)
}

/// A wait for memory, which ends on drop.
#[derive(Debug)]
struct MemoryWait {
    held: Arc<HeldInserts>,
    table: Option<Arc<str>>,
    since: Instant,
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct Stream {
    number: u64,
    pub(crate) kind: StreamKind,
    /// Address of the client.
    pub(crate) peer: String,
    /// Name that the client gave itself, or empty.
    pub(crate) client: String,
    /// Name of the token or certificate that opened the stream, if callers need one.
    pub(crate) caller: Option<String>,
    pub(crate) opened_at: Instant,
    items: AtomicU64,
    state: Mutex<State>,
    /// Cached `State::memory_wait.is_some()`.
    waits_for_memory: AtomicBool,
    held: Arc<HeldInserts>,
}

#[derive(Debug, Default)]
struct State {
    table: Option<Arc<str>>,
    /// Tables of blocked items, including the last item's, if there are several.
    waiting_tables: Vec<Arc<str>>,
    wait: Option<(WaitsFor, Instant)>,
    /// A pause in reading for lack of memory.
    memory_wait: Option<MemoryWait>,
}

/// Largest number of blocked tables that are recorded for a stream.
const MAX_WAITING_TABLES: usize = 16;

impl Streams {
    /// Registers a stream of this client until the guard is dropped. `caller` is the name of its
    /// token or certificate.
    pub(crate) fn open(
        self: &Arc<Self>,
        kind: StreamKind,
        peer: &str,
        client: &str,
        caller: Option<&str>,
    ) -> OpenStream {
        let stream = Arc::new(Stream {
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            kind,
            peer: peer.to_owned(),
            client: client.to_owned(),
            caller: caller.map(str::to_owned),
            opened_at: Instant::now(),
            items: AtomicU64::new(0),
            state: Mutex::default(),
            waits_for_memory: AtomicBool::new(false),
            held: Arc::clone(&self.held),
        });
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(stream.number, Arc::clone(&stream));
        OpenStream { streams: Arc::clone(self), stream }
    }

    /// Number of open streams of a kind.
    pub(crate) fn count(&self, kind: StreamKind) -> usize {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Number of open streams.
    pub(crate) fn num_open(&self) -> usize {
        self.open.lock().len()
    }

    /// Number of open streams of clients over the network.
    pub(crate) fn num_remote(&self) -> usize {
        self.open.lock().values().filter(|stream| stream.peer != THIS_PROCESS).count()
    }

    /// All open streams, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Stream>> {
        let mut all: Vec<_> = self.open.lock().values().cloned().collect();
        all.sort_unstable_by_key(|stream| stream.number);
        all
    }

    /// Begin of the longest wait for memory of a stream that may have items of this table.
    pub(crate) fn held_since(&self, table: &str) -> Option<Instant> {
        let held = self.held.0.lock();
        held.iter()
            .filter(|(name, _)| may_be(name.as_deref(), table))
            .filter_map(|it| it.1.oldest())
            .min()
    }

    /// Counts the inserts that a full server holds back before their table has them, one for each
    /// stream. A writer whose first message is held back may have items for any table.
    pub(crate) fn with_held(&self, mut status: TableStatus) -> TableStatus {
        let table = &status.info.config.name;
        for (name, held) in &*self.held.0.lock() {
            if !may_be(name.as_deref(), table) {
                continue;
            }
            let oldest = held.oldest().map(|since| since.elapsed());
            status.info.waiting_inserts += held.waits.len();
            status.inserting.oldest_wait = status.inserting.oldest_wait.max(oldest);
            status.inserting.blocked += held.blocked;
            status.inserting.blocked += held.since.map_or(Duration::ZERO, |since| since.elapsed());
            status.statistics.insert_waits.merge(&held.ended);
        }
        status
    }
}

impl Stream {
    /// Counts items that were inserted or sampled.
    pub(crate) fn count_items(&self, items: usize) {
        self.items.fetch_add(items as u64, Ordering::Relaxed);
    }

    /// Number of items that were inserted or sampled.
    pub(crate) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// Sets the table of the last item.
    pub(crate) fn use_table(&self, table: &Arc<str>) {
        let mut state = self.state.lock();
        if state.table.as_ref().is_some_and(|known| Arc::ptr_eq(known, table)) {
            return;
        }
        let State { table: last, waiting_tables, wait, .. } = &mut *state;
        let last = last.replace(Arc::clone(table));
        if wait.is_some() && waiting_tables.len() < MAX_WAITING_TABLES {
            let known = [last.as_ref(), Some(table)].into_iter().flatten();
            for table in known {
                if !waiting_tables.contains(table) {
                    waiting_tables.push(Arc::clone(table));
                }
            }
        }
    }

    /// Tables of blocked items, if there may be several.
    pub(crate) fn waiting_tables(&self) -> Vec<Arc<str>> {
        self.state.lock().waiting_tables.clone()
    }

    /// Table of the last item.
    pub(crate) fn table(&self) -> Option<Arc<str>> {
        self.state.lock().table.clone()
    }

    /// True if the last item belongs to this table.
    pub(crate) fn is_of(&self, table: &str) -> bool {
        self.state.lock().table.as_deref() == Some(table)
    }

    /// Starts or ends a wait.
    pub(crate) fn set_wait(&self, waits_for: Option<WaitsFor>) {
        self.set_wait_since(waits_for.map(|waits_for| (waits_for, Instant::now())));
    }

    fn set_wait_since(&self, wait: Option<(WaitsFor, Instant)>) {
        let mut state = self.state.lock();
        state.wait = wait;
        if wait.is_none() {
            state.waiting_tables.clear();
        }
    }

    /// Starts or ends a pause in reading for lack of memory.
    pub(crate) fn set_memory_wait(&self, waits: bool) {
        // The lock is taken only on a change, because this is called for each part of a message.
        if self.waits_for_memory.load(Ordering::Relaxed) != waits {
            self.waits_for_memory.store(waits, Ordering::Relaxed);
            let wait = waits.then(|| MemoryWait::begin(&self.held, self.table()));
            let ended = std::mem::replace(&mut self.state.lock().memory_wait, wait);
            drop(ended);
        }
    }

    /// Runs a future, and counts its time as a wait, unless it is done at once. A large future
    /// should be pinned: moved into this one, it would take its memory twice.
    pub(crate) async fn waiting<T>(&self, waits_for: WaitsFor, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        // Most work is done at once.
        if let Some(done) = work.as_mut().now_or_never() {
            return done;
        }
        let _waiting = Waiting::begin(self, waits_for, Instant::now());
        work.await
    }

    /// Like `waiting`, for samples of a table: the wait has begun then, or begins now.
    pub(crate) async fn waiting_since<T>(
        &self,
        since: Option<Instant>,
        work: impl Future<Output = T>,
    ) -> T {
        let since = since.unwrap_or_else(Instant::now);
        let _waiting = Waiting::begin(self, WaitsFor::Table, since);
        work.await
    }

    /// Reason of the current wait, and its length.
    pub(crate) fn wait(&self) -> Option<(WaitsFor, Duration)> {
        let State { wait, memory_wait, .. } = &*self.state.lock();
        let wait = memory_wait.as_ref().map(|wait| (WaitsFor::Memory, wait.since)).or(*wait);
        wait.map(|(waits_for, since)| (waits_for, since.elapsed()))
    }
}

/// Ends a wait on drop, even if the waiting future is dropped.
struct Waiting<'a>(&'a Stream, WaitsFor);

impl<'a> Waiting<'a> {
    fn begin(stream: &'a Stream, waits_for: WaitsFor, since: Instant) -> Self {
        match waits_for {
            WaitsFor::Memory => stream.set_memory_wait(true),
            _ => stream.set_wait_since(Some((waits_for, since))),
        }
        Self(stream, waits_for)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        match self.1 {
            WaitsFor::Memory => self.0.set_memory_wait(false),
            _ => self.0.set_wait(None),
        }
    }
}

impl MemoryWait {
    fn begin(held: &Arc<HeldInserts>, table: Option<Arc<str>>) -> Self {
        let since = Instant::now();
        let mut tables = held.0.lock();
        let of_table = tables.entry(table.clone()).or_default();
        of_table.waits.push(since);
        of_table.since.get_or_insert(since);
        Self { held: Arc::clone(held), table, since }
    }
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        let mut tables = self.held.0.lock();
        let Some(held) = tables.get_mut(&self.table) else { return };
        if let Some(position) = held.waits.iter().position(|since| *since == self.since) {
            held.waits.swap_remove(position);
        }
        held.ended.add(u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX));
        if held.waits.is_empty() {
            held.blocked += held.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
    }
}

/// Guard of an open stream, which ends when dropped.
#[derive(Debug)]
pub(crate) struct OpenStream {
    streams: Arc<Streams>,
    stream: Arc<Stream>,
}

impl OpenStream {
    /// The stream in the list.
    pub(crate) fn shared(&self) -> Arc<Stream> {
        Arc::clone(&self.stream)
    }
}

impl Deref for OpenStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.counts[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
        self.streams.open.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_are_there_until_they_are_closed() {
        let streams = Arc::new(Streams::default());
        let first = streams.open(StreamKind::Insert, "a:1", "actor", None);
        let second = streams.open(StreamKind::Sample, "b:2", "", None);
        assert_eq!(streams.count(StreamKind::Insert), 1);
        first.count_items(3);
        second.use_table(&Arc::from("t"));
        let look = async {
            tokio::task::yield_now().await;
            let shown: Vec<_> = streams
                .all()
                .iter()
                .map(|stream| {
                    let waits_for = stream.wait().map(|wait| wait.0);
                    (stream.peer.clone(), stream.items(), stream.table(), waits_for)
                })
                .collect();
            let expected = [
                ("a:1".to_owned(), 3, None, None),
                ("b:2".to_owned(), 0, Some(Arc::from("t")), Some(WaitsFor::Peer)),
            ];
            assert_eq!(shown, expected);
        };
        second.waiting(WaitsFor::Peer, look).await;
        second.waiting(WaitsFor::Table, async {}).await;
        assert_eq!(second.wait(), None);
        let use_table = async {
            tokio::task::yield_now().await;
            second.use_table(&Arc::from("u"));
        };
        second.waiting(WaitsFor::Table, use_table).await;
        assert_eq!(second.waiting_tables(), []);
        let waiting = async {
            tokio::task::yield_now().await;
            second.use_table(&Arc::from("v"));
            assert_eq!(second.waiting_tables(), [Arc::from("u"), Arc::from("v")]);
            second.set_memory_wait(true);
            assert_eq!(second.wait().unwrap().0, WaitsFor::Memory);
            assert!(streams.held_since("v").is_some() && streams.held_since("u").is_none());
            second.set_memory_wait(false);
            assert_eq!(streams.held_since("v"), None);
            assert_eq!(second.wait().unwrap().0, WaitsFor::Table);
        };
        second.waiting(WaitsFor::Table, waiting).await;
        assert_eq!(second.wait(), None);
        drop(first);
        let left: Vec<_> = streams.all().iter().map(|stream| stream.kind).collect();
        assert_eq!((left, streams.count(StreamKind::Insert)), (vec![StreamKind::Sample], 0));
    }
}
