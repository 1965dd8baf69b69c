// SPDX-License-Identifier: Apache-2.0
//! Messages of a delivery: their division, and their confirmation.

use std::collections::HashSet;

use reverb_base::Result;
use reverb_data::NewItem;
use reverb_wire::transport::{InsertBatch, InsertStream, stream_ended};

use super::delivery::OpenStream;
use super::{MESSAGE_BYTES, MESSAGE_ITEMS};
use crate::retry::Backoff;
use crate::session::Session;

/// Sends the items over an open stream. Confirmed items are removed even after an error.
pub(super) async fn send_items(
    session: &Session,
    open: &mut OpenStream,
    items: &mut Vec<NewItem>,
    backoff: &mut Backoff,
) -> Result<()> {
    backoff.connected();
    let is_local = open.is_local;
    let InsertStream { sink, confirmations, .. } = &mut open.stream;
    let mut confirmed: Vec<u64> = Vec::new();
    let total = items.len();
    let receive = async {
        while confirmed.len() < total {
            match confirmations.recv().await {
                Some(keys) if confirmed.is_empty() => confirmed = keys?,
                Some(keys) => confirmed.extend(keys?),
                None => return Err(stream_ended(session.address())),
            }
            backoff.answered();
        }
        Ok(())
    };
    // Items of a server in this process: those that may have to be sent again, of the message that
    // is being sent, and later ones. They are kept here, because an error ends the sending at any
    // point.
    let mut given = Vec::new();
    let mut message = Vec::new();
    let mut rest = Vec::new();
    let send = async {
        if is_local {
            rest = std::mem::take(items);
            while !rest.is_empty() {
                let after = rest.split_off(message_len(&rest));
                message = std::mem::replace(&mut rest, after);
                sink.give(&mut message).await?;
                given.append(&mut message);
            }
            return Ok(());
        }
        let mut rest = &items[..];
        while !rest.is_empty() {
            let (message, after) = rest.split_at(message_len(rest));
            sink.send(batch(message)).await?;
            rest = after;
        }
        Ok(())
    };
    // Confirmations are taken while items are sent, so that an error ends both. In process nearly
    // all of them are there when the items are sent, and looking for them before would be a wait.
    let sent = if is_local {
        tokio::try_join!(biased; send, receive).map(drop)
    } else {
        tokio::try_join!(biased; receive, send).map(drop)
    };
    if sent.is_ok() {
        items.clear();
    } else {
        while let Ok(Ok(keys)) = confirmations.try_recv() {
            confirmed.extend(keys);
        }
        let confirmed: HashSet<u64> = confirmed.into_iter().collect();
        items.extend(given.into_iter().chain(message).chain(rest));
        items.retain(|item| !confirmed.contains(&item.key));
    }
    sent
}

/// Number of items for the next message.
fn message_len(items: &[NewItem]) -> usize {
    let mut bytes = 0;
    for (at, item) in items.iter().enumerate().take(MESSAGE_ITEMS) {
        // The items of one sequence go together, because its chunks are sent once a message.
        if at > 0 && have_same_chunks(&items[at - 1], item) {
            continue;
        }
        if bytes >= MESSAGE_BYTES {
            return at;
        }
        bytes += item.trajectory.chunk_bytes();
    }
    items.len().min(MESSAGE_ITEMS)
}

/// True for the items of one step, or of one sequence, in several tables.
fn have_same_chunks(one: &NewItem, another: &NewItem) -> bool {
    let one = one.trajectory.chunks();
    let another = another.trajectory.chunks();
    let is_same_list = || one.iter().zip(another).all(|(one, another)| one.is_same(another));
    // A table with its columns in another order may list the chunks in another order.
    let is_same_set = || {
        let keys: HashSet<u64> = one.iter().map(reverb_data::Chunk::key).collect();
        another.iter().all(|chunk| keys.contains(&chunk.key()))
    };
    one.len() == another.len() && (is_same_list() || (one.len() > 1 && is_same_set()))
}

/// The message of these items. Items of one step or sequence follow each other and share their
/// chunks.
fn batch(items: &[NewItem]) -> InsertBatch {
    let mut chunks = Vec::new();
    for (at, item) in items.iter().enumerate() {
        if at == 0 || !have_same_chunks(&items[at - 1], item) {
            chunks.extend(item.trajectory.chunks().iter().cloned());
        }
    }
    InsertBatch { chunks, items: items.to_vec(), keep_chunk_keys: Vec::new() }
}
