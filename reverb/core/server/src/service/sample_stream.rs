// SPDX-License-Identifier: Apache-2.0
//! Sample stream: receives requests, and sends exactly the requested number of samples in order.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use reverb_auth::Right;
use reverb_base::{Error, Result};
use reverb_data::{Chunk, Sampled, keep_samples};
use reverb_engine::{MAX_SAMPLE_ITEMS, Presence, Table};
use reverb_rpc::framing::MessageReader;
use reverb_rpc::message::Message;
use reverb_rpc::server::{Content, PASS_BYTES, Responder, decode};
use reverb_wire::codec::item::Repeats;
use reverb_wire::codec::sample::{self, MAX_MESSAGE_BYTES, SampleEncoder};
use reverb_wire::convert::window::to_spans;
use reverb_wire::generated::{SampleStreamRequest, SampleStreamResponse};

use crate::observe::streams::{Stream, WaitsFor};
use crate::service::Service;
use crate::service::caller::Caller;
use crate::service::reader_room::{wait_for_answer_room, wait_for_room};
use crate::service::selection::Selection;
use crate::service::status::explain_timeout;
use crate::service::store::{MAX_LOST_BATCHES, may_leave_out};

/// First number of samples taken under one lock; it doubles after every full batch.
const FIRST_BATCH: usize = 128;
/// Largest number of samples taken under one lock.
const MAX_BATCH: usize = 4096;

/// Bytes of a listed item without its chunks.
const LISTED_BYTES: usize = size_of::<Sampled>();

/// Bytes of the message that ends an epoch.
const EPOCH_END_BYTES: usize = 16;

/// Bytes after which other streams are served, and of the parts of items that are made for one
/// message.
const YIELD_BYTES: usize = 256 << 10;

/// Largest size of an item without its chunks that each stream may send without room. Of larger
/// ones a connection may send one at a time.
const MAX_HEAD_OF_PASS: usize = 32 << 10;

/// Serves the stream, request by request, until the reader closes its half.
pub(crate) async fn run(
    service: &Service,
    caller: &Caller,
    stream: &Stream,
    mut requests: MessageReader,
    responder: &mut Responder,
) -> Result<()> {
    let mut encoder = SampleEncoder::new();
    responder.count_answered(0);
    responder.settle(true);
    let mut interrupted = pin!(service.interrupted());
    while let Some(message) = next_request(interrupted.as_mut(), &mut requests).await? {
        responder.settle(false);
        let request: SampleStreamRequest = decode(message)?;
        serve_request(service, caller, stream, &request, &mut encoder, responder).await?;
        responder.count_answered(1);
        responder.settle(true);
    }
    Ok(())
}

async fn next_request(
    interrupted: Pin<&mut impl Future<Output = Error>>,
    requests: &mut MessageReader,
) -> Result<Option<Bytes>> {
    tokio::select! {
        biased;
        error = interrupted => Err(error),
        message = requests.next() => message,
    }
}

async fn serve_request(
    service: &Service,
    caller: &Caller,
    stream: &Stream,
    request: &SampleStreamRequest,
    encoder: &mut SampleEncoder,
    responder: &mut Responder,
) -> Result<()> {
    let (name, table) = service.table_for(caller, Right::Sample, &request.table)?;
    stream.use_table(name);
    let mut options = sample::options(request, responder.peer().connected_at())?;
    let spans = request.window.as_ref().map(to_spans).unwrap_or_default();
    let knows_times = request.window.as_ref().is_some_and(|window| window.knows_times);
    encoder.set_repeats(if knows_times { Repeats::AsOne } else { Repeats::OneByOne });
    let mut selection =
        Selection::new(table, &request.columns)?.with_window(options.window, &spans)?;
    let mut remaining = usize::try_from(request.num_samples).unwrap_or(0);
    if remaining == 0 {
        return Err(Error::invalid_argument(format!(
            "`num_samples` must be > 0 (got{}).",
            request.num_samples
        )));
    }
    let timeout = timeout(request);
    let mut batch = FIRST_BATCH;
    let mut num_lost_batches = 0;
    let outbox = responder.outbox();
    while remaining > 0 {
        // A batch of the reader is taken under one lock, so that it can be checked as a whole.
        let mut wanted = options.at_once(batch, remaining);
        let bytes = wanted.min(MAX_SAMPLE_ITEMS).saturating_mul(LISTED_BYTES);
        let mut list = if options.at_once(1, remaining) > 1 {
            let room = pin!(outbox.room_for_list(bytes));
            wait_for_room(service, stream, responder, room).await?
        } else {
            let room = pin!(outbox.room_or_pass(Content::List, bytes));
            wait_for_room(service, stream, responder, room).await?
        };
        if list.is_pass() {
            wanted = 1;
        }
        // The timeout applies to each batch: samples that were already sent do not shorten the wait
        // for the rest.
        let samples = if let Some(samples) = table.try_sample_with(wanted, options) {
            samples
        } else {
            let interrupted = service.interrupted();
            let presence = Arc::default();
            let reader = Some(Arc::clone(&presence));
            let samples = pin!(table.sample_until(wanted, timeout, options, interrupted, reader));
            let samples = pin!(wait_for_samples(table, samples, responder, &presence));
            let samples = stream.waiting_since(options.waits_since, samples).await;
            samples.map_err(|error| explain_timeout(service, table, timeout, error))?
        };
        if samples.is_empty() {
            return send_epoch_end(service, stream, responder).await;
        }
        list.use_for(samples.len() * LISTED_BYTES);
        stream.count_items(samples.len());
        remaining = remaining.saturating_sub(samples.len());
        options = options.after_items(&samples);
        let is_full = samples.len() == wanted;
        batch = if is_full { batch.saturating_mul(2).min(MAX_BATCH) } else { FIRST_BATCH };
        // The pass counts for the message from here on.
        let list = (!list.is_pass()).then_some(list);
        let num_taken = samples.len();
        let items = SelectedItems { table: name, samples, selection: &mut selection };
        let (sent, lost) = send_samples(service, stream, responder, encoder, items).await?;
        if let Some(error) = lost {
            num_lost_batches = if sent.is_empty() { num_lost_batches + 1 } else { 0 };
            if !may_leave_out(&options, table) || num_lost_batches == MAX_LOST_BATCHES {
                return Err(error);
            }
            remaining += num_taken - sent.len();
        }
        keep_samples(sent);
        drop(list);
        if remaining > 0 {
            service.drain.check()?;
            // The connection sends queued data before the next batch is taken.
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Items of a table, and the part of each that the reader gets.
pub(crate) struct SelectedItems<'a> {
    pub(crate) table: &'a str,
    pub(crate) samples: Vec<Sampled>,
    pub(crate) selection: &'a mut Selection,
}

/// Sends samples of a table as fast as the reader takes them, the selected part of each. A message
/// is made once there is room for it, and a part of an item when it is written.
///
/// Items that cannot be read back leave the table, and are left out. Returns the others, and the
/// reason of the first one.
///
/// # Errors
///
/// `DataLoss` if one cannot be left out, because the reader has a part of it, or knows its chunks.
pub(crate) async fn send_samples(
    service: &Service,
    stream: &Stream,
    responder: &mut Responder,
    encoder: &mut SampleEncoder,
    items: SelectedItems<'_>,
) -> Result<(Vec<Sampled>, Option<Error>)> {
    let SelectedItems { table, mut samples, selection } = items;
    let outbox = responder.outbox();
    let mut lost = None;
    let mut at = 0;
    let mut sent_bytes = 0;
    while at < samples.len() {
        let next = next_message(&samples[at..], table, selection, encoder)?;
        let mut room = if next.first_head > MAX_HEAD_OF_PASS {
            let room = pin!(outbox.room_or_large_pass(next.bytes));
            wait_for_room(service, stream, responder, room).await?
        } else {
            let room = pin!(outbox.room_or_pass(Content::Message, next.bytes));
            wait_for_room(service, stream, responder, room).await?
        };
        // The size of parts is an estimate: a little more must not take a message of its own.
        let most = MAX_MESSAGE_BYTES.max(next.first_head);
        let max_bytes = match room.is_pass() {
            // What is read back is in memory for this message alone: one payload.
            true if service.memory.tier.is_some() => 0,
            true => PASS_BYTES,
            false => most.min(2 * next.bytes),
        };
        let begin = at;
        let may_discard = encoder.may_discard();
        // More whole items than were counted may fit, because they are counted with their maximum.
        let end = if selection.is_of_all() { samples.len() } else { at + next.num_items };
        for sample in &samples[at..end] {
            let part = selection.part(sample)?;
            let trajectory = part.as_ref().unwrap_or(&sample.trajectory);
            // A sample of several messages gets the same part for each.
            let is_complete = encoder.write(table, sample, trajectory, max_bytes);
            at += usize::from(is_complete);
            if !is_complete || encoder.is_over(max_bytes) || room.is_pass() {
                break;
            }
        }
        let mut plain = Vec::new();
        if !encoder.missing().is_empty() {
            if room.is_pass() {
                let permit = pin!(outbox.permit_to_read());
                room.hold(wait_for_answer_room(service, responder, permit).await?);
            }
            let read = {
                let read = pin!(read_missing(service, encoder));
                service.stop.or(read).await?
            };
            match read {
                Ok(read) => plain = read,
                Err(why) => {
                    let error = remove_lost(service, table, &mut samples, begin, why)?;
                    if !may_discard {
                        return Err(error);
                    }
                    lost.get_or_insert(error);
                    encoder.discard();
                    at = begin;
                    continue;
                }
            }
        }
        let message = encoder.take(&plain).with_room(room);
        sent_bytes += message.remaining();
        let sent = pin!(responder.send(message));
        let sent = pin!(service.stop.or(sent));
        stream.waiting(WaitsFor::Peer, sent).await??;
        if sent_bytes >= YIELD_BYTES && at < samples.len() {
            sent_bytes = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok((samples, lost))
}

/// The payloads that the message lacks. Waits for the disk unless they are in memory.
async fn read_missing(service: &Service, encoder: &SampleEncoder) -> Result<Vec<Chunk>> {
    let Some(tier) = &service.memory.tier else { return Ok(Vec::new()) };
    tier.load(encoder.missing()).await.into_iter().collect()
}

/// Removes those items from `begin` on that cannot be read back, also from their table. Returns the
/// error that says so of the first.
///
/// # Errors
///
/// `why` nothing could be read, if none of them is lost.
fn remove_lost(
    service: &Service,
    table: &str,
    samples: &mut Vec<Sampled>,
    begin: usize,
    why: Error,
) -> Result<Error> {
    let is_lost = |sample: &Sampled| sample.trajectory.chunks().iter().any(Chunk::is_lost);
    let lost: Vec<_> = samples.extract_if(begin.., |sample| is_lost(sample)).collect();
    let keys: Vec<u64> = lost.iter().map(|sample| sample.key).collect();
    match (&service.memory.tier, service.tables.get(table)) {
        (Some(tier), Ok((_, table))) if !keys.is_empty() => {
            Ok(tier.remove_lost(table, &keys, &why))
        }
        _ => Err(why),
    }
}

/// The items of a message.
struct NextMessage {
    num_items: usize,
    /// Size of all of them, but at most that of a message.
    bytes: usize,
    /// Size of the first without its chunks.
    first_head: usize,
}

fn next_message(
    samples: &[Sampled],
    table: &str,
    selection: &mut Selection,
    encoder: &SampleEncoder,
) -> Result<NextMessage> {
    let mut next = NextMessage { num_items: 0, bytes: 0, first_head: 0 };
    // Parts are made for it, and take the more time the more they are.
    let mut made_bytes = 0;
    for sample in samples {
        let bytes = selection.bytes(sample, encoder.repeats())?;
        let head = bytes.head + table.len();
        if next.num_items == 0 {
            next.first_head = head;
        }
        next.num_items += 1;
        next.bytes = next.bytes.saturating_add(bytes.all + table.len());
        made_bytes += if selection.is_of_all() { 0 } else { head };
        if next.bytes >= MAX_MESSAGE_BYTES || made_bytes >= YIELD_BYTES {
            break;
        }
    }
    next.bytes = next.bytes.min(MAX_MESSAGE_BYTES.max(next.first_head));
    Ok(next)
}

/// Tells the reader that the epoch is over, and with it the request.
async fn send_epoch_end(
    service: &Service,
    stream: &Stream,
    responder: &mut Responder,
) -> Result<()> {
    let message = SampleStreamResponse { entries: Vec::new(), epoch_is_over: true };
    let outbox = responder.outbox();
    let room = pin!(outbox.room_or_pass(Content::Message, EPOCH_END_BYTES));
    let room = wait_for_room(service, stream, responder, room).await?;
    let sent = pin!(responder.send(Message::encode(&message).with_room(room)));
    let sent = pin!(service.stop.or(sent));
    stream.waiting(WaitsFor::Peer, sent).await?
}

async fn wait_for_samples(
    table: &Table,
    mut samples: Pin<&mut impl Future<Output = Result<Vec<Sampled>>>>,
    responder: &mut Responder,
    presence: &Arc<Presence>,
) -> Result<Vec<Sampled>> {
    responder.announce();
    let mut closed = pin!(responder.closed());
    poll_fn(|context| {
        if let Poll::Ready(samples) = samples.as_mut().poll(context) {
            return Poll::Ready(samples);
        }
        let num_events = presence.num_events();
        let waker = EventWaker { presence: Arc::clone(presence), task: context.waker().clone() };
        let waker = Waker::from(Arc::new(waker));
        if closed.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            return Poll::Ready(Err(Error::cancelled("The reader cancelled the stream.")));
        }
        if presence.explain(num_events) {
            table.serve_again();
            return samples.as_mut().poll(context);
        }
        Poll::Pending
    })
    .await
}

/// Wakes the task of a call when something happens to its stream, and notes it before.
struct EventWaker {
    presence: Arc<Presence>,
    task: Waker,
}

impl Wake for EventWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.presence.note_event();
        self.task.wake_by_ref();
    }
}

/// Timeout of a request. Zero and negative values mean no timeout, as in dm-reverb.
fn timeout(request: &SampleStreamRequest) -> Option<Duration> {
    let milliseconds = request.rate_limiter_timeout.as_ref()?.milliseconds;
    u64::try_from(milliseconds).ok().filter(|&number| number > 0).map(Duration::from_millis)
}
