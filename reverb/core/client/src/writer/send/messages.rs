// SPDX-License-Identifier: Apache-2.0
//! Messages of a delivery: their division, and their confirmation.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use reverb_base::{Error, Result};
use reverb_data::NewItem;
use reverb_data::rollouts::Refusal;
use reverb_wire::transport::{ANSWER_GRACE, InsertBatch, InsertStream, stream_ended};

use super::delivery::{Delivery, OpenStream};
use super::{MESSAGE_BYTES, MESSAGE_ITEMS};
use crate::retry::Backoff;
use crate::session::Session;
use crate::writer::insertion::reason_of_inserts;

/// Sends the items over an open stream. Confirmed items are removed even after an error; of those
/// with given keys, if all of the key are.
pub(super) async fn send_items(
    session: &Session,
    open: &mut OpenStream,
    items: &mut Vec<NewItem>,
    backoff: &mut Backoff,
    how: Delivery,
) -> Result<()> {
    backoff.connected();
    let mut numbers: HashMap<u64, usize> = HashMap::new();
    if how.has_given_keys {
        for item in items.iter() {
            *numbers.entry(item.key).or_default() += 1;
        }
    }
    if let Some(deadline) = how.deadline {
        return send_until(session, open, items, backoff, deadline, &numbers).await;
    }
    open.stream.sink.limit_wait(None);
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
        items.extend(given.into_iter().chain(message).chain(rest));
        retain_unconfirmed(items, &confirmed, &numbers);
    }
    sent
}

/// Removes confirmed items. Of a key that several have, all or none.
fn retain_unconfirmed(items: &mut Vec<NewItem>, keys: &[u64], numbers: &HashMap<u64, usize>) {
    let mut confirmed: HashMap<u64, usize> = HashMap::new();
    for &key in keys {
        *confirmed.entry(key).or_default() += 1;
    }
    let is_confirmed = |key: u64| {
        let number = numbers.get(&key).copied().unwrap_or(1);
        confirmed.get(&key).is_some_and(|&confirmed| confirmed >= number)
    };
    items.retain(|item| !is_confirmed(item.key));
}

/// Sends the items over an open stream, message by message. Those that still wait at the deadline
/// are then among the refused ones of the stream, and so are later ones, which are not sent.
async fn send_until(
    session: &Session,
    open: &mut OpenStream,
    items: &mut Vec<NewItem>,
    backoff: &mut Backoff,
    deadline: Instant,
    numbers: &HashMap<u64, usize>,
) -> Result<()> {
    let InsertStream { sink, confirmations, refused, .. } = &mut open.stream;
    let mut confirmed: Vec<u64> = Vec::new();
    let mut num_sent = 0;
    let table = items.first().map(|item| Arc::clone(&item.table)).unwrap_or_default();
    let mut unread = pin!(left_unread(session, &table, deadline));
    let sent = async {
        while num_sent < items.len() && refused.lock().is_empty() {
            let rest = &items[num_sent..];
            let message = batch(&rest[..message_len(rest)]);
            num_sent += message.items.len();
            sink.limit_wait(Some(deadline.saturating_duration_since(Instant::now())));
            let send = async {
                sink.send(message).await?;
                std::future::pending::<Result<()>>().await
            };
            let receive = async {
                while confirmed.len() < num_sent {
                    let keys = confirmations.recv().await;
                    confirmed.extend(keys.unwrap_or_else(|| Err(stream_ended(session.address())))?);
                    backoff.answered();
                }
                Ok(())
            };
            tokio::select! {
                biased;
                received = receive => received?,
                failed = send => failed?,
                error = &mut unread => return Err(error),
            }
        }
        Ok(())
    };
    let sent = sent.await;
    let mut refused = refused.lock();
    if sent.is_ok() {
        refused.extend(
            items.drain(..).skip(num_sent).map(|item| (item.key, Refusal::Waited("".into()))),
        );
    } else {
        let refused: HashSet<u64> = refused.drain(..).map(|(key, _)| key).collect();
        confirmed.retain(|key| !refused.contains(key));
        retain_unconfirmed(items, &confirmed, numbers);
    }
    sent
}

/// The error of an insert that its server does not answer after the deadline, and does not read: so
/// it is while memory is used up. An answer that is only late is waited for.
async fn left_unread(session: &Session, table: &str, deadline: Instant) -> Error {
    tokio::time::sleep(deadline.saturating_duration_since(Instant::now())).await;
    loop {
        tokio::time::sleep(ANSWER_GRACE).await;
        if let Some(reason) = reason_of_inserts(session, table).await {
            let grace = ANSWER_GRACE.as_secs();
            return Error::unavailable(format!(
                "The server has not said within {grace} s after the time limit (timeout_ms) what \
                 became of the insert into table {table}. {reason}"
            ))
            .followed_by("The items may have been inserted.")
            .lasting();
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::testing::item;

    #[test]
    fn items_of_one_key_are_sent_again_together() {
        let mut items: Vec<NewItem> = [1, 2, 2, 3, 3].map(item).to_vec();
        let numbers = HashMap::from([(1, 1), (2, 2), (3, 2)]);
        retain_unconfirmed(&mut items, &[1, 3, 2, 3], &numbers);
        assert_eq!(items.iter().map(|item| item.key).collect::<Vec<_>>(), [2, 2]);
        retain_unconfirmed(&mut items, &[2], &HashMap::new());
        assert!(items.is_empty());
    }
}
