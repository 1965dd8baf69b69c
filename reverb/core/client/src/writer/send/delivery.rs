// SPDX-License-Identifier: Apache-2.0
//! Delivery of items that are encoded already: in a few large messages, without a task, over
//! streams that stay open for the next delivery. In a group each shard gets a range of the items.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_data::rollouts::Refusal;
use reverb_data::{KeyGenerator, NewItem};
use reverb_wire::transport::{InsertStream, LostStream, NextStream, ShardRoute};

use super::messages::send_items;
use crate::retry::Backoff;
use crate::session::{Session, Signatures};
use crate::writer::capture::signatures::check_again;

/// Maximum number of idle streams to a server.
pub(in crate::writer) const MAX_IDLE: usize = 8;

/// What is special about a delivery.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::writer) struct Delivery {
    /// True if the items have keys of the program's own, or of items that are there: the same may
    /// be in several tables. Else keys are drawn again for a shard, which gets keys of its slots.
    pub(in crate::writer) has_given_keys: bool,
    /// Time after which items that still wait are refused.
    pub(in crate::writer) deadline: Option<Instant>,
}

/// An open stream.
pub(in crate::writer) struct OpenStream {
    pub(super) stream: InsertStream,
    /// True if the server is in this process.
    pub(super) is_local: bool,
}

impl fmt::Debug for OpenStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStream").field("is_local", &self.is_local).finish_non_exhaustive()
    }
}

impl OpenStream {
    /// Takes out the items that were refused, and why.
    pub(in crate::writer) fn take_refused(&self) -> Vec<(u64, Refusal)> {
        std::mem::take(&mut *self.stream.refused.lock())
    }

    /// True if the stream ended while it was idle.
    pub(in crate::writer) fn has_ended(&self) -> bool {
        let confirmations = &self.stream.confirmations;
        confirmations.is_closed() || !confirmations.is_empty()
    }
}

/// Idle streams to the shards of a group, by index.
#[derive(Default)]
pub(in crate::writer) struct ShardStreams(Mutex<HashMap<i32, Vec<OpenStream>>>);

impl ShardStreams {
    /// A stream to the shard, if there is an idle one that has not ended.
    fn take(&self, shard: i32) -> Option<OpenStream> {
        let mut streams = self.0.lock();
        let of_shard = streams.get_mut(&shard)?;
        while let Some(stream) = of_shard.pop() {
            if !stream.has_ended() {
                return Some(stream);
            }
        }
        None
    }

    fn keep(&self, open: OpenStream) {
        let Some(shard) = &open.stream.shard else { return };
        let mut streams = self.0.lock();
        let of_shard = streams.entry(shard.index).or_default();
        if of_shard.len() < MAX_IDLE {
            of_shard.push(open);
        }
    }
}

impl std::fmt::Debug for ShardStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardStreams").finish_non_exhaustive()
    }
}

/// Delivers the items to the shards of a group, and waits until all are confirmed. Returns true if
/// a stream was lost.
pub(in crate::writer) async fn deliver_to_shards(
    session: &Session,
    idle: &ShardStreams,
    signatures: &Arc<Signatures>,
    items: Vec<NewItem>,
) -> Result<bool> {
    let routes = routes(session, &items).await?;
    let parts = split(items, routes.len().max(1));
    // A group of one has no routes, so its only shard needs none.
    let routes = routes.into_iter().map(Some).chain(std::iter::repeat(None));
    let deliver = async |(mut part, route): (Vec<NewItem>, Option<ShardRoute>)| {
        let mut stream = route.as_ref().and_then(|route| idle.take(route.index));
        let how = Delivery::default();
        let was_lost =
            deliver(session, signatures, route.as_ref(), &mut stream, &mut part, how).await?;
        if let Some(stream) = stream {
            idle.keep(stream);
        }
        Ok::<bool, Error>(was_lost)
    };
    let mut was_lost = false;
    for result in join_all(parts.into_iter().zip(routes).map(deliver)).await {
        was_lost |= result?;
    }
    Ok(was_lost)
}

/// Shards for the items.
async fn routes(session: &Session, items: &[NewItem]) -> Result<Vec<ShardRoute>> {
    let mut backoff = Backoff::new(session);
    loop {
        backoff.begin();
        let transport = session.transport()?;
        let Some(group) = transport.insert_group() else { return Ok(Vec::new()) };
        match group.routes(items).await {
            Ok(routes) => return Ok(routes),
            Err(error) => backoff.pause(session, error).await?,
        }
    }
}

/// Divides the items into at most `n` ranges. Items of one step stay together, because they share
/// their chunk.
fn split(mut items: Vec<NewItem>, n: usize) -> Vec<Vec<NewItem>> {
    let mut parts = Vec::with_capacity(n);
    for left in (1..n).rev() {
        let mut at = items.len() - items.len() / (left + 1);
        let step = |item: &NewItem| item.trajectory.chunks().first().map(reverb_data::Chunk::key);
        while at > 0 && at < items.len() && step(&items[at - 1]) == step(&items[at]) {
            at += 1;
        }
        let part = items.split_off(at);
        if !part.is_empty() {
            parts.push(part);
        }
    }
    parts.push(items);
    parts
}

/// Delivers the items to one server, over the stream if there is one, and leaves an open stream.
/// Returns true if a stream was lost.
///
/// After a lost stream, unconfirmed items are compared with the `signatures` of the server that is
/// at the address now, and sent again. The server takes a known item as a new priority, so none is
/// inserted twice.
pub(in crate::writer) async fn deliver(
    session: &Session,
    signatures: &Arc<Signatures>,
    route: Option<&ShardRoute>,
    stream: &mut Option<OpenStream>,
    items: &mut Vec<NewItem>,
    how: Delivery,
) -> Result<bool> {
    let mut backoff = Backoff::new(session);
    // Shard that the keys were drawn for.
    let mut drawn: Option<ShardRoute> = None;
    // The time of the first loss, and whether the last one was final.
    let mut lost: Option<(Instant, bool)> = None;
    while !items.is_empty() {
        backoff.begin();
        let sent = async {
            // In a group, the last stream of an earlier insert may have led to another server.
            if route.is_none() && stream.is_none() && (lost.is_some() || session.leads_to_group()) {
                check_again(session, signatures, items).await?;
            }
            let open = match &mut *stream {
                Some(open) => open,
                empty => empty.insert(open(session, route, drawn.as_ref(), lost).await?),
            };
            if let Some(shard) = &open.stream.shard
                && !how.has_given_keys
                && drawn.as_ref().is_none_or(|drawn| drawn.index != shard.index)
            {
                let mut keys = KeyGenerator::new();
                for item in items.iter_mut() {
                    item.key = keys.next_key_of(&shard.slots);
                }
                drawn = Some(shard.clone());
            }
            send_items(session, open, items, &mut backoff, how).await
        };
        if let Err(error) = sent.await {
            let since = lost.map_or_else(Instant::now, |(since, _)| since);
            lost = Some((since, error.is_final()));
            *stream = None;
            tracing::debug!(peer = session.address(), %error, "an insert stream was lost");
            backoff.pause(session, error).await?;
        }
    }
    Ok(lost.is_some())
}

async fn open(
    session: &Session,
    route: Option<&ShardRoute>,
    drawn: Option<&ShardRoute>,
    lost: Option<(Instant, bool)>,
) -> Result<OpenStream> {
    let lost = drawn.zip(lost);
    if let (Some(route), None) = (route, lost)
        && let Some(group) = session.transport()?.insert_group()
    {
        return Ok(OpenStream { stream: group.open_insert_at(route).await?, is_local: false });
    }
    let lost = lost.map(|(shard, (since, is_final))| LostStream { shard, since, is_final });
    let (stream, is_local) = session.open_insert(NextStream { tables: &[], lost }).await?;
    Ok(OpenStream { stream, is_local })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::item;

    #[test]
    fn items_of_one_step_go_to_one_shard() {
        // Three tables have an item of each step.
        let step = |key: u64| {
            let trajectory = item(key).trajectory;
            (0..3).map(move |at| NewItem::new(3 * key + at, "table", 1.0, trajectory.clone()))
        };
        for num_steps in 1..12 {
            for num_shards in 1..6 {
                let items: Vec<NewItem> = (0..num_steps).flat_map(step).collect();
                let parts = split(items, num_shards);
                assert!(parts.len() <= num_shards && parts.iter().all(|part| !part.is_empty()));
                assert!(parts.iter().all(|part| part.len().is_multiple_of(3)), "{parts:?}");
                let mut keys: Vec<u64> = parts.iter().flatten().map(|item| item.key).collect();
                keys.sort_unstable();
                assert!(keys.into_iter().eq(0..3 * num_steps));
            }
        }
    }
}
