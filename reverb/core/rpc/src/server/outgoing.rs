// SPDX-License-Identifier: Apache-2.0
//! Memory for answers that are prepared and not sent yet.
//!
//! A reader that does not read keeps its prepared messages in memory. So room is taken before a
//! message is made, and given back when it has left for the network. Without room no message is
//! made, with one exception: each stream has a *pass* for one small message at a time, so that no
//! stream is blocked by the reader of another one. For items that are large without their chunks
//! there is one pass a connection.
//!
//! ```text
//! server ── all connections: messages of streams, lists, answers
//!   └─ connection ── its messages, lists and answers; a long list and a large item without room
//!        └─ stream ── a pass
//! ```
//!
//! A stream waits for room for a message while it has room for a list. So the two are separate:
//! messages leave when they are read, whatever lists wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room of one connection in bytes. Answers have their own, so that no call waits until a stream is
/// read.
const CONNECTION_BYTES: Bytes<usize> =
    Bytes { messages: 12 << 20, lists: 10 << 20, answers: 4 << 20 };

/// Lists get one in this many of the bytes of all connections, and so do answers.
const PART_OF_OTHERS: usize = 4;

/// Maximum size of a message that is made without room, apart from the payload that it shares with
/// a table.
pub const PASS_BYTES: usize = 4 << 10;

/// Number of streams of a connection that may have a payload without room, read from a disk.
const MAX_READING: usize = 16;

/// Maximum size of a list that is made at once without room.
const LONG_LIST_BYTES: usize = 512 << 10;

/// Purpose of prepared memory, which decides the room that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A message of a stream.
    Message,
    /// A list of items from which messages are made.
    List,
    /// The answer of a call without a stream.
    Answer,
}

#[derive(Debug, Clone, Copy)]
struct Bytes<T> {
    messages: T,
    lists: T,
    answers: T,
}

impl<T> Bytes<T> {
    fn of(&self, content: Content) -> &T {
        match content {
            Content::Message => &self.messages,
            Content::List => &self.lists,
            Content::Answer => &self.answers,
        }
    }
}

impl Bytes<usize> {
    fn limits(self) -> Bytes<Limit> {
        let Self { messages, lists, answers } = self;
        let [messages, lists, answers] = [messages, lists, answers].map(Limit::new);
        Bytes { messages, lists, answers }
    }
}

#[derive(Debug)]
struct Limit {
    free: Arc<Semaphore>,
    bytes: u32,
}

impl Limit {
    fn new(bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        Self { free: Arc::new(Semaphore::new(bytes as usize)), bytes }
    }

    /// Permits to take. A request larger than the limit takes the whole limit.
    fn part(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes)
    }

    fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_many_owned(self.part(bytes)).ok()
    }

    async fn take(&self, bytes: usize) -> OwnedSemaphorePermit {
        let taken = Arc::clone(&self.free).acquire_many_owned(self.part(bytes)).await;
        taken.expect("nobody closes the semaphore")
    }
}

/// Memory prepared for all readers of a server.
#[derive(Debug)]
pub struct Outgoing {
    limits: Bytes<Limit>,
    /// Bytes prepared now, with and without room.
    bytes: AtomicUsize,
}

impl Outgoing {
    /// Limits of a server that may prepare `max_bytes`.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        let other = max_bytes / PART_OF_OTHERS;
        let limits = Bytes { messages: max_bytes - 2 * other, lists: other, answers: other };
        Arc::new(Self { limits: limits.limits(), bytes: AtomicUsize::new(0) })
    }

    /// Bytes prepared now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Memory prepared for the readers of one connection.
#[derive(Debug)]
pub(super) struct OutgoingOfConnection {
    all: Arc<Outgoing>,
    limits: Bytes<Limit>,
    long_list: Arc<Semaphore>,
    large_item: Arc<Semaphore>,
    reading: Arc<Semaphore>,
}

impl OutgoingOfConnection {
    pub(super) fn new(all: &Arc<Outgoing>) -> Arc<Self> {
        let [long_list, large_item, reading] =
            [1, 1, MAX_READING].map(|most| Arc::new(Semaphore::new(most)));
        let all = Arc::clone(all);
        let limits = CONNECTION_BYTES.limits();
        Arc::new(Self { all, limits, long_list, large_item, reading })
    }
}

/// Memory prepared for the reader of one stream. Clones belong to the same stream.
#[derive(Debug, Clone)]
pub struct Outbox {
    connection: Arc<OutgoingOfConnection>,
    pass: Arc<Semaphore>,
}

/// Room for a prepared message. Dropping it gives the room back.
#[derive(Debug)]
pub struct Room {
    all: Arc<Outgoing>,
    /// Permits of the connection and of the server; or the pass, or the permit for a long list.
    taken: [Option<OwnedSemaphorePermit>; 2],
    held: Option<OwnedSemaphorePermit>,
    is_pass: bool,
    bytes: usize,
}

impl Outbox {
    pub(super) fn new(connection: &Arc<OutgoingOfConnection>) -> Self {
        Self { connection: Arc::clone(connection), pass: Arc::new(Semaphore::new(1)) }
    }

    /// Room for `bytes`, if it is free now.
    pub fn try_room(&self, content: Content, bytes: usize) -> Option<Room> {
        let own = self.connection.limits.of(content).try_take(bytes)?;
        let shared = self.connection.all.limits.of(content).try_take(bytes)?;
        Some(self.taken([Some(own), Some(shared)], false))
    }

    /// Room for `bytes`. Waits until it is free. Cancel safe.
    pub async fn room(&self, content: Content, bytes: usize) -> Room {
        if let Some(room) = self.try_room(content, bytes) {
            return room;
        }
        let own = self.connection.limits.of(content).take(bytes).await;
        let shared = self.connection.all.limits.of(content).take(bytes).await;
        self.taken([Some(own), Some(shared)], false)
    }

    /// Room for `bytes`, or the pass of this stream: see [`Room::is_pass`]. Waits until one of them
    /// is free. Cancel safe.
    pub async fn room_or_pass(&self, content: Content, bytes: usize) -> Room {
        if let Some(room) = self.try_room(content, bytes) {
            return room;
        }
        tokio::select! {
            biased;
            room = self.room(content, bytes) => room,
            pass = Arc::clone(&self.pass).acquire_owned() => {
                self.taken([Some(pass.expect("nobody closes the semaphore")), None], true)
            }
        }
    }

    /// Room for a message of `bytes`, or the pass of the connection for one large item at a time.
    /// Waits until one of them is free. Cancel safe.
    pub async fn room_or_large_pass(&self, bytes: usize) -> Room {
        if let Some(room) = self.try_room(Content::Message, bytes) {
            return room;
        }
        tokio::select! {
            biased;
            room = self.room(Content::Message, bytes) => room,
            pass = Arc::clone(&self.connection.large_item).acquire_owned() => {
                self.taken([Some(pass.expect("nobody closes the semaphore")), None], true)
            }
        }
    }

    /// Room for a list of `bytes` that has to be made at once. If none is free, one stream of a
    /// connection gets a permit anyway. Waits. Cancel safe.
    pub async fn room_for_list(&self, bytes: usize) -> Room {
        if let Some(room) = self.try_room(Content::List, bytes) {
            return room;
        }
        tokio::select! {
            biased;
            room = self.room(Content::List, bytes) => room,
            list = Arc::clone(&self.connection.long_list).acquire_owned(),
                if bytes <= LONG_LIST_BYTES =>
            {
                self.taken([Some(list.expect("nobody closes the semaphore")), None], false)
            }
        }
    }

    /// Permit for a message without room whose payload was read from a disk, so that it is shared
    /// with no table. Waits until fewer than 16 streams of the connection have one. Cancel safe.
    pub async fn permit_to_read(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.connection.reading).acquire_owned().await;
        permit.expect("nobody closes the semaphore")
    }

    fn taken(&self, taken: [Option<OwnedSemaphorePermit>; 2], is_pass: bool) -> Room {
        Room { all: Arc::clone(&self.connection.all), taken, held: None, is_pass, bytes: 0 }
    }
}

impl Room {
    /// Returns true if this is the pass of the stream, and not room.
    pub fn is_pass(&self) -> bool {
        self.is_pass
    }

    /// Keeps a permit as long as the room.
    pub fn hold(&mut self, permit: OwnedSemaphorePermit) {
        self.held = Some(permit);
    }

    /// Counts `bytes` as prepared, and gives back the room beyond them.
    pub fn use_for(&mut self, bytes: usize) {
        for permit in self.taken.iter_mut().flatten() {
            let more = permit.num_permits().saturating_sub(bytes.max(1));
            drop(permit.split(more));
        }
        self.count(bytes);
    }

    fn count(&mut self, bytes: usize) {
        self.all.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.count(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn outbox(all: &Arc<Outgoing>) -> Outbox {
        Outbox::new(&OutgoingOfConnection::new(all))
    }

    #[tokio::test]
    async fn room_is_given_back_when_it_is_dropped() {
        let all = Outgoing::new(64 * MIB);
        let outbox = outbox(&all);
        let mut room = outbox.try_room(Content::Message, 12 * MIB).unwrap();
        assert!(outbox.try_room(Content::Message, 1).is_none());
        assert!(outbox.try_room(Content::Answer, 1).is_some(), "answers do not wait for streams");
        room.use_for(2 * MIB);
        assert_eq!(all.bytes(), 2 * MIB);
        let rest = outbox.try_room(Content::Message, 10 * MIB).unwrap();
        drop((room, rest));
        assert_eq!(all.bytes(), 0);
        assert!(outbox.try_room(Content::Message, 12 * MIB).is_some());
    }

    #[tokio::test]
    async fn more_than_there_is_waits_for_all_of_it() {
        let outbox = outbox(&Outgoing::new(64 * MIB));
        let little = outbox.try_room(Content::Message, 1).unwrap();
        assert!(outbox.try_room(Content::Message, 100 * MIB).is_none());
        drop(little);
        let _all = outbox.room(Content::Message, 100 * MIB).await;
        assert!(outbox.try_room(Content::Message, 1).is_none());
    }

    #[tokio::test]
    async fn without_room_each_stream_has_one_pass_and_a_connection_one_list() {
        let all = Outgoing::new(64 * MIB);
        let connection = OutgoingOfConnection::new(&all);
        let one = Outbox::new(&connection);
        let other = Outbox::new(&connection);
        let room = one.room_or_pass(Content::Message, 12 * MIB).await;
        assert!(!room.is_pass());
        let mut pass = one.room_or_pass(Content::Message, 10).await;
        pass.use_for(10);
        let others = other.room_or_pass(Content::Message, 10).await;
        assert!(pass.is_pass() && others.is_pass());
        assert_eq!(all.bytes(), 10);
        let lists = one.room_for_list(10 * MIB).await;
        let list = other.room_for_list(1000).await;
        let brief = std::time::Duration::from_millis(5);
        let second = one.room_or_pass(Content::Message, 10);
        assert!(tokio::time::timeout(brief, second).await.is_err(), "there is one pass");
        let second = one.room_for_list(10);
        assert!(tokio::time::timeout(brief, second).await.is_err(), "there is one list");
        drop(pass);
        assert!(one.room_or_pass(Content::Message, 10).await.is_pass());
        drop(list);
        let _list = one.room_for_list(10).await;
        drop(room);
        assert!(!one.room_or_pass(Content::Message, 10).await.is_pass());
        drop(lists);
    }

    #[tokio::test]
    async fn one_large_item_of_a_connection_passes_without_room() {
        let connection = OutgoingOfConnection::new(&Outgoing::new(64 * MIB));
        let one = Outbox::new(&connection);
        let other = Outbox::new(&connection);
        let room = one.room(Content::Message, 12 * MIB).await;
        let large = one.room_or_large_pass(MIB).await;
        assert!(large.is_pass() && one.room_or_pass(Content::Message, 10).await.is_pass());
        let brief = std::time::Duration::from_millis(5);
        assert!(tokio::time::timeout(brief, other.room_or_large_pass(MIB)).await.is_err());
        drop(large);
        assert!(other.room_or_large_pass(MIB).await.is_pass());
        drop(room);
        assert!(!other.room_or_large_pass(MIB).await.is_pass());
    }

    #[tokio::test]
    async fn messages_get_room_whatever_lists_have() {
        let outbox = outbox(&Outgoing::new(64 * MIB));
        let _lists = outbox.room_for_list(100 * MIB).await;
        assert!(outbox.try_room(Content::List, 1).is_none());
        assert!(!outbox.room(Content::Message, 12 * MIB).await.is_pass());
    }

    #[tokio::test]
    async fn all_connections_share_the_room_of_the_server() {
        let all = Outgoing::new(16 * MIB);
        let one = outbox(&all);
        let other = outbox(&all);
        let room = one.try_room(Content::Message, 12 * MIB).unwrap();
        assert!(other.try_room(Content::Message, 1).is_none());
        assert!(other.room_or_pass(Content::Message, 1).await.is_pass());
        drop(room);
        assert!(other.try_room(Content::Message, 12 * MIB).is_some());
    }
}
