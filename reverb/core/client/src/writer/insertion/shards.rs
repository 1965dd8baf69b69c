// SPDX-License-Identifier: Apache-2.0
//! Inserts of single steps into a group: each shard gets a range of the items.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use parking_lot::Mutex;
use reverb_base::Result;
use reverb_data::{KeyGenerator, NewItem};
use reverb_wire::transport::{InsertStream, LostStream, NextStream, ShardRoute};

use super::MAX_IDLE;
use super::messages::send_items;
use crate::retry::Backoff;
use crate::session::{Session, Signatures};
use crate::writer::signatures::check_again;

/// Idle streams to shards, by index.
#[derive(Default)]
pub(super) struct ShardStreams(Mutex<HashMap<i32, Vec<InsertStream>>>);

impl ShardStreams {
    /// A stream to the shard, if there is an idle one that has not ended.
    fn take(&self, shard: i32) -> Option<InsertStream> {
        let mut streams = self.0.lock();
        let of_shard = streams.get_mut(&shard)?;
        while let Some(stream) = of_shard.pop() {
            if !stream.confirmations.is_closed() && stream.confirmations.is_empty() {
                return Some(stream);
            }
        }
        None
    }

    fn keep(&self, stream: InsertStream) {
        let Some(shard) = &stream.shard else { return };
        let mut streams = self.0.lock();
        let of_shard = streams.entry(shard.index).or_default();
        if of_shard.len() < MAX_IDLE {
            of_shard.push(stream);
        }
    }
}

impl std::fmt::Debug for ShardStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardStreams").finish_non_exhaustive()
    }
}

/// Inserts the items and waits until all are confirmed. Returns true if a stream was lost.
pub(super) async fn insert(
    session: &Arc<Session>,
    idle: &ShardStreams,
    signatures: &Arc<Signatures>,
    items: Vec<NewItem>,
) -> Result<bool> {
    let routes = routes(session, &items).await?;
    let parts = split(items, routes.len().max(1));
    // A group of one has no routes, so its only shard needs none.
    let routes = routes.into_iter().map(Some).chain(std::iter::repeat(None));
    let sent = parts.into_iter().zip(routes);
    let insert = |(part, route)| insert_part(session, idle, signatures, route, part);
    let sent = join_all(sent.map(insert)).await;
    let mut was_lost = false;
    for result in sent {
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

/// Inserts one range. Returns true if a stream was lost.
async fn insert_part(
    session: &Session,
    idle: &ShardStreams,
    signatures: &Arc<Signatures>,
    route: Option<ShardRoute>,
    mut items: Vec<NewItem>,
) -> Result<bool> {
    let mut keys = KeyGenerator::new();
    let mut backoff = Backoff::new(session);
    let mut stream = route.as_ref().and_then(|route| idle.take(route.index));
    // Shard that the keys were drawn for.
    let mut drawn: Option<ShardRoute> = None;
    // The time of the first loss, and whether the last one was final.
    let mut lost: Option<(Instant, bool)> = None;
    while !items.is_empty() {
        backoff.begin();
        let sent = async {
            if stream.is_none() && route.is_none() {
                // The last one, of this insert or of an earlier one, may have led to another
                // server.
                check_again(session, signatures, &items).await?;
            }
            let open = match &mut stream {
                Some(stream) => stream,
                empty => empty.insert(open(session, route.as_ref(), drawn.as_ref(), lost).await?),
            };
            if let Some(shard) = &open.shard
                && drawn.as_ref().is_none_or(|drawn| drawn.index != shard.index)
            {
                for item in &mut items {
                    item.key = keys.next_key_of(&shard.slots);
                }
                drawn = Some(shard.clone());
            }
            send_items(session, open, false, &mut items, &mut backoff).await
        };
        if let Err(error) = sent.await {
            let since = lost.map_or_else(Instant::now, |(since, _)| since);
            lost = Some((since, error.is_final()));
            stream = None;
            tracing::debug!(peer = session.address(), %error, "an insert stream was lost");
            backoff.pause(session, error).await?;
        }
    }
    if let Some(stream) = stream {
        idle.keep(stream);
    }
    Ok(lost.is_some())
}

async fn open(
    session: &Session,
    route: Option<&ShardRoute>,
    drawn: Option<&ShardRoute>,
    lost: Option<(Instant, bool)>,
) -> Result<InsertStream> {
    let transport = session.transport()?;
    match (transport.insert_group(), route, drawn.zip(lost)) {
        (_, _, Some((shard, (since, is_final)))) => {
            let lost = Some(LostStream { shard, since, is_final });
            transport.open_next_insert(NextStream { tables: &[], lost }).await
        }
        (Some(group), Some(route), None) => group.open_insert_at(route).await,
        _ => transport.open_insert().await,
    }
}
