// SPDX-License-Identifier: Apache-2.0
//! Accounts: bytes taken by the chunks and items of a server and of a table.
//!
//! A chunk is charged to a server when the server first sees it, and discharged when its last
//! reference goes, whoever held it. In addition, the first table that has an item with the chunk
//! becomes its *owner table*: the chunk itself counts how many items of that table refer to it.
//! Another table, a *secondary* one, counts the chunk in a map of its own. So a table counts every
//! chunk once, in the common case without a map.
//!
//! A disk chunk is charged without its payload. The plain chunk that it holds is charged to the
//! same server by its own header, and discharged when its last reference goes: when the payload is
//! forgotten, or a reader that has it ends, or the disk chunk is freed. So the order in which one
//! thread forgets payloads and others change tables does not matter: no sum depends on where a
//! payload is. Whoever charges a payload holds a reference to it, so it cannot be freed meanwhile;
//! one that is charged after it was forgotten is discharged with that reference. A table counts
//! payloads apart, wherever they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU16, AtomicU32};

use crate::chunk::Chunk;
use crate::disk::payload::DiskPayload;
use crate::trajectory::Trajectory;

/// Bookkeeping of a chunk: its owner and references. It is part of the chunk's header.
#[derive(Debug, Default)]
pub(crate) struct Booking {
    /// Number of items of its owner table that refer to the chunk. Changes only under the lock of
    /// that table.
    references: AtomicU32,
    /// Owner: a server, or a table, which knows its server; 0 for none.
    owner: AtomicU16,
    /// Chunk flags; stored here because padding would cost 8 bytes.
    pub(crate) of_chunk: u16,
}

impl Booking {
    pub(crate) fn new(of_chunk: u16) -> Self {
        Self { of_chunk, ..Self::default() }
    }

    pub(crate) fn is_charged(&self) -> bool {
        self.owner.load(Relaxed) != 0
    }

    /// Changes the owner, unless another thread did; returns false then.
    fn change_owner(&self, from: u16, to: u16, chunk: &Chunk) -> bool {
        if chunk.is_referred_to_once() {
            // Nobody else can find the chunk, or change its owner.
            let is_unchanged = self.owner.load(Relaxed) == from;
            if is_unchanged {
                self.owner.store(to, Release);
            }
            return is_unchanged;
        }
        self.owner.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    /// Discharges a chunk that is freed.
    pub(crate) fn discharge(&self, bytes: u64) {
        discharge(self.owner.load(Acquire), bytes);
    }
}

/// Frees trajectories. Their server's account gets the bytes of all chunks that this frees at once.
pub fn free_all(trajectories: Vec<Trajectory>) {
    let mut server = 0;
    let mut bytes = 0;
    for chunk in trajectories.iter().filter_map(Trajectory::only_chunk) {
        if !chunk.is_referred_to_once() {
            continue;
        }
        // Nobody else can find the chunk, or change its owner.
        let booking = chunk.booking();
        let owner = booking.owner.load(Relaxed);
        if owner != 0 {
            if owner != server {
                discharge(server, bytes);
                (server, bytes) = (owner, 0);
            }
            bytes += chunk.own_bytes();
            booking.owner.store(0, Relaxed);
        }
    }
    discharge(server, bytes);
    drop(trajectories);
}

fn discharge(owner: u16, bytes: u64) {
    if bytes > 0 {
        server_of(owner).bytes.fetch_sub(bytes as i64, Release);
    }
}

/// The account of a server. Cloning shares it.
#[derive(Debug, Clone)]
pub struct ServerAccount(Arc<OwnerId>);

impl Default for ServerAccount {
    fn default() -> Self {
        Self::open()
    }
}

impl ServerAccount {
    /// An empty account.
    pub fn open() -> Self {
        Self(Arc::new(OwnerId::take(0)))
    }

    /// Bytes of all chunks that the server has seen and that still exist, and of all items.
    pub fn total(&self) -> u64 {
        u64::try_from(self.0.owner().bytes.load(Acquire)).unwrap_or(0)
    }

    /// Counts a chunk, unless it is counted already. A chunk of another server that is in no table
    /// moves here: its writer has changed the server.
    pub fn charge(&self, chunk: &Chunk) {
        let booking = chunk.booking();
        let before = booking.owner.load(Acquire);
        if before == self.0.0 || is_table(before) {
            return;
        }
        self.charge_payload(chunk);
        // The bytes come before the owner, so that an account without bytes owns no chunk.
        let bytes = chunk.own_bytes() as i64;
        self.add(bytes);
        let taken = booking.owner.compare_exchange(before, self.0.0, AcqRel, Relaxed);
        let not_ours = if taken.is_ok() { before } else { self.0.0 };
        if not_ours != 0 {
            OWNERS[usize::from(not_ours)].bytes.fetch_sub(bytes, Release);
        }
    }

    /// Counts the payload of a disk chunk, if it is in memory.
    fn charge_payload(&self, chunk: &Chunk) {
        if let Some(plain) = chunk.disk().and_then(DiskPayload::resident) {
            self.charge(&plain);
        }
    }

    /// Bytes of incomplete messages.
    pub fn partial_bytes(&self) -> u64 {
        u64::try_from(self.0.owner().partial.load(Relaxed)).unwrap_or(0)
    }

    /// Adds bytes of an incomplete message; a negative number subtracts.
    pub fn add_partial(&self, bytes: i64) {
        self.0.owner().partial.fetch_add(bytes, Relaxed);
        self.add(bytes);
    }

    /// Adds bytes that belong to no chunk; a negative number subtracts.
    pub fn add(&self, bytes: i64) {
        self.0.owner().bytes.fetch_add(bytes, Release);
    }

    /// Returns true if no table has an item with the chunk. Only its owner table is asked.
    pub fn is_in_no_table(chunk: &Chunk) -> bool {
        !is_table(chunk.booking().owner.load(Relaxed))
    }
}

/// The account of a table's contents; a reset opens a new one.
#[derive(Debug)]
pub struct TableAccount {
    id: OwnerId,
    server: ServerAccount,
    /// Bytes of its chunks, of disk chunks without payloads.
    chunk_bytes: u64,
    /// Part of `chunk_bytes` that no table is charged with, so that a table that is full has room
    /// for the same items after a load.
    heads_bytes: u64,
    payload_bytes: u64,
    item_bytes: u64,
    num_chunks: u64,
    /// Chunks that another table owns, by identity.
    secondary: HashMap<usize, SecondaryChunk>,
    /// Changes that the server's account has not received yet.
    unbooked: i64,
}

/// A chunk that another table owns.
#[derive(Debug)]
struct SecondaryChunk {
    references: u32,
    /// Without the payload of a disk chunk.
    bytes: u64,
}

/// Bytes of a secondary chunk in the map, at a load of about two thirds.
const SECONDARY_BYTES: u64 = 40;

impl TableAccount {
    /// An empty account.
    pub fn open(server: &ServerAccount) -> Self {
        Self {
            id: OwnerId::take(server.0.0),
            server: server.clone(),
            chunk_bytes: 0,
            heads_bytes: 0,
            payload_bytes: 0,
            item_bytes: 0,
            num_chunks: 0,
            secondary: HashMap::new(),
            unbooked: 0,
        }
    }

    /// The account of its server.
    pub fn server(&self) -> &ServerAccount {
        &self.server
    }

    /// Bytes of its chunks, each counted once, and of its items. Heads that disk chunks share are
    /// counted by the server only.
    pub fn bytes(&self) -> u64 {
        self.chunk_bytes - self.heads_bytes + self.payload_bytes + self.item_bytes
    }

    /// Part of `bytes` that may be on disk: payloads of disk chunks.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Part of `bytes` that is used to count chunks of other tables.
    pub fn secondary_bytes(&self) -> u64 {
        self.secondary.len() as u64 * SECONDARY_BYTES
    }

    /// Number of different chunks that its items refer to.
    pub fn num_chunks(&self) -> u64 {
        self.num_chunks
    }

    /// Adds an item that takes `item_bytes` besides its trajectory.
    pub fn add(&mut self, trajectory: &Trajectory, item_bytes: u64) {
        let item_bytes = item_bytes + trajectory.bytes();
        self.item_bytes += item_bytes;
        self.unbooked += item_bytes as i64;
        for chunk in trajectory.chunks() {
            if self.refer(chunk) {
                self.chunk_bytes += chunk.own_bytes();
                self.heads_bytes += chunk.heads_bytes();
                self.payload_bytes += chunk.payload_bytes();
                self.num_chunks += 1;
            }
        }
    }

    /// Removes an item that was added with the same `item_bytes`.
    pub fn remove(&mut self, trajectory: &Trajectory, item_bytes: u64) {
        let item_bytes = item_bytes + trajectory.bytes();
        self.item_bytes -= item_bytes;
        self.unbooked -= item_bytes as i64;
        for chunk in trajectory.chunks() {
            if self.let_go(chunk) {
                self.chunk_bytes -= chunk.own_bytes();
                self.heads_bytes -= chunk.heads_bytes();
                self.payload_bytes -= chunk.payload_bytes();
                self.num_chunks -= 1;
            }
        }
    }

    /// Adds an item's bytes in an index that not all items are in.
    pub fn add_bytes(&mut self, bytes: u64) {
        self.item_bytes += bytes;
        self.unbooked += bytes as i64;
    }

    /// Removes bytes that `add_bytes` added.
    pub fn remove_bytes(&mut self, bytes: u64) {
        self.item_bytes -= bytes;
        self.unbooked -= bytes as i64;
    }

    /// Number by which `add` would raise `bytes`.
    pub fn would_add(&self, trajectory: &Trajectory, item_bytes: u64) -> u64 {
        let new_bytes = |chunk: &Chunk| {
            let owner = chunk.booking().owner.load(Relaxed);
            if owner == self.id.0 || self.secondary.contains_key(&chunk.identity()) {
                return 0;
            }
            let bytes = chunk.bytes() - chunk.heads_bytes();
            bytes + if is_table(owner) { SECONDARY_BYTES } else { 0 }
        };
        let chunks: u64 = trajectory.chunks().iter().map(new_bytes).sum();
        item_bytes + trajectory.bytes() + chunks
    }

    /// Number by which `remove` would lower `bytes`.
    pub fn would_remove(&self, trajectory: &Trajectory, item_bytes: u64) -> u64 {
        let freed = |chunk: &Chunk| {
            let bytes = chunk.bytes() - chunk.heads_bytes();
            match self.secondary.get(&chunk.identity()) {
                Some(counted) if counted.references == 1 => bytes + SECONDARY_BYTES,
                None if chunk.booking().references.load(Relaxed) == 1 => bytes,
                _ => 0,
            }
        };
        let chunks: u64 = trajectory.chunks().iter().map(freed).sum();
        item_bytes + trajectory.bytes() + chunks
    }

    /// Passes the changes since the last call to the server's account.
    pub fn book(&mut self) {
        if self.unbooked != 0 {
            self.server.add(std::mem::take(&mut self.unbooked));
        }
    }

    /// Moves everything to another server's account, except payloads of disk chunks: those belong
    /// to the server that saw them first.
    pub fn move_to(&mut self, server: &ServerAccount) {
        self.book();
        let of_secondary: u64 = self.secondary.values().map(|chunk| chunk.bytes).sum();
        let owned = self.chunk_bytes + self.item_bytes - of_secondary;
        server.add(owned as i64);
        if !self.id.is_none() {
            self.id.owner().server.store(server.0.0, Release);
        }
        self.server.add(-(owned as i64));
        self.server = server.clone();
    }

    /// Adds a reference of an item to the chunk; returns true if it is the first one.
    fn refer(&mut self, chunk: &Chunk) -> bool {
        if !self.secondary.is_empty()
            && let Some(counted) = self.secondary.get_mut(&chunk.identity())
        {
            counted.references += 1;
            return false;
        }
        let booking = chunk.booking();
        let owner = booking.owner.load(Acquire);
        if self.id.is_none() {
            return false;
        }
        if owner == self.id.0 {
            let references = booking.references.load(Relaxed);
            booking.references.store(references + 1, Relaxed);
            return false;
        }
        let is_owner = !is_table(owner) && booking.change_owner(owner, self.id.0, chunk);
        if !is_owner {
            let counted = SecondaryChunk { references: 1, bytes: chunk.own_bytes() };
            self.secondary.insert(chunk.identity(), counted);
            self.item_bytes += SECONDARY_BYTES;
            self.unbooked += SECONDARY_BYTES as i64;
            return true;
        }
        booking.references.store(1, Relaxed);
        let server = self.server.0.0;
        if owner != server {
            let bytes = chunk.own_bytes() as i64;
            self.unbooked += bytes;
            self.server.charge_payload(chunk);
            if owner != 0 {
                OWNERS[usize::from(owner)].bytes.fetch_sub(bytes, Release);
            }
        }
        true
    }

    /// Removes a reference of an item to the chunk; returns true if it was the last one.
    fn let_go(&mut self, chunk: &Chunk) -> bool {
        if !self.secondary.is_empty()
            && let Some(counted) = self.secondary.get_mut(&chunk.identity())
        {
            counted.references -= 1;
            let is_last = counted.references == 0;
            if is_last {
                self.secondary.remove(&chunk.identity());
                self.item_bytes -= SECONDARY_BYTES;
                self.unbooked -= SECONDARY_BYTES as i64;
            }
            return is_last;
        }
        if self.id.is_none() {
            return false;
        }
        let booking = chunk.booking();
        let references = booking.references.load(Relaxed) - 1;
        booking.references.store(references, Relaxed);
        if references == 0 {
            booking.owner.store(self.server.0.0, Release);
        }
        references == 0
    }
}

impl Drop for TableAccount {
    fn drop(&mut self) {
        debug_assert_eq!(self.num_chunks, 0, "chunks must not name a table that is gone");
        self.book();
    }
}

/// Maximum number of servers and tables of this process that are counted at the same time. Further
/// accounts count nothing.
const MAX_OWNERS: usize = 1 << 16;

static OWNERS: [Owner; MAX_OWNERS] = [const { Owner::new() }; MAX_OWNERS];

#[derive(Debug)]
struct Owner {
    /// Total of a server. It may be below 0 for a moment.
    bytes: AtomicI64,
    /// Part of a server's `bytes` in incomplete messages.
    partial: AtomicI64,
    /// Server of a table; 0 for a server.
    server: AtomicU16,
    state: AtomicU8,
}

const FREE: u8 = 0;
const TAKEN: u8 = 1;
/// The server is gone, but chunks that it has seen may still exist.
const CLOSED: u8 = 2;

impl Owner {
    const fn new() -> Self {
        Self {
            bytes: AtomicI64::new(0),
            partial: AtomicI64::new(0),
            server: AtomicU16::new(0),
            state: AtomicU8::new(FREE),
        }
    }

    fn take(&self) -> bool {
        let state = self.state.load(Acquire);
        let is_free = state == FREE || (state == CLOSED && self.bytes.load(Acquire) == 0);
        is_free && self.state.compare_exchange(state, TAKEN, AcqRel, Relaxed).is_ok()
    }
}

fn is_table(owner: u16) -> bool {
    OWNERS[usize::from(owner)].server.load(Relaxed) != 0
}

fn server_of(owner: u16) -> &'static Owner {
    let entry = &OWNERS[usize::from(owner)];
    match entry.server.load(Acquire) {
        0 => entry,
        server => &OWNERS[usize::from(server)],
    }
}

/// Index into `OWNERS`; 0 for none.
#[derive(Debug)]
struct OwnerId(u16);

impl OwnerId {
    fn take(server: u16) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        for _ in 0..MAX_OWNERS {
            // The search continues from the last id, so that a freed one is not reused soon.
            let id = NEXT.fetch_add(1, Relaxed);
            if id != 0 && OWNERS[usize::from(id)].take() {
                OWNERS[usize::from(id)].server.store(server, Release);
                return Self(id);
            }
        }
        Self(0)
    }

    fn is_none(&self) -> bool {
        self.0 == 0
    }

    fn owner(&self) -> &'static Owner {
        &OWNERS[usize::from(self.0)]
    }
}

impl Drop for OwnerId {
    fn drop(&mut self) {
        if self.is_none() {
            return;
        }
        let owner = self.owner();
        let is_table = owner.server.swap(0, AcqRel) != 0;
        owner.state.store(if is_table { FREE } else { CLOSED }, Release);
    }
}

/// Bytes that the allocator takes for `bytes`: it has four sizes for each power of two, as in
/// mimalloc. The end of the largest blocks is never touched.
pub(crate) fn allocated_bytes(bytes: usize) -> usize {
    if bytes <= 64 {
        return bytes.next_multiple_of(if bytes <= 8 { 8 } else { 16 });
    }
    if bytes > 1 << 20 {
        return bytes.next_multiple_of(4096);
    }
    let step = 1 << ((bytes - 1).ilog2() - 2);
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::SequenceRange;
    use crate::trajectory::TrajectoryBuilder;

    #[test]
    fn a_table_moves_without_the_chunks_that_another_counts() {
        let chunk = Chunk::from_slice(1, SequenceRange::default(), false, &[0; 100]);
        let mut item = TrajectoryBuilder::new();
        item.slice(&chunk, 0, 0, 1);
        item.end_column(false);
        let item = item.finish().unwrap();
        let (from, to) = (ServerAccount::open(), ServerAccount::open());
        let [mut first, mut second] = [&from; 2].map(TableAccount::open);
        for table in [&mut first, &mut second] {
            table.add(&item, 8);
            table.book();
        }
        second.move_to(&to);
        assert_eq!((from.total(), to.total()), (first.bytes(), second.bytes() - chunk.bytes()));
        first.remove(&item, 8);
        second.remove(&item, 8);
    }

    #[test]
    fn what_is_counted_is_what_the_allocator_takes() {
        for bytes in (1..=300).chain([1000, 1025, 4000, 5000, 70_000, 100_000]) {
            assert_eq!(allocated_bytes(bytes), reverb_allocator::block_bytes(bytes), "{bytes}");
        }
    }
}
