// SPDX-License-Identifier: Apache-2.0
//! The background task of a writer: encodes items, streams them, collects confirmations,
//! reconnects.
//!
//! Items are sent strictly in order. While a message is in flight, the next items are gathered: a
//! fast writer sends dozens of items per message, and a slow one sends each item at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::Instant;

use reverb_base::Result;
use reverb_data::{KeyGenerator, NewItem};
use reverb_wire::transport::{
    Confirmations, InsertSink, LostStream, NextStream, ShardRoute, WaitHere,
};
use smallvec::SmallVec;

use super::message::Message;
use super::send_queue::SendQueue;
use super::shard_lease::ShardLease;
use super::{MESSAGE_BYTES, MESSAGE_ITEMS};
use crate::retry::Backoff;
use crate::session::Session;
use crate::writer::capture::block::{BlockRef, WeakBlockRef};
use crate::writer::capture::item::PendingItem;
use crate::writer::capture::item_encoder::ItemEncoder;

/// Number of items that are taken from the queue and encoded at a time.
const TAKEN_TOGETHER: usize = 32;

/// The task: connects when there is something to send, and reconnects when the stream is lost.
pub(super) async fn run(queue: Arc<SendQueue>) {
    let session = &*queue.session;
    let mut keys = KeyGenerator::new();
    let mut backoff = Backoff::new(session);
    // Shard of the last stream, in a group.
    let mut shard: Option<ShardRoute> = None;
    while queue.wait_for_work().await {
        let after = queue.after.lock().take();
        if let Some(last) = after {
            tokio::select! {
                () = last.wait() => {}
                () = queue.closing.notified() => return,
            }
        }
        backoff.begin();
        let lost = queue.state.lock().lost.as_ref().map(|lost| (lost.since, lost.error.is_final()));
        let lost = shard.as_ref().zip(lost);
        let lost = lost.map(|(shard, (since, is_final))| LostStream { shard, since, is_final });
        let tables = queue.waiting_tables();
        let error = match session.open_insert(NextStream { tables: &tables, lost }).await {
            Ok((mut stream, is_local)) => {
                backoff.connected();
                queue.is_local.store(is_local, Ordering::Relaxed);
                {
                    let mut state = queue.state.lock();
                    (state.lost, state.server) = (None, stream.server.take());
                }
                let before = std::mem::replace(&mut shard, stream.shard.take());
                if let (Some(before), Some(now)) = (before, &shard)
                    && before.index != now.index
                {
                    queue.redraw_keys(&mut keys, &now.slots);
                }
                let wait_here = stream.sink.wait_here();
                let mut task = SendTask {
                    session,
                    sink: stream.sink,
                    is_local,
                    lease: shard.clone().map(ShardLease::begin),
                    streamed: HashMap::new(),
                    keys: &mut keys,
                    encoder: ItemEncoder::default(),
                    message: Message::default(),
                };
                let confirmations = &mut stream.confirmations;
                let ended = tokio::select! {
                    ended = receive(&queue, confirmations, wait_here, || backoff.answered()) => ended,
                    ended = task.send_all(&queue) => ended,
                    () = queue.closing.notified() => return,
                };
                if is_local {
                    queue.given(&mut task.message);
                }
                // Sending can fail before the server's last confirmations are read. Confirmed items
                // must not be sent again.
                while let Ok(Ok(keys)) = stream.confirmations.try_recv() {
                    queue.confirm(&keys);
                }
                match ended {
                    Ok(Sent::Closed) => return,
                    Ok(Sent::Moves) => continue,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        queue.lose_stream(&error);
        tracing::debug!(peer = session.address(), %error, "an insert stream was lost");
        if let Err(error) = backoff.pause(session, error).await {
            queue.fail(error);
            return;
        }
    }
}

/// Reason why a stream ended without an error.
enum Sent {
    /// The writer is closed.
    Closed,
    /// All items are confirmed, and the next ones go to another shard.
    Moves,
}

async fn receive(
    queue: &SendQueue,
    confirmations: &mut Confirmations,
    wait_here: Option<WaitHere>,
    mut answered: impl FnMut(),
) -> Result<Sent> {
    let mut next = |context: &mut Context<'_>| {
        let received = confirmations.poll_recv(context);
        if let (true, Some(wait_here)) = (received.is_pending(), &wait_here) {
            wait_here();
        }
        received
    };
    while let Some(keys) = poll_fn(&mut next).await {
        queue.confirm(&keys?);
        answered();
    }
    Err(reverb_wire::transport::stream_ended(&queue.state.lock().address))
}

/// The sending side of one stream.
struct SendTask<'k> {
    session: &'k Session,
    sink: Box<dyn InsertSink>,
    /// Local items carry their chunks, so the server holds no chunks for the stream.
    is_local: bool,
    /// The shard of the stream in a group. The keys of items are drawn from its slots.
    lease: Option<ShardLease>,
    /// Chunks that the server holds for this stream, each until its block is freed.
    streamed: HashMap<u64, WeakBlockRef>,
    keys: &'k mut KeyGenerator,
    encoder: ItemEncoder,
    /// The next message. The queue has its items in flight, unless the server is in this process.
    message: Message,
}

impl SendTask<'_> {
    /// Sends until the writer is closed, its items go to another shard, or the stream fails.
    async fn send_all(&mut self, queue: &SendQueue) -> Result<Sent> {
        loop {
            if !queue.wait_for_work().await {
                return Ok(Sent::Closed);
            }
            if self.moves(queue) {
                queue.wait_until(|state| state.num_sent() == 0).await?;
                return Ok(Sent::Moves);
            }
            queue.gather().await;
            let mut bytes = 0;
            while self.message.items.len() < MESSAGE_ITEMS && bytes < MESSAGE_BYTES {
                let max_items = MESSAGE_ITEMS - self.message.items.len();
                let Some(added) = self.add_items(queue, max_items, MESSAGE_BYTES - bytes)? else {
                    break;
                };
                bytes += added;
            }
            if self.message.items.is_empty() {
                continue;
            }
            if let Some(lease) = &mut self.lease {
                lease.writes(&self.message.items);
            }
            self.session.check_priorities(&self.message.items).await?;
            if self.is_local {
                self.sink.give(&mut self.message.items).await?;
                queue.given(&mut self.message);
            } else {
                self.streamed.retain(|_, block| block.is_alive());
                let keep_chunk_keys = self.streamed.keys().copied().collect();
                self.sink.send(self.message.take_batch(keep_chunk_keys)).await?;
            }
        }
    }

    /// True if the next item goes to another shard of the group.
    fn moves(&mut self, queue: &SendQueue) -> bool {
        let Some(lease) = &mut self.lease else { return false };
        let has_ended_episode = queue.has_ended_episode.swap(false, Ordering::Relaxed);
        let has_better_shard = |index: i32, tables: &[Arc<str>]| {
            let transport = self.session.transport();
            let group = transport.as_ref().ok().and_then(|transport| transport.insert_group());
            group.is_some_and(|group| group.has_better_shard(index, tables))
        };
        let streamed = &self.streamed;
        lease
            .ends(Instant::now(), has_ended_episode, has_better_shard, || queue.continues(streamed))
    }

    fn next_key(&mut self) -> u64 {
        match &self.lease {
            None => self.keys.next_key(),
            Some(lease) => self.keys.next_key_of(&lease.shard.slots),
        }
    }

    /// Takes the next ready items, encodes them, and adds them to the message. They are in flight
    /// then, unless the server is in this process: that takes them out of the message. Returns the
    /// bytes of their chunks, or `None` if no item is ready.
    fn add_items(
        &mut self,
        queue: &SendQueue,
        max_items: usize,
        max_bytes: usize,
    ) -> Result<Option<usize>> {
        let mut taken: SmallVec<[(PendingItem, usize); TAKEN_TOGETHER]> = SmallVec::new();
        let num_waiting = {
            let mut state = queue.state.lock();
            if let Some((item, bytes)) = state.resend.pop_front() {
                if self.is_local {
                    state.begin_encoding(&item.table);
                } else {
                    state.in_flight.push(item.clone(), bytes);
                }
                drop(state);
                let chunk_bytes = self.add_chunks(&item, &[]);
                self.message.push(item, bytes);
                return Ok(Some(chunk_bytes));
            }
            let mut new_bytes = 0;
            while taken.len() < max_items.min(TAKEN_TOGETHER)
                && new_bytes < max_bytes
                && state.head_is_ready()
            {
                let Some((item, bytes)) = state.queue.pop_front() else { break };
                new_bytes += bytes;
                state.begin_encoding(item.table());
                taken.push((item, bytes));
            }
            taken.len() + state.queue.len()
        };
        if taken.is_empty() {
            return Ok(None);
        }
        let first = self.message.items.len();
        if first == 0 {
            self.message.items.reserve_exact(num_waiting.min(max_items));
        }
        // Encoding is expensive, so it runs outside the lock.
        let mut chunk_bytes = 0;
        let encoded = taken.iter().try_for_each(|(pending, bytes)| {
            let key = self.next_key();
            let mut next_key = || self.keys.next_key();
            let item = pending.encode(key, &mut self.encoder, &mut next_key)?;
            chunk_bytes += self.add_chunks(&item, pending.blocks());
            self.message.push(item, *bytes);
            Ok(())
        });
        let mut state = queue.state.lock();
        let is_closed = state.closed;
        if is_closed || encoded.is_err() {
            state.end_encoding();
            self.message.truncate(first);
            return if is_closed { Ok(None) } else { encoded.map(|()| None) };
        }
        if !self.is_local {
            state.end_encoding();
            for (item, bytes) in self.message.items_from(first) {
                state.in_flight.push(item.clone(), bytes);
            }
        }
        Ok(Some(chunk_bytes))
    }

    /// Adds the chunks of an item that the server lacks; returns the number of bytes.
    fn add_chunks(&mut self, item: &NewItem, blocks: &[BlockRef]) -> usize {
        if self.is_local {
            return 0;
        }
        let mut bytes = 0;
        for chunk in item.trajectory.chunks() {
            if let Entry::Vacant(entry) = self.streamed.entry(chunk.key()) {
                let block = blocks.iter().find(|block| block.holds(chunk));
                entry.insert(block.map_or(WeakBlockRef::Unknown, BlockRef::downgrade));
                bytes += chunk.payload_len();
                self.message.chunks.push(chunk.clone());
            }
        }
        bytes
    }
}
