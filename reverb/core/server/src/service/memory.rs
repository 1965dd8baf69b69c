// SPDX-License-Identifier: Apache-2.0
//! Memory of a server: its limit, and the measures near the limit.
//!
//! | level | what happens |
//! |---|---|
//! | from 80 % | with a store, the sweep writes payloads to the disk and forgets them, until 78 % |
//! | from 90 % | the table that is most over its share gives up items, until 88 % |
//! | from 97 % | insert streams and writers of this process wait; everything else continues |
//! | from 100 % | streams that hold most chunks for later items are ended; no new ones open |
//!
//! Items with rollouts need room to grow before they can leave:
//!
//! | level | what happens |
//! |---|---|
//! | from 75 % in tables with rollouts | new items of these tables wait |
//! | from 97 % | rollouts still come, over streams that have carried nothing else |
//! | from 100 % | they wait; if no item is ready, the newest unfinished ones are prompts again |

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use reverb_base::error::grouped;
use reverb_base::{Error, Result, byte_size};
use reverb_data::{Chunk, MemoryConfig, ServerAccount, WhenFull};
use reverb_engine::{Evicted, Table};
use reverb_rpc::framing::{Gate, STREAM_WINDOW_BYTES};
use reverb_rpc::server::Outgoing;
use reverb_wire::convert::table_config::from_max_bytes;
use reverb_wire::generated::reverb::MemoryStatus;

use crate::observe::diagnosis::{FullServer, JournalFacts};
use crate::observe::status::number;
use crate::observe::streams::Stream;
use crate::service::held_chunks::{HoldingStream, HoldingStreams};
use crate::service::store::{LocalAdopter, Tier};
use crate::service::throttle::{HOURLY, Throttle};

const REMOVE_FROM_PERCENT: u64 = 90;
const REMOVE_UNTIL_PERCENT: u64 = 88;
const PAUSE_FROM_PERCENT: u64 = 97;
/// Share of the limit in tables with rollouts above which their new items wait.
const GROWING_PERCENT: u64 = 75;
/// Share of the limit above which streams' chunks for later items end the largest stream, instead
/// of evicting items.
const STREAMS_PERCENT: u64 = 50;

/// Share of the limit for messages of other calls while they arrive.
const CALLS_PERCENT: u64 = 12;

/// Number of items that a table evicts under one lock.
const EVICTED_TOGETHER: usize = 64;
/// Number of such locks before the thread continues with other work.
const MAX_BATCHES: usize = 256;
/// Number of evicted items without freed chunks after which eviction pauses for a while.
const MAX_FRUITLESS_ITEMS: usize = 4 * EVICTED_TOGETHER;
const FRUITLESS_PAUSE: Duration = Duration::from_millis(100);

/// Polling interval of callers that wait for memory.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Size of a message that is read even while memory is full: sample requests, and updates of a few
/// hundred priorities.
const MAX_FREE_BYTES: usize = 16 << 10;

/// Smallest limit of a message and of a stream. dm-reverb's writers send 40 MiB at once.
const MIN_PEER_BYTES: u64 = 64 << 20;

/// Smallest allowed limit, for which messages of writers still fit beside each other.
const MIN_BYTES: u64 = 16 << 20;
/// Limit below which a server logs that it is small.
const LITTLE_BYTES: u64 = 128 << 20;

const MIN_WINDOW_BYTES: u64 = 256 << 10;

/// Bytes of prepared messages for readers: this fraction of the limit, or a fixed size without one.
const OUTGOING_PART: u64 = 8;
const MAX_OUTGOING_BYTES: u64 = 256 << 20;

/// Memory account of a server, with its limit.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) account: ServerAccount,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) streams: HoldingStreams,
    tables: Vec<Arc<Table>>,
    /// True if a table has rollouts.
    has_rollouts: bool,
    /// Messages prepared for readers. Tables do not evict items for them.
    pub(crate) outgoing: Arc<Outgoing>,
    /// Locked by the only thread that evicts items.
    removal: Mutex<Removal>,
    /// The store, if the server has one: it makes room before items are removed.
    pub(crate) tier: Option<Arc<Tier>>,
}

#[derive(Debug, Default)]
struct Removal {
    fruitless_at: Option<Instant>,
    removed: Throttle<(), HOURLY>,
    given_up: Throttle<(), HOURLY>,
}

impl Memory {
    /// # Errors
    ///
    /// `InvalidArgument` if `max_bytes` is below 16 MiB or too large for the protocol.
    pub(crate) fn new(
        max_bytes: Option<u64>,
        tables: &[Arc<Table>],
        tier: Option<Arc<Tier>>,
    ) -> Result<Self> {
        MemoryConfig { max_bytes, when_full: WhenFull::Remove }.validate()?;
        if let Some(bytes) = max_bytes.filter(|&bytes| bytes < MIN_BYTES) {
            return Err(Error::invalid_argument(format!(
                "max_bytes of a server must be at least {}, got {bytes}: a writer sends some \
                 megabytes at once.",
                byte_size::describe(MIN_BYTES),
            )));
        }
        if let Some(bytes) = max_bytes.filter(|&bytes| bytes < LITTLE_BYTES) {
            tracing::info!(
                "max_bytes of the server is {}; below {}, a writer of dm-reverb may never get \
                 through, because it sends up to 40 MiB in one message",
                byte_size::describe(bytes),
                byte_size::describe(LITTLE_BYTES),
            );
        }
        let outgoing = max_bytes.map_or(MAX_OUTGOING_BYTES, |bytes| bytes / OUTGOING_PART);
        Ok(Self {
            account: tier.as_ref().map_or_else(ServerAccount::open, |tier| tier.account().clone()),
            max_bytes,
            streams: HoldingStreams::default(),
            tables: tables.to_vec(),
            has_rollouts: tables.iter().any(|table| table.config().rollouts.is_some()),
            outgoing: Outgoing::new(usize::try_from(outgoing).unwrap_or(usize::MAX)),
            removal: Mutex::default(),
            tier,
        })
    }

    /// Makes disk chunks of the chunks of a writer of this process. Without a store they stay as
    /// they are.
    pub(crate) fn adopter_of_writer(&self) -> LocalAdopter {
        self.tier.as_ref().map_or_else(LocalAdopter::default, |tier| tier.adopter_of_writer())
    }

    /// Bytes that a stream may send before they are read. Blocked streams' bytes are not counted,
    /// so they are a small part of the limit.
    pub(crate) fn stream_window_bytes(&self) -> u32 {
        let share = self.max_bytes.map_or(u64::MAX, |bytes| (bytes / 128).max(MIN_WINDOW_BYTES));
        u32::try_from(share).unwrap_or(u32::MAX).min(STREAM_WINDOW_BYTES)
    }

    /// Part of the limit for one peer, at most `limit`.
    pub(crate) fn peer_bytes(&self, limit: usize) -> usize {
        let share = self.max_bytes.map_or(u64::MAX, |bytes| (bytes / 4).max(MIN_PEER_BYTES));
        limit.min(usize::try_from(share).unwrap_or(usize::MAX))
    }

    /// Evicts items if memory is short. Called after items or chunks arrive.
    pub(crate) fn make_room(&self) {
        if let Some(tier) = &self.tier {
            tier.wake_if_short(self);
        }
        if !self.is_above(REMOVE_FROM_PERCENT) {
            return;
        }
        let Some(mut removal) = self.removal.try_lock() else { return };
        let removal = &mut *removal;
        let streams = self.streams.by_bytes();
        self.end_flooding_streams(&streams);
        // Ended streams free their chunks soon, so tables evict less.
        let ended = streams.iter().filter(|(stream, _)| stream.is_ended());
        let coming = ended.map(|(_, bytes)| bytes).sum();
        // Nothing is removed while payloads may still leave for the disk.
        if self.tier.as_ref().is_none_or(|tier| !tier.may_free()) {
            self.remove_items(coming, removal);
        }
        self.give_up_unfinished(removal);
        self.end_streams_if_full(&streams);
    }

    /// Makes unfinished items prompts again while memory is full of them, and nothing else frees
    /// some: their rollouts wait for memory, and learners wait for their rollouts.
    fn give_up_unfinished(&self, removal: &mut Removal) {
        for table in self.with_rollouts() {
            while self.is_above(100) && table.give_up_unfinished() {
                removal.note_given_up(table.name(), self.max_bytes.unwrap_or(0));
            }
        }
    }

    fn with_rollouts(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.iter().filter(|table| table.config().rollouts.is_some())
    }

    /// True if new items of tables with rollouts have to wait, so that those that are there can
    /// grow.
    pub(crate) fn is_full_for_growing(&self) -> bool {
        self.has_rollouts && (self.is_full() || self.full_for_growing().is_some())
    }

    /// What new items of tables with rollouts wait for, if these have their part of the memory.
    pub(crate) fn full_for_growing(&self) -> Option<FullServer> {
        let limit = self.max_bytes.filter(|_| self.has_rollouts)?;
        let total: u64 = self.with_rollouts().map(|table| table.bytes()).sum();
        (total >= self.part(GROWING_PERCENT)).then_some(FullServer::Growing { total, limit })
    }

    /// Waits while new items of tables with rollouts have to wait.
    pub(crate) async fn wait_for_growing_room(&self) {
        self.wait_while(Self::is_full_for_growing).await;
    }

    /// Evicts items until there is room, counting `coming` bytes that will be freed anyway.
    fn remove_items(&self, coming: u64, removal: &mut Removal) {
        if removal.fruitless_at.is_some_and(|at| at.elapsed() < FRUITLESS_PAUSE) {
            return;
        }
        removal.fruitless_at = None;
        let mut fruitless = 0;
        let until = self.part(REMOVE_UNTIL_PERCENT).saturating_add(coming);
        for _ in 0..MAX_BATCHES {
            let Some(excess) = self.account.total().checked_sub(until) else { break };
            let Some(table) = self.most_over_its_share() else { break };
            let Evicted { items, freed_bytes } = table.evict(EVICTED_TOGETHER, excess + 1);
            removal.note_removed(table.name(), items, self.max_bytes.unwrap_or(0));
            fruitless = if freed_bytes > 0 { 0 } else { fruitless + items };
            if items == 0 || fruitless >= MAX_FRUITLESS_ITEMS {
                break;
            }
        }
        if self.is_above(REMOVE_FROM_PERCENT) {
            removal.fruitless_at = Some(Instant::now());
        }
    }

    /// Ends streams that hold most of the memory for later items, before tables evict items.
    fn end_flooding_streams(&self, streams: &[(Arc<HoldingStream>, u64)]) {
        let allowed = self.part(STREAMS_PERCENT);
        let held: u64 = streams.iter().map(|(_, bytes)| bytes).sum();
        if held > allowed {
            self.end_streams(streams, held - allowed);
        }
    }

    /// Ends streams until there is room, if nothing more can be evicted. Below the limit, streams
    /// only wait, as for a table: memory is freed when items are sampled or read.
    fn end_streams_if_full(&self, streams: &[(Arc<HoldingStream>, u64)]) {
        if self.is_above(100) {
            let excess = self.account.total().saturating_sub(self.part(PAUSE_FROM_PERCENT));
            self.end_streams(streams, excess);
        }
    }

    /// Ends streams in this order until they would free `excess` bytes.
    fn end_streams(&self, streams: &[(Arc<HoldingStream>, u64)], mut excess: u64) {
        // Streams that are already ending will free their bytes soon.
        for (_, bytes) in streams.iter().filter(|(stream, _)| stream.is_ended()) {
            excess = excess.saturating_sub(*bytes);
        }
        for (stream, bytes) in streams.iter().filter(|(stream, _)| !stream.is_ended()) {
            if excess == 0 || *bytes == 0 {
                return;
            }
            stream.end();
            excess = excess.saturating_sub(*bytes);
            self.note_ended(stream, *bytes);
        }
    }

    /// The table that exceeds its share the most and may evict items. A share is the table's
    /// `max_bytes`, or an equal part of the memory that such tables leave.
    fn most_over_its_share(&self) -> Option<&Arc<Table>> {
        let own = |table: &Arc<Table>| table.config().memory.max_bytes;
        let part = self.equal_part();
        let candidates = self.tables.iter().enumerate().filter_map(|(index, table)| {
            // What has left for the disk, or still can, does not fill the memory.
            let on_disk = self
                .tier
                .as_ref()
                .map_or(0, |tier| table.payload_bytes().saturating_sub(tier.kept_bytes(index)));
            let bytes = table.bytes().saturating_sub(on_disk);
            let may_remove = table.config().memory.when_full == WhenFull::Remove
                && bytes > 0
                && table.has_evictable();
            // Below the limit, all shares shrink in proportion.
            let share = own(table).unwrap_or(part) / 100 * REMOVE_UNTIL_PERCENT;
            may_remove.then(|| (i128::from(bytes) - i128::from(share), table))
        });
        candidates.max_by_key(|(excess, _)| *excess).map(|(_, table)| table)
    }

    /// An equal part, for each table without `max_bytes`, of the memory that the others leave.
    fn equal_part(&self) -> u64 {
        let own = |table: &Arc<Table>| table.config().memory.max_bytes;
        let taken: u64 = self.tables.iter().filter_map(own).sum();
        let others = self.tables.iter().filter(|table| own(table).is_none()).count() as u64;
        let rest = self.max_bytes.unwrap_or(0).saturating_sub(taken);
        rest.checked_div(others).unwrap_or(0)
    }

    /// Bytes of the limit that a table of `bytes` can fill beside what is there now, with those of
    /// the store's disk; `None` without a limit.
    pub(crate) fn room_for(&self, bytes: u64) -> Option<u64> {
        let others = self.account.total().saturating_sub(bytes);
        let room = self.max_bytes?.saturating_sub(others).max(self.equal_part());
        let on_disk = self.tier.as_ref().map_or(0, |tier| tier.max_bytes());
        Some(room.saturating_add(on_disk))
    }

    /// True if inserts have to wait: for memory, or for room in the files of a journal.
    pub(crate) fn is_full(&self) -> bool {
        self.is_above(PAUSE_FROM_PERCENT) || self.tier.as_ref().is_some_and(|tier| tier.is_full())
    }

    /// What inserts wait for while memory is full.
    pub(crate) fn what_makes_room(&self, shows_paths: bool) -> FullServer {
        let of_disk = self.tier.as_ref().and_then(|tier| tier.what_makes_room(self, shows_paths));
        of_disk.unwrap_or_else(|| FullServer::Items {
            total: self.account.total(),
            limit: self.max_bytes.unwrap_or(0),
        })
    }

    /// Waits while memory is full, and evicts items.
    pub(crate) async fn wait_for_room(&self) {
        self.wait_while(Self::is_full).await;
    }

    /// Waits while no memory is left at all, as rollouts do.
    pub(crate) async fn wait_for_any_room(&self) {
        self.wait_while(|memory| memory.is_above(100)).await;
    }

    async fn wait_while(&self, is_full: impl Fn(&Self) -> bool) {
        while is_full(self) {
            self.make_room();
            if is_full(self) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// Refuses a new insert stream while memory is full.
    ///
    /// # Errors
    ///
    /// `Unavailable`, so that clients retry: the stream itself is not at fault.
    pub(crate) fn check_new_stream(&self) -> Result<()> {
        if self.is_above(100) {
            self.make_room();
        }
        if self.is_above(100) {
            Err(self.used_up("A new insert stream is refused"))
        } else {
            Ok(())
        }
    }

    /// Error of a stream that was ended to free memory.
    pub(crate) fn ended(&self) -> Error {
        self.used_up(
            "This insert stream was ended because it held the most chunks that no item refers to",
        )
    }

    fn used_up(&self, what: &str) -> Error {
        Error::unavailable(format!(
            "{what}: the memory of the server is used up ({} of {} bytes, max_bytes). Sample from \
             tables that wait when they are full, send fewer chunks before the items that need them, \
             or raise max_bytes.",
            grouped(self.account.total() as usize),
            grouped(self.max_bytes.unwrap_or(0) as usize),
        ))
        .over_limit("max_bytes")
    }

    /// Use of the memory. Visits all held and queued chunks.
    pub(crate) fn status(&self) -> MemoryStatus {
        let tables = &self.tables;
        let total = self.account.total();
        let in_tables = tables.iter().map(|table| table.bytes()).sum::<u64>().min(total);
        let mut seen = HashSet::new();
        let mut queued = 0;
        for table in tables {
            for trajectory in table.queued_trajectories() {
                let chunks = trajectory.chunks().iter();
                let new = chunks.filter(|chunk| ServerAccount::is_in_no_table(chunk));
                let new = new.filter(|chunk| seen.insert(chunk.identity()));
                queued += new.map(Chunk::bytes).sum::<u64>();
            }
        }
        let mut streams = self.account.partial_bytes();
        self.streams.for_each_in_no_table(|chunk| {
            if seen.insert(chunk.identity()) {
                streams += chunk.bytes();
            }
        });
        // Payloads that were forgotten are in tables, but not in memory.
        let in_tables = match self.tier {
            Some(_) => in_tables.min(total.saturating_sub(queued + streams)),
            None => in_tables,
        };
        let queued = queued.min(total - in_tables);
        let streams = streams.min(total - in_tables - queued);
        let other = total - in_tables - queued - streams;
        let readers = self.outgoing.bytes() as u64;
        MemoryStatus {
            total: number(total + readers),
            limit: from_max_bytes(self.max_bytes),
            tables: number(in_tables),
            queued: number(queued),
            streams: number(streams),
            other: number(other),
            readers: number(readers),
        }
    }

    /// Bytes of payloads of disk chunks that are in memory: what the tables have beside the rest of
    /// their bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let (mut payloads, mut rest) = (0, 0);
        for table in &self.tables {
            let bytes = table.payload_bytes();
            payloads += bytes;
            rest += table.bytes().saturating_sub(bytes);
        }
        self.account.total().saturating_sub(rest).min(payloads)
    }

    /// What is told of a journal that is behind, to a reader who may know paths or not.
    pub(crate) fn journal_facts(&self, shows_paths: bool) -> JournalFacts {
        let tier = self.tier.as_ref().filter(|_| self.lag() > Duration::ZERO);
        tier.map_or_else(JournalFacts::default, |tier| tier.journal_facts(shows_paths))
    }

    /// Age of the oldest change of the tables that is not in their journal.
    pub(crate) fn lag(&self) -> Duration {
        let oldest = self.tables.iter().filter_map(|table| table.unsynced().since).min();
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn note_ended(&self, stream: &HoldingStream, bytes: u64) {
        tracing::warn!(
            peer = stream.peer.trim_start_matches("client "),
            held = byte_size::describe(bytes),
            "ended an insert stream that held chunks for later items: the memory of the server is \
             used up (max_bytes {})",
            byte_size::describe(self.max_bytes.unwrap_or(0)),
        );
    }

    /// A percentage of the limit, in bytes.
    fn part(&self, percent: u64) -> u64 {
        self.max_bytes.map_or(u64::MAX, |bytes| bytes / 100 * percent)
    }

    pub(crate) fn is_above(&self, percent: u64) -> bool {
        self.is_above_without(percent, 0)
    }

    /// Like `is_above`, without bytes that will be freed anyway.
    pub(crate) fn is_above_without(&self, percent: u64, coming: u64) -> bool {
        let Some(max_bytes) = self.max_bytes else { return false };
        let total = self.account.total().saturating_sub(coming);
        u128::from(total) * 100 >= u128::from(max_bytes) * u128::from(percent)
    }
}

impl Removal {
    fn note_given_up(&mut self, table: &str, max_bytes: u64) {
        if let Some(items) = self.given_up.count((), 1, SystemTime::now()) {
            tracing::warn!(
                table,
                items,
                "gave up the rollouts of unfinished items: the memory of the server is full of them \
                 (max_bytes {}), and none is ready. Lower ahead or max_items, or raise max_bytes; \
                 logged once an hour",
                byte_size::describe(max_bytes),
            );
        }
    }

    fn note_removed(&mut self, table: &str, items: usize, max_bytes: u64) {
        if let Some(items) = self.removed.count((), items as u64, SystemTime::now()) {
            tracing::info!(
                table,
                items,
                "removed items, the last ones from this table: the memory of the server is used up \
                 (max_bytes {}); logged once an hour",
                byte_size::describe(max_bytes),
            );
        }
    }
}

/// Pauses reading of an insert stream while memory is full; one that has carried rollouts alone, or
/// nothing, while no more memory is left at all.
#[derive(Debug)]
pub(crate) struct InsertGate {
    pub(crate) memory: Arc<Memory>,
    pub(crate) stream: Arc<HoldingStream>,
    /// The stream in the list of open streams, if it is listed.
    pub(crate) listed: Option<Arc<Stream>>,
}

impl Gate for InsertGate {
    fn is_open(&self, _partial_bytes: usize) -> Result<bool> {
        if self.memory.is_full() {
            self.memory.make_room();
        }
        // Without their rollouts, the items that are there would never be ready and leave.
        let may_grow = self.memory.has_rollouts && !self.stream.has_inserts();
        let is_full = self.memory.is_full() && (!may_grow || self.memory.is_above(100));
        // A writer that has sent nothing does not wait. What it has sent stays unread while this
        // gate is closed, so a wait lasts until memory has room.
        if let Some(stream) = &self.listed
            && (!is_full || self.stream.has_partial())
        {
            stream.set_memory_wait(is_full);
        }
        Ok(!is_full)
    }

    fn count(&self, bytes: i64) {
        self.stream.count_partial(bytes);
        self.memory.account.add_partial(bytes);
    }
}

/// Refuses large messages of other calls, so that they share a small part of the memory.
#[derive(Debug)]
pub(crate) struct CallGate {
    memory: Arc<Memory>,
    /// Bytes of all calls behind this gate.
    bytes: AtomicI64,
}

impl CallGate {
    pub(crate) fn new(memory: &Arc<Memory>) -> Self {
        Self { memory: Arc::clone(memory), bytes: AtomicI64::new(0) }
    }
}

impl Gate for CallGate {
    fn is_open(&self, partial_bytes: usize) -> Result<bool> {
        let all = u64::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(0);
        if partial_bytes >= MAX_FREE_BYTES && all > self.memory.part(CALLS_PERCENT) {
            return Err(Error::unavailable(format!(
                "A large message is refused: messages that have not arrived yet take more than \
                 {CALLS_PERCENT} % of the memory of the server ({} bytes, max_bytes). Send less at \
                 once, or try again.",
                grouped(self.memory.max_bytes.unwrap_or(0) as usize),
            ))
            .over_limit("max_bytes"));
        }
        Ok(true)
    }

    fn count(&self, bytes: i64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.memory.account.add_partial(bytes);
    }

    fn bounds_unread(&self) -> bool {
        true
    }
}
