// SPDX-License-Identifier: Apache-2.0
//! What is prepared for readers and not sent yet: how much of it there may be.
//!
//! A reader that does not read keeps what was made for it in memory. So room is taken before
//! something is made, and given back when it has left for the network. Without room nothing more is
//! made; but each stream has a *pass* for one small message at a time, so that no stream has to
//! wait until the reader of another one reads.
//!
//! ```text
//! server ── all connections: streams and answers
//!   └─ connection ── its streams, its answers; one long list without room
//!        └─ stream ── a pass
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that may be prepared for one connection: for its streams, and for the answers of its other
/// calls. They are apart, so that no call waits until a stream is read.
const CONNECTION_BYTES: Bytes<usize> = Bytes { streams: 12 << 20, answers: 4 << 20 };

/// The part of the bytes of all connections that is for answers.
const PART_OF_ANSWERS: usize = 4;

/// What a message may have that is made without room, beside the payload that it shares with a
/// table.
pub const PASS_BYTES: usize = 4 << 10;

/// A list that has to be made at once may take so much without room.
const LONG_LIST_BYTES: usize = 512 << 10;

/// What a call is, as far as its room is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A stream of messages.
    Stream,
    /// A call with one answer.
    Answer,
}

#[derive(Debug, Clone, Copy)]
struct Bytes<T> {
    streams: T,
    answers: T,
}

impl<T> Bytes<T> {
    fn of(&self, kind: Kind) -> &T {
        match kind {
            Kind::Stream => &self.streams,
            Kind::Answer => &self.answers,
        }
    }
}

/// A number of bytes that may be taken.
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

    /// More than there is waits until all of it is free.
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

/// What a server has prepared for all readers.
#[derive(Debug)]
pub struct Outgoing {
    limits: Bytes<Limit>,
    /// What is prepared now, with and without room.
    bytes: AtomicUsize,
}

impl Outgoing {
    /// For a server that may prepare so many bytes.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        let answers = max_bytes / PART_OF_ANSWERS;
        let limits =
            Bytes { streams: Limit::new(max_bytes - answers), answers: Limit::new(answers) };
        Arc::new(Self { limits, bytes: AtomicUsize::new(0) })
    }

    /// What is prepared now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// What is prepared for the readers of one connection.
#[derive(Debug)]
pub(super) struct OutgoingOfConnection {
    all: Arc<Outgoing>,
    limits: Bytes<Limit>,
    long_list: Arc<Semaphore>,
}

impl OutgoingOfConnection {
    pub(super) fn new(all: &Arc<Outgoing>) -> Arc<Self> {
        let Bytes { streams, answers } = CONNECTION_BYTES;
        let limits = Bytes { streams: Limit::new(streams), answers: Limit::new(answers) };
        Arc::new(Self { all: Arc::clone(all), limits, long_list: Arc::new(Semaphore::new(1)) })
    }
}

/// What is prepared for the reader of one stream. Clones belong to the same stream.
#[derive(Debug, Clone)]
pub struct Outbox {
    connection: Arc<OutgoingOfConnection>,
    pass: Arc<Semaphore>,
}

/// Room for something that is prepared, until it is dropped.
#[derive(Debug)]
pub struct Room {
    all: Arc<Outgoing>,
    /// What was taken of the limits of the connection and of the server; or the pass, or the right
    /// to a long list.
    taken: [Option<OwnedSemaphorePermit>; 2],
    is_pass: bool,
    /// What is counted as prepared.
    bytes: usize,
}

impl Outbox {
    pub(super) fn new(connection: &Arc<OutgoingOfConnection>) -> Self {
        Self { connection: Arc::clone(connection), pass: Arc::new(Semaphore::new(1)) }
    }

    /// Room for `bytes`, if there is any now.
    pub fn try_room(&self, kind: Kind, bytes: usize) -> Option<Room> {
        let own = self.connection.limits.of(kind).try_take(bytes)?;
        let shared = self.connection.all.limits.of(kind).try_take(bytes)?;
        Some(self.taken([Some(own), Some(shared)], false))
    }

    /// Room for `bytes`. Waits until there is some. Cancel safe.
    pub async fn room(&self, kind: Kind, bytes: usize) -> Room {
        if let Some(room) = self.try_room(kind, bytes) {
            return room;
        }
        let own = self.connection.limits.of(kind).take(bytes).await;
        let shared = self.connection.all.limits.of(kind).take(bytes).await;
        self.taken([Some(own), Some(shared)], false)
    }

    /// Room for `bytes`, or the pass of this stream: see [`Room::is_pass`]. Waits until there is
    /// one of them. Cancel safe.
    pub async fn room_or_pass(&self, kind: Kind, bytes: usize) -> Room {
        if let Some(room) = self.try_room(kind, bytes) {
            return room;
        }
        tokio::select! {
            biased;
            room = self.room(kind, bytes) => room,
            pass = Arc::clone(&self.pass).acquire_owned() => {
                self.taken([Some(pass.expect("nobody closes the semaphore")), None], true)
            }
        }
    }

    /// Room for a list of `bytes` that has to be made at once: without room, one stream of a
    /// connection may have one nevertheless. Waits. Cancel safe.
    pub async fn room_for_list(&self, bytes: usize) -> Room {
        if let Some(room) = self.try_room(Kind::Stream, bytes) {
            return room;
        }
        tokio::select! {
            biased;
            room = self.room(Kind::Stream, bytes) => room,
            list = Arc::clone(&self.connection.long_list).acquire_owned(),
                if bytes <= LONG_LIST_BYTES =>
            {
                self.taken([Some(list.expect("nobody closes the semaphore")), None], false)
            }
        }
    }

    fn taken(&self, taken: [Option<OwnedSemaphorePermit>; 2], is_pass: bool) -> Room {
        Room { all: Arc::clone(&self.connection.all), taken, is_pass, bytes: 0 }
    }
}

impl Room {
    /// Whether there is no room, and this is the pass of the stream.
    pub fn is_pass(&self) -> bool {
        self.is_pass
    }

    /// Counts `bytes` as prepared, and gives back what was taken beyond them.
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
        let mut room = outbox.try_room(Kind::Stream, 12 * MIB).unwrap();
        assert!(outbox.try_room(Kind::Stream, 1).is_none());
        assert!(outbox.try_room(Kind::Answer, 1).is_some(), "answers do not wait for streams");
        room.use_for(2 * MIB);
        assert_eq!(all.bytes(), 2 * MIB);
        let rest = outbox.try_room(Kind::Stream, 10 * MIB).unwrap();
        drop((room, rest));
        assert_eq!(all.bytes(), 0);
        assert!(outbox.try_room(Kind::Stream, 12 * MIB).is_some());
    }

    #[tokio::test]
    async fn more_than_there_is_waits_for_all_of_it() {
        let outbox = outbox(&Outgoing::new(64 * MIB));
        let little = outbox.try_room(Kind::Stream, 1).unwrap();
        assert!(outbox.try_room(Kind::Stream, 100 * MIB).is_none());
        drop(little);
        let _all = outbox.room(Kind::Stream, 100 * MIB).await;
        assert!(outbox.try_room(Kind::Stream, 1).is_none());
    }

    #[tokio::test]
    async fn without_room_each_stream_has_one_pass_and_a_connection_one_list() {
        let all = Outgoing::new(64 * MIB);
        let connection = OutgoingOfConnection::new(&all);
        let (one, other) = (Outbox::new(&connection), Outbox::new(&connection));
        let room = one.room_or_pass(Kind::Stream, 12 * MIB).await;
        assert!(!room.is_pass());
        let mut pass = one.room_or_pass(Kind::Stream, 10).await;
        pass.use_for(10);
        let others = other.room_or_pass(Kind::Stream, 10).await;
        assert!(pass.is_pass() && others.is_pass());
        let list = other.room_for_list(1000).await;
        assert_eq!(all.bytes(), 10);
        let brief = std::time::Duration::from_millis(5);
        let second = one.room_or_pass(Kind::Stream, 10);
        assert!(tokio::time::timeout(brief, second).await.is_err(), "there is one pass");
        let second = one.room_for_list(10);
        assert!(tokio::time::timeout(brief, second).await.is_err(), "there is one list");
        drop(pass);
        assert!(one.room_or_pass(Kind::Stream, 10).await.is_pass());
        drop(list);
        let _list = one.room_for_list(10).await;
        drop(room);
        assert!(!one.room_or_pass(Kind::Stream, 10).await.is_pass());
    }

    #[tokio::test]
    async fn all_connections_share_the_room_of_the_server() {
        let all = Outgoing::new(16 * MIB);
        let (one, other) = (outbox(&all), outbox(&all));
        let room = one.try_room(Kind::Stream, 12 * MIB).unwrap();
        assert!(other.try_room(Kind::Stream, 1).is_none());
        assert!(other.room_or_pass(Kind::Stream, 1).await.is_pass());
        drop(room);
        assert!(other.try_room(Kind::Stream, 12 * MIB).is_some());
    }
}
